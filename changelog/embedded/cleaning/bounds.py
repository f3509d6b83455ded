"""The cleanable range of a partition (Kafka's LogCleanerManager.cleanableOffsets).

    log start ≤ first dirty ≤ first uncleanable ≤ last stable offset

Before the first dirty offset every key has at most one record. The first uncleanable offset is the
smallest of: the base of the active segment, the last stable offset, and the base of the first
segment with a record younger than `min.compaction.lag.ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.changelog.cleaning import dirty_ratio
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import Segment


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """The cleanable offsets of one partition at one moment, and their sizes."""

    first_dirty: int
    """First dirty offset."""
    first_uncleanable: int
    """First uncleanable offset."""
    clean_bytes: int
    """Bytes before the first dirty offset."""
    dirty_bytes: int
    """Bytes from the first dirty offset to the first uncleanable offset."""
    min_ratio: float
    """`min.cleanable.dirty.ratio` of the topic."""
    overdue: bool
    """True if the oldest dirty record is older than `max.compaction.lag.ms`."""
    expired: bool
    """True if the delete horizon of a tombstone in the clean section has passed."""

    @property
    def ratio(self) -> float:
        """Dirty bytes / cleanable bytes, 0 to 1."""
        return dirty_ratio(self.clean_bytes, self.dirty_bytes)

    @property
    def due(self) -> bool:
        """True if the partition should be cleaned now."""
        return self.dirty_enough or self.expired

    @property
    def dirty_enough(self) -> bool:
        """True if there are enough dirty bytes, or dirty records that are old enough."""
        return self.dirty_bytes > 0 and (self.ratio > self.min_ratio or self.overdue)


def bounds_of(partition: Partition, now_ms: int) -> CleanableRange:
    """Return the cleanable range of a partition whose topic is compacted."""
    with partition.lock:
        config, manifest = partition.config, partition.manifest
        closed = partition.segments[:-1]
        # Retention or delete_records may have moved the log's start past the recorded offset (Kafka
        # resets an invalid cleaner checkpoint in the same way).
        dirty = manifest.clean_end
        if not partition.log_start <= dirty <= partition.log_end:
            dirty = partition.log_start
        end = max(dirty, _first_uncleanable(partition, now_ms))
        pairs = [(_bytes_before(segment, dirty), _bytes_before(segment, end)) for segment in closed]
        clean_bytes = sum(clean for clean, _ in pairs)
        return CleanableRange(
            dirty,
            end,
            clean_bytes,
            sum(whole for _, whole in pairs) - clean_bytes,
            config.min_cleanable_dirty_ratio,
            _overdue(closed, dirty, now_ms - config.max_compaction_lag_ms),
            any(segment.end_offset <= dirty and segment.has_expired(now_ms) for segment in closed),
        )


def active_is_due(partition: Partition, now_ms: int) -> bool:
    """Return True if the active segment is old enough to be closed so that it can be cleaned.

    Appends close segments too. This covers a partition that receives no more appends.
    """
    if not partition.segments or not partition.config.compact:
        return False
    active, config = partition.segments[-1], partition.config
    oldest = min(config.segment_ms, config.max_compaction_lag_ms)
    # A segment from the future was made while the clock was ahead, and its age is not known.
    return active.size > 0 and abs(now_ms - active.created_ms) > oldest


def _first_uncleanable(partition: Partition, now_ms: int) -> int:
    """Return the first uncleanable offset."""
    if not partition.segments:
        return partition.log_start
    end = min(partition.last_stable_offset, partition.segments[-1].base_offset)
    lag = partition.config.min_compaction_lag_ms
    if lag > 0:
        young = (s for s in partition.segments[:-1] if now_ms - s.max_timestamp < lag)
        end = min([end, *(segment.base_offset for segment in young)])
    return end


def _bytes_before(segment: Segment, offset: int) -> int:
    """Return about how many bytes of a closed segment come before `offset`."""
    if segment.end_offset <= offset:
        return segment.size
    return segment.index.position_of(offset) if segment.base_offset < offset else 0


def _overdue(closed: tuple[Segment, ...], dirty: int, before_ms: int) -> bool:
    """Return True if the first dirty segment begins before `before_ms`."""
    first = next((segment for segment in closed if segment.end_offset > dirty), None)
    return first is not None and first.started_ms() < before_ms
