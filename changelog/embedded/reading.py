"""Reading a partition: from an offset, or from a time, under an isolation level.

Reads take the list of segments and the bound once and then need no lock: below the high
watermark nothing changes any more, and a segment that retention drops meanwhile stays open
for those who hold it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow.compute as pc

from changelog.embedded.aborted import AbortedTransactions
from changelog.embedded.frame import decode, payload_bytes
from changelog.embedded.partition import Partition
from changelog.embedded.segment import LocatedFrame, Segment
from changelog.errors import CorruptLog, OffsetOutOfRange
from changelog.records import Batch, Fetched, Isolation, PartitionOffsets, TopicPartition
from changelog.schema import ValueSchemas, upgrade

MIN_CHUNK = 64 << 10

T = TypeVar("T")


def fetch(
    partition: Partition,
    offset: int,
    *,
    max_bytes: int,
    isolation: Isolation,
) -> Fetched:
    """Records from `offset` on: at least one batch if there is any, then up to `max_bytes`.

    Raises OffsetOutOfRange, CorruptLog.
    """
    return _on_a_view(partition, isolation, lambda view: _fetch(view, offset, max_bytes))


def _fetch(view: _View, offset: int, max_bytes: int) -> Fetched:
    ends, limit = view.ends, view.limit
    if not ends.log_start <= offset <= max(view.log_end, ends.log_start):
        raise OffsetOutOfRange(
            f"{view.partition} has offsets {ends.log_start} to {ends.high_watermark}, "
            f"got {offset}; seek to the beginning or the end"
        )
    batches: list[Batch] = []
    position, used = offset, 0
    for frame in view.frames_from(offset, max_bytes):
        if used and used + frame.header.length > max_bytes:
            break
        position = frame.header.last_offset + 1
        if view.shows(frame):
            batches.append(_from_offset(view.batch(frame), offset))
            used += frame.header.length
    else:
        position = max(position, limit)
    return Fetched(batches, position, ends.log_start, ends.high_watermark, ends.last_stable_offset)


def offset_for_time(partition: Partition, timestamp: int, *, isolation: Isolation) -> int | None:
    """Offset of the first record with at least that timestamp (ms); None if there is none."""
    return _on_a_view(partition, isolation, lambda view: _offset_for_time(view, timestamp))


def _on_a_view(partition: Partition, isolation: Isolation, read: Callable[[_View], T]) -> T:
    """Read; once more if retention took a segment between the list and the file."""
    while True:
        view = _View.of(partition, isolation)
        try:
            return read(view)
        except FileNotFoundError as error:
            if partition.segments is view.segments:
                raise CorruptLog(f"{partition.folder}: a segment is gone ({error})") from error


def _offset_for_time(view: _View, timestamp: int) -> int | None:
    log_start = view.ends.log_start
    for segment in view.segments:
        if segment.max_timestamp < timestamp:
            continue
        start = segment.index.position_of_time(timestamp)
        for frame in segment.frames(start, MIN_CHUNK):
            header = frame.header
            if header.base_offset >= view.limit:
                return None
            wanted = header.max_timestamp >= timestamp and header.last_offset >= log_start
            if wanted and view.shows(frame):
                batch = _from_offset(view.batch(frame), log_start)
                late_enough = pc.greater_equal(batch.columns.column(0), timestamp)
                index = pc.index(late_enough, True).as_py()
                if index >= 0:
                    return int(batch.offsets[index].as_py())
    return None


@dataclass(frozen=True)
class _View:
    """What a reader may see of a partition, taken at one moment."""

    partition: TopicPartition
    segments: tuple[Segment, ...]
    ends: PartitionOffsets
    log_end: int
    limit: int
    """First offset that it may not see."""
    aborted: AbortedTransactions | None
    """None: aborted records are shown as well."""
    schemas: ValueSchemas

    @classmethod
    def of(cls, partition: Partition, isolation: Isolation) -> _View:
        with partition.lock:
            ends = partition.offsets()
            committed = isolation == "read_committed"
            return cls(
                partition.topic_partition,
                partition.segments,
                ends,
                partition.log_end,
                ends.last_stable_offset if committed else ends.high_watermark,
                partition.aborted if committed else None,
                partition.schemas,
            )

    def frames_from(self, offset: int, max_bytes: int) -> Iterator[LocatedFrame]:
        """The frames that hold offsets in [offset, limit)."""
        if offset >= self.limit:
            return
        bases = [segment.base_offset for segment in self.segments]
        first = max(0, bisect_right(bases, offset) - 1)
        for segment in self.segments[first:]:
            start = segment.index.position_of(offset)
            for frame in segment.frames(start, max(MIN_CHUNK, max_bytes)):
                if frame.header.base_offset >= self.limit:
                    return
                if frame.header.last_offset >= offset:
                    yield frame

    def shows(self, frame: LocatedFrame) -> bool:
        """Whether the frame holds records that the reader may see."""
        header = frame.header
        if header.control or header.record_count == 0:
            return False
        if self.aborted is None or not header.transactional:
            return True
        return not self.aborted.covers(header.producer_id, header.base_offset)

    def batch(self, frame: LocatedFrame) -> Batch:
        """The frame's records. Raises CorruptLog."""
        header, where = frame.header, frame.where
        payload = payload_bytes(frame.data, frame.position, header, where)
        columns = decode(header, payload, self.schemas.type_of(header.schema_id, where), where)
        columns = upgrade(columns, self.schemas.latest_type)
        sparse = None
        if columns.schema.names[-1] == "offset":
            sparse = columns.column("offset")
            columns = columns.select(columns.schema.names[:-1])
        topic, number = self.partition
        return Batch(topic, number, header.base_offset, columns, header.leader_epoch, sparse)


def _from_offset(batch: Batch, offset: int) -> Batch:
    if batch.base_offset >= offset:
        return batch
    if batch.sparse_offsets is None:
        return batch.slice(offset - batch.base_offset)
    return batch.slice(pc.index(pc.greater_equal(batch.offsets, offset), True).as_py())
