"""Opening task instances: on other threads, so that running instances continue meanwhile.

    begin      queue the partitions that start together; a thread of the pool runs the steps:
    offsets    read the committed offsets
    stores     open the stores
    restore    replay their changelogs
    end        the worker's thread takes the parts of the instances

A step that meets an open transaction cannot go on before that has ended, which may take a minute if
a dead worker has left it. Such an opening gives its thread back, keeps what it has, and is queued
again when the transaction has ended. So a few threads suffice for any number of partitions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import CoordinatorLoading, Retriable, StrandlineError
from strandline.changelog.history import epochs_within
from strandline.changelog.printable import printable
from strandline.changelog.records import CommittedOffset, PartitionOffsets, TopicPartition
from strandline.changelog.settings import LONG_MAX
from strandline.framework import patience
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.inputs import Input
from strandline.framework.container.instance import InstanceParts, release_all
from strandline.framework.container.outage import patiently
from strandline.framework.container.restore import OnRestore, RestoreMonitor
from strandline.framework.container.standbys import Standbys
from strandline.framework.positions import check_history, of_present_topics, starting_offset
from strandline.framework.store_declarations import StoreDeclarations
from strandline.framework.task import TaskSpec
from strandline.framework.task_positions import declared_positions
from strandline.statestore.replay import (
    LOG_WAIT_AFTER_S,
    ReplayProgress,
    TransactionOpen,
    log_open_transaction,
)
from strandline.statestore.restore import TRANSACTION_WAIT_S
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import AnyStore
from strandline.statestore.values import Expiry

_log = logging.getLogger("strandline")

Partitions = frozenset[TopicPartition]
Committed = Mapping[TopicPartition, CommittedOffset]
Ends = Mapping[TopicPartition, PartitionOffsets]
Positions = Mapping[tuple[str, TopicPartition], int]
"""Next offset by task and input partition; none if nothing is committed there."""
NO_PARTITIONS: Partitions = frozenset()
LOCK_TIMEOUT_S = 2.0
"""Seconds to wait for the locks of stores, counted from the assignment of their partitions.

The previous owner has released them, is dead, or is stalled. After a change of the log's owner it
may need a moment to release them.
"""
LOOK_S, LONGEST_LOOK_S = 0.1, 1.0
"""Seconds between two looks whether the transactions that openings wait for have ended: at
changelogs, and at most at committed offsets."""
_CLOCK = SystemClock()
"""Clock of transactions, which end in the log's time, whatever clock a test gives the worker."""


class RestoreAbandoned(Exception):
    """The partitions being restored are no longer assigned to this worker."""


@dataclass(eq=False)
class Opening:
    """The instances of partitions that start together, and how far they have come."""

    partitions: Partitions
    deadline: float
    """Time of the monotonic clock, in seconds, until which locks of stores are waited for."""
    result: Future[None] = field(default_factory=Future)
    """Ends when the instances are restored; with an error also when they must wait."""
    abandoned: bool = False
    committed: Committed = field(default_factory=dict)
    """Committed offsets of the inputs."""
    parts: list[InstanceParts] = field(default_factory=list)
    """Parts of the instances; their stores are open."""
    records: dict[TopicPartition, int] = field(default_factory=dict)
    """Number of records replayed so far, by changelog partition."""
    restored: set[TopicPartition] = field(default_factory=set)
    """Changelog partitions whose stores are restored."""
    waits_since: float | None = None
    """Time in seconds at which it has first met an open transaction."""
    look_at: float = 0.0
    """Time in seconds at which it is tried again, if it waits for committed offsets."""
    is_logged: bool = False
    """True if a message says that it waits."""

    def release(self) -> None:
        """Close the stores."""
        release_all(self.parts)
        self.parts = []


