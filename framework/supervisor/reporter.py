"""Reports from a worker's process to its supervisor, and the worker's end if that is gone.

The supervisor's end of the socket is open as long as the supervisor lives. When it is closed, the
app is stopped: it commits and leaves, attached to a new owner of the log if the supervisor was the
owner. If a handler does not return in time, the process is ended anyway, so that no worker runs
without a supervisor.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import (
    FutureFormat,
    InternalTopicLost,
    InvalidConfig,
    InvalidTopic,
    MissingDependency,
    MoveUnfinished,
    SchemaMismatch,
    Unauthenticated,
)
from strandline.changelog.records import TopicPartition
from strandline.framework.container.restore import RestoreProgress
from strandline.framework.supervisor.lag import SILENT_SECONDS, LagMonitor, Positions
from strandline.framework.supervisor.report import RestoringStatus, WorkerReport, encoded

if TYPE_CHECKING:
    from strandline.framework.container.running import Runner
    from strandline.framework.container.worker import Worker

_log = logging.getLogger("strandline")

REPORT_SECONDS = 0.5
"""Seconds between two reports."""
LAST_SECONDS = 1.0
"""Seconds to wait for the reporting thread before the final report."""
ORPHAN_SECONDS = 30.0
"""Seconds in which a worker must end after its supervisor is gone."""
STOP_SECONDS = 0.1
"""Seconds between two attempts to stop the app."""
FOR_GOOD = (
    Unauthenticated,
    InvalidConfig,
    InvalidTopic,
    InternalTopicLost,
    MoveUnfinished,
    SchemaMismatch,
    MissingDependency,
    FutureFormat,
)
"""Errors that a restart of the worker does not fix.

Others may be temporary: for UnknownTopic, for example, the topic may be created later.
"""
STOPPED_LATE = 70
"""Exit status of a worker that did not stop in time (BSD's EX_SOFTWARE)."""
WAITING = "waiting for the log"
"""State of a worker whose log does not answer."""


class Reporter:
    """Sends reports on the socket `descriptor` until the end of `with`."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no keyword
        self._socket = socket.socket(fileno=descriptor)
        self._clock = SystemClock()
        self._over = threading.Event()
        self._runner: Runner | None = None
        self._worker: Worker | None = None
        self._restoring: RestoringStatus | None = None
        self._lag_monitor: LagMonitor | None = None
        self._opening_since: float | None = None
        """Monotonic time at which opening the log began; None if it is not being opened."""
        self._error = ""
        self._supervisor = os.getppid()
        self._reporting = threading.Thread(target=self._report, name="strandline-report")
        self._reporting.daemon = True

    def __enter__(self) -> Self:
        _ignore_broken_pipes()
        threading.Thread(target=self._end_with_supervisor, daemon=True).start()
        self._reporting.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @contextmanager
    def following(self, runner: Runner) -> Iterator[None]:
        """Report on this app's runs within `with`; its log must stay open that long."""
        self._runner = runner
        tasks = runner.declared.tasks.values()
        inputs = [TopicPartition(task.inputs[0].name, 0) for task in tasks]
        self._lag_monitor = LagMonitor(
            runner.session.broker(), self._positions, inputs[:1], self._clock
        )
        try:
            yield
        finally:
            self._lag_monitor.close()
            self._end()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Report that the log is being opened within `with`, which may wait for its owner."""
        self._opening_since = self._clock.monotonic()
        try:
            yield
        finally:
            self._opening_since = None

    def _end(self) -> None:
        """Send the final report. Idempotent."""
        if not self._over.is_set():
            self._over.set()
            self._reporting.join(LAST_SECONDS)
            self._send(self._now())

    def restoring(self, progress: RestoreProgress) -> None:
        """Record the progress of a restore."""
        # The worker is looked up here too, because the whole run may end before the next report.
        self._find_worker()
        left = None if progress.done else RestoringStatus(progress.records, progress.remaining)
        self._restoring = left

    def failed(self, error: Exception) -> None:
        """Record the error with which the worker ends and that a restart does not fix."""
        self._error = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if self._over.is_set():  # the final report was sent already
            self._send(self._now())

    def _find_worker(self) -> None:
        """Remember the app's worker, which the app has only while it runs."""
        self._worker = (self._runner and self._runner.worker) or self._worker

    # The end of the supervisor --------------------------------------------------------

    def _end_with_supervisor(self) -> None:
        """End this process after the supervisor has gone.

        The supervisor never sends anything, so `recv` returns only when its end is closed.
        """
        with contextlib.suppress(OSError):
            self._socket.recv(1)
        _log.warning(
            "the supervisor of this worker, pid %d, is gone; it commits and ends, within %g s",
            self._supervisor,
            ORPHAN_SECONDS,
            extra={"supervisor": self._supervisor},
        )
        pause = threading.Event()
        for _ in range(round(ORPHAN_SECONDS / STOP_SECONDS)):
            if self._runner is not None:
                self._runner.stop()  # repeatedly, because it may not run yet
            pause.wait(STOP_SECONDS)
        os._exit(STOPPED_LATE)

    # Reports --------------------------------------------------------------------------

    def _report(self) -> None:
        while self._send(self._now()) and not self._over.wait(REPORT_SECONDS):
            pass

    def _send(self, report: WorkerReport) -> bool:
        """Send a report; return False if the supervisor is gone.

        The report is dropped if the socket's buffer is full, because a stopped supervisor must not
        block the worker.
        """
        try:
            self._socket.send(encoded(report), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _now(self) -> WorkerReport:
        self._find_worker()
        over = self._over.is_set()
        silent = 0.0 if over else self._silent()
        waits = WAITING if silent else ""
        if self._lag_monitor is None or self._worker is None:
            return WorkerReport(waits or "starting", silent=silent, error=self._error)
        status = self._worker.status()
        if status.state == "waiting for disk":
            waits = ""
        return WorkerReport(
            "ended" if over else waits or status.state,
            status.handled,
            status.commits,
            tuple(sorted(map(str, status.positions))),
            {} if over else self._lag_monitor.lag(),
            silent,
            self._restoring if status.state == "restoring" else None,
            self._error,
        )

    def _silent(self) -> float:
        """Return the seconds for which the log has not answered; 0 if it answers."""
        if self._lag_monitor is not None:
            return self._lag_monitor.silent()
        since = self._opening_since
        seconds = 0.0 if since is None else self._clock.monotonic() - since
        return seconds if seconds > SILENT_SECONDS else 0.0

    def _positions(self) -> Positions:
        return {} if self._worker is None else self._worker.status().positions


def _ignore_broken_pipes() -> None:
    """Make writes to standard output and error succeed after the supervisor is gone.

    Otherwise `print` in a handler would raise, and a task that skips failing records would skip
    records because of that.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        raw = _Pipe(descriptor, "w", closefd=False)
        text = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, name, text)


class _Pipe(io.FileIO):
    """Raw stream that discards data after the reader of its pipe is gone."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)
