"""Part of a partition's store that its task's worker uses: commits, checkpoints, memory, restores.

`CommittingStore` is the same for every kind of store. `PartitionStore` keeps values as Python
objects, `ColumnStore` keeps them as columns; each adds the changes of the running transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidTxnState
from strandline.changelog.records import TopicPartition
from strandline.statestore.changelogged import ChangelogBatch, Changelogged, later
from strandline.statestore.counters import Lookups, StoreSizes
from strandline.statestore.dirty import DirtyKeys
from strandline.statestore.engine import Entry, StorePosition
from strandline.statestore.expiry import Sweeper
from strandline.statestore.keys import Never
from strandline.statestore.layers import Above
from strandline.statestore.memory import IN_USE_S, MemoryBudget, StoreShare
from strandline.statestore.reader import CommittedReader
from strandline.statestore.replay import OnProgress
from strandline.statestore.restore import TRANSACTION_WAIT_S, Restored, restore
from strandline.statestore.typed_store import StoreTypes, TypedStore

K = TypeVar("K")
V = TypeVar("V")


class CommittingStore(TypedStore[K, V]):
    """State of one partition, above changes that its task has committed."""

    __slots__ = (
        "_clock",
        "_committed",
        "_drained",
        "_in_use_until",
        "_last_checkpoint",
        "_memory",
        "_seen_activity",
        "_share",
        "_sweeper",
        "reader",
        "revision",
    )

    def __init__(
        self,
        types: StoreTypes[K, V],
        young: dict[Any, Any],
        committed: Changelogged,
        clock: Clock,
        memory: MemoryBudget,
    ) -> None:
        super().__init__(types, young, Lookups(committed.counters))
        ttl_ms = types.spec.ttl_ms
        self._committed = committed
        self._clock = clock
        self._sweeper = Sweeper(committed, types.values, ttl_ms) if ttl_ms else None
        self._drained: ChangelogBatch | None = None
        self._last_checkpoint = clock.monotonic()
        self._memory = memory
        self._share = memory.share(1)
        self._seen_activity: tuple[StorePosition | None, int] = (None, 0)
        self._in_use_until = 0.0
        self.reader = CommittedReader(committed, types.values)
        """Reader of the committed state, which other threads can use."""
        self.revision = 0
        """Number of steps whose changes were added by `absorb`."""

    # Used by the worker -----------------------------------------------------------------

    def mark(self) -> int:
        """Return a mark of the changes so far, to which `rollback` can go back."""
        raise NotImplementedError

    def rollback(self, mark: int) -> None:
        """Undo all changes since `mark`, because the handler of that record has raised."""
        raise NotImplementedError

    def drain(self) -> ChangelogBatch | None:
        """Return the changes since the last commit, for the changelog; None if there are none.

        Expired values are removed by it. Until `committed` or `discard` is called, the store can be
        read but not changed, and another call returns the same batch.

        Raises CorruptLog if a value could not be decoded since the last commit, because a handler
        that catches the error may have changed the state by a value that it did not see.
        """
        if self._values.undecodable is not None:
            raise self._values.undecodable
        if self._drained is None:
            if self._sweeper is not None:
                self._remove_expired(list(self._sweeper.expired(self._num_changed())))
            self._drained = self._changes()
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
            self._finalize(self._drained)
        self._begin()
        self._age()

    def discard(self) -> None:
        """Undo all changes since the last commit, because the transaction was aborted."""
        self._values.undecodable = None
        self.rollback(0)
        self._begin()

    @property
    def needs_commit(self) -> bool:
        """True if the uncommitted changes exceed the limit `dirty_bytes`."""
        return self.uncommitted_bytes > self.spec.limits.dirty_bytes

    @property
    def uncommitted_bytes(self) -> int:
        """Approximate bytes of memory that the uncommitted changes use."""
        raise NotImplementedError

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

    def prefetch(self, keys: Iterable[Any]) -> tuple[int, int]:
        """Read the values of keys that are not in memory, in one call of the engine.

        Keys that are not of the store's type are left out.

        Returns:
            The number of keys read, and the bytes that the cache needs for them.
        """
        raise NotImplementedError

    def absorb(self, step: DirtyKeys) -> None:
        """Add the changes of a step that was kept apart (`statestore.step_store`)."""
        raise NotImplementedError

    def scan_below(
        self, step: Above, lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> Iterator[Entry]:
        """Return the stored entries of [lower, upper) as of now, under the changes of a step."""
        own = self._above(lower, upper, reverse=False)
        left = {key: value for key, value in own.changes if key not in step.ranges}
        changes = sorted({**left, **dict(step.changes)}.items(), reverse=reverse)
        both = Above(changes, own.ranges | step.ranges)
        return self._committed.scan(lower, upper, reverse=reverse, above=both)

    # Memory (see `statestore.memory`) ---------------------------------------------------

    @property
    def cached_bytes(self) -> int:
        """Approximate bytes of the values in the cache."""
        raise NotImplementedError

    @property
    def pending_bytes(self) -> int:
        """Approximate bytes of committed changes that are not checkpointed."""
        return self._committed.pending_bytes

    def is_in_use(self, now: float) -> bool:
        """Return True if something was committed or read from the engine within `IN_USE_S`."""
        activity = (self.position, self._num_read())
        if activity != self._seen_activity:
            self._seen_activity = activity
            self._in_use_until = now + IN_USE_S
        return now < self._in_use_until

    @property
    def own_limits(self) -> StoreShare:
        """Bytes that the store takes at most by its declaration."""
        limits = self.spec.limits
        return StoreShare(limits.cache_bytes, limits.overlay_bytes)

    def limit(self, share: StoreShare) -> None:
        """Keep to this share of the process's memory, and to the limits of the declaration."""
        self._share = share
        self._limit_cache(min(self.spec.limits.cache_bytes, share.cache_bytes))

    def shrink(self) -> None:
        """Drop the cache, unless there are uncommitted changes."""
        if not self._num_changed() and self.cached_bytes:
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

    def approximate_num_entries(self) -> int:
        """Return the approximate number of keys; each pending change counts as one more key."""
        return self._committed.approximate_num_entries() + self._num_changed()

    def close(self) -> None:
        """Close the engine and end open scans; uncommitted changes are lost."""
        self.discard()
        self._committed.close()

    # Overridden by subclasses -------------------------------------------------------------

    def _num_changed(self) -> int:
        """Return the number of keys changed since the last commit."""
        raise NotImplementedError

    def _num_read(self) -> int:
        """Return a number that grows with each value read from the committed state."""
        raise NotImplementedError

    def _changes(self) -> ChangelogBatch | None:
        """Return the changes since the last commit for the changelog; None if there are none."""
        raise NotImplementedError

    def _remove_expired(self, names: list[bytes]) -> None:
        """Remove the encoded keys `names` that were not changed since the last commit."""
        raise NotImplementedError

    def _finalize(self, drained: ChangelogBatch) -> None:
        """Keep the values of the changes, which are committed now, in the cache."""
        raise NotImplementedError

    def _limit_cache(self, nbytes: int) -> None:
        """Set the limit of the cache, and drop what exceeds it."""
        raise NotImplementedError

    def _age(self) -> None:
        """Drop values from the cache if it is full."""
        raise NotImplementedError

    def _clear_cache(self) -> None:
        """Drop all values from the cache. There must be no uncommitted changes."""
        raise NotImplementedError

    # Helpers ----------------------------------------------------------------------------

    def _writable(self) -> None:
        """Raise InvalidTxnState between `drain` and the end of the commit."""
        if self._drained is not None:
            raise InvalidTxnState(
                f"store {self.spec.name!r} cannot be changed while its commit is under way; "
                "call committed() or discard() first"
            )

    def _scan(
        self, above: Above, lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> Iterator[Entry]:
        return self._committed.scan(lower, upper, reverse=reverse, above=above)

    def _begin(self) -> None:
        """Begin a transaction without changes."""
        self._drained = None


_NOWHERE = StorePosition("", 0, 0)
