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
`reader` works on any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack

from strandline.changelog.clock import Clock, SystemClock
from strandline.statestore.cache import ENTRY_BYTES, KeyCache
from strandline.statestore.changelogged import ChangelogBatch, Changelogged
from strandline.statestore.committing import CommittingStore
from strandline.statestore.counters import StoreCounters
from strandline.statestore.dirty import DirtyKeys
from strandline.statestore.engine import Engine
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.keys import Never
from strandline.statestore.layers import Above
from strandline.statestore.memory import MemoryBudget
from strandline.statestore.spec import StoreSpec
from strandline.statestore.typed_store import StoreTypes, store_types
from strandline.statestore.values import DELETED, Expiry

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

LOCK_TIMEOUT_S = 10.0
"""Default number of seconds to wait for another holder of a folder's lock."""


class OpenOptions(TypedDict, total=False):
    """Options with which one partition of a store is opened."""

    clock: Clock | None
    """Source of time; the system's clock by default."""
    lock_timeout: float
    """Seconds to wait for another holder of the folder's lock; 10 by default."""
    engine: Engine | None
    """Open engine to use instead of the one that the declaration names."""
    now: Callable[[], int] | None
    """Returns the time in ms against which values expire; that of the clock by default."""
    counters: StoreCounters | None
    """Counters shared by the partitions of the store."""
    expiry: Expiry | None
    """Place of the expiry in stored values, as recorded in the log (`statestore.declaration`)."""
    memory: MemoryBudget | None
    """Budget that the store shares with others; by default it has one of its own."""


class OpenParts(NamedTuple, Generic[K, V]):
    """Parts of which one partition of a store is made."""

    types: StoreTypes[K, V]
    engine: Engine
    counters: StoreCounters | None
    clock: Clock
    memory: MemoryBudget


def open_store(
    spec: StoreSpec[K, V],
    folder: str | os.PathLike[str] | None = None,
    **options: Unpack[OpenOptions],
) -> PartitionStore[K, V]:
    """Open one partition of a store.

    Args:
        spec: Declaration of the store.
        folder: Folder of the engine's files; not needed in memory.
        options: See `OpenOptions`.

    Raises:
        FutureFormat: A newer version has written the files.
        StorageFailed: The engine cannot be opened.
        DiskFull: The disk is full.

    >>> store = open_store(StoreSpec("n", key=str, value=int, default=0, engine="memory"))
    >>> store["LHR"] += 1
    >>> store["LHR"], "JFK" in store, list(store.all())
    (1, False, [('LHR', 1)])
    """
    types, engine, counters, clock, memory = open_parts(spec, folder, **options)
    cache = KeyCache(spec.limits.cache_bytes)
    return PartitionStore(types, cache, Changelogged(engine, counters), clock, memory)


def open_parts(
    spec: StoreSpec[K, V],
    folder: str | os.PathLike[str] | None = None,
    **options: Unpack[OpenOptions],
) -> OpenParts[K, V]:
    """Open the engine of one partition, and return it with the other parts. See `open_store`."""
    clock = options.get("clock") or SystemClock()
    types = store_types(spec, options.get("now") or clock.now_ms, options.get("expiry"))
    engine = options.get("engine") or open_engine(
        spec, folder, options.get("lock_timeout", LOCK_TIMEOUT_S), clock
    )
    memory = options.get("memory") or MemoryBudget()
    return OpenParts(types, engine, options.get("counters"), clock, memory)


def open_engine(
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


class PartitionStore(CommittingStore[K, V]):
    """State of one partition: a sorted mapping whose changes are committed by its task."""

    __slots__ = ("_cache",)

    def __init__(
        self,
        types: StoreTypes[K, V],
        cache: KeyCache,
        committed: Changelogged,
        clock: Clock,
        memory: MemoryBudget,
    ) -> None:
        super().__init__(types, cache.young, committed, clock, memory)
        self._cache = cache

    # Used by the worker -----------------------------------------------------------------

    def prefetch(self, keys: Iterable[Any]) -> tuple[int, int]:
        """Read the values of keys that are not in the cache into it, in one call of the engine.

        Keys that are not of the store's type are left out.

        Returns:
            The number of keys read, and the bytes that the cache needs for them.
        """
        exact = self._keys.exact
        cold = [key for key in self._cache.absent(keys) if type(key) is exact]
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

    def mark(self) -> int:
        """Return the length of the undo log, to which `rollback` can go back."""
        return len(self.changed)

    def rollback(self, mark: int) -> None:
        """Undo all changes since `mark`, because the handler of that record has raised."""
        earlier, unchanged = self._dirty.rollback(mark)
        self.young.update(earlier)
        if unchanged:
            # These keys leave the cache, so their next look-up must find the loose batches too.
            self._committed.fold()
            self._cache.forget(unchanged)

    @property
    def uncommitted_bytes(self) -> int:
        """Approximate bytes of memory that the uncommitted changes use."""
        return self._dirty.nbytes + _CHANGE_BYTES * len(self.changed)

    # Memory (see `statestore.memory`) ---------------------------------------------------

    @property
    def cached_bytes(self) -> int:
        """Approximate bytes of the values in the cache."""
        return self._cache.nbytes

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
        cold = self._cache.absent(keys)
        self.lookups.missed(len(cold))
        self._read_many(cold)

    def _read_many(self, cold: list[Any]) -> int:
        """Read keys that are not in the cache into it. Return the bytes that it needs for them."""
        names = self._keys.encode_all(cold).to_pylist()
        found = self._committed.get_many(names)
        held = self._values.held
        values = [DELETED if data is None else held(data) for data in found]
        nbytes = sum(map(len, names)) + sum(len(data) for data in found if data is not None)
        self._cache.add_all(dict(zip(cold, values, strict=True)), nbytes)
        self._age()
        return nbytes + ENTRY_BYTES * len(cold)

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

    def _limit_cache(self, nbytes: int) -> None:
        """Set the limit of the cache, and drop what exceeds it."""
        self._cache.limit(nbytes)
        self._age()
        if self._cache.is_old_too_large:
            self._committed.fold()  # as in `_age`
            self._cache.drop_old()

    def _num_changed(self) -> int:
        return len(self._dirty.latest())

    def _num_read(self) -> int:
        return self._cache.additions

    def _changes(self) -> ChangelogBatch | None:
        latest = self._dirty.latest()
        if not latest:
            return None
        self.unchecked = Never
        values = self._values.dump_all(list(latest.values()))
        return ChangelogBatch(self._keys.encode_all(latest), values, self._dirty.ranges)

    def _above(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Above:
        on_empty = partial(self._dirty.note_empty, self._dirty.moment)
        return replace(super()._above(lower, upper, reverse=reverse), on_empty=on_empty)

    def _remove_expired(self, names: list[bytes]) -> None:
        changed = self._dirty.latest()
        for key in map(self._keys.decode, names):
            if key not in changed:
                self._remove(key)

    def _finalize(self, drained: ChangelogBatch) -> None:
        self._values.finalize(self.young, self._dirty.latest())
        self._cache.finalize(drained.nbytes // len(drained))

    def _begin(self) -> None:
        super()._begin()
        self._dirty.clear()
        self.unchecked = self._values.unchecked


AnyStore = CommittingStore[Any, Any]
"""Partition of any store, of either kind."""

_CHANGE_BYTES = 200
"""Approximate bytes of an entry, its undo record, a short key and a small value."""
