"""Bringing a store back from its changelog.

    1  look at the engine's position and at the changelog; decide what to do    plan_restore
    2  wipe the engine if its content cannot be continued
    3  replay committed records up to the captured end, chunk by chunk          replay
       after each fetch: is a deletion missing from it? before any of it is kept
    4  look at the changelog once more: what was decided must still hold

What does not hold begins again. The end lies behind all that was committed when it was captured:
whoever asked for the committed offsets before has every change that was committed with them, even
if someone who died has left a transaction open before it; the replay then waits until that is
aborted. The end is where the reader's position arrives, not a record's offset: the last records
before it may be markers, aborted, or compacted away. Each chunk is reduced to the last record of
each key, sorted, and written together with the position it reaches, so a restore that is cut short
goes on from there. Writing a chunk, sorting the next and reading
the one after that run beside each other: reading and sorting work on columns, without the
interpreter, and keys and values become objects of Python only where they are written, which
cannot do without it. Reading has a thread of its own because it needs the interpreter often, and
waits for it up to 5 ms each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

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

if TYPE_CHECKING:
    from strandline.statestore.store import PartitionStore

T = TypeVar("T")

_log = logging.getLogger("strandline")

CHUNK_BYTES = 64 << 20
"""Of keys and values that are sorted and written at once; three chunks are in memory."""

CHUNK_RECORDS = 500_000
FETCH_BYTES = 8 << 20
PIECE = 2_000
"""Records of a chunk that are objects of Python at the same time."""

STALLED_POLLS = 30
"""After so many long polls of a second without progress a restore gives up."""

OPEN_S = 16 * 60
"""How long it waits for transactions to end, unless told otherwise: transaction.max.timeout.ms, and a minute."""

READERS_WAIT_S = 30
"""And how long who only reads the state waits for them."""

SAID_AFTER_S = 3
"""After so long it says that it waits for that."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far a restore has come."""

    partition: TopicPartition
    records: int
    """Replayed so far."""
    remaining: int
    """Offsets up to the end; fewer records if some are markers or compacted away."""
    seconds: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At this rate; None before there is one."""
        return self.remaining / self.rate if self.rate else None


OnProgress = Callable[[ReplayProgress], None]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore is going to do."""

    action: Literal["resume", "rebuild", "fresh"]
    start: int
    """First offset to replay."""
    reason: str = ""
    """Why what the engine holds cannot be continued."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has done."""

    plan: RestorePlan
    records: int
    """Records replayed."""
    seconds: float
    position: StorePosition


def plan_restore(
    found: StorePosition | None, log: PartitionOffsets, last: LastRecord | None = None
) -> RestorePlan:
    """Decide how an engine at position `found` comes up to the changelog `log`.

    `last` is what the log has before that position. It is asked for where the log does not list its
    epochs, because then nothing else tells that the log was written anew there (KIP-320).

    >>> log = PartitionOffsets(0, 9, 9, "t1", leader_epoch=0)
    >>> plan_restore(StorePosition("t1", 0, 5), log)
    RestorePlan(action='resume', start=5, reason='')
    >>> plan_restore(StorePosition("t0", 0, 5), log).reason
    'the changelog is another topic than the one it was made from'
    """
    if found is None:
        return RestorePlan("fresh", log.log_start)
    reason = _why_not(found, log, last)
    return (
        RestorePlan("rebuild", log.log_start, reason)
        if reason
        else RestorePlan("resume", found.offset)
    )


def _why_not(found: StorePosition, log: PartitionOffsets, last: LastRecord | None) -> str:
    if found.topic_id != log.topic_id:
        return "the changelog is another topic than the one it was made from"
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
    wait: float = OPEN_S,
) -> Restored:
    """Bring `state` up to the end of what is committed in its changelog partition.

    Where open transactions hide some of it this waits for them, `wait` seconds at the most; with 0 it ends
    before them, and the state is good for reading only. Whoever wrote that partition before must have been
    fenced. Raises CorruptLog, RequestTimedOut (the log stands still), and what the broker raises.
    """
    clock = clock or SystemClock()
    begun = clock.monotonic()
    records = 0
    first: RestorePlan | None = None
    while True:
        log = broker.offsets([partition])[partition]
        plan = plan_restore(state.position, log, last_record(state, broker, partition, log))
        first = first or plan
        if plan.action == "rebuild":
            said = {"partition": str(partition), "reason": plan.reason}
            _log.info("the store of %s is made anew: %s", partition, plan.reason, extra=said)
            state.wipe()
        end = max(log.last_stable_offset, log.committed_end if wait else 0)
        replay = _Replay(broker, partition, _origin(state, plan, log), end, wait, progress, clock)
        try:
            with closing(_ahead(replay.chunks())) as chunks:
                state.refill(chunks)
        except OffsetOutOfRange:
            if broker.offsets([partition])[partition].log_start <= replay.position:
                raise
            continue  # retention overtook us: the plan is made again
        except _Overtaken as overtaken:
            said = {"partition": str(partition), "reason": str(overtaken)}
            _log.warning("restoring %s begins anew: %s", partition, overtaken, extra=said)
            continue
        records += replay.records
        reached = replay.reached
        state.advance(reached)
        if _still_holds(broker.offsets([partition])[partition], reached):
            return Restored(first, records, clock.monotonic() - begun, reached)


