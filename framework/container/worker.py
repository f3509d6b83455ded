"""A worker: one thread that takes records, lets task instances handle them, and commits.

    join     a place among the app's workers · a producer that fences who had that place before
    share    give up what others are to have, take up what is new
    cycle    share · feed · handle slices, partitions in turn · timers and windows · commit when due
    rewind   after an aborted commit: everything back to the last one, then on from there
    lost     it is no member any more: nothing it did since its last commit counts; join again
    wait     while the disk is full: a pause, back to the last commit, once more

Only `cycle` and what it calls touch task instances; `stop` may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import (
    DiskFull,
    InvalidRecord,
    MemberFenced,
    ProducerFenced,
    RebalanceInProgress,
    Retriable,
    SchemaMismatch,
    TransactionAborted,
)
from strandline.changelog.metrics import MetricReading
from strandline.framework.container.commit import checkpoint_if_due, offsets_of
from strandline.framework.container.gauges import WAITING
from strandline.framework.container.group_membership import GroupMembership
from strandline.framework.container.idle import Bound, Completion
from strandline.framework.container.inputs import Input, groups
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.manager import Partitions, TaskManager
from strandline.framework.container.outage import Outage, patiently
from strandline.framework.container.positions import position_of
from strandline.framework.container.scheduler import SliceScheduler
from strandline.framework.container.session import WorkerSession
from strandline.framework.container.status import WorkerStatus, positions_of, state_of
from strandline.framework.options import Options

_log = logging.getLogger("strandline")

GIVE_UP = 10
"""Commits aborted one after another before the worker stops."""


class Worker:
    """Runs the tasks of an app, on the partitions that it may hold."""

    def __init__(
        self,
        app: str,
        broker: Broker,
        clock: Clock,
        options: Options,
        tasks: TaskManager,
        seat: WorkerSession,
    ) -> None:
        self.app = app
        self.options = options
        self._broker = broker
        self._clock = clock
        self._tasks = tasks
        self._trial = tasks.trial
        self._trial.check = seat.check
        self._seat = seat
        self._told: tuple[GroupMembership, Partitions] | None = None
        """What was said last that it holds, and of which place."""
        self._turns = SliceScheduler(tasks.trial, tasks.loop, clock, guarded=tasks.in_background)
        self._outage = Outage(clock)
        self._intact = False
        """Whether stores can be written, so that rewinding is enough after a failure."""
        self._since_commit = 0
        self._next_commit = 0.0
        self._aborted_in_a_row = 0
        self._completion = Completion(app, broker, clock, tasks)
        self.handled = 0
        """Records handled since the worker was made, those rewound not counted."""

    # Life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Take a place, and begin to bring back what belongs to it."""
        self._intact = True
        self._commit_is_later()
        self._share()
        if not self._tasks.in_background:
            self._welcome()

    def cycle(self, *, limit: int | None = None, wait: float = 0.0) -> int:
        """One round; how many records it handled. Waits up to `wait` seconds for new ones."""
        self._share()
        self._welcome()
        self._feed(wait)
        handled = self._turns.handle(self.instances, limit, lambda: self._is_time)
        self._turns.tick(self.instances)
        self.handled += handled
        self._since_commit += handled
        if self.commit_is_due:
            self.commit()
        return handled

    def commit(self) -> bool:
        """Commit what has been done, or rewind to the last commit if that is refused.

        Returns:
            Whether all that was done is committed.

        Raises:
            DiskFull: What is not committed must be rewound then.
        """
        is_committed = True
        if self.has_uncommitted:
            is_committed = False
            try:
                self._seat.commit(self.instances)
                is_committed = True
                self._trial.committed()
                self._tasks.committed.update(offsets_of(self.instances))
                self._aborted_in_a_row = self._since_commit = 0
                self._checkpoint()
                self._outage.over()
            except SchemaMismatch:
                raise  # of no single record
            except InvalidRecord as error:
                self._refused(error)
            except (MemberFenced, ProducerFenced) as error:
                self._lost(error)
            except (TransactionAborted, Retriable) as error:
                self._recover(error)
        self._commit_is_later()
        return is_committed

    def _checkpoint(self) -> None:
        self._intact = False  # an engine that could not write takes nothing until it is reopened
        checkpoint_if_due(self.instances)
        self._intact = True

    def rest(self) -> None:
        """Let the engines have all that is committed, so that the next start has nothing to restore."""
        self._intact = self._tasks.rest(self.instances)

    def run(
        self,
        *,
        until: Bound | None = None,
        count: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Cycles until told to stop; how many records they handled.

        Ends when the bound `until` is reached, after `count` records, or after `timeout` seconds,
        whatever is asked for and comes first, or when every task instance has failed. While the
        disk is full it waits; if it is to end then, it raises DiskFull.
        """
        begun, before = self._clock.monotonic(), self.handled

        def seconds_left() -> float | None:
            return None if timeout is None else timeout - (self._clock.monotonic() - begun)

        def ended() -> bool:
            return self.stopping or ((left := seconds_left()) is not None and left <= 0)

        while True:
            try:
                self._work(until, None if count is None else before + count, seconds_left)
                return self.handled - before
            except DiskFull as error:
                self._outlast(error, ended)

    def _work(
        self,
        until: Bound | None,
        until_handled: int | None,
        seconds_left: Callable[[], float | None],
    ) -> None:
        while not self.stopping:
            left = None if until_handled is None else until_handled - self.handled
            seconds = seconds_left()
            is_over = seconds is not None and seconds <= 0
            if left == 0 or is_over or self._all_failed:
                if self.commit() or is_over:
                    return
                continue  # what the log has refused comes again
            wait = self._wait(seconds, bounded=until is not None)
            handled = patiently(partial(self.cycle, limit=left, wait=wait), lambda: self.stopping)
            if until is not None and not handled:
                if self.has_uncommitted:
                    patiently(self.commit, lambda: self.stopping)
                elif patiently(partial(self._has_ended, until), lambda: self.stopping):
                    return
        self.commit()

    def _has_ended(self, until: Bound) -> bool:
        """If the app is idle, let fire what comes last; True if nothing is left to do anywhere."""
        if self._tasks.is_opening or not self.is_idle:
            return False
        steps = self._completion.last_steps(until)
        for instance, of_instance in steps:
            with instance.context.at_end(until == "end"):
                self._turns.drive(instance, of_instance)
        return not steps and not self._completion.others_are_busy

    def stop(self) -> None:
        """Let `run` end after a last commit; may be called from any thread or signal handler."""
        self._turns.stop()  # and no lock is taken: it may be a signal within a wait

    def close(self) -> None:
        """Let go of stores, producer and place; what is not committed is forgotten."""
        try:
            self._tasks.shut_down()
        finally:
            self._seat.leave()
            self._turns.close()
            self._tasks.loop.close()

    def abandon(self) -> None:
        """Let go as a crash would: no commit, no farewell; only the files are closed."""
        self._tasks.release()
        self._turns.close()
        self._tasks.loop.close()

    # Looking at it --------------------------------------------------------------------

    @property
    def instances(self) -> list[TaskInstance]:
        """The task instances at work."""
        return self._tasks.instances

    @property
    def stopping(self) -> bool:
        return self._turns.is_stopping

    @property
    def waits_for(self) -> DiskFull | None:
        """Why it stands still; None if it does not."""
        return self._outage.reason

    def status(self) -> WorkerStatus:
        """What it is doing; may be asked from any thread."""
        state = state_of(self.waits_for, self._seat, self._tasks)
        handled, commits = self.handled - self._since_commit, self._tasks.counters.commits.count
        return WorkerStatus(state, handled, commits, positions_of(self._tasks))

    def metrics(self) -> list[MetricReading]:
        """What it has counted, and how things stand; may be asked from any thread."""
        return [MetricReading(WAITING, (self.app,), bool(self.waits_for)), *self._tasks.metrics()]

    @property
    def commit_is_due(self) -> bool:
        """Whether time, records, memory or the search for a refused record ask for a commit."""
        return self._is_time or self._trial.is_over or any(i.needs_commit for i in self.instances)

    @property
    def _is_time(self) -> bool:
        return (
            self._since_commit >= self.options.commit_records
            or self._clock.monotonic() >= self._next_commit
        )

    @property
    def has_uncommitted(self) -> bool:
        """Whether a commit would write anything."""
        return any(
            instance.changed or source.position != self._last(instance, source)
            for instance in self.instances
            for source in instance.inputs
        )

    @property
    def is_idle(self) -> bool:
        """Whether all there is has been handled and committed, in the whole app; see `Completion`."""
        return self._completion.is_idle(self.has_uncommitted)

    @property
    def failures(self) -> list[Exception]:
        """Why task instances have stopped."""
        return [instance.failure for instance in self.instances if instance.failure is not None]

    @property
    def _all_failed(self) -> bool:
        return 0 < len(self.instances) == len(self.failures) and not self._tasks.is_opening

    def _wait(self, seconds: float | None, *, bounded: bool) -> float:
        """How long a fetch may wait: not past the next commit, timer, or end of the run."""
        waits = [self.options.poll_ms / 1000]
        if seconds is not None:
            waits.append(seconds)
        if self.has_uncommitted:
            waits.append(self._next_commit - self._clock.monotonic())
        now = self._clock.now_ms()
        waits += [(due - now) / 1000 for i in self.instances if (due := i.due_at()) is not None]
        is_open = any(source.stable is False for i in self.instances for source in i.inputs)
        others_come = self._completion.others_are_busy or self._tasks.is_opening
        if bounded and self.instances and not is_open and not others_come:
            return 0.0
        return max(0.0, min(waits))

    # Sharing with others --------------------------------------------------------------

    def _share(self) -> None:
        """Give up what others are to have, take up what is new."""
        place = self._seat.take()
        try:
            allowed = self._tasks.readable(place.allowed())
        except MemberFenced as error:
            self._lost(error)
            if not self.stopping:
                self._seat.take()  # in the same breath: the loss does not say that the log answers
            return
        if surplus := self._tasks.held - allowed:
            self.commit()
            if self._seat.place is not place:
                return
            self._tasks.close(surplus)
        if self._told != (place, allowed):  # also if what is asked back was dropped before
            place.holds(allowed)
            self._told = place, allowed
        if missing := allowed - self._tasks.held:
            self._tasks.open(missing)
        self._tasks.follow(place.standbys() & self._tasks.every - allowed)

    def _welcome(self) -> None:
        """Let those begin that are back."""
        self._tasks.ready()
        self._turns.start(self.instances)

    def _lost(self, error: MemberFenced | ProducerFenced) -> None:
        """Others may hold what this worker held: forget what is not committed, and join again."""
        dropped = self._since_commit
        self._drop()
        self._seat.lost(error, dropped)

    # Feeding and handling -------------------------------------------------------------

    def _feed(self, wait: float) -> None:
        """Fetch for the inputs that have run dry; wait only if there is nothing else to do."""
        if not self.instances:
            self._pause(wait)
            return
        running = [instance for instance in self.instances if instance.failure is None]
        hungry = [s for instance in running for s in instance.inputs if not s.pending]
        together = groups(hungry)
        if len(together) != 1 or any(instance.has_input for instance in running):
            wait = 0.0
        for group in together:
            positions = {tp: sources[0].ahead for tp, sources in group.items()}
            fetched = self._broker.fetch(
                positions, max_bytes=self.options.fetch_bytes, timeout=wait
            )
            for tp, sources in group.items():
                for source in sources:
                    source.feed(fetched[tp])

    def _pause(self, seconds: float) -> None:
        """Wait for something to be held."""
        if self._tasks.is_opening:
            self._tasks.wait(seconds)
        else:
            threading.Event().wait(seconds)

    # Going back -----------------------------------------------------------------------

    def _recover(self, error: TransactionAborted | Retriable) -> None:
        """After a commit that failed: back to the last one that did not."""
        self._aborted_in_a_row += 1
        if self._aborted_in_a_row > GIVE_UP:
            raise error
        said = {"app": self.app, "records": self._since_commit, "error": error}
        if isinstance(error, RebalanceInProgress):
            # Kafka lets it happen whenever a worker comes or goes: it is nobody's failure.
            _log.info(
                "partitions were shared out anew during a commit: it is done again", extra=said
            )
        else:
            _log.warning("a commit was aborted, going back to the last one: %s", error, extra=said)
        self._go_back()

    def _refused(self, error: InvalidRecord) -> None:
        """The log refuses the commit for one record in it: go back, and find whose it is."""
        said = {"app": self.app, "records": self._since_commit, "error": error}
        _log.info("a commit was refused, looking for the record: %s", error, extra=said)
        self._trial.refused(error, lambda: any(i.condemn(error) for i in self.instances))
        self._go_back(is_undone=True)

    def _go_back(self, *, is_undone: bool = False) -> None:
        """To the last commit: in place, or from the log if what it holds must be found out.

        `is_undone`: outputs and changes are known not to be committed. Else only one transaction
        for all of it tells that.
        """
        is_undone = is_undone or self.options.processing_guarantee == "exactly_once"
        try:
            aborted = is_undone and self._intact and self._seat.abort()
        except ProducerFenced as error:
            self._lost(error)
            return
        if aborted:
            self._rewind_in_place()
        else:
            self._drop()
            self._seat.renew()

    def _drop(self) -> None:
        """What is held, as it is in memory and in the engines."""
        self._forget_handled()
        self._tasks.drop()
        self._intact = True

    def _outlast(self, error: DiskFull, ended: Callable[[], bool]) -> None:
        """Wait, and go back to the last commit; raise the error if the run is to end before."""
        while True:
            self._outage.met(error)
            if not self._outage.pause(ended):
                raise error
            try:
                return self._go_back()
            except DiskFull as again:
                error = again

    def _forget_handled(self) -> None:
        self._trial.rewound()
        self.handled -= self._since_commit
        self._since_commit = 0

    def _rewind_in_place(self) -> None:
        """Forget what is not committed."""
        self._forget_handled()
        for instance in self.instances:
            instance.rewind(
                {source.partition: self._last(instance, source) for source in instance.inputs}
            )

    def _last(self, instance: TaskInstance, source: Input) -> int:
        """The position of the last commit, or where the worker started."""
        position = position_of(instance.spec.name, source.partition, self._tasks.committed)
        return source.origin if position is None else max(position, source.origin)

    def _commit_is_later(self) -> None:
        self._since_commit = 0
        self._next_commit = self._clock.monotonic() + self.options.commit_interval_ms / 1000
