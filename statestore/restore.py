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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.records import PartitionOffsets, TopicPartition
from strandline.statestore.changelogged import Changelogged
from strandline.statestore.engine import StorePosition
from strandline.statestore.last_record import LastRecord, last_record
from strandline.statestore.memory import MAX_CHUNK_BYTES
from strandline.statestore.replay import (
    ChangelogReplay,
    OnProgress,
    Overtaken,
    ReplayBounds,
    prefetched,
)

_log = logging.getLogger("strandline")


TRANSACTION_WAIT_S = 16 * 60
"""Default seconds to wait for open transactions: transaction.max.timeout.ms and a minute."""

READERS_WAIT_S = 30
"""Seconds that a reader of the state, which does not write, waits for open transactions."""
RESTORE_THREADS = 4
"""Number of store partitions that `restore_all` restores at the same time."""


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
        bounds = ReplayBounds(end, wait or 0, chunk_bytes)
        replay = ChangelogReplay(broker, partition, origin, bounds, progress, clock)
        try:
            if replay.position < end:
                with closing(prefetched(replay.chunks())) as chunks:
                    state.refill(chunks)
        except OffsetOutOfRange:
            if broker.offsets([partition])[partition].log_start <= replay.position:
                raise
            continue  # retention has removed records meanwhile, so a new plan is made
        except Overtaken as overtaken:
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
    *,
    wait: float,
) -> list[Restored]:
    """Restore several store partitions, RESTORE_THREADS of them at a time.

    `wait` is as for `restore`. The first error is raised after all restores have ended.
    """
    with ThreadPoolExecutor(RESTORE_THREADS, thread_name_prefix="restore") as pool:
        running = [
            pool.submit(store.restore, broker, partition, wait=wait) for store, partition in stores
        ]
        return [future.result() for future in running]


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
