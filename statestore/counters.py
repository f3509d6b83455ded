"""What the partitions of one store count together, in one process; and how large each is."""

from __future__ import annotations

from dataclasses import dataclass, field

from changelog.metrics import Histogram


@dataclass(slots=True)
class StoreCounters:
    """Counted by the thread of the store's task, but for checkpoints."""

    misses: int = 0
    """Look-ups of keys that were not at hand."""
    changes: int = 0
    """Keys that commits have changed."""
    checkpoints: Histogram = field(default_factory=Histogram)
    """Seconds of those that moved something to the engine."""


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
