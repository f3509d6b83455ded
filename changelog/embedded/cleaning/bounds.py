"""How far a partition is clean, and how far it can be cleaned (Kafka's LogCleanerManager).

    log start ≤ dirty ≤ end ≤ last stable offset

Below `dirty` no key has two records; from `end` on nothing is cleaned yet: not the active segment,
not what is past the last stable offset, not what is younger than `min.compaction.lag.ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.changelog.cleaning import dirty_ratio
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import Segment


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """What there is to clean in one partition, at one moment."""

    dirty: int
    """First dirty offset."""
    end: int
    """First offset that cannot be cleaned yet."""
    clean_bytes: int
    dirty_bytes: int
    """Of those that can be cleaned."""
    min_ratio: float
    overdue: bool
    """Whether what is dirty is older than `max.compaction.lag.ms`."""
    expired: bool
    """Whether a tombstone's horizon has passed below `dirty`."""

    @property
    def ratio(self) -> float:
        """Dirty bytes / all bytes, without what cannot be cleaned yet."""
        return dirty_ratio(self.clean_bytes, self.dirty_bytes)

    @property
    def due(self) -> bool:
        """Whether it is time to clean."""
        return self.filthy or self.expired

    @property
    def filthy(self) -> bool:
        """Whether what is dirty is due."""
        return self.dirty_bytes > 0 and (self.ratio > self.min_ratio or self.overdue)


def bounds_of(partition: Partition, now_ms: int) -> CleanableRange:
    """The bounds of a partition whose topic is compacted."""
    with partition.lock:
        config, manifest = partition.config, partition.manifest
        closed = partition.segments[:-1]
        dirty = manifest.clean_end
        if not partition.log_start <= dirty <= partition.log_end:
            dirty = partition.log_start
        end = max(dirty, _end(partition, now_ms))
        pairs = [(_size_below(segment, dirty), _size_below(segment, end)) for segment in closed]
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
    """Whether the active segment is to be closed so that it can be cleaned, though nothing is appended."""
    if not partition.segments or not partition.config.compact:
        return False
    active, config = partition.segments[-1], partition.config
    oldest = min(config.segment_ms, config.max_compaction_lag_ms)
    return active.size > 0 and now_ms - active.created_ms > oldest


def _end(partition: Partition, now_ms: int) -> int:
    if not partition.segments:
        return partition.log_start
    end = min(partition.last_stable_offset, partition.segments[-1].base_offset)
    lag = partition.config.min_compaction_lag_ms
    if lag > 0:
        young = (s for s in partition.segments[:-1] if now_ms - s.max_timestamp < lag)
        end = min([end, *(segment.base_offset for segment in young)])
    return end


def _size_below(segment: Segment, offset: int) -> int:
    """Bytes of a closed segment that hold offsets below one."""
    if segment.end_offset <= offset:
        return segment.size
    return segment.index.position_of(offset) if segment.base_offset < offset else 0


def _overdue(closed: tuple[Segment, ...], dirty: int, before_ms: int) -> bool:
    first = next((segment for segment in closed if segment.end_offset > dirty), None)
    return first is not None and first.started_ms() < before_ms
