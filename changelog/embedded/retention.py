"""Retention: deletion of whole segments from the start of a partition.

The rules are those of Kafka's UnifiedLog.deleteOldSegments. `expired_segments` decides; `retain`
and `delete_records` apply the decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.changelog.config import KEEP_EVERYTHING, TopicConfig
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.errors import OffsetOutOfRange

ROLLED_BYTES = 256 << 10
"""Minimum size in bytes of an active segment that `delete_records` rolls, to free it.

A roll syncs some ten files. The records of a smaller segment are deleted by the new start of the log
alone, and their bytes are freed with a later deletion, so many small deletions cost little.
"""


def expired_segments(
    segments: Sequence[Segment], config: TopicConfig, *, now_ms: int, stable_end: int
) -> int:
    """Return the number of expired segments at the start of the log, the active one included.

    A segment expires by time when its largest timestamp is older than `retention.ms`. It expires by
    size when the log without it still has `retention.bytes`. The first segment to keep ends the
    search, and so does one with offsets at or beyond the last stable offset `stable_end`.

    An empty segment has neither age nor size, so it is deleted only together with a later one. The
    log's start therefore moves only because records were deleted, and an empty segment never delays
    the deletion of the records after it.
    """
    if not config.delete:
        return 0
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for number, segment in enumerate(segments, 1):
        if segment.end_offset > stable_end:
            break
        if segment.size == 0:
            continue
        age = now_ms - segment.max_timestamp
        too_old = config.retention_ms != KEEP_EVERYTHING and age > config.retention_ms
        too_much = config.retention_bytes != KEEP_EVERYTHING and excess >= segment.size
        if not (too_old or too_much):
            break
        excess -= segment.size
        count = number
    return count


def retain(partition: Partition, now_ms: int) -> list[Segment]:
    """Apply the topic's retention. Return the dropped segments, whose files still exist."""
    with partition.lock:
        segments = partition.segments
        nothing = not segments or (len(segments) == 1 and segments[0].size == 0)
        if nothing or partition.gate.retired:
            return []
        count = expired_segments(
            segments,
            partition.config,
            now_ms=now_ms,
            stable_end=partition.last_stable_offset,
        )
        return _drop(partition, count)


def delete_records(partition: Partition, before: int) -> list[Segment]:
    """Move the log's start up to offset `before` (-1: the high watermark).

    Below the present start it has no effect. Return the dropped segments, whose files still exist.
    Raises OffsetOutOfRange beyond the high watermark.
    """
    with partition.lock:
        partition.gate.check()
        if before == -1:
            before = partition.high_watermark
        if before > partition.high_watermark:
            raise OffsetOutOfRange(
                f"{partition.topic_partition}: records below {before} cannot be deleted, the high "
                f"watermark is {partition.high_watermark}"
            )
        if before <= partition.log_start:
            return []
        # A segment's range ends where the next one begins, not at its last record, because
        # cleaning may have removed the last records of its range.
        next_bases = [segment.base_offset for segment in partition.segments[1:]]
        count = sum(end <= before for end in [*next_bases, partition.log_end])
        if count == len(partition.segments) and partition.segments[-1].size < ROLLED_BYTES:
            count -= 1
        return _drop(partition, count, before)


def _drop(partition: Partition, count: int, log_start: int = 0) -> list[Segment]:
    if count == 0 and log_start <= partition.log_start:
        return []
    if count == len(partition.segments):
        partition.roll()  # the active segment is never deleted
    first_kept = partition.segments[count].base_offset if count else 0
    return partition.drop_segments(count, max(log_start, first_kept))
