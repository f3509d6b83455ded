"""Memory of one process's stores: a budget, divided among the store partitions that are in use.

    share of the budget    what it bounds
    5/16                   values that stores keep in memory (the cache)
    4/16                   committed changes that wait for a checkpoint
    1/16                   uncommitted changes, and records to be sent
    1/16                   what a commit makes of them
    2/16                   records that were fetched and not handled
    2/16                   RocksDB's block cache
    1/16                   RocksDB's memtables

A store partition has the limits of its declaration (`StoreLimits`) as long as all of them together
stay within the budget. Beyond that, the budget is divided evenly among those in use, except that a
partition whose own limit is less leaves the rest to others; those not in use give their memory up.
A process with thousands of partitions, of which a few have work, therefore uses its memory for
those few.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from strandline.changelog.settings import LONG_MAX, check_number

DEFAULT_MEMORY_BYTES = 1 << 30
MIN_MEMORY_BYTES = 64 << 20
DIVIDE_INTERVAL_S = 1.0
"""Seconds between two divisions of the budget."""
IN_USE_S = 10.0
"""Seconds after its last read from the engine or change for which a store is in use."""
MAX_CHUNK_BYTES = 64 << 20
"""Maximum bytes of keys and values that a restore handles at a time."""
MIN_FETCH_BYTES = 64 << 10
"""Minimum bytes of one fetch, so that a fetch makes progress."""


class StoreShare(NamedTuple):
    """Bytes of the budget for one store partition in use."""

    cache_bytes: int
    overlay_bytes: int


class Sharing(Protocol):
    """A store partition, as the budget sees it."""

    @property
    def cached_bytes(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...

    @property
    def own_limits(self) -> StoreShare: ...

    def is_in_use(self, now: float) -> bool: ...

    def limit(self, share: StoreShare) -> None: ...

    def shrink(self) -> None: ...


class MemoryBudget:
    """The memory that the stores of one worker may use. Only its thread calls `divide`.

    Raises InvalidConfig for less than 64 MiB.

    >>> budget = MemoryBudget(256 << 20)
    >>> budget.block_cache_bytes >> 20, budget.uncommitted_bytes >> 20, budget.share(4).cache_bytes
    (32, 16, 20971520)
    """

    def __init__(self, total_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        check_number("memory", total_bytes, MIN_MEMORY_BYTES, LONG_MAX)
        part = total_bytes // 16
        self.total_bytes = total_bytes
        self.cache_bytes = 5 * part
        """Bytes of values that all stores keep in memory."""
        self.overlay_bytes = 4 * part
        """Bytes of committed changes of all stores that are not checkpointed."""
        self.uncommitted_bytes = part
        """Bytes of uncommitted changes and unsent records above which a commit comes early."""
        self.input_bytes = 2 * part
        """Bytes of records that were fetched and not handled."""
        self.block_cache_bytes = 2 * part
        """Bytes of RocksDB's block cache."""
        self.memtable_bytes = part
        """Bytes of RocksDB's memtables."""
        self.chunk_bytes = min(MAX_CHUNK_BYTES, part)
        """Bytes of keys and values that a restore handles at a time, in three steps of a thread."""
        self._divide_at = 0.0

    def share(self, stores: int) -> StoreShare:
        """Return the share of each of so many stores in use."""
        count = max(1, stores)
        return StoreShare(self.cache_bytes // count, self.overlay_bytes // count)

    def fetch_bytes(self, partitions: int, most: int) -> int:
        """Return how many bytes to fetch of each of so many partitions, at most `most`."""
        return min(most, max(MIN_FETCH_BYTES, self.input_bytes // max(1, partitions)))

    def share_engines(self) -> None:
        """Give RocksDB its part, which all stores of the process share."""
        from strandline.statestore.engines import rocksdb_options  # imported only where it is used

        rocksdb_options.configure_memory(
            block_cache_bytes=self.block_cache_bytes, memtable_bytes=self.memtable_bytes
        )

    def divide(self, stores: Collection[Sharing], now: float) -> None:
        """Divide the budget among the stores in use, at most once a second.

        Args:
            stores: All open stores.
            now: Monotonic time in seconds.
        """
        if now < self._divide_at:
            return
        self._divide_at = now + DIVIDE_INTERVAL_S
        in_use = [store for store in stores if store.is_in_use(now)]
        caches = divided(self.cache_bytes, [store.own_limits.cache_bytes for store in in_use])
        overlays = divided(self.overlay_bytes, [store.own_limits.overlay_bytes for store in in_use])
        for store, *share in zip(in_use, caches, overlays, strict=True):
            store.limit(StoreShare(*share))
        even = self.share(len(in_use))
        is_cache_full = sum(store.cached_bytes for store in stores) > self.cache_bytes
        is_overlay_full = sum(store.pending_bytes for store in stores) > self.overlay_bytes
        for store in set(stores).difference(in_use) if is_cache_full or is_overlay_full else ():
            store.limit(StoreShare(even.cache_bytes, 0 if is_overlay_full else even.overlay_bytes))
            if is_cache_full:
                store.shrink()


def divided(total: int, limits: Sequence[int]) -> list[int]:
    """Return equal parts of a total, except that no part is more than its limit.

    What a part with a low limit leaves is divided among the others.

    >>> divided(100, [1_000, 10, 1_000])
    [45, 10, 45]
    """
    parts = [0] * len(limits)
    ascending = sorted(range(len(limits)), key=limits.__getitem__)
    for done, place in enumerate(ascending):
        parts[place] = min(limits[place], total // (len(limits) - done))
        total -= parts[place]
    return parts
