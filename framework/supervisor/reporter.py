"""In a worker's process: it reports to the supervisor, and ends when that is gone.

The supervisor's end of the socket is open for as long as it lives. When it is closed, the app is
stopped: it commits and leaves, with another owner of the log if that was the supervisor. A
worker whose handler does not come back is ended, so that none is left behind.
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
    InvalidConfig,
    InvalidTopic,
    MissingDependency,
    SchemaMismatch,
    Unauthenticated,
)
from strandline.changelog.records import TopicPartition
from strandline.framework.container.restore import RestoreProgress
from strandline.framework.supervisor.lag import SILENT_SECONDS, LagMonitor, Positions
from strandline.framework.supervisor.report import RestoringStatus, WorkerReport, encoded

if TYPE_CHECKING:
    from strandline.framework.app import App
    from strandline.framework.container.worker import Worker

_log = logging.getLogger("strandline")

REPORT_SECONDS = 0.5
LAST_SECONDS = 1.0
"""How long the last report before its last figures may take."""
ORPHAN_SECONDS = 30.0
"""How long a worker may take to end when the supervisor is gone."""
STOP_SECONDS = 0.1
FOR_GOOD = (
    Unauthenticated,
    InvalidConfig,
    InvalidTopic,
    SchemaMismatch,
    MissingDependency,
    FutureFormat,
)
"""Errors that come again however often a worker is started. Of others, as UnknownTopic, the cause may go away."""
STOPPED_LATE = 70
"""Exit status of a worker that had to be ended (BSD's EX_SOFTWARE)."""
WAITING = "waiting for the log"


class Reporter:
    """Reports on the app that it is given, from `with` to its end, on socket `descriptor`."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no keyword
        self._socket = socket.socket(fileno=descriptor)
        self._clock = SystemClock()
        self._over = threading.Event()
        self._app: App | None = None
        self._worker: Worker | None = None
        self._restoring: RestoringStatus | None = None
        self._behind: LagMonitor | None = None
        self._opening: float | None = None
        """Since when the log is being opened."""
        self._error = ""
        self._supervisor = os.getppid()
        self._reporting = threading.Thread(target=self._report, name="strandline-report")
        self._reporting.daemon = True

    def __enter__(self) -> Self:
        _outlive_the_reader()
        threading.Thread(target=self._outlive_no_supervisor, daemon=True).start()
        self._reporting.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @contextmanager
    def following(self, app: App) -> Iterator[None]:
        """Report on this app, whose log is to be open until the end of `with`."""
        self._app = app
        inputs = [TopicPartition(task.inputs[0].name, 0) for task in app.declared.tasks.values()]
        self._behind = LagMonitor(app.broker, self._positions, inputs[:1], self._clock)
        try:
            yield
        finally:
            self._behind.close()
            self._end()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Report meanwhile that the log is opened, which takes as long as it takes to answer."""
        self._opening = self._clock.monotonic()
        yield
        self._opening = None

    def _end(self) -> None:
        """Say the last figures; harmless when repeated."""
        if not self._over.is_set():
            self._over.set()
            self._reporting.join(LAST_SECONDS)
            self._send(self._now())

    def restoring(self, progress: RestoreProgress) -> None:
        """Note how far stores have come."""
        self._notice_worker()  # here at the latest: all of the run may be over before the next report
        left = None if progress.done else RestoringStatus(progress.records, progress.remaining)
        self._restoring = left

    def failed(self, error: Exception) -> None:
        """Note what the worker ends with, which starting it again does not mend."""
        self._error = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if self._over.is_set():  # the last figures are told already
            self._send(self._now())

    def _notice_worker(self) -> None:
        """An app has its worker only as long as it runs."""
        self._worker = (self._app and self._app._worker) or self._worker

    # The supervisor's end -------------------------------------------------------------

    def _outlive_no_supervisor(self) -> None:
        """End when the supervisor has gone; it says nothing, so whatever comes is its end."""
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
            if self._app is not None:
                self._app.stop()  # again and again: it may not run yet
            pause.wait(STOP_SECONDS)
        os._exit(STOPPED_LATE)

    # Reports --------------------------------------------------------------------------

    def _report(self) -> None:
        while self._send(self._now()) and not self._over.wait(REPORT_SECONDS):
            """Once more."""

    def _send(self, report: WorkerReport) -> bool:
        """Send it, unless the supervisor is stopped and has much to read; False if it is gone."""
        try:
            self._socket.send(encoded(report), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _now(self) -> WorkerReport:
        app = self._app
        self._notice_worker()
        over = self._over.is_set()
        silent = 0.0 if over else self._silent()
        waits = WAITING if silent else ""
        if app is None or self._behind is None or self._worker is None:
            return WorkerReport(waits or "starting", silent=silent, error=self._error)
        status = self._worker.status()
        if status.state == "waiting for disk":
            waits = ""
        return WorkerReport(
            "ended" if over else waits or status.state,
            status.handled,
            status.commits,
            tuple(sorted(map(str, status.positions))),
            {} if over else self._behind.lag(),
            silent,
            self._restoring if status.state == "restoring" else None,
            self._error,
        )

    def _silent(self) -> float:
        """For how many seconds the log has not answered; 0 if it does."""
        if self._behind is not None:
            return self._behind.silent()
        since = self._opening
        seconds = 0.0 if since is None else self._clock.monotonic() - since
        return seconds if seconds > SILENT_SECONDS else 0.0

    def _positions(self) -> Positions:
        return {} if self._worker is None else self._worker.status().positions


def _outlive_the_reader() -> None:
    """Let a handler print when the supervisor, who reads it, is gone.

    Else `print` would raise, and a task that skips records whose handler raises would skip them.
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
    """Takes what nobody reads any more."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)
