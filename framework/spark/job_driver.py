"""The driver's loop for the workers of a Spark job: messages of slots, signals, failures, the view.

take events      output and status of workers, and the results of slots
handle signals   Ctrl-C, SIGTERM: all workers commit and leave; a second one kills them
watch            report tasks that Spark has lost, and workers that wait for a slot
show             print lines at once, and the status at intervals
end              if the job has ended, every worker has left, or no worker can be kept alive
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from strandline.changelog.clock import Clock
from strandline.framework.spark import job_settings
from strandline.framework.spark.slot_listener import MAX_EVENTS, SlotEvent, SlotListener
from strandline.framework.spark.slot_messages import (
    SlotEnd,
    SlotHello,
    SlotNotes,
    SlotOutput,
    SlotStatus,
)
from strandline.framework.spark.worker_board import WorkerBoard
from strandline.framework.supervisor.logs import WorkerOutput
from strandline.framework.supervisor.slots import WorkerRow
from strandline.framework.supervisor.supervisor import (
    IMPATIENT_SECONDS,
    LEAVE_SECONDS,
    Outcome,
)
from strandline.framework.supervisor.view import SilentView, StatusView

TICK_S = 0.1
"""Maximum seconds between two looks at signals and at the job."""
WATCH_S = 1.0
"""Seconds between two questions to Spark about failed tasks."""
SPARE_S = 5.0
"""Seconds beyond LEAVE_SECONDS for slots to report the end of their workers."""
MAX_EARLY_FAILURES = 4
"""Number of failed tasks after which the job is hopeless, if no worker had a slot before."""


@dataclass(frozen=True)
class WorkersRun:
    """App, limits and output of a run of workers on Spark."""

    app: str
    """Name of the app."""
    target: str
    """The app as module:app, or its file."""
    log: str | None = field(repr=False)
    """Folder or URL of the log, which may contain secrets; None if the module opens its log itself."""
    until: str | None = None
    timeout: float | None = None
    """Seconds after which all workers are stopped; None for no limit."""
    options: Sequence[str] = ()
    """Further options of `strandline run` for each worker."""
    has_state_dir: bool = False
    """True if the app names the folder of its state."""
    view: StatusView = field(default_factory=SilentView)
    output: WorkerOutput | None = None
    """Destination of the workers' output; None to show it in the view."""
    note: Callable[[Sequence[WorkerRow]], None] = lambda _rows: None
    """Called at every tick with the status of all workers."""

    def say(self, line: str) -> None:
        """Show a line."""
        self.view.lines([line])


class RunningJob(Protocol):
    """Part of a Spark job that the driver needs; `SparkJob` implements it."""

    failure: str
    """Reason why Spark has ended the job; "" if all tasks have returned."""

    @property
    def is_over(self) -> bool:
        """True if the job has ended."""
        ...

    @property
    def failed_tasks(self) -> int:
        """Number of failed tasks that `new_failures` has returned."""
        ...

    def new_failures(self) -> list[str]:
        """Return a line for each task that has failed since the last call."""
        ...

    def cancel(self, seconds: float) -> None:
        """End the tasks that are left, and wait for the end of the job, at most so long."""
        ...