def restore_all(
    stores: Iterable[tuple[PartitionStore[Any, Any], TopicPartition]],
    broker: Broker,
    progress: OnProgress | None = None,
    *,
    threads: int = 4,
    wait: float = OPEN_S,
) -> list[Restored]:
    """Restore several partitions, `threads` of them at once. The first error is raised.

    `progress` is called from all of these threads. `wait` is that of `restore`.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
        running = [
            pool.submit(store.restore, broker, partition, progress, wait=wait)
            for store, partition in stores
        ]
        return [future.result() for future in running]


class _Overtaken(Exception):
    """What was read can't be kept; why."""


class _Replay:
    """Reads a changelog partition from a position to `end`.

    And on to the log's `superseding_end`: what was removed because of records behind the end is
    missing before it, and with those records it is right again.
    """

    def __init__(
        self,
        broker: Broker,
        partition: TopicPartition,
        origin: StorePosition,
        end: int,
        wait: float,
        progress: OnProgress | None,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._partition = partition
        self._origin = origin
        self._end = end
        self._wait = wait
        self._progress = progress
        self._clock = clock
        self._begun = clock.monotonic()
        self.reached = origin
        """Position of a state that has taken in everything that was read."""
        self.records = 0

    @property
    def position(self) -> int:
        """The next offset to read."""
        return self.reached.offset

    def chunks(self) -> Generator[tuple[SortedChanges, StorePosition]]:
        """What is read, as sorted chunks with the position each of them reaches."""
        with closing(_ahead(self._stretches())) as stretches:
            for batches, end in stretches:
                yield self._chunk(batches, end)

    def _stretches(self) -> Generator[tuple[list[Batch], StorePosition]]:
        """What is read, in stretches that are sorted at once, with the position that each reaches."""
        pending: list[Batch] = []
        while self.position < self._end:
            pending += self._fetch()
            if _is_full(pending):
                yield pending, self.reached
                pending = []
        if pending:
            yield pending, self.reached

    def _fetch(self) -> list[Batch]:
        at = {self._partition: self.position}
        stalled, waited = 0, 0
        while stalled <= STALLED_POLLS and waited <= self._wait:
            # The end is further on, so there is no need to wait; and where only markers are
            # left, a fetch that waits for records would wait in vain.
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
                self._say_open(waited)
        is_open = "a transaction is open there, or the partition cannot be written since a failure"
        why = "is the log's owner alive?" if stalled > STALLED_POLLS else is_open
        raise RequestTimedOut(
            f"restoring {self._partition} stands still at offset {self.position}, before its "
            f"end {self._end}; {why}"
        )

    def _say_open(self, waited: int) -> None:
        self._report(self.position)  # who listens may have it end here
        if waited == SAID_AFTER_S:
            said = {"partition": str(self._partition), "offset": self.position}
            _log.warning(
                "restoring %s waits for a transaction that is open from offset %d on: it is aborted when "
                "a worker takes the place of the one that left it, or by its timeout",
                *(self._partition, self.position),
                extra=said,
            )

    def _check_history(self, fetched: Fetched) -> None:
        """Raise _Overtaken if what was fetched does not follow what the state has.

        The log was replaced by a copy with another history meanwhile: an owner died, a backup was
        put in the place of the folder, and another process owns it now.
        """
        if not continues(fetched.epochs, self.position, self.reached.incarnation):
            raise _Overtaken(f"before offset {self.position} the log has another history now")

    def _after(self, fetched: Fetched) -> StorePosition:
        """The position behind what was fetched, named by what came with it."""
        offset = fetched.next_offset
        if fetched.epochs:
            return self.reached.at(offset, epoch_before(fetched.epochs, offset))
        if not fetched.batches:
            return replace(self.reached, offset=offset)
        return replace(self.reached, offset=offset, leader_epoch=fetched.batches[-1].leader_epoch)

    def _check_complete(self) -> None:
        """Whether what was fetched from `position` lacks nothing that the state needs."""
        now = self._broker.offsets([self._partition])[self._partition]
        if now.topic_id != self._origin.topic_id:
            raise _Overtaken("its topic was deleted, and made anew")
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


class ArrowColumn(Generic[T]):
    """A column whose items become objects of Python a piece at a time, as they are used.

    They take several times the room of the column, and the memory of one piece serves the next.
    """

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[T]:
        starts = range(0, len(self._array), PIECE)
        return chain.from_iterable(self._array[at : at + PIECE].to_pylist() for at in starts)


def _ahead(items: Generator[T]) -> Generator[T]:
    """The same items, each made on another thread while the one before it is used.

    To be closed by who does not take them all: if the garbage collector does it, it waits for that
    thread wherever it happens to run, and inside of `Thread.start` that is for ever.
    """
    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="replay") as pool:
        coming: Future[T | None] = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def _column(batches: list[Batch], name: str) -> pa.Array:
    arrays = [batch.columns.column(name) for batch in batches]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _is_full(batches: list[Batch]) -> bool:
    records = sum(map(len, batches))
    return records >= CHUNK_RECORDS or sum(b.columns.nbytes for b in batches) >= CHUNK_BYTES


def _origin(state: Changelogged, plan: RestorePlan, log: PartitionOffsets) -> StorePosition:
    """Where the replay begins: with what the engine holds, or with nothing.

    Its name is the log's own where the log lists epochs: each fetch is compared with that.
    """
    held = state.position
    if held is not None and not log.epochs:
        return held
    settled_end = log.settled_end if held is None else held.settled_end
    origin = StorePosition(log.topic_id, log.leader_epoch, plan.start, settled_end)
    return origin.at(plan.start, log.epoch_before(plan.start))


def _still_holds(log: PartitionOffsets, reached: StorePosition) -> bool:
    return not log.divergence(reached) and log.log_start <= reached.offset
