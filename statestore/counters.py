"""Counters shared by the partitions of one store in a process, and the sizes of a partition."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.changelog.metrics import Histogram


@dataclass(slots=True)
class Sample:
    """Look-ups of one partition during a sample."""

    lookups: int = 0
    """Number of look-ups."""
    misses: int = 0
    """Number of look-ups of keys that were not in the cache."""


@dataclass(slots=True)
class StoreCounters:
    """Counters of one store. Except for checkpoints, the thread of the store's task counts."""

    misses: int = 0
    """Number of look-ups of keys that were not in the cache."""
    sampled_hits: int = 0
    """Number of look-ups of cached keys in samples; outside samples they are not counted."""
    sampled_misses: int = 0
    """Number of the misses that were in samples."""
    changes: int = 0
    """Number of keys changed by commits."""
    checkpoints: Histogram = field(default_factory=Histogram)
    """Durations in seconds of the checkpoints that moved changes to the engine."""

    def add(self, sample: Sample) -> None:
        """Add the look-ups of a sample."""
        self.sampled_hits += sample.lookups - sample.misses
        self.sampled_misses += sample.misses


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Approximate sizes of one partition of a store at one moment."""

    entries: int
    """Number of keys; pending changes count as further keys."""
    disk_bytes: int
    """Bytes of the engine's files."""
    uncommitted_bytes: int
    """Bytes of changes since the last commit."""
    pending_bytes: int
    """Bytes of committed changes that are not checkpointed."""
