"""Compaction in a few lines: closed segments are rewritten without what is superseded in them.

At the worst moment for those who read: the old files are gone at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa

from changelog.embedded.batches import batch_of
from changelog.embedded.format import FrameHeader
from changelog.embedded.frame import encode, frame_parts
from changelog.embedded.manifest import SegmentEntry
from changelog.embedded.names import SegmentName, snapshot_offset
from changelog.embedded.partition import Partition
from changelog.embedded.segment import LocatedFrame, Segment
from changelog.records import ConsumerRecord


def rewrite(partition: Partition) -> int:
    """Keep the last committed record of every key of the closed segments; how many went."""
    storage = partition.environment.storage
    with partition.lock:
        *closed, _ = partition.segments
        end = closed[-1].end_offset if closed else 0
        assert end <= partition.last_stable_offset
        records = [r for one in closed for f in _frames(one) for r in _committed(partition, f)]
        last = {record.key: record.offset for record in records}
        generations = count(partition.manifest.next_generation)
        fresh = [_written(partition, one, next(generations), set(last.values())) for one in closed]
        partition._change_manifest(
            segments=[*map(_entry, fresh), *partition.manifest.segments[len(closed) :]],
            next_generation=next(generations),
        )
        partition.segments = (*fresh, *partition.segments[len(closed) :])
    for segment in closed:
        segment.remove()
    for name in storage.list_dir(partition.folder):
        if snapshot_offset(name) is not None:  # they name batches that went
            storage.unlink(f"{partition.folder}/{name}")
    return len(records) - len(last)


def _frames(segment: Segment) -> Iterator[LocatedFrame]:
    return segment.frames(0, 1 << 20)


def _committed(partition: Partition, frame: LocatedFrame) -> list[ConsumerRecord]:
    header = frame.header
    aborted = partition.aborted.covers(header.producer_id, header.base_offset)
    if header.control or (header.transactional and aborted):
        return []
    return list(batch_of(frame, partition.topic_partition, partition.schemas).records())


def _written(partition: Partition, old: Segment, generation: int, kept: set[int]) -> Segment:
    storage, name = partition.environment.storage, SegmentName(old.base_offset, generation)
    fresh = Segment.create(storage, partition.folder, name, old.created_ms)
    for frame in _frames(old):
        header, records = frame.header, _committed(partition, frame)
        if not records:  # as it is
            data = frame.data[frame.position : frame.position + header.length]
            fresh.append(header, [data], partition.config.index_interval_bytes)
        for record in records:
            if record.offset in kept:
                alone, parts = _alone(record, header, partition)
                fresh.append(alone, parts, partition.config.index_interval_bytes)
    fresh.file.sync()
    fresh.save_index()
    partition.save_aborted(fresh)
    storage.sync_dir(partition.folder)
    return fresh


def _alone(
    record: ConsumerRecord, header: FrameHeader, partition: Partition
) -> tuple[FrameHeader, list[Any]]:
    """A frame of one record."""
    columns = pa.record_batch(
        {
            "timestamp": pa.array([record.timestamp], pa.int64()),
            "key": pa.array([record.key], pa.binary()),
            "value": pa.array([record.value], partition.schemas.latest_type),
        }
    )
    return frame_parts(
        encode(columns, schema_id=partition.schemas.latest_id),
        base_offset=record.offset,
        leader_epoch=header.leader_epoch,
        durable_end=header.durable_end,
    )


def _entry(segment: Segment) -> SegmentEntry:
    return SegmentEntry(
        base_offset=segment.base_offset,
        generation=segment.name.generation,
        created_ms=segment.created_ms,
        size=segment.size,
        end_offset=segment.end_offset,
        max_timestamp=segment.max_timestamp,
    )
