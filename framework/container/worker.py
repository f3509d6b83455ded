"""A worker: one thread that fetches records, runs task instances on them, and commits.

    join        become a member of the app's group; make a producer, which fences a predecessor's
    rebalance   commit and close revoked partitions, open newly assigned ones
    cycle       rebalance · fetch · handle slices in turn · timers and windows · commit if due

`Committer` commits, and goes back to the last commit after one that fails. Only `cycle` and the
methods it calls touch task instances. `stop` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from strandline.changelog.client.membership import rebalance
from strandline.changelog.errors import DiskFull, MemberFenced
from strandline.changelog.metrics import MetricReading
from strandline.framework.container.commit_schedule import CommitSchedule
from strandline.framework.container.committer import Committer
from strandline.framework.container.completion import Bound, Completion
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.feeder import Feeder
from strandline.framework.container.gauges import WAITING, StableEnds, gauges
from strandline.framework.container.group_membership import GroupMembership
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.manager import TaskManager, inputs_of
from strandline.framework.container.opening import Partitions
from strandline.framework.container.outage import patiently
from strandline.framework.container.scheduler import SliceScheduler
from strandline.framework.container.session import WorkerSession
from strandline.framework.container.status import WorkerStatus, positions_of, state_of
from strandline.framework.context import at_end

MAX_REST_S = 5.0
"""Maximum seconds for which an idle worker only waits for records."""


class Worker:
    """Runs the tasks of an app on the partitions that are assigned to it."""

    def __init__(
        self, context: ContainerContext, tasks: TaskManager, session: WorkerSession
    ) -> None:
        clock = context.clock
        self.app = context.app
        self.options = context.options
        self._clock = clock
        self._tasks = tasks
        self._trial = tasks.trial
        self._trial.check = session.check
        self._session = session
        self._last_seen: tuple[GroupMembership, Partitions, Partitions] | None = None
        """Membership, its assignment and its standbys as the last cycle has seen them."""
        self._turns = SliceScheduler(
            *(tasks.trial, tasks.loop, clock, tasks.memory), guarded=tasks.in_background
        )
        self._ends = StableEnds(context.broker, clock)
        self._schedule = CommitSchedule(context.options, clock)
        self._committer = Committer(context, tasks, session, self._schedule)
        self._completion = Completion(context, tasks)
        self._feeder = Feeder(context, tasks, self._schedule)

    # Life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and begin to restore the assigned partitions."""
        self._schedule.restart()
        self._rebalance()
        if not self._tasks.in_background:
            self._start_restored()

    def cycle(self, *, limit: int | None = None, wait: float = 0.0) -> int:
        """Run one round of the worker and return the number of records handled.

        Args:
            limit: Largest number of records; None for no limit.
            wait: Seconds that a fetch may wait for new records.
        """
        self._rebalance()
        self._start_restored()
        self._feeder.feed(wait)
        handled = self._turns.handle(self.instances, limit, lambda: self._schedule.is_due)
        self._turns.tick(self.instances)
        self._schedule.note(handled)
        if handled:
            self._feeder.note_handled()
        if self.commit_is_due or (handled and self._feeder.has_last_batch):
            self.commit()
        return handled

    def commit(self) -> bool:
        """Commit the work since the last commit; see `Committer.commit`."""
        return self._committer.commit()

    def checkpoint_all(self) -> None:
        """Checkpoint all stores, so that the next start has nothing to restore."""
        self._committer.checkpoint_all()

    def run(
        self,
        *,
        until: Bound | None = None,
        count: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Run cycles until `stop` is called or a limit is reached; return the records handled.

        The run also ends when every task instance has failed. It waits while the disk is full.

        Args:
            until: Bound at which the run ends; None for none.
            count: Number of records after which the run ends; None for no limit.
            timeout: Seconds after which the run ends; None for no limit.

        Raises:
            DiskFull: The run was to end while the disk was full.
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
                self._committer.wait_for_space(error, ended)

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
            if (left is not None and left <= 0) or is_over or self._all_failed:
                self._settle(self.instances)
                if self.commit() or is_over:
                    return
                continue  # the log refused the commit, so the records are handled again
            wait = self._wait(seconds, bounded=until is not None)
            handled = patiently(partial(self.cycle, limit=left, wait=wait), lambda: self.stopping)
            if handled or self.is_busy:
                continue
            if until is None:
                patiently(partial(self._rest, seconds_left()), lambda: self.stopping)
            elif self.has_uncommitted:
                patiently(self.commit, lambda: self.stopping)
            elif patiently(partial(self._has_ended, until), lambda: self.stopping):
                return
        self._settle(self.instances)
        self.commit()

    def _settle(self, instances: Sequence[TaskInstance]) -> None:
        """Wait until no async handler of them runs. The next commit covers their records."""
        self._schedule.note(self._turns.settle(instances))

    def _has_ended(self, until: Bound) -> bool:
        """Fire the timers and windows that come last, if the app is idle.

        Returns:
            True if nothing is left to do in the whole app.
        """
        if self._tasks.is_opening or not self.is_idle:
            return False
        steps = self._completion.last_steps(until)
        for instance, of_instance in steps:
            with at_end(instance.context, until == "end"):
                self._turns.drive(instance, of_instance)
        return not steps and not self._completion.others_are_busy

    def stop(self) -> None:
        """End `run` after a last commit. May be called from any thread or signal handler."""
        # No lock is taken: a signal handler may interrupt a thread that holds it.
        self._turns.stop()

    def close(self) -> None:
        """Close stores and producer, and leave the group; uncommitted work is dropped."""
        try:
            self._tasks.shut_down()
        finally:
            self._session.leave()
            self._turns.close()
            self._tasks.loop.close()

    def abandon(self) -> None:
        """Close the files without committing or leaving the group, as a crash would."""
        self._tasks.release()
        self._turns.close()
        self._tasks.loop.close()

    # Looking at it --------------------------------------------------------------------

    @property
    def handled(self) -> int:
        """Number of records handled since the worker was created, without the rewound ones."""
        return self._schedule.handled

    @property
    def instances(self) -> list[TaskInstance]:
        """Task instances whose stores are restored."""
        return self._tasks.instances

    @property
    def stopping(self) -> bool:
        """True once `stop` was called."""
        return self._turns.is_stopping

    @property
    def waits_for(self) -> DiskFull | None:
        """Error for which the worker waits for disk space; None if it does not wait."""
        return self._committer.outage.reason

    def status(self) -> WorkerStatus:
        """Return state, progress and positions of the worker. May be called from any thread."""
        state = state_of(self.waits_for, self._session, self._tasks)
        committed = self.handled - self._schedule.uncommitted
        commits = self._tasks.counters.commits.count
        return WorkerStatus(state, committed, commits, positions_of(self._tasks))

    def metrics(self) -> list[MetricReading]:
        """Return the worker's counters and gauges. May be called from any thread."""
        return [
            MetricReading(WAITING, (self.app,), bool(self.waits_for)),
            *self._tasks.counters.readings(),
            *gauges(self.app, self._tasks, self._ends),
        ]

    @property
    def commit_is_due(self) -> bool:
        """True if time, records, memory or the search for a refused record ask for a commit."""
        return (
            self._schedule.is_due
            or self._trial.is_over
            or any(i.needs_commit for i in self.instances)
            or sum(i.uncommitted_bytes() for i in self.instances)
            > self._tasks.memory.uncommitted_bytes
        )

    @property
    def has_uncommitted(self) -> bool:
        """True if a commit would write anything."""
        return any(instance.has_uncommitted for instance in self.instances)

    @property
    def is_busy(self) -> bool:
        """True if async handlers are running."""
        return any(instance.is_busy for instance in self.instances)

    @property
    def is_idle(self) -> bool:
        """True if the whole app has handled and committed all records; see `Completion.is_idle`."""
        return self._completion.is_idle(self.has_uncommitted)

    @property
    def failures(self) -> list[Exception]:
        """Errors at which task instances have stopped."""
        return [instance.failure for instance in self.instances if instance.failure is not None]

    @property
    def _all_failed(self) -> bool:
        return 0 < len(self.instances) == len(self.failures) and not self._tasks.is_opening

    def _wait(self, seconds: float | None, *, bounded: bool) -> float:
        """Return how many seconds a fetch may wait.

        The wait ends at the next commit, timer or window, or at the end of the run. A `bounded` run
        does not wait at all unless transactions are open or other workers are busy.
        """
        waits = [self.options.poll_ms / 1000]
        if seconds is not None:
            waits.append(seconds)
        if self.has_uncommitted:
            waits.append(self._schedule.seconds_left)
        waits += self._seconds_to_timers()
        is_open = any(source.stable is False for i in self.instances for source in i.inputs)
        others_come = self._completion.others_are_busy or self._tasks.is_opening
        if bounded and self.instances and not is_open and not others_come:
            return 0.0
        return max(0.0, min(waits))

    def _seconds_to_timers(self) -> list[float]:
        """Return the seconds until each instance has a timer or window due by the wall clock."""
        now = self._clock.now_ms()
        return [(at - now) / 1000 for i in self.instances if (at := i.due_at()) is not None]

    # Rebalancing ----------------------------------------------------------------------

    def _rebalance(self) -> None:
        """Commit and close revoked partitions, open newly assigned ones, and report the change."""
        membership = self._session.acquire()
        try:
            self._last_seen = membership, membership.allowed(), membership.standbys()
            allowed = self._tasks.readable(self._last_seen[1])
        except MemberFenced as error:
            self._committer.fenced(error)
            if not self.stopping:
                # Join again within this call. A return would end the outage that `patiently`
                # measures, although being fenced does not show that the log answers.
                self._session.acquire()
            return
        owned = self._tasks.owned
        rebalance(membership, owned, allowed, release=self._release, take=self._tasks.open)
        if self._session.membership is membership:
            self._tasks.follow(membership.standbys() & self._tasks.input_partitions - allowed)

    def _release(self, revoked: Partitions) -> bool:
        """Commit and close revoked partitions; return False if the worker was fenced meanwhile."""
        self._settle([i for i in self.instances if not inputs_of(i).isdisjoint(revoked)])
        self.commit()
        if self._session.membership is None:
            return False
        self._tasks.close(revoked)
        return True

    def _rest(self, seconds: float | None) -> None:
        """Wait for records while there is nothing to do."""
        if self.has_uncommitted or self._tasks.is_opening or not self.instances:
            return
        waits = [MAX_REST_S, *self._seconds_to_timers()]
        if seconds is not None:
            waits.append(seconds)
        self._feeder.rest(min(waits), self._is_called)

    def _is_called(self) -> bool:
        """Return True if the run is to end, or the group has changed the worker's partitions."""
        membership = self._session.membership
        if self.stopping or membership is None:
            return True
        try:
            return self._last_seen != (membership, membership.allowed(), membership.standbys())
        except MemberFenced:
            return True  # the next cycle handles it

    def _start_restored(self) -> None:
        """Add the instances whose restore has ended, and run their `init`."""
        self._tasks.ready()
        self._turns.start(self.instances)
