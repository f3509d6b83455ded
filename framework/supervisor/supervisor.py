"""The supervisor: one thread that starts workers, reads their output, and stops them.

    start            workers that have no process, after their pause
    listen           read output and reports as they arrive
    reap             log a line about a worker that has ended; schedule its restart with backoff
    handle signals   Ctrl-C, SIGTERM: all workers commit and leave; a second signal kills them
    show             print lines at once, and the status at intervals
    end              if all workers have ended in order, none can be kept alive, or an error
                     occurred that a restart does not fix

The thread never waits for a worker, because the owner of the log is in this process and must
continue whatever workers do.
"""

from __future__ import annotations

import contextlib
import errno
import math
import selectors
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from strandline.changelog.clock import Clock
from strandline.changelog.errors import FolderLost
from strandline.framework.supervisor.logs import WorkerOutput
from strandline.framework.supervisor.process import LineReader, WorkerProcess
from strandline.framework.supervisor.slots import WorkerRow, WorkerSlot
from strandline.framework.supervisor.view import SilentView, StatusView

TICK_SECONDS = 0.1
"""Seconds between checks for signals and for workers that have ended."""
LEAVE_SECONDS = 30.0
"""Seconds in which a worker must commit and leave before it is killed."""
IMPATIENT_SECONDS = 1.0
"""Seconds within which a second signal is ignored.

It may be the first one again, because programs that start the supervisor forward their signals.
"""


@dataclass(frozen=True)
class Outcome:
    """Result of a supervisor's run."""

    records: int
    """Number of records handled and committed by all workers."""
    failure: str = ""
    """Reason for a failure; "" if all workers have ended in order."""
    killed: bool = False
    """True if a second signal has killed the workers."""


