"""What the partitions of one store count together, in one process; and how large each is."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.changelog.metrics import Histogram


@dataclass(slots=True)
class Sample:
    """Look-ups of one partition, while they are counted."""

    lookups: int = 0
    """All of them."""
    misses: int = 0
    """Those of keys that were not at hand."""


@dataclass(slots=True)
class StoreCounters:
    """Counted by the thread of the store's task, but for checkpoints."""

    misses: int = 0
    """Look-ups of keys that were not at hand."""
    sampled_hits: int = 0
    """Look-ups of keys that were at hand, in samples: elsewhere they are not counted."""
    sampled_misses: int = 0
    """Of the misses those in samples."""
    changes: int = 0
    """Keys that commits have changed."""
    checkpoints: Histogram = field(default_factory=Histogram)
    """Seconds of those that moved something to the engine."""

    def add(self, sample: Sample) -> None:
        """A sample has been taken."""
        self.sampled_hits += sample.lookups - sample.misses
        self.sampled_misses += sample.misses


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """One partition of a store at one moment; all of it about."""

    entries: int
    """Keys; what waits counts as well."""
    disk_bytes: int
    uncommitted_bytes: int
    """Of changes since the last commit."""
    pending_bytes: int
    """Of committed changes that wait for a checkpoint."""
