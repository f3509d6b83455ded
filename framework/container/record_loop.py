"""The hot loop: calls of a synchronous handler for one record after another.

The loop fires the timers in stream time that are due before a record. It reads no clock and checks
no flag: another thread ends it by clearing the list that it iterates over. It counts nothing either:
after an error, the record in the context tells how far it came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.framework.container.steps import StepRunner
from strandline.framework.decoding import Chunk
from strandline.framework.handlers import INFRASTRUCTURE_ERRORS, check_result
from strandline.framework.panics import as_exception
from strandline.framework.record import Record
from strandline.framework.timers import DueTimer, Timers

Records = list[Record[Any, Any]]


@dataclass(frozen=True, slots=True)
class Handlers:
    """Synchronous handlers of a task instance."""

    of_record: Callable[[Any], Any]
    of_timer: Callable[[Any], Any]
    timers: Timers | None
    """Timers of the instance; None if the task has no timer handler."""


@dataclass(frozen=True, slots=True)
class _TimerFailure:
    """Timer whose handler raised in the loop."""

    due: DueTimer
    step: Record[Any, Any]
    """Record that stands for the timer."""
    stream_time: int
    """Stream time before the timer, in ms."""
    last: Record[Any, Any]
    """Record that was handled before the timer."""


class RecordLoop(StepRunner):
    """Runs the steps of one task instance, those of many records in one loop."""

    _slice: Records | None = None
    """Records that the loop iterates over; `cut` clears the list. None before the first loop."""
    _fired = 0
    """Number of timers fired in the loop."""
    _timer_failure: _TimerFailure | None = None
    """Timer that has ended the loop; None if a record did, or all steps succeeded."""

    def cut(self) -> None:
        """End the slice after the running step. May be called from any thread."""
        super().cut()
        if self._slice is not None:
            self._slice.clear()

    def run_chunk(self, chunk: Chunk, stop: int, handlers: Handlers) -> int:
        """Call the handler for each record of `chunk` from its `at` to the index `stop`.

        Timers fire before the first record at or after their time. A step that raises is undone,
        and the policy is applied to it. The loop ends there, and when `cut` is called.

        Returns:
            Number of records handled: those before the position from which to go on.
        """
        records = chunk.records[chunk.at : stop]
        self._slice, self._fired, self._timer_failure = records, 0, None
        count = len(records)
        try:
            self._loop(records, handlers)
            done = count if len(records) == count else self._count_begun(chunk, stop)
        except BaseException as error:
            self._undo(self._context.record)
            found = as_exception(error)
            if found is None or isinstance(found, INFRASTRUCTURE_ERRORS):
                raise
            done = self._resolve(chunk, stop, handlers, found)
        steps = done + self._fired
        self._trial.done += steps
        self.has_run = self.has_run or steps > 0 or self._policy.failure is not None
        return done

    def _loop(self, records: Records, handlers: Handlers) -> None:
        if handlers.timers is not None:
            self._handle_with_timers(records, handlers, handlers.timers)
        elif len(self._logs) == 1:
            self._handle_with_one_store(records, handlers.of_record)
        else:
            self._handle(records, handlers.of_record)

    def _handle_with_one_store(self, records: Records, handler: Callable[[Any], Any]) -> None:
        current, marks, log = self._context, self._marks, self._logs[0]
        for record in records:
            current.record = record
            marks[0] = len(log)
            if (result := handler(record)) is not None:
                check_result(result)

    def _handle(self, records: Records, handler: Callable[[Any], Any]) -> None:
        current, marks, logs = self._context, self._marks, self._logs
        for record in records:
            current.record = record
            marks[:] = map(len, logs)
            if (result := handler(record)) is not None:
                check_result(result)

    def _handle_with_timers(self, records: Records, handlers: Handlers, timers: Timers) -> None:
        current, marks, logs = self._context, self._marks, self._logs
        handler = handlers.of_record
        for record in records:
            now = max(current.stream_time, record.timestamp)
            if now >= timers.earliest:
                self._fire(now, records, timers, handlers.of_timer)
                if not records:
                    return
            current.stream_time = now
            current.record = record
            marks[:] = map(len, logs)
            if (result := handler(record)) is not None:
                check_result(result)

    def _fire(
        self, now: int, records: Records, timers: Timers, handler: Callable[[Any], Any]
    ) -> None:
        """Fire the timers due by `now` (ms), until `cut` clears `records`."""
        current, marks, logs = self._context, self._marks, self._logs
        last = current.record
        while records and now >= timers.earliest:
            if (due := timers.pop_due("stream", now)) is None:
                break
            before = current.stream_time
            step = current.record = Record(None, None, due.at)
            marks[:] = map(len, logs)
            try:
                current.stream_time = max(due.at, before)
                timers.take(due)
                if (result := handler(due.name)) is not None:
                    check_result(result)
            except BaseException:
                timers.put_back(due)  # taking it is undone
                self._timer_failure = _TimerFailure(due, step, before, last)
                raise
            self._fired += 1
        current.record = last

    def _resolve(self, chunk: Chunk, stop: int, handlers: Handlers, error: Exception) -> int:
        """Apply the policy to the step that raised; return the number of records handled."""
        failure = self._timer_failure
        if failure is None:
            done = self._count_begun(chunk, stop)
            self._policy.resolve(self._context.record, chunk, error)
            return done if self._policy.failure is None else done - 1
        assert handlers.timers is not None
        self._policy.resolve(failure.step, failure.due.step_name, error)
        self._context.record = failure.last
        if self._policy.failure is None:
            handlers.timers.take(failure.due)
            self._fired += 1
        else:
            self._context.stream_time = failure.stream_time
        return self._count_begun(chunk, stop)

    def _count_begun(self, chunk: Chunk, stop: int) -> int:
        """Return how many records of `chunk` from its `at` to the index `stop` were begun."""
        last = self._context.record
        begun = (at for at in range(chunk.at, stop) if chunk.records[at] is last)
        return next(begun, chunk.at - 1) + 1 - chunk.at
