"""A task instance whose handlers are async: several of them may run at the same time.

Each step has a scope of its own (`scope.py`), so nothing that a running handler does is part of the
instance's work yet. The steps take effect one after another, in the order of the records:

    start     hand out the next records; their handlers run, up to `concurrency` of them
    turn      when all steps before it have taken effect, a step waits for its handler
    check     if the step has read something that was changed since, its handler is called again
    apply     add its changes and the records that it sent to the work of the instance

So state and output are those of one record after another, and a commit at any moment covers the
records below the first one that still runs. Records of the same key start one after another if the
task has stores, because the later one would mostly have to be repeated.

Handlers run in the asyncio loop of the worker's thread, which it turns for a slice at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from strandline.framework.container.async_slice import AsyncSlice
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.event_loop import EventLoop
from strandline.framework.container.inputs import Input
from strandline.framework.container.instance import InstanceParts, TaskInstance
from strandline.framework.container.record_queue import RecordRun
from strandline.framework.container.scope import StepScope
from strandline.framework.container.steps import Steps, drive_async
from strandline.framework.decoding import Chunk
from strandline.framework.handlers import check_result
from strandline.framework.placing import Placed
from strandline.framework.record import Record
from strandline.framework.trial import Trial

YIELD_S = 0.001
"""Seconds after which an instance whose handlers never wait lets the others of the loop run."""


@dataclass(slots=True, eq=False)
class InFlightRecord:
    """A record that was handed out and has not taken effect."""

    source: Input
    chunk: Chunk
    record: Record[Any, Any]
    stream_time: int
    """Largest timestamp up to it, in ms."""
    scope: StepScope | None = None
    task: asyncio.Task[None] | None = None
    """Task of its handler; None if the handler is called when it is the record's turn."""
    key: Hashable = None
    """Key that orders it among other records; None if nothing does."""
    next_of_key: InFlightRecord | None = None
    """Next record of the same key, which starts when this one has taken effect."""


