"""Context of the running task: the link from `store[key]` and `topic.send` to a partition.

Each handle (a topic, a store) has a context variable of its own. It is set while a handler of a
task instance may use the handle. Elsewhere the look-up fails, and the handle raises NotInTask. For
synchronous handlers the variables are set once for many records, because each look-up in a handler
costs 40 ns already.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from strandline.changelog.errors import InvalidRecord, InvalidRequest, NotInTask
from strandline.changelog.records import TopicInfo
from strandline.changelog.times import to_ms
from strandline.framework.record import Record
from strandline.framework.timers import LATEST_TIME_MS, ClockName, Timers


@dataclass(slots=True)
class RunningStep:
    """State of the step that an instance runs, as the framework and stages of streams keep it."""

    late: int = 0
    """Number of rows of streams since the last commit that came after their windows."""
    open_windows: dict[str, int] = field(default_factory=dict)
    """Number of rows of open windows, by operator of a stage of streams."""
    infos: Mapping[str, TopicInfo] = field(default_factory=dict)
    """Descriptions of the app's topics, by name."""
    refuses: Callable[[Exception], bool] = lambda _error: False
    """Returns True if a result may be left out for an error, by the task's `on_error`."""
    awake_ms: Callable[[], int] = lambda: 0
    """Returns milliseconds that never decrease, for which the machine was awake."""
    refused: list[Exception] = field(default_factory=list)
    """Errors of the results that the running step has left out."""
    begun: float | None = None
    """Time of `perf_counter` at which a step of many rows has begun; None if none runs."""
    to_cut: float | None = None
    """`begun` of a step that is to end with the running row, set by another thread."""


class TaskContext:
    """Facts about the running task instance. `current_task` returns it, and `init` receives it.

    Attributes:
        app: Name of the app.
        task: Name of the task.
        partition: Number of the input partition that this instance works for.
        record: The record being handled.
        stream_time: Largest timestamp seen so far, in milliseconds since the epoch; -1 before the
            first record. It survives a restart only if the task has a timer handler. A task that is
            a function without a timer handler does not update it.
        ending: True while a timer or window is called because `run(until="end")` ends the input.
    """

    __slots__ = (
        *("app", "ending", "partition", "record", "step", "stream_time", "task"),
        *("timers", "watermark"),
    )

    def __init__(
        self,
        app: str,
        task: str,
        partition: int,
        timers: Timers | None = None,
        step: RunningStep | None = None,
    ) -> None:
        self.app = app
        """Name of the app."""
        self.task = task
        """Name of the task."""
        self.partition = partition
        """Number of the input partition that this instance works for."""
        self.record: Record[Any, Any] = _NOTHING
        """The record being handled."""
        self.stream_time = -1
        """Largest timestamp seen so far, in ms since the epoch; -1 before the first record.

        It survives a restart only if the task has a timer handler. A task that is a function
        without a timer handler does not update it.
        """
        self.timers = timers
        """Timers of the instance; None if the task has no timer handler."""
        self.ending = False
        """True while a timer or window is called because `run(until="end")` ends the input."""
        self.watermark: int | None = None
        """Watermark of a stage of streams, in ms since the epoch; None if there is none."""
        self.step = step or RunningStep()
        """State of the running step, for the framework."""


class StepCutShort(BaseException):
    """The running step is to be undone and repeated with fewer rows, because functions are slow.

    It is no `Exception`, as it is no failure of a row.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows
        """Number of rows for which the slow function was called."""


def note_row(context: TaskContext, rows: int) -> None:
    """Note, while `RunningStep.to_cut` is set, for how many rows the running step has called a function.

    Raises StepCutShort if that is the step to cut. The first row is never cut off.
    """
    if rows and context.step.to_cut == context.step.begun:
        raise StepCutShort(rows)


@contextlib.contextmanager
def at_end(context: TaskContext, ending: bool) -> Iterator[None]:
    """Set `ending` for the calls within this block, because the input is over."""
    context.ending = ending
    try:
        yield
    finally:
        context.ending = False


_NOTHING: Record[Any, Any] = Record(None, None)
_running: ContextVar[TaskContext] = ContextVar("strandline_running_task")


def enter(context: TaskContext) -> None:
    """Make `context` the running task, in this thread or asyncio task."""
    _running.set(context)


def running() -> TaskContext | None:
    """Return the task instance whose handler is running in this thread or asyncio task, or None."""
    context = _running.get(None)
    return None if context is None or context.task == "" else context


def leave() -> None:
    """Declare that no task is running in this thread or asyncio task any more."""
    _running.set(_OUTSIDE)


_OUTSIDE = TaskContext("", "", -1)


def current_task() -> TaskContext:
    """Return the context of the running task.

    Returns:
        The context: partition, record, stream time.

    Raises:
        NotInTask: No handler is running.
    """
    context = running()
    if context is None:
        raise NotInTask("no task is running here: this may only be called inside a handler")
    return context


def set_timer(name: Any, at: int | dt.datetime, *, clock: ClockName = "stream") -> None:
    """Schedule a call of the running task's `on_timer`.

    Timers are part of the task's state: they are committed with it and survive crashes. A timer by
    stream time fires before the first record whose timestamp is at or after `at`.

    Args:
        name: Argument of the `on_timer` call; any value that MessagePack can hold. A date arrives
            as its text. A timer of the same name and clock is replaced.
        at: Time to fire at: milliseconds since the epoch, or a datetime.
        clock: "stream", the default, is the largest timestamp that the partition has seen, so that
            a replay gives the same results. "wall" is the wall clock.

    Raises:
        NotInTask: No handler is running.
        InvalidRequest: The task has no timer handler.
        InvalidRecord: The name cannot be a key, or the time looks like seconds or is after 2**63 - 1.
    """
    task, timers = _with_timers("set_timer")
    when = to_ms(at, task.record.timestamp)
    if when > LATEST_TIME_MS:
        raise InvalidRecord(f"the time {when} of a timer is after the latest one, 2**63 - 1 ms")
    timers.set(name, when, clock)


def cancel_timer(name: Any, *, clock: ClockName = "stream") -> None:
    """Cancel a timer of the running task. A timer that does not exist is no error.

    Args:
        name: Name that the timer was set with.
        clock: Clock that the timer was set with: "stream" (the default) or "wall".

    Raises:
        NotInTask: No handler is running.
        InvalidRequest: The task has no timer handler.
    """
    _with_timers("cancel_timer")[1].cancel(name, clock)


def _with_timers(call: str) -> tuple[TaskContext, Timers]:
    context = running()
    if context is None:
        raise NotInTask(
            f"{call} was called outside of a handler: a timer belongs to a running task"
        )
    if context.timers is None:
        raise InvalidRequest(
            f"task {context.task!r} has no handler for timers; decorate a function with"
            " @app.on_timer(task), or give the class a method on_timer(self, name)"
        )
    return context, context.timers
