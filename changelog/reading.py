"""Reading a partition: from an offset, or from a time, under an isolation level.

Reads take the list of segments and the bound once and then need no lock: below the high
watermark nothing changes any more, and a segment that retention drops meanwhile stays open
for those who hold it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import pyarrow.compute as pc

from changelog.errors import OffsetOutOfRange
from changelog.frame import decode, payload_bytes
from changelog.partition import Partition
from changelog.records import Batch, Fetched, Isolation
from changelog.schema import ValueSchemas, upgrade
from changelog.segment import LocatedFrame, Segment

MIN_CHUNK = 64 << 10


def fetch(
    partition: Partition,
    offset: int,
    schemas: ValueSchemas,
    *,
    max_bytes: int,
    isolation: Isolation,
) -> Fetched:
    """Records from `offset` on: at least one batch if there is any, then up to `max_bytes`.

    Raises OffsetOutOfRange, CorruptLog.
    """
    with partition.lock:
        segments, ends = partition.segments, partition.offsets()
        log_end = partition.log_end
    if not ends.log_start <= offset <= log_end:
        raise OffsetOutOfRange(
            f"{partition.topic_partition} has offsets {ends.log_start} to {ends.high_watermark}, "
            f"got {offset}; seek to the beginning or the end"
        )
    limit = ends.last_stable_offset if isolation == "read_committed" else ends.high_watermark
    batches: list[Batch] = []
    position, used = offset, 0
    for frame in _frames_from(segments, offset, limit, max_bytes):
        if used and used + frame.header.length > max_bytes:
            break
        position = frame.header.last_offset + 1
        if _is_data(partition, frame, isolation):
            batch = _batch(partition, frame, schemas)
            batches.append(_from_offset(batch, offset))
            used += frame.header.length
    else:
        position = max(position, limit)
    return Fetched(batches, position, ends.log_start, ends.high_watermark, ends.last_stable_offset)


def offset_for_time(
    partition: Partition, timestamp: int, schemas: ValueSchemas, *, isolation: Isolation
) -> int | None:
    """Offset of the first record with at least that timestamp (ms); None if there is none."""
    with partition.lock:
        segments, ends = partition.segments, partition.offsets()
    limit = ends.last_stable_offset if isolation == "read_committed" else ends.high_watermark
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        start = segment.index.position_of_time(timestamp)
        for frame in segment.frames(start, MIN_CHUNK):
            header = frame.header
            if header.base_offset >= limit:
                return None
            wanted = header.max_timestamp >= timestamp and header.last_offset >= ends.log_start
            if wanted and _is_data(partition, frame, isolation):
                batch = _from_offset(_batch(partition, frame, schemas), ends.log_start)
                late_enough = pc.greater_equal(batch.columns.column(0), timestamp)
                index = pc.index(late_enough, True).as_py()
                if index >= 0:
                    return int(batch.offsets[index].as_py())
    return None


def _frames_from(
    segments: tuple[Segment, ...], offset: int, limit: int, max_bytes: int
) -> Iterator[LocatedFrame]:
    """The frames that hold offsets in [offset, limit)."""
    bases = [segment.base_offset for segment in segments]
    first = max(0, bisect_right(bases, offset) - 1)
    for segment in segments[first:]:
        start = segment.index.position_of(offset)
        for frame in segment.frames(start, max(MIN_CHUNK, max_bytes)):
            if frame.header.base_offset >= limit:
                return
            if frame.header.last_offset >= offset:
                yield frame


def _is_data(partition: Partition, frame: LocatedFrame, isolation: Isolation) -> bool:
    header = frame.header
    if header.control or header.record_count == 0:
        return False
    if isolation == "read_uncommitted" or not header.transactional:
        return True
    return not partition.aborted.covers(header.producer_id, header.base_offset)


def _batch(partition: Partition, frame: LocatedFrame, schemas: ValueSchemas) -> Batch:
    header = frame.header
    payload = payload_bytes(frame.data, frame.position, header, frame.where)
    columns = decode(header, payload, schemas.type_of(header.schema_id, frame.where), frame.where)
    columns = upgrade(columns, schemas.latest_type)
    sparse = None
    if columns.schema.names[-1] == "offset":
        sparse = columns.column("offset")
        columns = columns.select(columns.schema.names[:-1])
    topic, number = partition.topic_partition
    return Batch(topic, number, header.base_offset, columns, header.leader_epoch, sparse)


def _from_offset(batch: Batch, offset: int) -> Batch:
    if batch.base_offset >= offset:
        return batch
    if batch.sparse_offsets is None:
        return batch.slice(offset - batch.base_offset)
    return batch.slice(pc.index(pc.greater_equal(batch.offsets, offset), True).as_py())
