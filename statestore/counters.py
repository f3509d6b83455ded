"""Counters shared by the partitions of one store in a process, and the sizes of a partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from strandline.changelog.metrics import Histogram


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


class Lookups:
    """Look-ups of one partition. The thread of its task counts them.

    Counting a look-up costs as much as looking up a cached key. So those of cached keys are counted
    in samples only.
    """

    __slots__ = ("_counters", "_hits", "_misses", "_read_ahead", "in_sample", "single_reads")

    def __init__(self, counters: StoreCounters) -> None:
        self.in_sample = False
        """True during a sample. `looked_up` is then to be called for each look-up."""
        self.single_reads = 0
        """Number of values that look-ups have read from the committed state one by one."""
        self._counters = counters
        self._hits = self._misses = 0
        self._read_ahead: set[Any] = set()

    def read_ahead(self, keys: Sequence[Any]) -> None:
        """Count keys read before their look-ups, which are misses although they find a value."""
        self._counters.misses += len(keys)
        self._read_ahead = set(keys)

    def looked_up(self, key: Any) -> None:
        """Count a look-up in a sample."""
        if key in self._read_ahead:
            self._read_ahead.discard(key)
            self._misses += 1
        else:
            self._hits += 1

    def missed(self, count: int) -> None:
        """Count look-ups of keys that were not in the cache."""
        self._counters.misses += count
        if self.in_sample:
            # `looked_up` takes each of them for a hit.
            self._hits -= count
            self._misses += count

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Return a context manager for a sample, which is added to the counters at its end."""
        self.in_sample, self._hits, self._misses = True, 0, 0
        try:
            yield
        finally:
            self.in_sample = False
            self._counters.sampled_hits += self._hits
            self._counters.sampled_misses += self._misses


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
    cached_bytes: int
    """Bytes of values in memory."""