class Openings:
    """The openings of one worker. Only the worker's thread calls the methods."""

    def __init__(
        self,
        context: ContainerContext,
        folders: StoreFolders,
        declarations: StoreDeclarations,
        standbys: Standbys,
        *,
        in_background: bool,
        on_restore: OnRestore | None,
    ) -> None:
        self._context = context
        self._folders = folders
        self._declarations = declarations
        self._standbys = standbys
        self._restoring = RestoreMonitor(context.clock, on_restore)
        self._openings: list[Opening] = []
        self._look_at = 0.0
        threads = context.options.restore_threads
        self._pool = ThreadPoolExecutor(threads, "strandline-restore") if in_background else None

    @property
    def in_background(self) -> bool:
        """True if the steps run on other threads; if not, `begin` returns after they have ended."""
        return self._pool is not None

    def __bool__(self) -> bool:
        return bool(self._openings)

    @property
    def partitions(self) -> Partitions:
        """Input partitions that are being opened."""
        return NO_PARTITIONS.union(*(opening.partitions for opening in self._openings))

    @property
    def remaining(self) -> int:
        """Number of changelog offsets that the running restores still have to replay."""
        return self._restoring.remaining

    def begin(self, groups: Iterable[Partitions]) -> None:
        """Begin to open the tasks of these partitions, each group as one opening."""
        deadline = self._context.clock.monotonic() + LOCK_TIMEOUT_S
        begun = [Opening(group, deadline) for group in groups]
        self._openings += begun
        for opening in begun:
            self._restoring.add(len(changelogs_of(self._context, opening.partitions)))
        for opening in begun:
            self._queue(opening)
        while self._pool is None and any(map(_is_waiting, self._openings)):
            self.wait(LOOK_S)
            self._resume()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until all openings have ended, or it is time to look at them."""
        running = [opening.result for opening in self._openings if not opening.result.done()]
        if any(map(_is_waiting, self._openings)):
            seconds = min(seconds, LOOK_S)
        if running:
            wait(running, seconds)
        else:
            threading.Event().wait(seconds)

    def ended(self) -> list[Opening]:
        """Remove and return the openings that have ended: they are restored or have failed."""
        self._resume()
        ended = [one for one in self._openings if one.result.done() and not _is_waiting(one)]
        for opening in ended:
            self._openings.remove(opening)
            if _has_met_transaction(opening):
                # The transaction is still open, and the opening has waited for as long as it may.
                self._give_up(opening)
        return ended

    def abandon(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Cancel the openings of these partitions, or all; wait for those under way."""
        openings = [
            opening
            for opening in self._openings
            if partitions is None or not opening.partitions.isdisjoint(partitions)
        ]
        unfinished = [opening for opening in openings if _is_waiting(opening)]
        for opening in openings:
            opening.abandoned = True
            self._openings.remove(opening)
        unfinished += [opening for opening in openings if opening.result.cancel()]
        wait([opening.result for opening in openings if opening not in unfinished])
        for opening in openings:
            if opening in unfinished or _has_met_transaction(opening):
                self._give_up(opening)
            opening.release()

    def shut_down(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    # Waiting for transactions ---------------------------------------------------------

    def _queue(self, opening: Opening) -> None:
        if self._pool is not None:
            opening.result = self._pool.submit(self._run, opening)
            return
        opening.result = Future()
        try:
            self._run(opening)
            opening.result.set_result(None)
        except BaseException as error:
            opening.result.set_exception(error)

    def _resume(self) -> None:
        """Queue waiting openings again if their transaction has ended. Called often, looks rarely.

        One call to the log answers for all that wait for a changelog.
        """
        now = _CLOCK.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        waiting = {one: one.result.exception() for one in self._openings if _is_waiting(one)}
        met = {error.partition for error in waiting.values() if isinstance(error, TransactionOpen)}
        stable = self._stable_ends(met)
        for opening, error in waiting.items():
            if not isinstance(error, TransactionOpen):
                is_over = now >= opening.look_at
            else:
                is_over = stable[error.partition] > error.offset
                _log_wait(opening, error)
            if is_over:
                self._queue(opening)

    def _stable_ends(self, changelogs: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        if not changelogs:
            return {}
        try:
            ends = self._context.broker.offsets(changelogs)
        except Retriable:
            return dict.fromkeys(changelogs, -1)  # the next look asks again
        except StrandlineError:
            # One was deleted, for example. The next attempt of its own opening shows the error.
            return dict.fromkeys(changelogs, LONG_MAX)
        return {tp: end.last_stable_offset for tp, end in ends.items()}

    def _give_up(self, opening: Opening) -> None:
        """Close the stores of an opening that was waiting, and report its end."""
        opening.release()
        try:
            self._report_end(opening, is_restored=False)
        except Exception as error:
            # The user's progress function raised. The other stores must still be closed.
            fields = {"app": self._context.app, "error": error}
            text = printable(str(error))
            _log.warning("a progress function raised: %s", text, extra=fields)

    # On other threads -----------------------------------------------------------------

    def _run(self, opening: Opening) -> None:
        """Open and restore the stores; close them all if one fails, unless it only has to wait."""
        is_restored = is_waiting = False
        try:
            try:
                self._open(opening)
                self._restore(opening)
                is_restored = True
            except (TransactionOpen, CoordinatorLoading):
                is_waiting = True
                _note_wait(opening)
                raise
            finally:
                if not is_waiting:
                    self._report_end(opening, is_restored)
        except BaseException:
            if not is_waiting:
                opening.release()
            raise

    def _open(self, opening: Opening) -> None:
        """Read the committed offsets and open the stores. Raises CoordinatorLoading."""
        if opening.parts:
            return
        context, changelogs = self._context, changelogs_of(self._context, opening.partitions)
        self._standbys.release(changelogs)
        # The last owner may have a transaction with offsets of these partitions open. The broker
        # raises CoordinatorLoading until it has ended, so that no offset is read that is replaced
        # at once.
        opening.committed = patiently(
            lambda: context.broker.committed(context.app, opening.partitions),
            lambda: opening.abandoned,
            passing=(CoordinatorLoading,),
        )
        ends = context.broker.offsets(opening.partitions)
        # The topic may have been deleted and created again, also between these two calls.
        opening.committed = of_present_topics(opening.committed, ends)
        check_history(opening.committed, ends)
        positions = self._positions(opening)
        # Only after that: the last owner can no longer change what it recorded and wrote.
        expiry = self._declarations.confirm({changelog.topic for changelog in changelogs})
        try:
            for spec, number in tasks_of(context, opening.partitions):
                inputs = _inputs(spec, number, positions, ends)
                opening.parts.append(InstanceParts(spec, number, inputs, [], None))
                self._open_stores(opening, opening.parts[-1], expiry)
        except BaseException:
            opening.release()
            raise

    def _positions(self, opening: Opening) -> Positions:
        """Return the next offset of each task in its committed partitions. Raises InvalidConfig."""
        context = self._context
        return {
            (task, tp): offset
            for tp, at in opening.committed.items()
            for task, offset in declared_positions(context.declared, context.broker, tp, at).items()
        }

    def _open_stores(
        self, opening: Opening, parts: InstanceParts, expiry: Mapping[str, Expiry]
    ) -> None:
        def opened(store: AnySpec) -> AnyStore:
            left = max(0.0, opening.deadline - self._context.clock.monotonic())
            has_expiry = expiry[store.changelog_topic(self._context.app)]
            return self._folders.open(
                store, parts.number, left, has_expiry, columns=parts.spec.batch
            )

        for store in parts.spec.stores:
            parts.stores.append(opened(store.spec))
        if parts.spec.has_timers:
            parts.timer_store = opened(parts.spec.timer_store)

    def _restore(self, opening: Opening) -> None:
        """Restore the stores that are not restored yet. Raises TransactionOpen."""
        for part in opening.parts:
            for store in part.all_stores:
                topic = store.spec.changelog_topic(self._context.app)
                changelog = TopicPartition(topic, part.number)
                if changelog not in opening.restored:
                    self._restore_one(opening, store, changelog)
                    opening.restored.add(changelog)

    def _restore_one(self, opening: Opening, store: AnyStore, changelog: TopicPartition) -> None:
        before = opening.records.get(changelog, 0)

        def report(progress: ReplayProgress) -> None:
            if opening.abandoned:
                raise RestoreAbandoned
            opening.records[changelog] = before + progress.records
            self._restoring.report(replace(progress, records=before + progress.records))

        counters = self._context.counters
        with counters.restores.timed():
            store.restore(self._context.broker, changelog, report, wait=0)
            self._declarations.finish(store, changelog)
        counters.restored.add(opening.records.get(changelog, 0))

    def _report_end(self, opening: Opening, is_restored: bool) -> None:
        context = self._context
        failed = () if is_restored else changelogs_of(context, opening.partitions)
        done = self._restoring.ended(failed)
        if done is None:
            return
        _log.info(
            "app %s has %d store partitions back: %d records replayed in %.3f s",
            *(context.app, done.partitions, done.records, done.seconds),
            extra={
                "app": context.app,
                "stores": done.partitions,
                "records": done.records,
                "seconds": round(done.seconds, 3),
            },
        )


def tasks_of(context: ContainerContext, partitions: Partitions) -> list[tuple[TaskSpec, int]]:
    """Return each task with inputs among these partitions, with the partition number."""
    numbers = sorted({tp.partition for tp in partitions})
    return [
        (spec, number)
        for spec in context.tasks
        for number in numbers
        if TopicPartition(spec.inputs[0].name, number) in partitions
    ]


def changelogs_of(
    context: ContainerContext, partitions: Partitions
) -> dict[TopicPartition, AnySpec]:
    """Return the changelog partitions of the stores of these inputs, with their specs."""
    return {
        TopicPartition(store.changelog_topic(context.app), number): store
        for spec, number in tasks_of(context, partitions)
        for store in spec.all_stores
    }


def _inputs(spec: TaskSpec, number: int, positions: Positions, ends: Ends) -> list[Input]:
    inputs = []
    for topic in spec.inputs:
        tp = TopicPartition(topic.name, number)
        position = positions.get((spec.name, tp))
        start = starting_offset(spec.name, tp, position, ends[tp].log_start)
        epochs = epochs_within(ends[tp].epochs, start, start)
        inputs.append(Input(topic, tp, start, ends[tp].topic_id, epochs))
    return inputs


def _note_wait(opening: Opening) -> None:
    """Note that the opening has met an open transaction. It is looked for ever more slowly."""
    now = _CLOCK.monotonic()
    if opening.waits_since is None:
        opening.waits_since = now
    opening.look_at = now + min(max(now - opening.waits_since, LOOK_S), LONGEST_LOOK_S)


def _has_met_transaction(opening: Opening) -> bool:
    """Return True if the last attempt has met an open transaction."""
    done = opening.result.done() and not opening.result.cancelled()
    return done and isinstance(opening.result.exception(), (TransactionOpen, CoordinatorLoading))


def _is_waiting(opening: Opening) -> bool:
    """Return True if the opening waits for a transaction, and is to wait on."""
    if opening.abandoned or not _has_met_transaction(opening):
        return False
    is_changelog = isinstance(opening.result.exception(), TransactionOpen)
    limit = TRANSACTION_WAIT_S if is_changelog else patience.PATIENCE_SECONDS
    return _waited(opening) < limit


def _log_wait(opening: Opening, error: TransactionOpen) -> None:
    """Log once that the opening waits, after some seconds."""
    if not opening.is_logged and _waited(opening) >= LOG_WAIT_AFTER_S:
        opening.is_logged = True
        log_open_transaction(error.partition, error.offset)


def _waited(opening: Opening) -> float:
    """Return the seconds since the opening has first met an open transaction."""
    now = _CLOCK.monotonic()
    return now - (now if opening.waits_since is None else opening.waits_since)
