"""Restoring a store from its changelog.

    1  compare the engine's position with the changelog, and choose a plan      plan_restore
    2  wipe the engine if its content cannot be continued
    3  replay committed records up to the captured end, chunk by chunk          replay
       after each fetch, before any of it is kept: check that no deletion is missing
    4  compare with the changelog again: the plan must still be valid

If the plan is no longer valid, the restore starts over.

The end is after everything that was committed when it was captured. So a worker that has read the
committed offsets before gets every change that was committed with them. If a dead worker has left a
transaction open before the end, the replay waits until that is aborted. The end is a position of
the reader and not the offset of a record: the last records before it may be markers, aborted, or
removed by compaction.

Each chunk is reduced to the last record of each key, sorted, and written together with the position
that it reaches. So an interrupted restore continues from there.

Three steps run concurrently: writing a chunk, sorting the next, and reading the one after that.
Reading and sorting work on columns, mostly without the interpreter lock. Keys and values become
Python objects only when they are written, which needs the lock. Reading has a thread of its own
because it needs the lock often, and waits for it up to 5 ms each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import CorruptLog, OffsetOutOfRange, RequestTimedOut
from strandline.changelog.history import continues, epoch_before
from strandline.changelog.records import Batch, Fetched, PartitionOffsets, TopicPartition
from strandline.statestore.changelogged import Changelogged, SortedChanges
from strandline.statestore.engine import StorePosition
from strandline.statestore.last_record import LastRecord, last_record
from strandline.statestore.latest import latest_per_key
from strandline.statestore.memory import MAX_CHUNK_BYTES

T = TypeVar("T")

_log = logging.getLogger("strandline")

CHUNK_RECORDS = 500_000
"""Maximum number of records in a chunk."""
FETCH_BYTES = 8 << 20
"""Maximum bytes of one fetch."""
PIECE_RECORDS = 2_000
"""Number of records of a chunk that are Python objects at the same time."""

MAX_STALLED_POLLS = 30
"""Number of long polls, of a second each, without progress after which a restore fails."""

TRANSACTION_WAIT_S = 16 * 60
"""Default seconds to wait for open transactions: transaction.max.timeout.ms and a minute."""

READERS_WAIT_S = 30
"""Seconds that a reader of the state, which does not write, waits for open transactions."""

LOG_WAIT_AFTER_S = 3
"""Log a warning after waiting this many seconds for an open transaction."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Progress of restoring one store partition."""

    partition: TopicPartition
    """Partition of the changelog."""
    records: int
    """Number of records replayed so far."""
    remaining: int
    """Number of offsets up to the end. Some may be markers, or removed by compaction."""
    seconds: float
    """Seconds since the replay began."""

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the current rate; None before there is one."""
        return self.remaining / self.rate if self.rate else None


class TransactionOpen(RequestTimedOut):
    """An open transaction in a changelog partition keeps the replay from its end."""

    def __init__(self, message: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        """Partition of the changelog."""
        self.offset = offset
        """Offset from which on the transaction is open."""


OnProgress = Callable[[ReplayProgress], None]
"""Callback for the progress of a restore. An exception that it raises ends the restore."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Plan of a restore."""

    action: Literal["resume", "rebuild", "fresh"]
    """Continue from the engine's position, wipe the engine first, or fill an empty engine."""
    start: int
    """First offset to replay."""
    reason: str = ""
    """Reason why the engine's content cannot be continued; empty unless `action` is "rebuild"."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    plan: RestorePlan
    """The first plan of the restore."""
    records: int
    """Number of records replayed."""
    seconds: float
    """Duration in seconds."""
    position: StorePosition
    """Position that the state has reached."""


def plan_restore(
    found: StorePosition | None,
    log: PartitionOffsets,
    last: LastRecord | None = None,
    partition: int | None = None,
) -> RestorePlan:
    """Decide how to restore an engine at position `found` from the changelog `log`.

    `last` is the last record before that position. It is needed for logs that do not list their
    epochs, because nothing else shows that the log was truncated and rewritten there (KIP-320).
    `partition` is the number of the changelog's partition; None if it is not compared.

    >>> log = PartitionOffsets(0, 9, 9, "t1", leader_epoch=0)
    >>> plan_restore(StorePosition("t1", 0, 5), log)
    RestorePlan(action='resume', start=5, reason='')
    >>> plan_restore(StorePosition("t0", 0, 5), log).reason
    'the changelog is another topic than the one it was made from'
    >>> plan_restore(StorePosition("t1", 0, 5, partition=3), log, partition=2).reason
    'it was made from partition 3 of the changelog'
    """
    if found is None:
        return RestorePlan("fresh", log.log_start)
    reason = _rebuild_reason(found, log, last, partition)
    return (
        RestorePlan("rebuild", log.log_start, reason)
        if reason
        else RestorePlan("resume", found.offset)
    )


def _rebuild_reason(
    found: StorePosition, log: PartitionOffsets, last: LastRecord | None, partition: int | None
) -> str:
    """Return why an engine at position `found` cannot be continued; empty if it can."""
    if found.topic_id != log.topic_id:
        return "the changelog is another topic than the one it was made from"
    if partition is not None and not found.is_of(partition):
        return f"it was made from partition {found.partition} of the changelog"
    if reason := log.divergence(found):
        return reason
    if found.offset < log.log_start:
        return f"it reaches to offset {found.offset}, the log begins at {log.log_start}"
    if last is not None and (reason := last.divergence(found)):
        return reason
    if log.must_start_over(found.offset, found.settled_end):
        return (
            f"it reaches to offset {found.offset}, and deletions from there to offset "
            f"{log.purged_end} may be gone from the log"
        )
    return ""


def restore(
    state: Changelogged,
    broker: Broker,
    partition: TopicPartition,
    progress: OnProgress | None = None,
    *,
    clock: Clock | None = None,
    wait: float | None = TRANSACTION_WAIT_S,
    chunk_bytes: int = MAX_CHUNK_BYTES,
) -> Restored:
    """Replay into `state` everything that is committed in its changelog partition.

    A previous writer of that partition must be fenced before.

    Args:
        state: Committed state of the store.
        broker: The log.
        partition: Partition of the changelog.
        progress: Callback for the progress.
        clock: Source of time; the system's clock by default.
        wait: Maximum seconds to wait for open transactions. None: the replay ends before the first
            open transaction, and the state must only be read.
        chunk_bytes: Bytes of keys and values in a chunk. Three chunks are in memory at a time.

    Raises:
        CorruptLog: The changelog has records that no store has written.
        TransactionOpen: A transaction stays open. The next call continues where this one has come.
        RequestTimedOut: The log makes no progress.
    """
    clock = clock or SystemClock()
    begun = clock.monotonic()
    records = 0
    first: RestorePlan | None = None
    while True:
        log = broker.offsets([partition])[partition]
        last = last_record(state, broker, partition, log)
        plan = plan_restore(state.position, log, last, partition.partition)
        first = first or plan
        if plan.action == "rebuild":
            fields = {"partition": str(partition), "reason": plan.reason}
            _log.info("the store of %s is rebuilt: %s", partition, plan.reason, extra=fields)
            state.wipe()
        end = max(log.last_stable_offset, 0 if wait is None else log.committed_end)
        origin = _origin(state, plan, log, partition.partition)
        bounds = _Bounds(end, wait or 0, chunk_bytes)
        replay = _Replay(broker, partition, origin, bounds, progress, clock)
        try:
            if replay.position < end:
                with closing(_prefetched(replay.chunks())) as chunks:
                    state.refill(chunks)
        except OffsetOutOfRange:
            if broker.offsets([partition])[partition].log_start <= replay.position:
                raise
            continue  # retention has removed records meanwhile, so a new plan is made
        except _Overtaken as overtaken:
            fields = {"partition": str(partition), "reason": str(overtaken)}
            _log.warning("restoring %s starts over: %s", partition, overtaken, extra=fields)
            continue
        records += replay.records
        reached = replay.reached
        state.advance(reached)
        if _still_holds(broker.offsets([partition])[partition], reached):
            return Restored(first, records, clock.monotonic() - begun, reached)


class Restorable(Protocol):
    """A store partition, as `restore_all` sees it."""

    def restore(
        self,
        broker: Broker,
        changelog: TopicPartition,
        progress: OnProgress | None = ...,
        *,
        wait: float | None = ...,
    ) -> Restored: ...


def restore_all(
    stores: Iterable[tuple[Restorable, TopicPartition]],
    broker: Broker,
    progress: OnProgress | None = None,
    *,
    threads: int = 4,
    wait: float = TRANSACTION_WAIT_S,
) -> list[Restored]:
    """Restore several store partitions, `threads` of them at a time.

    `progress` is called by all of these threads. `wait` is as for `restore`. The first error is
    raised after all restores have ended.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
        running = [
            pool.submit(store.restore, broker, partition, progress, wait=wait)
            for store, partition in stores
        ]
        return [future.result() for future in running]


