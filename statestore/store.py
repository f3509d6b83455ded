"""One partition of a store as a task uses it: typed, transactional, restored from a changelog.

`open_store` shows the layers in one expression. From the top:

    PartitionStore   Python objects for keys and values
    KeyCache         cached values, committed and changed
    DirtyKeys        keys changed by the running transaction, with an undo log
    Changelogged     committed changes that are not checkpointed yet
    Engine           everything up to the last checkpoint, with its changelog position

The worker makes these calls for each record and for each commit:

    mark = store.mark()  and  store.rollback(mark)   before the handler, and if it raised
    batch = store.drain()                            append it to the changelog, in the transaction
    store.committed(end)  or  store.discard()        the transaction committed, or aborted
    store.checkpoint()  if  store.needs_checkpoint

A scan shows the store as of the call that started it, including earlier changes of the running
record. Changes made during the scan are allowed, and do not appear in it.

A store is used by the thread of its task. `checkpoint` may run on another thread, and the object
that `reader` returns works on any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidTxnState
from strandline.changelog.records import TopicPartition
from strandline.statestore.cache import ENTRY_BYTES, KeyCache
from strandline.statestore.changelogged import ChangelogBatch, Changelogged, later
from strandline.statestore.counters import Lookups, StoreCounters, StoreSizes
from strandline.statestore.dirty import DirtyKeys
from strandline.statestore.engine import Engine, Entry, StorePosition
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.expiry import Sweeper
from strandline.statestore.keys import Never
from strandline.statestore.layers import Change
from strandline.statestore.memory import IN_USE_S, MemoryBudget, StoreShare
from strandline.statestore.ranges import DeletedRanges
from strandline.statestore.reader import CommittedReader
from strandline.statestore.restore import TRANSACTION_WAIT_S, OnProgress, Restored, restore
from strandline.statestore.spec import StoreSpec
from strandline.statestore.typed_store import StoreTypes, TypedStore, store_types
from strandline.statestore.values import DELETED, Expiry

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


def open_store(
    spec: StoreSpec[K, V],
    folder: str | os.PathLike[str] | None = None,
    *,
    clock: Clock | None = None,
    now: Callable[[], int] | None = None,
    lock_timeout: float = 10.0,
    engine: Engine | None = None,
    counters: StoreCounters | None = None,
    expiry: Expiry | None = None,
    memory: MemoryBudget | None = None,
) -> PartitionStore[K, V]:
    """Open one partition of a store.

    Args:
        spec: Declaration of the store.
        folder: Folder of the engine's files; not needed in memory.
        clock: Source of time; the system's clock by default.
        now: Returns the time in ms against which values expire; that of `clock` by default.
        lock_timeout: Seconds to wait for another holder of the folder's lock.
        engine: Open engine to use instead of the one that the spec names.
        counters: Counters shared by the partitions of the store.
        expiry: Where stored values carry an expiry, as recorded in the log
            (`statestore.declaration`).
        memory: Budget that the store shares with others; by default it has one of its own.

    Raises:
        FutureFormat: A newer version has written the files.
        StorageFailed: The engine cannot be opened.
        DiskFull: The disk is full.

    >>> store = open_store(StoreSpec("n", key=str, value=int, default=0, engine="memory"))
    >>> store["LHR"] += 1
    >>> store["LHR"], "JFK" in store, list(store.all())
    (1, False, [('LHR', 1)])
    """
    clock = clock or SystemClock()
    return PartitionStore(
        store_types(spec, now or clock.now_ms, expiry),
        KeyCache(spec.limits.cache_bytes),
        Changelogged(engine or _engine(spec, folder, lock_timeout, clock), counters),
        clock,
        memory or MemoryBudget(),
    )


def _engine(
    spec: StoreSpec[Any, Any],
    folder: str | os.PathLike[str] | None,
    lock_timeout: float,
    clock: Clock,
) -> Engine:
    """Open the engine that the spec names; without a folder it is in memory."""
    if spec.engine == "memory" or folder is None:
        return MemoryEngine()
    from strandline.statestore.engines.folders import open_when_free  # it imports RocksDB

    return open_when_free(folder, timeout=lock_timeout, clock=clock)


class PartitionStore(TypedStore[K, V]):
    """State of one partition: a sorted mapping whose changes are committed by its task."""

    __slots__ = (
        "_cache",
        "_clock",
        "_committed",
        "_drained",
        "_in_use_until",
        "_last_checkpoint",
        "_memory",
        "_seen_activity",
        "_share",
        "_sweeper",
        "revision",
    )

    def __init__(
        self,
        types: StoreTypes[K, V],
        cache: KeyCache,
        committed: Changelogged,
        clock: Clock,
        memory: MemoryBudget,
    ) -> None:
        super().__init__(types, cache.young, Lookups(committed.counters))
        ttl_ms = types.spec.ttl_ms
        self._cache = cache
        self._committed = committed
        self._clock = clock
        self._sweeper = Sweeper(committed, types.values, ttl_ms) if ttl_ms else None
        self._drained: ChangelogBatch | None = None
        self._last_checkpoint = clock.monotonic()
        self._memory = memory
        self._share = memory.share(1)
        self._seen_activity: tuple[StorePosition | None, int] = (None, 0)
        self._in_use_until = 0.0
        self.revision = 0
        """Number of steps whose changes were added by `absorb`."""

    def approximate_num_entries(self) -> int:
        """Return the approximate number of keys; each pending change counts as one more key."""
        return self._committed.approximate_num_entries() + len(self._dirty.latest())

    # What the worker uses ---------------------------------------------------------------

    def prefetch(self, keys: Iterable[Any]) -> tuple[int, int]:
        """Read the values of keys that are not in the cache into it, in one call of the engine.

        Keys that are not of the store's type are left out.

        Returns:
            The number of keys read, and the bytes that the cache needs for them.
        """
        exact = self._keys.exact
        has = self._cache.has
        cold = [key for key in dict.fromkeys(keys) if type(key) is exact and not has(key)]
        self.lookups.read_ahead(cold)
        return len(cold), self._read_many(cold)

    def held(self, key: Any) -> Any:
        """Return the value of a key as of now, in the form in which it is held."""
        if self.lookups.in_sample:
            self.lookups.looked_up(key)
        return super().held(key)

    def absorb(self, step: DirtyKeys) -> None:
        """Add the changes of a step that was kept apart (`statestore.step_store`)."""
        if step.changed:
            self._writable()
            self.revision += 1
            self._dirty.absorb(step)
            self.young.update(zip(step.changed, step.put, strict=True))

    def scan_below(
        self,
        above: Iterable[Change],
        deleted: DeletedRanges,
        bounds: tuple[bytes, bytes | None],
        *,
        reverse: bool,
    ) -> Iterator[Entry]:
        """Return the stored entries within `bounds` as of now, under the changes of a step.

        The step has first `deleted` ranges, and then made the changes `above`.
        """
        own = self._dirty.scan(self._values.dumps, *bounds, reverse=False)
        left = {key: value for key, value in own if key not in deleted}
        changes = sorted({**left, **dict(above)}.items(), reverse=reverse)
        ranges = self._dirty.ranges | deleted
        return self._committed.scan(changes, *bounds, reverse=reverse, ranges=ranges)

    def mark(self) -> int:
        """Return the length of the undo log, to which `rollback` can go back."""
        return len(self.changed)

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Count each look-up in this block, where it costs several times as much as outside."""
        # No key is of type Never, so no look-up takes the fast path, which does not count.
        self.exact = Never
        try:
            with self.lookups.sampled():
                yield
        finally:
            self.exact = self._keys.exact

    def rollback(self, mark: int) -> None:
        """Undo all changes since `mark`, because the handler of that record has raised."""
        earlier, unchanged = self._dirty.rollback(mark)
        self.young.update(earlier)
        if unchanged:
            # These keys leave the cache, so their next look-up must find the loose batches too.
            self._committed.fold()
            self._cache.forget(unchanged)

    def drain(self) -> ChangelogBatch | None:
        """Return the changes since the last commit, for the changelog; None if there are none.

        Expired values are removed by it. Until `committed` or `discard` is called, the store can be
        read but not changed, and another call returns the same batch.
        """
        if self._drained is not None:
            return self._drained
        self._remove_expired()
        latest = self._dirty.latest()
        if not latest:
            return None
        self._drained = ChangelogBatch(
            self._keys.encode_all(latest),
            self._values.dump_all(list(latest.values())),
            self._dirty.ranges,
        )
        self.unchecked = Never
        return self._drained

    def committed(
        self, end_offset: int, leader_epoch: int | None = None, incarnation: str = ""
    ) -> None:
        """Note that the batch from `drain` is committed durably, and keep its changes.

        Args:
            end_offset: Changelog offset after the batch (exclusive end), at most the end of the
                transaction.
            leader_epoch: Leader epoch in which it was written; None if unknown, as on Kafka.
            incarnation: Opening of the log that wrote it (`changelog.history`).
        """
        position = later(self.position or _NOWHERE, end_offset, leader_epoch, incarnation)
        if self._drained is None:
            self._committed.advance(position)
        else:
            self._committed.apply(self._drained, position)
            self._values.finalize(self.young, self._dirty.latest())
            self._cache.finalize(self._drained.nbytes // len(self._drained))
        self._begin()
        self._age()

    def discard(self) -> None:
        """Undo all changes since the last commit, because the transaction was aborted."""
        self.rollback(0)
        self._begin()

    @property
    def needs_commit(self) -> bool:
        """True if the uncommitted changes exceed the limit `dirty_bytes`."""
        return self.uncommitted_bytes > self.spec.limits.dirty_bytes

    @property
    def uncommitted_bytes(self) -> int:
        """Approximate bytes of memory that the uncommitted changes use."""
        return self._dirty.nbytes + _CHANGE_BYTES * len(self.changed)

    @property
    def needs_checkpoint(self) -> bool:
        """True if committed changes exceed `overlay_bytes`, or have waited for the interval."""
        limits = self.spec.limits
        if self._committed.pending_bytes == 0:
            return False
        waited_ms = (self._clock.monotonic() - self._last_checkpoint) * 1000
        if waited_ms >= limits.checkpoint_interval_ms:
            return True
        if self.exceeds_memory:
            # Folding keeps only the last value of each key, which may be enough.
            self._committed.fold()
        return self.exceeds_memory

    @property
    def exceeds_memory(self) -> bool:
        """True if committed changes exceed `overlay_bytes` or the store's share of the budget."""
        most = min(self.spec.limits.overlay_bytes, self._share.overlay_bytes)
        return self._committed.pending_bytes > most

    @property
    def checkpointed_at(self) -> float:
        """Time of the last checkpoint, in seconds of the monotonic clock."""
        return self._last_checkpoint

    def checkpoint(self) -> int:
        """Move committed changes to the engine; return the number of keys.

        Raises StorageFailed or DiskFull. The changes then stay in memory, and the call may be
        repeated.
        """
        moved = self._committed.checkpoint()
        self._last_checkpoint = self._clock.monotonic()
        return moved

    # Memory (see `statestore.memory`) ---------------------------------------------------

    @property
    def cached_bytes(self) -> int:
        """Approximate bytes of the values in the cache."""
        return self._cache.nbytes

    @property
    def pending_bytes(self) -> int:
        """Approximate bytes of committed changes that are not checkpointed."""
        return self._committed.pending_bytes

    def is_in_use(self, now: float) -> bool:
        """Return True if something was committed or read from the engine within `IN_USE_S`."""
        activity = (self.position, self._cache.additions)
        if activity != self._seen_activity:
            self._seen_activity = activity
            self._in_use_until = now + IN_USE_S
        return now < self._in_use_until

    def limit(self, share: StoreShare) -> None:
        """Keep to this share of the process's memory, and to the limits of the declaration."""
        self._share = share
        self._cache.limit(min(self.spec.limits.cache_bytes, share.cache_bytes))
        self._age()
        if self._cache.is_old_too_large:
            self._committed.fold()  # as in `_age`
            self._cache.drop_old()

    def shrink(self) -> None:
        """Drop the cache, unless there are uncommitted changes."""
        if not self.changed and self._cache.nbytes:
            self._clear_cache()

    def sizes(self) -> StoreSizes:
        """Return the sizes of the store. Thread-safe. Raises the engine's errors."""
        committed = self._committed
        entries, disk_bytes = committed.num_entries_unfolded(), committed.engine.disk_bytes()
        return StoreSizes(
            entries,
            disk_bytes,
            uncommitted_bytes=self.uncommitted_bytes,
            pending_bytes=committed.pending_bytes,
            cached_bytes=self.cached_bytes,
        )

    @property
    def position(self) -> StorePosition | None:
        """Changelog position that the committed state has reached; None before a restore."""
        return self._committed.position

    def reader(self) -> CommittedReader:
        """Return a reader of the committed state that other threads can use."""
        return CommittedReader(self._committed, self._values)

    def restore(
        self,
        broker: Broker,
        changelog: TopicPartition,
        progress: OnProgress | None = None,
        *,
        wait: float | None = TRANSACTION_WAIT_S,
    ) -> Restored:
        """Replay what is committed in the changelog and missing here; see `statestore.restore`."""
        self.discard()
        self._clear_cache()
        if self._sweeper is not None:
            self._sweeper.start_over()
        return restore(
            *(self._committed, broker, changelog, progress),
            clock=self._clock,
            wait=wait,
            chunk_bytes=self._memory.chunk_bytes,
        )

    def close(self) -> None:
        """Close the engine and end open scans; uncommitted changes are lost."""
        self.discard()
        self._committed.close()

    # Helpers ----------------------------------------------------------------------------

    def _load(self, key: Any) -> Any:
        """Return the held value of a key that is not in the young generation."""
        held = self._cache.recall(key)
        if held is None:
            name = self._keys.encode(key)
            self.lookups.single_reads += 1
            self.lookups.missed(1)
            held = self._remember(key, name, self._committed.get(name))
        self._age()
        return held

    def prepare(self, keys: Sequence[K]) -> None:
        """Read the values of keys that are not in the cache into it, in one call of the engine."""
        cold = [key for key in keys if not self._cache.has(key)]
        self.lookups.missed(len(cold))
        self._read_many(cold)

    def _read_many(self, cold: list[Any]) -> int:
        """Read keys that are not in the cache into it. Return the bytes that it needs for them."""
        names = self._keys.encode_all(cold).to_pylist()
        nbytes = 0
        for key, name, data in zip(cold, names, self._committed.get_many(names), strict=True):
            self._remember(key, name, data)
            nbytes += len(name) + len(data or b"") + ENTRY_BYTES
        self._age()
        return nbytes

    def _remember(self, key: Any, name: bytes, data: bytes | None) -> Any:
        """Add a value read from the committed state to the cache, and return its held form."""
        held = DELETED if data is None else self._values.held(data)
        self._cache.add(key, held, len(name) + len(data or b""))
        return held

    def _age(self) -> None:
        """Drop old values from the cache if it is full."""
        if self._cache.is_full:
            # Look-ups skip loose batches, which is correct only while the cache has their keys.
            self._committed.fold()
            self._cache.age(self._dirty.latest())

    def _clear_cache(self) -> None:
        """Drop all values from the cache. There must be no uncommitted changes."""
        self._committed.fold()
        self._cache.clear()

    def _writable(self) -> None:
        """Raise InvalidTxnState between `drain` and the end of the commit."""
        if self._drained is not None:
            raise InvalidTxnState(
                f"store {self.spec.name!r} cannot be changed while its commit is under way; "
                "call committed() or discard() first"
            )

    def _scan(
        self, changes: Iterable[Change], lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> Iterator[Entry]:
        ranges = self._dirty.ranges
        return self._committed.scan(changes, lower, upper, reverse=reverse, ranges=ranges)

    def _remove_expired(self) -> None:
        if self._sweeper is None:
            return
        changed = self._dirty.latest()
        for name in self._sweeper.expired(len(changed)):
            key = self._keys.decode(name)
            if key not in changed:
                self._remove(key)

    def _begin(self) -> None:
        """Begin a transaction without changes."""
        self._dirty.clear()
        self._drained = None
        self.unchecked = self._values.unchecked


AnyStore = PartitionStore[Any, Any]

_NOWHERE = StorePosition("", 0, 0)
_CHANGE_BYTES = 200
"""Approximate bytes of an entry, its undo record, a short key and a small value."""
