"""Logs that a Python process of Spark has open: for one task, or for the next one too.

Spark reuses the processes in which it plans, runs tasks and commits. A micro-batch opens its log
four times, one after another, which takes longer than all other calls of a small one. So a process
that Spark reuses keeps the log open for some seconds after a task.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from strandline import changelog
from strandline.changelog.directory import Inode, inode_of
from strandline.changelog.errors import InvalidConfig

if TYPE_CHECKING:
    from strandline.changelog.log import Log

REUSED = "SPARK_REUSE_WORKER"
"""Variable of the environment that Spark sets in processes which it reuses (`pyspark.daemon`)."""

PERIOD_S = 5.0
"""Seconds of a period; a log that no task takes is closed after one to two of them."""


def open_log(path: str) -> Log:
    """Open the log at a path or URL; close it, or use it in a `with` statement.

    A folder's log is attached to, through its owner. If it has none, an owner is started in the
    background that leaves when it is idle, because neither a planner nor a task lives long enough
    to own a log. Raises InvalidConfig for a folder without a log.
    """
    try:
        return changelog.open(path, role="attach_or_spawn", create=False)
    except InvalidConfig as error:
        raise InvalidConfig(
            f"there is no log at {path} (on {os.uname().nodename}): {error}"
        ) from None


@contextmanager
def opened(path: str) -> Iterator[Log]:
    """Open a log for a task, or take the one that the last task of this process has left open.

    Raises what `open_log` raises.
    """
    log = _kept.take(path)
    if log is None:
        log = open_log(path)
    try:
        yield log
    except BaseException:
        log.close()  # the next task does better with a new connection
        raise
    if os.environ.get(REUSED):
        _kept.keep(path, log)
    else:
        log.close()


class KeptLogs:
    """Logs that wait for the next task, at most one for each path. Thread-safe.

    A log is closed at the end of the first period in which no task has taken it.

    Args:
        start_period: Starts a period: calls a function at its end, on another thread.
    """

    def __init__(self, start_period: Callable[[Callable[[], None]], object]) -> None:
        self._start_period = start_period
        self._lock = threading.Lock()
        self._kept: dict[str, _KeptLog] = {}
        self._period = 0
        """Number of the running period, or of the next one."""
        self._is_running = False

    def take(self, path: str) -> Log | None:
        """Return the log kept for a path, which is the caller's now; None if there is none."""
        with self._lock:
            found = self._kept.pop(path, None)
        if found is None:
            return None
        if found.folder != _folder_of(path):
            found.log.close()  # another log is at this path now
            return None
        return found.log

    def keep(self, path: str, log: Log) -> None:
        """Keep a log for the next task."""
        with self._lock:
            before = self._kept.pop(path, None)
            self._kept[path] = _KeptLog(log, _folder_of(path), self._period)
            starts, self._is_running = not self._is_running, True
        if before is not None:
            before.log.close()
        if starts:
            self._start_period(self._end_period)

    def close(self) -> None:
        """Close all logs."""
        with self._lock:
            kept, self._kept = self._kept, {}
        for each in kept.values():
            each.log.close()

    def _end_period(self) -> None:
        """Close the logs that were kept before this period, and wait for the others."""
        with self._lock:
            idle = {path: each for path, each in self._kept.items() if each.period < self._period}
            for path in idle:
                del self._kept[path]
            self._period += 1
            self._is_running = continues = bool(self._kept)
        for each in idle.values():
            each.log.close()
        if continues:
            self._start_period(self._end_period)


class _KeptLog(NamedTuple):
    log: Log
    folder: Inode | None
    period: int
    """Number of the period in which the log was last used."""


def _folder_of(path: str) -> Inode | None:
    """Return the identity of the folder at a path; None for a URL, or if there is none."""
    try:
        return inode_of(os.stat(path))
    except OSError:
        return None


def _start_period(end: Callable[[], None]) -> None:
    timer = threading.Timer(PERIOD_S, end)
    timer.daemon = True
    timer.start()


_kept = KeptLogs(_start_period)
atexit.register(_kept.close)
