"""A task instance: one task at work on one partition of its inputs.

`run` handles the records fed to the inputs; `ticks` fires the timers and windows that are due by
the wall clock. Each record, timer and window is one *step*. If its handler raises, the changes that
it made to stores, timers and outboxes are undone, and the task's `on_error` policy is applied.

Synchronous handlers of records, and of the timers that are due before them, run in a tight loop
(`record_loop`). Other steps come from a generator, which `drive` calls: timers and windows
by the wall clock, those at the end of the input, and all steps while the step is sought that makes
the log refuse a commit. The steps of async tasks do too; `async_instance.py` awaits them.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.changelog.errors import TaskFailed
from strandline.framework import context
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.error_policy import ErrorPolicy
from strandline.framework.container.event_loop import EventLoop
from strandline.framework.container.inputs import Input
from strandline.framework.container.record_loop import Handlers, RecordLoop
from strandline.framework.container.record_queue import RecordQueue
from strandline.framework.container.sampling import Sampling
from strandline.framework.container.scope import Scope
from strandline.framework.container.steps import Steps, drive
from strandline.framework.container.windows import WindowTimer
from strandline.framework.context import TaskContext
from strandline.framework.decoding import Chunk
from strandline.framework.handlers import check_result, no_timer
from strandline.framework.outbox import Outbox
from strandline.framework.placing import Placed
from strandline.framework.record import Record
from strandline.framework.task import TaskSpec
from strandline.framework.timers import ClockName, DueTimer, Timers
from strandline.framework.trial import Trial
from strandline.statestore.store import AnyStore


@dataclass
class InstanceParts:
    """Parts of a task instance whose stores are being restored.

    The worker's thread makes the instance from them, including the object of a class task.
    """

    spec: TaskSpec
    number: int
    inputs: list[Input]
    stores: list[AnyStore]
    timer_store: AnyStore | None

    @property
    def all_stores(self) -> list[AnyStore]:
        return self.stores if self.timer_store is None else [*self.stores, self.timer_store]

    def release(self) -> None:
        """Close the stores."""
        for store in self.all_stores:
            store.close()


def release_all(parts: Sequence[InstanceParts]) -> None:
    """Close the stores of several instances."""
    for part in parts:
        part.release()


class TaskInstance:
    """One task on one partition, with its inputs, stores, timers and outboxes."""

    def __init__(
        self, container: ContainerContext, parts: InstanceParts, placed: Placed, trial: Trial
    ) -> None:
        spec, clock = parts.spec, container.clock
        self.spec = spec
        self.partition = parts.number
        self.inputs = parts.inputs
        self.stores = parts.stores
        self.all_stores = parts.all_stores
        """All stores of the instance, including the one that holds its timers."""
        self.timers = None if parts.timer_store is None else Timers(parts.timer_store)
        self.context = TaskContext(container.app, spec.name, parts.number, self.timers)
        self.context.step.infos = container.infos
        self.context.step.awake_ms = lambda: int(clock.awake() * 1000)
        self.outboxes = {
            topic: Outbox(self.context, trial, topic.values.exact) for topic in container.topics
        }
        self.is_started = False
        """True once `init` has run; its effects are committed, or are part of the next commit."""
        self._start_is_committed = False
        """True once the effects of `init` are committed."""
        self.counters = container.counters.task(spec.name)
        self.placed = placed
        """Tracks the stores in which each key is on the partition that its hash selects."""
        self._handled = 0
        """Number of records since the last commit, including skipped and dead-lettered ones."""
        self.turn = 0
        """Number of its latest slice, counted over all slices of the worker."""
        self._trial = trial
        self._policy = ErrorPolicy(spec, parts.number, self.outboxes, trial, container)
        self.mark_refused = self._policy.mark_refused
        self._runner = RecordLoop(self.context, self.all_stores, self.outboxes, self._policy, trial)
        self._may_continue = self._runner.may_continue
        self._clock = clock
        self._object: Any = spec.handler() if spec.is_class else None
        self._process: Callable[..., Any] = (
            self._object.process if self._object is not None else spec.handler
        )
        own_timer: Callable[[Any], Any] = getattr(self._object, "on_timer", no_timer)
        self._on_timer = spec.on_timer or own_timer
        self._handlers = Handlers(self._process, self._on_timer, self.timers)
        self._windows = WindowTimer(spec.window_ms, clock)
        self._scope = Scope(self.context, spec.stores, self.stores, self.outboxes)
        self._sampling = Sampling(self.stores)
        self._queue = RecordQueue(self.inputs, self.stores, tombstones=spec.tombstones)

    @property
    def changed(self) -> bool:
        """True if a step ran since the last commit."""
        return self._runner.changed

    @property
    def failure(self) -> TaskFailed | None:
        """Error at which the instance has stopped; None if it has not."""
        return self._policy.failure

    @property
    def has_uncommitted(self) -> bool:
        """True if a commit would write anything for this instance."""
        return self.changed or any(one.position != one.committed for one in self.inputs)

    def has_failed(self) -> bool:
        """Return True if the instance has stopped at a step and handles no further ones."""
        return self._policy.failure is not None

    @property
    def needs_commit(self) -> bool:
        """True if a store has so many uncommitted changes that it asks for a commit."""
        return any(store.needs_commit for store in self.all_stores)

    def uncommitted_bytes(self) -> int:
        """Return the approximate bytes of changes and of records sent since the last commit."""
        sent = sum([box.measure() for box in self.outboxes.values()])
        return sent + sum([store.uncommitted_bytes for store in self.all_stores])

    @property
    def has_input(self) -> bool:
        """True if a record is pending and the next record of every input is known."""
        return not self.has_failed() and self._queue.has_next

    @property
    def records_in_flight(self) -> int:
        """Number of records whose handlers run between the worker's calls, as only async ones do."""
        return 0

    @property
    def is_busy(self) -> bool:
        """True if handlers run between the worker's calls, as only async ones do."""
        return False

    # Work -----------------------------------------------------------------------------

    def begin_slice(self) -> None:
        """Begin a slice. At least one step runs in it, even if `cut` is called before that step."""
        self._runner.begin_slice()

    def cut(self) -> None:
        """End the slice after the running step. May be called from any thread."""
        self._runner.cut()

    def start(self) -> Steps:
        """Run `init` of a class task as a step."""
        init = getattr(self._object, "init", None)
        if init is not None:
            yield from self._runner.run(self._clock_record(), "init", init, self.context)
        self.is_started = not self.has_failed()
        return 0

    def run(self, limit: int) -> int:
        """Handle at most `limit` of the records fed; return the number handled."""
        begun = time.perf_counter()
        sampled, size = 0, self._sampling.size(limit)
        if size:
            with self._sampling.counted():
                sampled = self._run_all(size)
        handled = sampled + self._run_all(limit - sampled)
        self.counters.took(time.perf_counter() - begun, handled)
        self._sampling.handled(sampled, handled)
        return handled

    def _run_all(self, limit: int) -> int:
        counts_timers = self.timers is not None and self._trial.is_searching
        if counts_timers or self._trial.has_verdicts:
            return self.drive(self.steps(limit))
        limit = self._trial.limited(limit)
        self._scope.bind()
        handled = 0
        try:
            while handled < limit and self._may_continue():
                run = self._queue.next(limit - handled)
                if run is None:
                    break
                handled += self._run_plain(*run)
        finally:
            self._scope.unbind()
        return handled

    def steps(self, limit: int) -> Steps:
        """Yield a step for each of at most `limit` records, and for the timers that they fire."""
        handled = 0
        while handled < limit and self._may_continue():
            run = self._queue.next(limit - handled)
            if run is None:
                break
            source, chunk, stop = run
            for record in chunk.records[chunk.at : stop]:
                if not (yield from self._steps_of(record, chunk)):
                    break
                self._mark_handled(source, chunk, 1)
                handled += 1
        return handled

    def _steps_of(self, record: Record[Any, Any], chunk: Chunk) -> Steps:
        """Yield the steps of a record: the timers that fire before it, and its handler.

        Returns 1 if the record is handled; 0 if not, because the slice or the task has ended.
        """
        yield from self._advance(record.timestamp)
        if not self._may_continue():
            return 0
        yield from self._record_step(record, chunk)
        return 0 if self.has_failed() else 1

    def ticks(self) -> Steps:
        """Yield a step for each timer and window that is due by the wall clock."""
        now = self._clock.now_ms()
        fired = 0
        if self.timers is not None:
            fired += yield from self._fire("wall", now)
        if self._windows.is_due(now):
            fired += yield from self.call_window()
        return fired

    @property
    def window_pending(self) -> bool:
        """True if a step ran after the last call of `window`."""
        return self._windows.is_pending

    def call_window(self) -> Steps:
        """Run `window` of a class task as a step, even if it is not due by the clock."""
        if not self._may_continue():
            return 0
        now = self._clock.now_ms()
        self._windows.end_window(now)
        yield from self._runner.run(self._clock_record(now), "window", self._object.window)
        if not self.has_failed():
            self._windows.called()
        return 1

    def next_stream_timer(self) -> int | None:
        """Return the time in ms of the next timer in stream time; None if none is set."""
        return None if self.timers is None else self.timers.next_at("stream")

    def end_stream_time(self, latest: int, seconds: float) -> Steps:
        """Fire stream timers up to `latest` (ms) in order of time.

        Timers set by the fired ones are included. Stops after about `seconds`, and after a timer
        that has sent a record to one of the task's own inputs, because that record comes first.
        """
        begun, fired = time.perf_counter(), 0
        own = [self.outboxes[topic] for topic in self.spec.inputs]
        while time.perf_counter() - begun < seconds and all(box.is_empty for box in own):
            due = yield from self._fire("stream", latest, limit=1)
            if not due:
                break
            fired += due
        return fired

    def due_at(self) -> int | None:
        """Return the time in ms at which `ticks` has a step next; None if none is scheduled."""
        timers = self.timers
        times = [self._windows.next_at(), None if timers is None else timers.next_at("wall")]
        return min((at for at in times if at is not None), default=None)

    def drive(self, steps: Steps) -> int:
        """Call the handlers of `steps` one after another."""
        self._scope.bind()
        try:
            return drive(steps)
        finally:
            self._scope.unbind()

    # Between commits ------------------------------------------------------------------

    def restored(self, *, window_pending: bool | None = None) -> None:
        """Rebuild timers and stream time from the stores, which hold the committed state.

        `window_pending` is the flag read from the last commit; None keeps the one in memory.
        """
        if window_pending is not None:
            self._windows.restored(pending=window_pending)
        if self.timers is not None:
            self.context.stream_time = self.timers.rebuild()

    def stop_steps(self) -> None:
        """Let no step take effect any more before `rewind` or `close`, as only async ones could."""

    def rewind(self) -> None:
        """Undo everything since the last commit, and set the inputs to their positions then.

        `init` runs again if its effects were not committed.
        """
        for store in self.all_stores:
            store.discard()
        self.is_started = self._start_is_committed
        self._windows.rewind()
        self._handled = 0  # these records are read and counted again
        self._policy.rewind()
        self._forget_work()
        for source in self.inputs:
            source.rewind()
        self.restored()

    def before_commit(self) -> None:
        """Write stream time to the timer store; move inputs past records that need no handling."""
        if self.timers is not None and self.context.stream_time >= 0:
            self.timers.keep_stream_time(self.context.stream_time)
        for source in self.inputs:
            source.skip(self.spec.tombstones)

    def after_commit(self) -> None:
        """Take the positions as committed, clear the outboxes, and count the handled records."""
        for source in self.inputs:
            source.note_committed()
        self._forget_work()

    def _forget_work(self) -> None:
        """Begin a new transaction, after a commit or after everything since it was undone."""
        self.counters.handled += self._handled
        self._handled = 0
        self._policy.committed(self.counters)
        for box in self.outboxes.values():
            box.checked = self._trial.is_checking
            if not box.is_empty:
                box.clear()
        self._runner.changed = False
        self._windows.committed()
        self._start_is_committed = self.is_started

    def close(self, loop: EventLoop) -> None:
        """Call `close` of a class task, on `loop` if it is async, and close the stores.

        Errors of the task's `close` are raised after the stores are closed.
        """
        try:
            close = getattr(self._object, "close", None)
            result = None if close is None else close()
            if self.spec.is_async and inspect.isawaitable(result):
                result = loop.run(result)
            if result is not None:
                check_result(result, f"close of task {self.spec.name!r}")
        finally:
            self._policy.close()
            self.release()

    def release(self) -> None:
        """Close the stores without calling the task's `close`."""
        for store in self.all_stores:
            store.close()

    # One step -------------------------------------------------------------------------

    def _run_plain(self, source: Input, chunk: Chunk, stop: int) -> int:
        """Handle the records of `chunk` before index `stop`; end at one that fails the task."""
        begin, runner = chunk.at, self._runner
        runner.changed = True
        if chunk.error is not None and self._is_time_of(chunk.records[0]):
            self._policy.resolve(chunk.records[0], chunk, chunk.error)
            self._mark_handled(source, chunk, 0 if self.has_failed() else 1)
            self._trial.done += chunk.at - begin
            runner.has_run = True
        while chunk.at < stop and self._may_continue():
            self._mark_handled(source, chunk, runner.run_chunk(chunk, stop, self._handlers))
            self._windows.handled()
        if done := chunk.at - begin:
            self._policy.note_step(chunk.records[chunk.at - 1], chunk)
        return done

    def _is_time_of(self, record: Record[Any, Any]) -> bool:
        """Fire the timers that come before a record; return True if it can be handled then."""
        if self.timers is None:
            return True
        drive(self._advance(record.timestamp))
        return self._may_continue()

    def _record_step(self, record: Record[Any, Any], chunk: Chunk) -> Steps:
        if chunk.error is not None:
            self._trial.done += 1
            self._runner.has_run = True
            if not self._policy.apply_verdict(record, chunk):
                self._policy.resolve(record, chunk, chunk.error)
            return 0
        return (yield from self._runner.run(record, chunk, self._process, record))

    def _advance(self, timestamp: int) -> Steps:
        """Advance stream time to `timestamp` (ms) and fire the stream timers up to it."""
        now = max(timestamp, self.context.stream_time)
        if self.timers is not None:
            yield from self._fire("stream", now)
        if self._may_continue():
            self.context.stream_time = now
        return 0

    def _fire(self, clock: ClockName, now: int, limit: float = math.inf) -> Steps:
        timers, fired = self.timers, 0
        assert timers is not None
        while fired < limit and self._may_continue():
            if (due := timers.next_due(clock, now)) is None:
                break
            before = self.context.stream_time
            if clock == "stream":
                self.context.stream_time = max(due.at, before)

            def call(due: DueTimer = due) -> Any:
                # The timers are those of the running step: a concurrent step has its own.
                running = context.current_task().timers
                assert running is not None
                running.take(due)
                return self._on_timer(due.name)

            done = yield from self._runner.run(self._clock_record(due.at), due.step_name, call)
            if self.has_failed():
                self.context.stream_time = before
            elif not done:
                timers.take(due)
            self._windows.handled()
            fired += 1
        return fired

    def _mark_handled(self, source: Input, chunk: Chunk, count: int) -> None:
        """Move the position of `source` past the next `count` records of `chunk`."""
        if count:
            chunk.at += count
            source.reached = chunk.records[chunk.at - 1].offset + 1
            self._note_handled(count)

    def _note_handled(self, count: int) -> None:
        self._handled += count
        self._windows.handled()

    def _clock_record(self, at: int | None = None) -> Record[Any, Any]:
        """Return a record without key and value, at time `at` (ms), for a step that has none."""
        return Record(None, None, self._clock.now_ms() if at is None else at)