class AsyncInstance(TaskInstance):
    """One task with async handlers on one partition."""

    def __init__(
        self,
        container: ContainerContext,
        parts: InstanceParts,
        placed: Placed,
        trial: Trial,
        loop: EventLoop,
    ) -> None:
        super().__init__(container, parts, placed, trial)
        self._loop = loop
        self._flights: deque[InFlightRecord] = deque()
        self._last_of_key: dict[Hashable, InFlightRecord] = {}
        self._run: RecordRun | None = None
        """Records that are being handed out."""
        self._latest = -1
        """Largest timestamp handed out, in ms."""
        self._main: asyncio.Task[int] | None = None
        """Task in which steps take effect; None between slices without work."""
        self._slice = AsyncSlice(0, 0)
        self._is_dropping = False
        self._uncounted = 0
        """Number of records that took effect since `end` was called."""
        self._sample: ExitStack | None = None
        """Open while the look-ups of the slice are counted."""

    @property
    def is_busy(self) -> bool:
        """True if handlers are running."""
        return bool(self._flights) or not (self._main is None or self._main.done())

    @property
    def records_in_flight(self) -> int:
        """Number of records that were handed out and have not taken effect."""
        return len(self._flights)

    @property
    def records_uncounted(self) -> int:
        """Number of records that were handed out and that `end` has not counted.

        The asyncio loop also runs between slices, for the first steps of other instances, so some
        of them can have taken effect.
        """
        return len(self._flights) + self._uncounted

    @property
    def has_work(self) -> bool:
        """True if a slice would do something."""
        has_steps = self.is_busy or self.has_input or self._is_tick_due()
        return self._uncounted > 0 or (has_steps and not self.has_failed())

    @property
    def is_settling(self) -> bool:
        """True if handlers are running whose records can still take effect."""
        is_at_work = self._main is not None and not self._main.done()
        return not self.has_failed() and (is_at_work or self._is_head_running)

    @property
    def _is_head_running(self) -> bool:
        return bool(self._flights) and self._flights[0].task is not None

    def cut(self) -> None:
        """Hand out no more records, and end the slice after the running step."""
        self._slice.left = 0
        super().cut()

    # A slice --------------------------------------------------------------------------

    def begin(self, of: AsyncSlice) -> asyncio.Task[int]:
        """Begin or continue to work in the running asyncio loop; return the task that does it."""
        if not of.is_last:
            self.begin_slice()
        self._slice = of
        if self._sample is None and self._sampling.size(1):
            self._sample = self._sampling.counted()
        if self._main is None or self._main.done():
            self._main = asyncio.create_task(self._work())
            self._main.add_done_callback(lambda _: self._slice.needs_input())
        else:
            self._hand_out()
        return self._main

    def end(self) -> int:
        """End the slice; return the number of records that took effect since the last one."""
        handled, self._uncounted = self._uncounted, 0
        self._sampling.handled(0 if self._sample is None else handled, handled)
        if self._sample is not None:
            self._sample.close()
            self._sample = None
        return handled

    async def _work(self) -> int:
        pause_at = time.perf_counter() + YIELD_S
        while self._goes_on():
            self._hand_out()
            if not self._flights:
                break
            await self._take_turn(self._flights[0])
            now = time.perf_counter()
            if now >= self._slice.until:
                break
            if now >= pause_at:
                await asyncio.sleep(0)
                pause_at = time.perf_counter() + YIELD_S
        if not self._slice.is_last:
            await self._drive(self.ticks())
        if self.has_failed():
            await self._drop_flights()
        return 0

    def _goes_on(self) -> bool:
        """Return True if another step may take effect in this slice."""
        if not self._slice.is_last:
            return self._may_continue()
        if self.has_failed() or self._trial.is_over or not self._is_head_running:
            return False
        self.begin_slice()  # the slice was cut, but this step has begun before
        return True

    def _is_tick_due(self) -> bool:
        at = self.due_at()
        return at is not None and at <= self._clock.now_ms()

    # Handing out ----------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Hand out records, and start their handlers, as far as the concurrency allows."""
        # A single record at a time needs no asyncio task of its own, and is called in its turn.
        limit = 1 if self._trial.is_searching else self.spec.concurrency
        while len(self._flights) < limit and self._slice.left > 0 and self._may_continue():
            flight = self._next_flight()
            if flight is None:
                self._slice.needs_input()
                return
            self._slice.handed_out()
            self._flights.append(flight)
            if limit > 1 and flight.chunk.error is None and self._is_first_of_key(flight):
                self._start(flight)

    def _next_flight(self) -> InFlightRecord | None:
        run = self._run
        if run is None or run.chunk.at >= run.stop:
            run = self._run = self._queue.next(max(1, self.spec.concurrency))
            if run is None:
                return None
        source, chunk, _ = run
        record = chunk.records[chunk.at]
        chunk.at += 1
        source.in_flight.append(record.offset)
        source.reached = record.offset + 1
        self._latest = max(self._latest, self.context.stream_time, record.timestamp)
        return InFlightRecord(source, chunk, record, self._latest)

    def _is_first_of_key(self, flight: InFlightRecord) -> bool:
        """Note the record as the last of its key; return False if another one comes before it."""
        flight.key = _hashable(flight.record.key) if self.all_stores else None
        if flight.key is None:
            return True
        before = self._last_of_key.get(flight.key)
        self._last_of_key[flight.key] = flight
        if before is None:
            return True
        before.next_of_key = flight
        return False

    def _start(self, flight: InFlightRecord) -> None:
        flight.scope = self._step_scope(flight.record, flight.stream_time)
        flight.task = asyncio.create_task(self._in_scope(flight.scope, (flight.record,)))

    # Taking effect --------------------------------------------------------------------

    async def _take_turn(self, flight: InFlightRecord) -> None:
        """Let a record take effect, and the timers that fire before it."""
        if not await self._drive(self._steps_of(flight.record, flight.chunk), flight):
            return
        self._flights.popleft()
        flight.source.in_flight.popleft()
        self._note_handled(1)
        self._uncounted += 1
        if self._last_of_key.get(flight.key) is flight:
            del self._last_of_key[flight.key]
        if flight.next_of_key is not None and not self._slice.is_last:
            self._start(flight.next_of_key)

    def drive(self, steps: Steps) -> int:
        """Call the handlers of `steps` one after another, and await them."""
        return int(self._loop.run(self._drive(steps)))

    async def _drive(self, steps: Steps, flight: InFlightRecord | None = None) -> int:
        async def call(handler: Callable[..., Any], args: tuple[Any, ...]) -> None:
            if flight is not None and handler is self._process:
                if await self._has_taken_effect(flight):
                    return
                flight.task = None
            scope = self._step_scope(self.context.record, self.context.stream_time)
            await self._in_scope(scope, args, handler)
            scope.apply()

        return await drive_async(steps, call)

    async def _has_taken_effect(self, flight: InFlightRecord) -> bool:
        """Wait for the handler and apply its step; return False if it is to be called now."""
        if flight.task is None or flight.scope is None:
            return False
        try:
            await flight.task
        except Exception:
            if flight.scope.is_current():
                raise
        else:
            if flight.scope.is_current():
                flight.scope.apply()
                return True
        flight.scope.end()
        self.counters.repeated += 1
        return False

    async def _in_scope(
        self, scope: StepScope, args: tuple[Any, ...], handler: Callable[..., Any] | None = None
    ) -> None:
        """Call and await a handler, by default that of records, in the scope of its step."""
        scope.bind()
        begun = time.perf_counter()
        try:
            result = (handler or self._process)(*args)
            if inspect.isawaitable(result):
                result = await result
            if _cancellations():
                await asyncio.sleep(0)  # raises what the handler has left to the next await
                _take_back_cancellations()  # the handler has caught it
            if result is not None:
                check_result(result)
        except asyncio.CancelledError as error:
            if self._is_dropping:
                raise
            _take_back_cancellations()
            raise RuntimeError("the handler was cancelled by something that it awaited") from error
        finally:
            scope.end()  # before its turn: what the handler leaves running can write no more
            if handler is None or handler is self._process:
                self.counters.took(time.perf_counter() - begun, 1)

    def _step_scope(self, record: Record[Any, Any], stream_time: int) -> StepScope:
        return StepScope(self._scope, self.all_stores, record, stream_time)

    # Ending ---------------------------------------------------------------------------

    def stop_steps(self) -> None:
        """Cancel the running handlers. No step takes effect any more, even if the loop runs."""
        if not self._is_dropping:
            self._is_dropping = True
            for task in self._asyncio_tasks:
                task.cancel()

    def rewind(self) -> None:
        """Drop the running handlers, and undo everything since the last commit."""
        self._drop()
        super().rewind()

    def release(self) -> None:
        """Drop the running handlers, and close the stores without calling the task's `close`."""
        self._drop()
        super().release()

    def _drop(self) -> None:
        """Cancel the running handlers and wait for their ends; what they did has no effect."""
        self.stop_steps()
        tasks = self._asyncio_tasks
        if not all(task.done() for task in tasks):
            self._loop.run(_ends_of(tasks))
        self._is_dropping = False
        self._main = None
        self._uncounted = 0
        self._forget_flights()

    @property
    def _asyncio_tasks(self) -> list[asyncio.Task[Any]]:
        tasks = [self._main, *(flight.task for flight in self._flights)]
        return [task for task in tasks if task is not None]

    async def _drop_flights(self) -> None:
        """Cancel the handlers of records, because the instance has stopped."""
        tasks = [flight.task for flight in self._flights if flight.task is not None]
        self._is_dropping = True
        for task in tasks:
            task.cancel()
        await _ends_of(tasks)
        self._is_dropping = False
        self._forget_flights()

    def _forget_flights(self) -> None:
        for flight in self._flights:
            if flight.scope is not None:
                flight.scope.end()
        self._flights.clear()
        self._last_of_key.clear()
        self._run = None
        self._latest = -1


async def _ends_of(tasks: list[asyncio.Task[Any]]) -> None:
    """Wait for the ends of asyncio tasks, whatever their results are."""
    await asyncio.gather(*tasks, return_exceptions=True)


def _cancellations() -> int:
    """Return how often the running asyncio task was cancelled and has not taken it back."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _take_back_cancellations() -> None:
    """Let the running asyncio task go on, which may be that of all steps of the instance."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _hashable(key: Any) -> Hashable:
    """Return the key; None if it cannot be hashed."""
    try:
        hash(key)
    except TypeError:
        return None
    return key  # type: ignore[no-any-return]
