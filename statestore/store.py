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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidRecord, InvalidTxnState
from strandline.changelog.records import TopicPartition
from strandline.statestore.cache import ENTRY_BYTES, KeyCache
from strandline.statestore.changelogged import ChangelogBatch, Changelogged, later
from strandline.statestore.counters import Lookups, StoreCounters, StoreSizes
from strandline.statestore.dirty import DirtyKeys
from strandline.statestore.edit import Edit
from strandline.statestore.engine import Engine, StorePosition
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.expiry import Sweeper
from strandline.statestore.keys import Never, key_codec
from strandline.statestore.no_len import NoLen
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.reader import CommittedReader
from strandline.statestore.restore import TRANSACTION_WAIT_S, OnProgress, Restored, restore
from strandline.statestore.spec import UNSET, StoreSpec
from strandline.statestore.values import DELETED, UNSHARED, Expiry, Packed, ValueCodec

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
    now = now or clock.now_ms
    return PartitionStore(
        spec,
        ValueCodec(spec.value, spec.name, ttl_ms=spec.ttl_ms, now=now, expiry=expiry),
        KeyCache(spec.limits.cache_bytes),
        DirtyKeys(key_codec(spec.key).encode),
        Changelogged(engine or _engine(spec, folder, lock_timeout, clock), counters),
        clock,
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


class PartitionStore(NoLen, Generic[K, V]):
    """State of one partition: a sorted mapping whose changes are committed by its task."""

    __slots__ = (
        "_cache",
        "_clock",
        "_committed",
        "_default_value",
        "_dirty",
        "_drained",
        "_keys",
        "_last_checkpoint",
        "_sweeper",
        "_values",
        "changed",
        "exact",
        "lookups",
        "plain",
        "puts",
        "spec",
        "unchecked",
        "young",
    )

    def __init__(
        self,
        spec: StoreSpec[K, V],
        values: ValueCodec,
        cache: KeyCache,
        dirty: DirtyKeys,
        committed: Changelogged,
        clock: Clock,
    ) -> None:
        self.spec = spec
        self._keys = key_codec(spec.key)
        self._values = values
        self._dirty = dirty
        self._cache = cache
        self._committed = committed
        self._clock = clock
        self._sweeper = Sweeper(committed, values, spec.ttl_ms) if spec.ttl_ms else None
        self._drained: ChangelogBatch | None = None
        self._last_checkpoint = clock.monotonic()
        given = spec.default
        self._default_value = given if given is UNSET else values.as_put(given)
        self.lookups = Lookups(committed.counters)
        # Everything that the fast paths of get and put need, here and in the framework's handle,
        # is one attribute away. The lists and the dict stay the same objects for the store's life.
        self.young: dict[Any, Any] = cache.young
        self.changed: list[Any] = dirty.changed
        self.puts: list[Any] = dirty.put
        self.exact = self._keys.exact
        self.plain = values.plain
        self.unchecked = values.unchecked

    # What a task uses -------------------------------------------------------------------

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = UNSET) -> Any:
        """Return the value of a key; else `default`, else the store's own default, else None.

        Raises InvalidRecord for a key that is not of the declared type.
        """
        if type(key) is not self.exact:
            key = self._admit(key)
            if self.lookups.in_sample:
                self.lookups.looked_up(key)
        held = self.young.get(key)
        if held is None:
            held = self._load(key)
        if type(held) is self.plain:
            return held
        value = self._values.value(held)
        if value is not UNSHARED:
            return value
        return self._default(None) if default is UNSET else default

    def __getitem__(self, key: K) -> V:
        """Return the value of a key, else the store's default. Raises KeyError if it has none."""
        if type(key) is not self.exact:
            key = self._admit(key)
            if self.lookups.in_sample:
                self.lookups.looked_up(key)
        held = self.young.get(key)
        if held is None:
            held = self._load(key)
        if type(held) is self.plain:
            return held  # type: ignore[return-value]
        value = self._values.value(held)
        if value is UNSHARED:
            value = self._default(UNSET)
            if value is UNSET:
                raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def put(self, key: K, value: V) -> None:
        """Set the value of a key, as `store[key] = value` does.

        Raises:
            InvalidRecord: Key or value are not of the declared types.
            TypeError: The value is None.
        """
        if type(key) is not self.exact:
            key = self._admit(key)
        held: Any = value if type(value) is self.unchecked else self._hold(value)
        self.changed.append(key)
        self.puts.append(held)
        self.young[key] = held

    __setitem__ = put

    def delete(self, key: K) -> None:
        """Remove a key if it exists."""
        self._writable()
        self._remove(self._admit(key))

    def __delitem__(self, key: K) -> None:
        """Remove a key. Raises KeyError if it does not exist."""
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def __contains__(self, key: K) -> bool:
        return self.get(key, UNSHARED) is not UNSHARED

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of a key that has none and return None; else return its value."""
        found = self.get(key, None)
        if found is None:
            self.put(key, value)
        return found

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of the keys that have one; the engine reads all keys in one call."""
        wanted = [self._admit(key) for key in keys]
        cold = [key for key in wanted if not self._cache.has(key)]
        self.lookups.missed(len(cold))
        self._read_many(cold)
        values = ((key, self.get(key, UNSHARED)) for key in wanted)
        return {key: value for key, value in values if value is not UNSHARED}

    def edit(self, key: K) -> Edit[K, V]:
        """Return a context manager to change a mutable value in place.

        The value is put when the block ends without an error. A key without a value starts with the
        store's default. Raises KeyError if there is no default.

        >>> spec = StoreSpec("seen", value=list[str], default_factory=list, engine="memory")
        >>> store = open_store(spec)
        >>> with store.edit("LHR") as carriers:
        ...     carriers.append("BA")
        >>> store["LHR"]
        ['BA']
        """
        return Edit(self, key, immutable=self._values.immutable)

    def range(
        self, lower: K | None = None, upper: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Return an iterator of the entries from `lower` to `upper`, in the order of the keys.

        The module's docstring describes changes during a scan.

        Args:
            lower: First key; None for no limit. Of a tuple key, leading elements are enough.
            upper: End of the range (exclusive); None for no limit. As for `lower`.
            reverse: True to begin with the last entry.
        """
        first = FIRST_KEY if lower is None else self._keys.bound(lower)
        last = None if upper is None else self._keys.bound(upper)
        return self._scan(first, last, reverse)

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return an iterator of the entries whose key begins with `prefix`.

        The prefix is a str, bytes, or a tuple with the first elements of tuple keys.
        """
        first, last = self._keys.prefix(prefix)
        return self._scan(first, last, reverse)

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Return an iterator of all entries, in the order of the keys."""
        return self.range(reverse=reverse)

    def reverse(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """Return an iterator of the entries of `range(lower, upper)`, the last one first."""
        return self.range(lower, upper, reverse=True)

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
            self._keys.encode_all(latest), self._values.dump_all(list(latest.values()))
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
        if self._committed.pending_bytes > limits.overlay_bytes:
            # Folding keeps only the last value of each key, which may be enough.
            self._committed.fold()
        return self._committed.pending_bytes > limits.overlay_bytes

    def checkpoint(self) -> int:
        """Move committed changes to the engine; return the number of keys.

        Raises StorageFailed or DiskFull. The changes then stay in memory, and the call may be
        repeated.
        """
        moved = self._committed.checkpoint()
        self._last_checkpoint = self._clock.monotonic()
        return moved

    def sizes(self) -> StoreSizes:
        """Return the sizes of the store. Thread-safe. Raises the engine's errors."""
        committed = self._committed
        entries, disk_bytes = committed.num_entries_unfolded(), committed.engine.disk_bytes()
        return StoreSizes(entries, disk_bytes, self.uncommitted_bytes, committed.pending_bytes)

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
        wait: float = TRANSACTION_WAIT_S,
    ) -> Restored:
        """Replay what is committed in the changelog and missing here; see `statestore.restore`."""
        self.discard()
        self._clear_cache()
        if self._sweeper is not None:
            self._sweeper.start_over()
        return restore(self._committed, broker, changelog, progress, clock=self._clock, wait=wait)

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

    def _default(self, otherwise: Any) -> Any:
        if self.spec.default_factory is not None:
            return self.spec.default_factory()
        return otherwise if self._default_value is UNSET else self._default_value

    def _admit(self, key: Any) -> Any:
        try:
            return self._keys.admit(key)
        except InvalidRecord as error:
            raise InvalidRecord(f"store {self.spec.name!r}: {error}") from error

    def _hold(self, value: Any) -> Any:
        """Return the form in which a put value is held, and count its bytes."""
        self._writable()
        try:
            held = self._values.hold(value)
        except InvalidRecord as error:
            raise InvalidRecord(f"store {self.spec.name!r}: {error}") from error
        if type(held) is Packed:
            self._dirty.nbytes += len(held.data or b"")
        return held

    def _writable(self) -> None:
        """Raise InvalidTxnState between `drain` and the end of the commit."""
        if self._drained is not None:
            raise InvalidTxnState(
                f"store {self.spec.name!r} cannot be changed while its commit is under way; "
                "call committed() or discard() first"
            )

    def _scan(self, lower: bytes, upper: bytes | None, reverse: bool) -> Iterator[tuple[K, V]]:
        values = self._values
        dirty = self._dirty.scan(values.dumps, lower, upper, reverse=reverse)
        entries = self._committed.scan(dirty, lower, upper, reverse=reverse)
        decode, loads = self._keys.decode, values.loads
        if values.expiry != "none":
            entries = ((key, data) for key, data in entries if not values.expired(data))
        return ((decode(key), loads(data)) for key, data in entries)

    def _remove(self, key: Any) -> None:
        self.changed.append(key)
        self.puts.append(DELETED)
        self.young[key] = DELETED

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

_NOWHERE, _CHANGE_BYTES = (
    StorePosition("", 0, 0),
    200,
)  # approximate bytes of an entry, its undo record, a short key and a small value
