"""Which task is running: what ties `store[key]` and `topic.send` to a partition and a transaction.

Each handle (a topic, a store) has a context variable of its own, set while a handler of a
task instance may use it; outside, looking it up fails and the handle raises NotInTask. For
synchronous handlers they are set once for many records, so a look-up costs 40 ns.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from strandline.changelog.errors import InvalidRequest, NotInTask
from strandline.changelog.times import to_ms
from strandline.framework.record import Record

if TYPE_CHECKING:
    from strandline.framework.timers import Timers

ClockName = Literal["stream", "wall"]


class TaskContext:
    """What a running task instance knows about itself; given to a class task's `init`."""

    __slots__ = ("app", "ending", "partition", "record", "stream_time", "task", "timers")

    def __init__(self, app: str, task: str, partition: int, timers: Timers | None = None) -> None:
        self.app = app
        self.task = task
        """The task's name."""
        self.partition = partition
        """The number of the input partition that this instance works for."""
        self.record: Record[Any, Any] = _NOTHING
        """The record being handled."""
        self.stream_time = -1
        """The largest timestamp seen so far, in ms; -1 before the first record. Kept over
        restarts, and for functions at all, only where the task has a handler for timers."""
        self.timers = timers
        self.ending = False
        """True for a timer or window that fires because `run(until="end")` ends the input."""

    @contextlib.contextmanager
    def at_end(self, ending: bool) -> Iterator[None]:
        """What runs within is called because the input is over, if `ending`."""
        self.ending = ending
        try:
            yield
        finally:
            self.ending = False


_NOTHING: Record[Any, Any] = Record(None, None)
_running: ContextVar[TaskContext] = ContextVar("strandline_running_task")


def enter(context: TaskContext) -> None:
    """From here on, in this thread or asyncio task, `context` is what runs."""
    _running.set(context)


def running() -> TaskContext | None:
    """The task instance whose handler is running here, if any."""
    context = _running.get(None)
    return None if context is None or context.task == "" else context


def leave() -> None:
    """No task runs here any more."""
    _running.set(_OUTSIDE)


_OUTSIDE = TaskContext("", "", -1)


def current_task() -> TaskContext:
    """The running task's context. Raises NotInTask outside of a handler."""
    context = running()
    if context is None:
        raise NotInTask("no task is running here: this may only be called inside a handler")
    return context


def set_timer(name: Any, at: int | dt.datetime, *, clock: ClockName = "stream") -> None:
    """Let the running task's `on_timer` be called with `name` when the clock reaches `at`.

    `at` is in milliseconds since the epoch (or a datetime). Stream time is the largest
    timestamp that the partition has seen; a timer fires before the first record at or past
    its time. Timers survive crashes; setting one of the same name and clock replaces it.
    `name` is anything that can be a store's key. Raises NotInTask, InvalidRequest, InvalidRecord
    (a time that looks like seconds).
    """
    timers = _timers("set_timer")
    timers.set(name, to_ms(at, current_task().record.timestamp), clock)


def cancel_timer(name: Any, *, clock: ClockName = "stream") -> None:
    """Take back a timer of the running task; nothing happens if there is none."""
    _timers("cancel_timer").cancel(name, clock)


def _timers(call: str) -> Timers:
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
    return context.timers
