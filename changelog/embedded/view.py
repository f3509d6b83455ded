"""A view: the visible records of a partition from an offset on, as of one moment.

A view is made of plain values: file names and positions, the end, and the aborted transactions. Any
process that may read the folder can read by it. No lock is needed, because bytes below the high
watermark never change and file names are never used again. At worst a file was deleted meanwhile:
then FileNotFoundError is raised, and the reader takes a new view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.batches import batch_of, records_of
from strandline.changelog.embedded.segment import LocatedFrame, SegmentPiece
from strandline.changelog.history import Epochs
from strandline.changelog.records import Batch, ConsumerRecord, Fetched, TopicPartition
from strandline.changelog.schema import ValueSchemas
from strandline.changelog.selection import EVERYTHING, ReadSelection
from strandline.changelog.storage import Storage


@dataclass(frozen=True, slots=True)
class RecordView:
    """The records with offsets in [`offset`, `limit`)."""

    partition: TopicPartition
    offset: int
    limit: int
    pieces: tuple[SegmentPiece, ...]
    """Pieces that hold the records, in order.

    The first piece may begin with earlier records, the last one may end with later ones."""
    aborted: AbortedTransactions | None
    """Aborted transactions among the records; None if their records are visible too."""
    schemas: ValueSchemas
    log_start: int
    high_watermark: int
    last_stable_offset: int
    epochs: Epochs = ()
    """Epochs that name the positions from `offset` to `limit`."""
    topic_id: str = ""
    """Id of the topic; empty for a pin."""

    def fetch(
        self, storage: Storage, max_bytes: int, selection: ReadSelection = EVERYTHING
    ) -> Fetched:
        """Read at least one selected batch if there is any, then up to `max_bytes`.

        A compressed batch counts with the size that it claims to have unpacked.
        Raises FileNotFoundError, CorruptLog, StorageFailed.
        """
        batches: list[Batch] = []
        position, used = self.offset, 0
        for frame in self._frames(storage):
            size = frame.memory_bytes
            if used and used + size > max_bytes:
                break
            position = frame.header.last_offset + 1
            batch = self._batch(frame, selection)
            if batch is not None:
                batches.append(batch)
                used += size
        else:
            position = max(position, self.limit)
        return self._fetched(batches, position)

    def nothing(self) -> Fetched:
        """Return the result of a fetch that reads none of the records."""
        position = self.offset if self.pieces else max(self.offset, self.limit)
        return self._fetched([], position)

    def _fetched(self, batches: list[Batch], next_offset: int) -> Fetched:
        return Fetched(
            batches,
            next_offset,
            self.log_start,
            self.high_watermark,
            self.last_stable_offset,
            self.epochs,
            self.topic_id,
        )

    def records(self, storage: Storage) -> Iterator[ConsumerRecord]:
        """Iterate over the records one by one. Raises what `fetch` raises."""
        for frame in self._frames(storage):
            if self._shows(frame):
                for record in records_of(frame, self.partition, self.schemas):
                    if record.offset >= self.offset:
                        yield record

    def offset_for_time(self, storage: Storage, timestamp: int) -> int | None:
        """Return the offset of the first record of at least that timestamp (ms), or None.

        Raises what `fetch` raises.
        """
        for frame in self._frames(storage):
            if frame.header.max_timestamp < timestamp:
                continue
            batch = self._batch(frame)
            if batch is not None and (found := batch.offset_for_time(timestamp)) is not None:
                return found
        return None

    def _frames(self, storage: Storage) -> Iterator[LocatedFrame]:
        for piece in self.pieces:
            for frame in piece.frames(storage):
                if frame.header.base_offset >= self.limit:
                    return
                if frame.header.last_offset >= self.offset:
                    yield frame

    def _shows(self, frame: LocatedFrame) -> bool:
        """Return True if the frame holds records that the reader may see."""
        header = frame.header
        if header.control or header.record_count == 0:
            return False
        if self.aborted is None or not header.transactional:
            return True
        return not self.aborted.covers(header.producer_id, header.base_offset)

    def _batch(self, frame: LocatedFrame, selection: ReadSelection = EVERYTHING) -> Batch | None:
        """Return the visible records of the frame from `offset` on; None if there are none."""
        if not self._shows(frame) or not selection.may_hold(frame.header.max_timestamp):
            return None
        batch = batch_of(frame, self.partition, self.schemas, selection.names)
        if batch.base_offset >= self.offset:
            return batch
        if batch.sparse_offsets is None:
            return batch.slice(self.offset - batch.base_offset)
        first = pc.index(pc.greater_equal(batch.offsets, self.offset), True).as_py()
        return batch.slice(first) if first >= 0 else None
