"""Scheduling of a worker's task instances: they handle slices of records in turn.

A slice ends early if it takes too long, if the worker is to stop, or if the next commit may cover
only a few steps. A worker can therefore commit, rebalance and stop after the running record, even
if its handlers are slow.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from strandline.changelog.clock import Clock
from strandline.framework.container.async_instance import AsyncInstance
from strandline.framework.container.async_slice import AsyncSlice
from strandline.framework.container.batch_instance import BatchInstance
from strandline.framework.container.event_loop import EventLoop
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.slice_guard import SliceGuard
from strandline.framework.container.slices import (
    FIRST_SLICE_RECORDS,
    MAX_ROUND_S,
    MAX_SLICE_RECORDS,
    SLICE_SECONDS,
    slice_seconds,
)
from strandline.framework.container.steps import Steps
from strandline.framework.trial import Trial
from strandline.statestore.memory import MemoryBudget

_log = logging.getLogger("strandline")

SETTLE_LOG_S = 2.0
"""Seconds after which a worker that waits for async handlers to end says so."""


class SliceScheduler:
    """Runs the instances of one worker. Not thread-safe, except for `stop`."""

    def __init__(
        self,
        trial: Trial,
        loop: EventLoop,
        clock: Clock,
        memory: MemoryBudget,
        *,
        guarded: bool,
    ) -> None:
        self._trial = trial
        self._loop = loop
        self._clock = clock
        self._memory = memory
        self._slice = FIRST_SLICE_RECORDS
        self._count = 0
        self._running: Sequence[TaskInstance] = ()
        """Instances that have a slice at the moment; `_cut` reads it on other threads."""
        self._guard = SliceGuard(self._cut) if guarded else None
        self.is_stopping = False

    def stop(self) -> None:
        """End running slices after their current step. May be called from threads and signals."""
        # No lock is taken: a signal handler may interrupt a thread that holds it.
        self.is_stopping = True
        self._cut()

    def close(self) -> None:
        """End the thread that watches slices. Idempotent."""
        if self._guard is not None:
            self._guard.close()

    def start(self, instances: Sequence[TaskInstance]) -> None:
        """Run `init` of the instances that have not started."""
        for instance in self._while_allowed(instances):
            if not (instance.is_started or instance.has_failed()):
                self.drive(instance, instance.start())

    def tick(self, instances: Sequence[TaskInstance]) -> None:
        """Fire the timers and windows that are due by the wall clock, the longest overdue first.

        Async instances fire theirs in `handle`.
        """
        now = self._clock.now_ms()
        in_turn = (one for one in instances if not (one.spec.is_async or one.has_failed()))
        due = [(at, instance) for instance in in_turn if (at := instance.due_at()) is not None]
        waiting = sorted((one for one in due if one[0] <= now), key=lambda one: one[0])
        for instance in self._while_allowed([instance for _, instance in waiting]):
            self.drive(instance, instance.ticks())

    def handle(
        self, instances: Sequence[TaskInstance], limit: int | None, is_time: Callable[[], bool]
    ) -> int:
        """Run a slice of each instance that has input; return the number of records handled.

        Args:
            instances: All instances of the worker.
            limit: Largest number of records; None for no limit.
            is_time: Returns True if a commit is due; the remaining instances run after it.
        """
        left = math.inf if limit is None else limit
        left -= sum(instance.records_uncounted for instance in _async(instances))
        handled = self._handle_in_turn(instances, left, is_time)
        if not self._may_begin:
            return handled
        working = [instance for instance in _async(instances) if instance.has_work]
        return handled + self._handle_async(working, AsyncSlice(SLICE_SECONDS, left - handled))

    def settle(self, instances: Sequence[TaskInstance]) -> int:
        """Wait until no async handler runs, because the worker stops or gives up partitions.

        Returns the number of records handled.
        """
        handled, log_at = 0, time.perf_counter() + SETTLE_LOG_S
        while not self._trial.is_over and (busy := [i for i in _async(instances) if i.is_settling]):
            handled += self._handle_async(busy, AsyncSlice(SLICE_SECONDS, 0, is_last=True))
            if time.perf_counter() > log_at:
                log_at = math.inf
                running = sum(instance.records_in_flight for instance in busy)
                _log.warning(
                    "the worker waits for the async handlers of %d records to end before it "
                    "commits; if the process is ended first, they are called again at the next run",
                    running,
                    extra={"records": running},
                )
        return handled + sum([instance.end() for instance in _async(instances)])

    def _handle_in_turn(
        self, instances: Sequence[TaskInstance], limit: float, is_time: Callable[[], bool]
    ) -> int:
        """Run a slice of each instance with synchronous handlers; return the records handled."""
        ready = [one for one in instances if not one.spec.is_async and one.has_input]
        if not ready:
            return 0
        handled, usual, seconds = 0, 0, 0.0
        for instance in self._in_turn(ready, is_time):
            size = instance.size if isinstance(instance, BatchInstance) else self._slice
            if limit - handled < size:
                size = int(limit - handled)
            if size <= 0:
                break
            begun = time.perf_counter()
            with self._guarded([instance]):
                done = instance.run(size)
            handled += done
            if not instance.spec.batch:
                usual += done
                seconds += time.perf_counter() - begun
        if usual:
            rate = usual / max(seconds, 1e-9)
            fitting = slice_seconds(len(ready)) * rate
            self._slice = max(1, min(int(fitting), 4 * self._slice, MAX_SLICE_RECORDS))
        return handled

    def _in_turn(
        self, ready: Sequence[TaskInstance], is_time: Callable[[], bool]
    ) -> Iterator[TaskInstance]:
        """Yield the instances, the longest waiting first; end when a commit is due."""
        uncommitted = 0
        for instance in self._while_allowed(sorted(ready, key=lambda instance: instance.turn)):
            yield instance
            self._count += 1
            instance.turn = self._count
            # Only this instance has changed since the last check, so only it is asked.
            uncommitted += instance.uncommitted_bytes()
            if is_time() or instance.needs_commit or uncommitted > self._memory.uncommitted_bytes:
                break

    @property
    def _may_begin(self) -> bool:
        """True if another slice may begin before the worker commits."""
        return not (self.is_stopping or self._trial.is_over)

    def _while_allowed(self, instances: Sequence[TaskInstance]) -> Iterator[TaskInstance]:
        """Yield the instances until the worker stops, must commit, or has spent its time."""
        begun = time.perf_counter()
        for instance in instances:
            if not self._may_begin:
                return
            yield instance
            if time.perf_counter() - begun > MAX_ROUND_S:
                return

    def _handle_async(self, working: Sequence[AsyncInstance], of: AsyncSlice) -> int:
        """Run the asyncio loop for a slice; return the number of records handled."""
        if not working:
            return 0

        async def run() -> None:
            await of.over([instance.begin(of) for instance in working])

        self._running = working
        try:
            self._loop.run(run())
        finally:
            self._running = ()
        return sum([instance.end() for instance in working])

    def drive(self, instance: TaskInstance, steps: Steps) -> None:
        """Run the handlers of these steps of an instance as one slice."""
        with self._guarded([instance]):
            instance.drive(steps)

    @contextmanager
    def _guarded(self, instances: Sequence[TaskInstance]) -> Iterator[None]:
        """Run the block as a slice of these instances; `stop` and the slice guard can cut it."""
        for instance in instances:
            instance.begin_slice()
        self._running = instances
        if self._guard is not None:
            self._guard.begin()
        try:
            yield
        finally:
            self._running = ()
            if self._guard is not None:
                self._guard.end()

    def _cut(self) -> None:
        """End the running slices after their current step; called on other threads."""
        for instance in self._running:
            instance.cut()


def _async(instances: Sequence[TaskInstance]) -> list[AsyncInstance]:
    return [instance for instance in instances if isinstance(instance, AsyncInstance)]