class Supervisor:
    """Keeps the processes of workers running.

    Args:
        slots: Slots of the workers, as `worker_slots` returns them.
        view: Output of lines and status.
        clock: Measures time.
        until_idle: Whether the run is bounded, so that a worker which exits with 0 is done.
        timeout: Seconds after which all workers are stopped; None for no limit.
        logs: Destination of the workers' output; None to show it in the view.
        note: Called at every tick with the status of all workers.
    """

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        view: StatusView,
        clock: Clock,
        *,
        until_idle: bool = False,
        timeout: float | None = None,
        logs: WorkerOutput | None = None,
        note: Callable[[Sequence[WorkerRow]], None] = lambda _rows: None,
    ) -> None:
        self._slots = slots
        self._view = view
        self._clock = clock
        self._until_idle = until_idle
        self._end_at = math.inf if timeout is None else clock.monotonic() + timeout
        self._logs = logs
        self._note = note
        self._selector = selectors.DefaultSelector()
        self._lines: list[str] = []
        """Lines to show next."""
        self._show_at = clock.monotonic() + view.every
        self._leaving = False
        self._left_at = math.inf
        self._kill_at = math.inf
        self._failure = ""
        self._killed = False

    def run(self, signals_received: SimpleQueue[int]) -> Outcome:
        """Run the workers until a signal arrives in `signals_received` or a limit is reached.

        No process is left when it returns.
        """
        try:
            while not self._is_over:
                self._start_due()
                self._listen()
                self._reap_ended()
                self._handle_signals(signals_received)
                self._show()
        finally:
            self._kill_remaining()
        records = sum(slot.records for slot in self._slots)
        return Outcome(records, self._failure, self._killed)

    @property
    def _is_over(self) -> bool:
        if any(slot.process is not None for slot in self._slots):
            return False
        return self._leaving or all(slot.done for slot in self._slots)

    @property
    def _alive(self) -> list[tuple[WorkerSlot, WorkerProcess]]:
        return [(slot, slot.process) for slot in self._slots if slot.process is not None]

    # Starting and reaping -------------------------------------------------------------

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.is_due and not self._leaving:
                try:
                    slot.start()
                except (OSError, FolderLost) as error:
                    why = getattr(error, "strerror", None) or error
                    what = f"worker {slot.number} cannot be started: {why}"
                    self._schedule_restart(slot, what)
                else:
                    self._register(slot)

    def _reap_ended(self) -> None:
        for slot, process in self._alive:
            if (status := process.status) is not None:
                self._drain(process)
                self._reap(slot, status)

    def _reap(self, slot: WorkerSlot, status: int) -> None:
        how = slot.reap(status)
        if slot.error and not any(slot.has_run for slot in self._slots):
            # A permanent error before any worker has run stops all, since it would stop each.
            self._failure = self._failure or slot.error
            self._end()
        slot.done = self._leaving or (status == 0 and self._until_idle)
        if not slot.done:
            self._schedule_restart(slot, how)
        elif self._leaving and status not in (0, -signal.SIGTERM) and not slot.error:
            self._failure = self._failure or how
            self._add_line(how)

    def _schedule_restart(self, slot: WorkerSlot, why: str) -> None:
        pause = slot.schedule_restart()
        if all(slot.done or slot.is_hopeless for slot in self._slots):
            self._failure = (
                f"every worker ended {self._slots[0].give_up} times in a row or more, each time soon "
                f"after its start; the last: {why}"
            )
            self._leaving = True
        else:
            self._add_line(f"{why}; it starts again in {pause:.1f} s")

    # Ending ---------------------------------------------------------------------------

    def _handle_signals(self, signals_received: SimpleQueue[int]) -> None:
        """Act on signals, the timeout and the deadline for leaving."""
        now = self._clock.monotonic()
        while not signals_received.empty():
            signals_received.get()
            if self._leaving and now >= self._left_at + IMPATIENT_SECONDS:
                self._killed = True
                self._kill_at = now
            self._end()
        if now >= self._end_at:
            self._end()
        if now >= self._kill_at:
            self._kill_at = math.inf
            self._kill()

    def _end(self) -> None:
        """Ask every worker to commit and leave."""
        if not self._leaving:
            self._leaving = True
            self._left_at = self._clock.monotonic()
            self._kill_at = self._left_at + LEAVE_SECONDS
            for _, process in self._alive:
                process.ask_to_end()

    def _kill(self) -> None:
        for slot, process in self._alive:
            if not self._killed:
                who = f"worker {slot.number} (pid {process.pid})"
                self._add_line(f"{who} has not left within {LEAVE_SECONDS:g} s; it is killed")
            process.kill()

    def _kill_remaining(self) -> None:
        """Kill workers that are left because of an error in the supervisor, and close the view."""
        for _, process in self._alive:
            process.kill()
            process.close()
        self._selector.close()
        with self._output_errors_handled():
            self._view.close()
            self._view.lines(self._lines)

    # Listening ------------------------------------------------------------------------

    def _register(self, slot: WorkerSlot) -> None:
        def take_output(lines: list[str]) -> None:
            self._add_output(slot.number, lines)

        def take_stderr(lines: list[str]) -> None:
            slot.note_stderr(lines)
            take_output(lines)

        process = slot.process
        assert process is not None
        for source, take in (
            (process.out, take_output),
            (process.err, take_stderr),
            (process.reports, slot.note_reports),
        ):
            self._selector.register(source, selectors.EVENT_READ, take)

    def _listen(self) -> None:
        """Read what arrives within one tick."""
        for key, _ in self._selector.select(TICK_SECONDS):
            assert isinstance(key.fileobj, LineReader)
            key.data(key.fileobj.read_available())
            if key.fileobj.ended:
                self._selector.unregister(key.fileobj)

    def _drain(self, process: WorkerProcess) -> None:
        """Read the remaining output of a dead process, whose children may still write."""
        for source in (process.out, process.err, process.reports):
            if not source.ended:
                key = self._selector.unregister(source)
                key.data(source.read_remaining())

    # Showing --------------------------------------------------------------------------

    def _add_output(self, worker: int, lines: list[str]) -> None:
        if self._logs is not None:
            self._logs.take(worker, lines)
        else:
            self._lines += [f"[{worker}] {line}" for line in lines]

    def _add_line(self, line: str) -> None:
        self._lines.append(line)

    def _show(self) -> None:
        """Show new lines, and the status of all workers at the view's interval."""
        rows = [slot.row() for slot in self._slots]
        self._note(rows)
        lines, self._lines = self._lines, []
        now = self._clock.monotonic()
        with self._output_errors_handled():
            if lines:
                self._view.lines(lines)
            if now >= self._show_at:
                self._show_at = now + self._view.every
                self._view.show(rows)

    @contextlib.contextmanager
    def _output_errors_handled(self) -> Iterator[None]:
        """Stop the workers in order if the output's reader is gone (`| head`).

        Output that cannot be written for other reasons, such as a full disk, is dropped.
        """
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                self._view = SilentView()
                self._end()


def ends() -> Iterator[signal.Signals]:
    """Yield the signals that end the supervisor; not SIGHUP if it is ignored (nohup)."""
    yield from (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP
