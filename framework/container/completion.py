"""The end of a bounded run: detecting that the app is idle, and firing the last timers and windows.

    settled   all records are handled and committed, and nothing is due by the clock
    idle      settled; then `window` of each task instance that ran steps since its last call
    end       settled; then all stream timers, in order of time over the whole app; then as for idle

Timers and windows that fire last may send to topics that the app reads, so the records that each of
them causes are handled and committed before the next one fires. Timers and windows pending in other
workers' partitions are read from the metadata of committed offsets (`positions`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from strandline.changelog.broker import Broker
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.container.batch_instance import BatchInstance
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.manager import TaskManager
from strandline.framework.container.slices import SLICE_SECONDS
from strandline.framework.container.steps import Steps
from strandline.framework.positions import PendingAtEnd, waiting_of
from strandline.framework.timers import LATEST_TIME_MS

Bound = Literal["settled", "idle", "end"]
"""State of the app at which a run ends."""

_log = logging.getLogger("strandline")

PATIENCE_S = 10.0
"""Seconds after which a run logs that it still waits for other workers or still fires timers."""


class TimerTurn(NamedTuple):
    """Position in the order in which timers fire."""

    at: int
    """Time in ms."""
    task: int
    """Number of the task in the order of declaration, which decides between equal times."""


class Completion:
    """Work left in the app, as seen by one worker. Not thread-safe."""

    def __init__(self, context: ContainerContext, tasks: TaskManager) -> None:
        self.others_are_busy = False
        """True if the run waits for other workers."""
        self._app = context.app
        self._broker = context.broker
        self._clock = context.clock
        self._tasks = tasks
        self._elsewhere: list[PendingAtEnd] = []
        """Timers and windows pending in partitions of other workers, as of the last check."""
        self._logged_at: float | None = None
        """Monotonic time in seconds at which a long wait began or was last logged."""

    def is_idle(self, uncommitted: bool) -> bool:
        """Return True if the whole app has handled and committed all records and nothing is due.

        The partitions of other workers count as done when they are committed to their ends.
        `uncommitted` says that this worker has work to commit. Raises OffsetOutOfRange if an input
        was deleted and created again.
        """
        running = self._running
        now = self._clock.now_ms()
        mine = (
            not uncommitted
            and not any(instance.has_input or instance.is_busy for instance in running)
            and all(source.stable for instance in running for source in instance.inputs)
            and not any((due := i.due_at()) is not None and due <= now for i in running)
        )
        if not mine:
            return False
        self.others_are_busy = not self._others_are_done(running)
        if self.others_are_busy:
            return False
        self._check_topics(running)
        return True

    def _check_topics(self, running: Iterable[TaskInstance]) -> None:
        """Raise OffsetOutOfRange if an input was deleted and created again.

        On a cluster the fetches tell it some seconds later, when a bounded run may have ended.
        """
        inputs = [source for instance in running for source in instance.inputs]
        ends = self._broker.offsets({source.partition for source in inputs})
        for source in inputs:
            source.check_topic(ends[source.partition].topic_id)

    def last_steps(self, bound: Bound) -> list[tuple[TaskInstance, Steps]]:
        """Return the timers and windows to fire next in an idle app.

        If there are none, either `others_are_busy` is True or everything is done.
        """
        if bound == "settled":
            return []
        instances = self._tasks.instances
        ends = bound == "end" and all(i.failure is None for i in instances)
        steps = self._timers() if ends else []
        self.others_are_busy = ends and not steps and self._any_timers
        if not steps and not self.others_are_busy:
            steps = self._windows(ends)
        self._log_long_wait(bound, bool(steps))
        return steps

    # Timers ---------------------------------------------------------------------------

    def _timers(self) -> list[tuple[TaskInstance, Steps]]:
        """Return steps for the task with the earliest stream timer, up to the next task's earliest.

        A timer may send to an input of any other task, where that record comes before all later
        timers. So no task fires a timer while another one has an earlier timer.
        """
        earliest = sorted(self._earliest().items(), key=lambda item: TimerTurn(item[1], item[0]))
        if not earliest:
            return []
        (task, _), *others = earliest
        latest = LATEST_TIME_MS
        if others:
            other, at = others[0]
            latest = at if task < other else at - 1
        due = [
            instance
            for instance in self._running
            if self._number(instance) == task
            and (at_ := instance.next_stream_timer()) is not None
            and at_ <= latest
        ]
        return [(i, i.end_stream_time(latest, SLICE_SECONDS / len(due))) for i in due]

    def _earliest(self) -> dict[int, int]:
        """Return the time (ms) of each task's earliest stream timer, by the number of the task."""
        names = self._tasks.names
        mine = ((self._number(i), i.next_stream_timer()) for i in self._running)
        others = (
            (names.index(task), at)
            for waiting in self._elsewhere
            for task, at in waiting.timers.items()
            if task in names
        )
        found: dict[int, int] = {}
        for task, at in [*mine, *others]:
            if at is not None:
                found[task] = min(at, found.get(task, at))
        return found

    @property
    def _any_timers(self) -> bool:
        return bool(self._earliest())

    # Windows --------------------------------------------------------------------------

    def _windows(self, whole_app: bool) -> list[tuple[TaskInstance, Steps]]:
        """Return the pending calls of `window` of one task: of several, the one declared first.

        The tasks go one after another because a window may send to the next task's input. With
        `whole_app`, pending windows in partitions of other workers are waited for.
        """
        mine = [i for i in self._running if i.window_pending or (whole_app and _is_open(i))]
        names = self._tasks.names
        others = [names.index(t) for w in self._elsewhere for t in w.windows if t in names]
        first = min((self._number(i) for i in mine), default=None)
        if whole_app and others and (first is None or min(others) < first):
            self.others_are_busy = True
            return []
        return [(i, i.call_window()) for i in mine if self._number(i) == first]

    # Other workers --------------------------------------------------------------------

    def _others_are_done(self, running: Sequence[TaskInstance]) -> bool:
        """Return True if the partitions of other workers are committed to their ends."""
        mine = {s.partition for i in self._tasks.instances for s in i.inputs}
        others = self._tasks.input_partitions - mine
        if not others:
            self._elsewhere = []
            return True
        # The committed positions are read before the ends. If another worker is done by then, the
        # records that it sent are below the ends, also in partitions that were just found empty.
        committed = self._broker.committed(self._app, others, require_stable=False)
        self._elsewhere = [waiting_of(offset) for offset in committed.values()]
        return _all_is_committed(
            self._broker, self._tasks.input_partitions, committed, running, others
        )

    def _log_long_wait(self, bound: Bound, fires: bool) -> None:
        now = self._clock.monotonic()
        if self._logged_at is None:
            self._logged_at = now
        if bound != "end" or now - self._logged_at < PATIENCE_S:
            return
        self._logged_at = now
        what = (
            "still fires timers; one that is set again by each timer never ends, unless its "
            "handler asks sl.current_task().ending"
            if fires
            else "waits for timers or windows in partitions of other workers, which fire when "
            'those workers run with until="end" too, or have ended'
        )
        _log.warning('app %s: run(until="end") %s', self._app, what, extra={"app": self._app})

    @property
    def _running(self) -> list[TaskInstance]:
        return [instance for instance in self._tasks.instances if instance.failure is None]

    def _number(self, instance: TaskInstance) -> int:
        return self._tasks.names.index(instance.spec.name)


def _is_open(instance: TaskInstance) -> bool:
    """Return True if an instance has open windows of a stream."""
    return isinstance(instance, BatchInstance) and instance.waits_for_end


def _all_is_committed(
    broker: Broker,
    every: Collection[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    running: Iterable[TaskInstance],
    others: Collection[TopicPartition],
) -> bool:
    """Return True if other workers' inputs are committed, and `running` has read, to the ends."""
    ends = broker.offsets(every)
    reached = [
        *((tp, committed[tp].offset if tp in committed else ends[tp].log_start) for tp in others),
        *((source.partition, source.ahead) for i in running for source in i.inputs),
    ]
    return all(offset >= ends[tp].high_watermark for tp, offset in reached)