class _Bounds(NamedTuple):
    """Bounds of a replay."""

    end: int
    """End offset (exclusive)."""
    wait: float
    """Maximum seconds to wait for open transactions."""
    chunk_bytes: int


class _Overtaken(Exception):
    """The records read cannot be kept, for the reason in the message; the restore starts over."""


class _Replay:
    """Reads a changelog partition from a position to `end`.

    It reads on to the log's `superseding_end` if that is later. Compaction may have removed records
    before the end in favor of later ones, and the state is consistent only with those.
    """

    def __init__(
        self,
        broker: Broker,
        partition: TopicPartition,
        origin: StorePosition,
        bounds: _Bounds,
        progress: OnProgress | None,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._partition = partition
        self._origin = origin
        self._end = bounds.end
        self._wait = bounds.wait
        self._chunk_bytes = bounds.chunk_bytes
        self._progress = progress
        self._clock = clock
        self._begun = clock.monotonic()
        self.reached = origin
        """Position of a state to which everything read so far is applied."""
        self.records = 0
        """Number of records read so far."""

    @property
    def position(self) -> int:
        """Next offset to read."""
        return self.reached.offset

    def chunks(self) -> Generator[tuple[SortedChanges, StorePosition]]:
        """Yield the records as sorted chunks, each with the position that it reaches."""
        with closing(_prefetched(self._stretches())) as stretches:
            for batches, end in stretches:
                yield self._chunk(batches, end)

    def _stretches(self) -> Generator[tuple[list[Batch], StorePosition]]:
        """Yield the batches of each chunk, with the position that it reaches."""
        pending: list[Batch] = []
        while self.position < self._end:
            try:
                pending += self._fetch()
            except TransactionOpen:
                if pending:  # kept, so that the next restore continues after it
                    yield pending, self.reached
                raise
            if _is_full(pending, self._chunk_bytes):
                yield pending, self.reached
                pending = []
        if pending:
            yield pending, self.reached

    def _fetch(self) -> list[Batch]:
        """Fetch the next batches, waiting for stalled fetches and open transactions."""
        at = {self._partition: self.position}
        stalled, waited = 0, 0
        while stalled <= MAX_STALLED_POLLS and waited <= self._wait:
            # The end is not reached, so there is data and the first fetch does not wait. If only
            # markers are left, a fetch that waits for records would wait in vain.
            timeout = 1.0 if stalled or waited else 0.0
            found = self._broker.fetch(at, max_bytes=FETCH_BYTES, timeout=timeout)
            fetched = found[self._partition]
            if fetched.next_offset > self.position:
                self._check_history(fetched)
                self._check_complete()
                self.reached = self._after(fetched)
                return fetched.batches
            if fetched.last_stable_offset > self.position:
                stalled += 1
            else:
                waited += 1
                self._log_open_transaction(waited)
        what = (
            f"restoring {self._partition} stands still at offset {self.position}, before its "
            f"end {self._end}"
        )
        if stalled > MAX_STALLED_POLLS:
            raise RequestTimedOut(f"{what}; is the log's owner alive?")
        raise TransactionOpen(
            f"{what}; a transaction is open there, or the partition cannot be written after a "
            "failure",
            self._partition,
            self.position,
        )

    def _log_open_transaction(self, waited: int) -> None:
        """Report the progress, and log once that an open transaction delays the restore."""
        self._report(self.position)  # the callback may end the wait by raising
        if waited == LOG_WAIT_AFTER_S:
            log_open_transaction(self._partition, self.position)

    def _check_history(self, fetched: Fetched) -> None:
        """Raise _Overtaken if the fetched records do not continue the history of the state.

        That happens if the log was replaced by a copy meanwhile: its owner died, the folder was
        replaced by a backup, and another process owns it now.
        """
        if not continues(fetched.epochs, self.position, self.reached.incarnation):
            raise _Overtaken(f"before offset {self.position} the log has another history now")

    def _after(self, fetched: Fetched) -> StorePosition:
        """Return the position after the fetched records, with the epoch of the last one."""
        offset = fetched.next_offset
        if fetched.epochs:
            return self.reached.at(offset, epoch_before(fetched.epochs, offset))
        if not fetched.batches:
            return replace(self.reached, offset=offset)
        return replace(self.reached, offset=offset, leader_epoch=fetched.batches[-1].leader_epoch)

    def _check_complete(self) -> None:
        """Raise _Overtaken if the records fetched from `position` may lack a deletion.

        Extend the end to the log's `superseding_end`.
        """
        now = self._broker.offsets([self._partition])[self._partition]
        if now.topic_id != self._origin.topic_id:
            raise _Overtaken("its topic was deleted and created again")
        if now.must_start_over(self.position, self._origin.settled_end):
            raise _Overtaken(
                f"deletions up to offset {now.purged_end} were removed from the log when it had "
                f"come to offset {self.position}; the topic's delete.retention.ms should be longer "
                "than it takes to read it"
            )
        self._end = max(self._end, now.superseding_end)

    def _chunk(
        self, batches: list[Batch], reached: StorePosition
    ) -> tuple[SortedChanges, StorePosition]:
        """Reduce batches to the last value of each key, sorted."""
        keys = _column(batches, "key")
        values = _column(batches, "value")
        if keys.null_count:
            raise CorruptLog(
                f"{self._partition} has records without a key, so it is not a changelog of a "
                "store; something else writes to it"
            )
        self.records += len(keys)
        self._report(reached.offset)
        names, latest = latest_per_key(keys, values)
        return (ArrowColumn[bytes](names), ArrowColumn[bytes | None](latest)), reached

    def _report(self, end: int) -> None:
        if self._progress is not None:
            remaining = max(0, self._end - end)
            seconds = self._clock.monotonic() - self._begun
            self._progress(ReplayProgress(self._partition, self.records, remaining, seconds))


def log_open_transaction(partition: TopicPartition, offset: int) -> None:
    """Log that a restore waits for a transaction that is open from `offset` on."""
    _log.warning(
        "restoring %s waits for a transaction that is open from offset %d on: it is "
        "aborted when another worker replaces the one that left it, or by its timeout",
        *(partition, offset),
        extra={"partition": str(partition), "offset": offset},
    )


class ArrowColumn(Generic[T]):
    """A column whose items become Python objects one piece at a time, while they are used.

    The objects of a piece take several times the memory of its column. They are freed before the
    next piece.
    """

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[T]:
        starts = range(0, len(self._array), PIECE_RECORDS)
        return chain.from_iterable(
            self._array[at : at + PIECE_RECORDS].to_pylist() for at in starts
        )


def _prefetched(items: Generator[T]) -> Generator[T]:
    """Yield the items; another thread makes the next one while the current one is used.

    A caller that does not consume all items must close the generator. If the garbage collector
    closes it, that waits for the thread wherever the collector runs, and within `Thread.start` the
    wait never ends.
    """
    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="replay") as pool:
        coming: Future[T | None] = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def _column(batches: list[Batch], name: str) -> pa.Array:
    arrays = [batch.columns.column(name) for batch in batches]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _is_full(batches: list[Batch], chunk_bytes: int) -> bool:
    records = sum(map(len, batches))
    return records >= CHUNK_RECORDS or sum(b.columns.nbytes for b in batches) >= chunk_bytes


def _origin(
    state: Changelogged, plan: RestorePlan, log: PartitionOffsets, partition: int
) -> StorePosition:
    """Return the position at which the replay begins.

    If the log lists epochs, the position has the log's own epoch there, with which each fetch is
    compared.
    """
    held = state.position
    if held is not None and not log.epochs:
        return replace(held, partition=partition)
    settled_end = log.settled_end if held is None else held.settled_end
    origin = StorePosition(
        log.topic_id, log.leader_epoch, plan.start, settled_end, partition=partition
    )
    return origin.at(plan.start, log.epoch_before(plan.start))


def _still_holds(log: PartitionOffsets, reached: StorePosition) -> bool:
    """Return True if a state at position `reached` is still valid for the log."""
    return not log.divergence(reached) and log.log_start <= reached.offset
