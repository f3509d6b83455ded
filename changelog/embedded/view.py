"""What a reader may see of a partition from an offset on, taken at one moment.

A view is made of plain values: names of files and positions in them, the bound, what was aborted.
So who may read the folder can read by it, in the owner's process or in another one.
It needs no lock: below the high watermark nothing changes any more, and file names
never come again. Only the file may be gone by then: FileNotFoundError, take a new view.
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
from strandline.changelog.storage import Storage


@dataclass(frozen=True, slots=True)
class RecordView:
    """The records with offsets in [`offset`, `limit`)."""

    partition: TopicPartition
    offset: int
    limit: int
    pieces: tuple[SegmentPiece, ...]
    """What holds them, in order; the first may begin with earlier ones, the last end with later ones."""
    aborted: AbortedTransactions | None
    """The aborted among them; None: those are shown as well."""
    schemas: ValueSchemas
    log_start: int
    high_watermark: int
    last_stable_offset: int
    epochs: Epochs = ()
    """Epochs that name the positions from `offset` to `limit`."""

    def fetch(self, storage: Storage, max_bytes: int) -> Fetched:
        """At least one batch if there is any, then up to `max_bytes`.

        Raises FileNotFoundError, CorruptLog, StorageFailed.
        """
        batches: list[Batch] = []
        position, used = self.offset, 0
        for frame in self._frames(storage):
            if used and used + frame.header.length > max_bytes:
                break
            position = frame.header.last_offset + 1
            batch = self._batch(frame)
            if batch is not None:
                batches.append(batch)
                used += frame.header.length
        else:
            position = max(position, self.limit)
        return Fetched(
            batches,
            position,
            self.log_start,
            self.high_watermark,
            self.last_stable_offset,
            self.epochs,
        )

    def records(self, storage: Storage) -> Iterator[ConsumerRecord]:
        """All of them one by one, for who wants no batches. Raises what `fetch` raises."""
        for frame in self._frames(storage):
            if self._shows(frame):
                for record in records_of(frame, self.partition, self.schemas):
                    if record.offset >= self.offset:
                        yield record

    def offset_for_time(self, storage: Storage, timestamp: int) -> int | None:
        """Offset of the first record with at least that timestamp (ms); None if there is none.

        Raises what `fetch` raises.
        """
        for frame in self._frames(storage):
            if frame.header.max_timestamp < timestamp:
                continue
            batch = self._batch(frame)
            if batch is not None:
                late_enough = pc.greater_equal(batch.columns.column(0), timestamp)
                index = pc.index(late_enough, True).as_py()
                if index >= 0:
                    return int(batch.offsets[index].as_py())
        return None

    def _frames(self, storage: Storage) -> Iterator[LocatedFrame]:
        for piece in self.pieces:
            for frame in piece.frames(storage):
                if frame.header.base_offset >= self.limit:
                    return
                if frame.header.last_offset >= self.offset:
                    yield frame

    def _shows(self, frame: LocatedFrame) -> bool:
        """Whether the frame holds records that the reader may see."""
        header = frame.header
        if header.control or header.record_count == 0:
            return False
        if self.aborted is None or not header.transactional:
            return True
        return not self.aborted.covers(header.producer_id, header.base_offset)

    def _batch(self, frame: LocatedFrame) -> Batch | None:
        """The frame's records that the reader may see, from `offset` on; None: there are none."""
        if not self._shows(frame):
            return None
        batch = batch_of(frame, self.partition, self.schemas)
        if batch.base_offset >= self.offset:
            return batch
        if batch.sparse_offsets is None:
            return batch.slice(self.offset - batch.base_offset)
        first = pc.index(pc.greater_equal(batch.offsets, self.offset), True).as_py()
        return batch.slice(first) if first >= 0 else None