class JobDriver:
    """Shows and ends the workers of a job.

    Args:
        described: App, limits and output.
        listener: Connections of the slots.
        job: The job.
        workers: Number of workers.
        clock: Measures time.
    """

    def __init__(
        self,
        described: WorkersRun,
        listener: SlotListener,
        job: RunningJob,
        workers: int,
        clock: Clock,
    ) -> None:
        self._described = described
        self._view = described.view
        self._listener = listener
        self._job = job
        self._workers = workers
        self._clock = clock
        self._board = WorkerBoard(workers, clock)
        self._lines: list[str] = []
        now = clock.monotonic()
        self._show_at = now + self._view.every
        self._watch_at = now + WATCH_S
        self._end_at = math.inf if described.timeout is None else now + described.timeout
        self._leaving = False
        self._give_up_at = math.inf
        self._failure = ""
        self._killed = False
        self._left_at = math.inf

    def note_slots(self, master: str, cpus: int) -> None:
        """Note at once if a master on this machine has fewer slots than there are workers."""
        slots = job_settings.slots_of(master, cpus)
        if slots is not None and slots < self._workers:
            self._lines.append(
                f"{self._workers} workers, but {master} has slots for {slots}: the others "
                "wait; no partition does, because the running workers share all of them"
            )

    def run(self, received: SimpleQueue[int]) -> Outcome:
        """Run until the job has ended. No task is left when it returns."""
        try:
            while not self._is_over:
                self._take_events()
                self._handle_signals(received)
                self._watch()
                self._show()
            self._note_the_silent()
        finally:
            self._listener.close()
            self._job.cancel(SPARE_S)
        self._take_events(wait=False)
        self._view.close()
        self._view.lines(self._lines)
        if not self._leaving:
            self._failure = self._failure or self._job.failure
        return Outcome(self._board.records, self._failure, self._killed)

    @property
    def _is_over(self) -> bool:
        if self._job.is_over:
            return True
        # Tasks without a slot do not end by themselves, so the job is cancelled after the others.
        return self._leaving and (
            self._listener.connected == 0 or self._clock.monotonic() >= self._give_up_at
        )

    def _note_the_silent(self) -> None:
        left = self._listener.connected
        if self._leaving and left and not self._killed and not self._job.is_over:
            self._failure = self._failure or f"{left} workers have not reported that they have left"

    # Messages of slots ----------------------------------------------------------------

    def _take_events(self, *, wait: bool = True) -> None:
        with contextlib.suppress(Empty):
            if wait:
                self._take(self._listener.events.get(timeout=TICK_S))
            for _ in range(MAX_EVENTS):
                self._take(self._listener.events.get_nowait())

    def _take(self, event: SlotEvent) -> None:
        link, worker = event.link, event.link.hello.worker
        match event.message:
            case SlotHello() as hello:
                self._welcome(event, hello)
            case SlotOutput(lines):
                self._add_output(worker, lines)
            case SlotNotes(lines):
                self._lines += [f"{line} (on {link.hello.host})" for line in lines]
            case SlotStatus(row):
                self._board.reported(link, worker, row)
            case SlotEnd() as end:
                self._end_of(event, end)
            case None:
                self._board.left(link, worker)

    def _welcome(self, event: SlotEvent, hello: SlotHello) -> None:
        if not self._board.joined(event.link, hello):
            event.link.close()
            return
        again = f", attempt {hello.attempt}" if hello.attempt else ""
        self._lines.append(f"worker {hello.worker} has a slot on {hello.host}{again}")
        if self._leaving:
            self._listener.stop_workers()

    def _end_of(self, event: SlotEvent, end: SlotEnd) -> None:
        self._board.ended(event.link.hello.worker, end)
        where = f"{end.failure} (on {event.link.hello.host})"
        if not end.failure:
            return
        if self._leaving:
            self._fail(where)  # it has not left in order
        elif end.is_permanent and not self._board.has_run:
            self._fail(
                f"{where}; executors import the app themselves: code and packages reach them by "
                "--py-files and --archives"
            )
        elif self._board.are_hopeless:
            self._fail(where)

    def _add_output(self, worker: int, lines: Sequence[str]) -> None:
        if self._described.output is not None:
            self._described.output.take(worker, lines)
        else:
            self._lines += [f"[{worker}] {line}" for line in lines]

    # Ending ---------------------------------------------------------------------------

    def _handle_signals(self, received: SimpleQueue[int]) -> None:
        while not received.empty():
            received.get()
            if self._leaving and self._clock.monotonic() >= self._left_at + IMPATIENT_SECONDS:
                self._killed = True
                self._give_up_at = self._clock.monotonic() + SPARE_S
            self._end()
        if self._clock.monotonic() >= self._end_at:
            self._end_at = math.inf
            self._end()

    def _fail(self, failure: str) -> None:
        self._failure = self._failure or failure
        if not self._leaving:
            self._end()

    def _end(self) -> None:
        """Ask all workers to commit and leave; a second time, to end at once."""
        if not self._leaving:
            self._leaving = True
            self._left_at = self._clock.monotonic()
            self._give_up_at = self._clock.monotonic() + LEAVE_SECONDS + SPARE_S
        self._listener.stop_workers()

    # Spark ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Note tasks that have failed, and workers that wait for a slot."""
        if self._leaving or self._clock.monotonic() < self._watch_at:
            return
        self._watch_at = self._clock.monotonic() + WATCH_S
        new = self._job.new_failures()
        self._lines += new
        are_many = self._job.failed_tasks >= MAX_EARLY_FAILURES
        if new and are_many and not self._board.were_ever_connected:
            self._fail(new[-1])
        if waiting := self._board.waiting():
            self._lines.append(_about_slots(waiting, self._workers))

    # Showing --------------------------------------------------------------------------

    def _show(self) -> None:
        rows = self._board.rows()
        self._described.note(rows)
        lines, self._lines = self._lines, []
        try:
            if lines:
                self._view.lines(lines)
            if self._clock.monotonic() >= self._show_at:
                self._show_at = self._clock.monotonic() + self._view.every
                self._view.show(rows)
        except BrokenPipeError:  # the output's reader is gone (`| head`)
            self._view = SilentView()
            self._end()
        except OSError:
            return  # output that cannot be written is dropped


def _about_slots(waiting: Sequence[int], workers: int) -> str:
    """Return a line about workers that wait for a slot.

    >>> _about_slots([1, 2], 3)
    'workers 1, 2 of 3 wait for a slot: ... the running workers share all partitions meanwhile'
    """
    numbers = ", ".join(map(str, waiting))
    who = f"workers {numbers}" if len(waiting) > 1 else f"worker {numbers}"
    wait = "wait" if len(waiting) > 1 else "waits"
    there = (
        "the running workers share all partitions meanwhile"
        if len(waiting) < workers
        else "no partition is worked on"
    )
    return (
        f"{who} of {workers} {wait} for a slot: the cluster has too few free cores, its executors "
        f"are still starting, or they are lost; {there}"
    )
