"""Processes of a Spark driver that leads a session of its own, by what they do.

driver                                Python
  its JVM
    python_streaming_source_runner    plans a stream
    daemon of a planner's module
      planner                         creates a source, plans, commits
    executor                          JVM
      daemon of workers
        worker                        runs a task's Python code
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
DAEMON = b"pyspark.daemon"
WORKER = b"pyspark.worker"
PLANNER = b"pyspark.sql."
"""Beginning of the names of the modules of all Python processes of a driver."""


class SparkProcesses(NamedTuple):
    """Ids of the processes of a driver, at one moment."""

    executors: list[int]
    workers: list[int]
    """Python processes that run tasks."""
    daemons: list[int]
    """Python processes of executors that start workers."""
    planners: list[int]
    """Python processes of the driver that plan and commit."""


def processes_of(driver: subprocess.Popen[bytes]) -> SparkProcesses:
    """Return the processes of a driver that was started with `start_new_session`."""
    commands = dict(_commands(driver.pid))
    found = SparkProcesses([], [], [], [])
    for pid, words in commands.items():
        if EXECUTOR in words:
            found.executors.append(pid)
        elif WORKER in words:
            is_forked = WORKER in commands.get(parent_of(pid), [])
            (found.workers if is_forked else found.daemons).append(pid)
        elif b"-m" in words and words[-1].startswith(PLANNER):
            is_daemon = DAEMON in words and DAEMON not in commands.get(parent_of(pid), [])
            if not is_daemon:
                found.planners.append(pid)
    return found


def _commands(session: int) -> list[tuple[int, list[bytes]]]:
    """Return the id and the command of each process of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            if os.getsid(pid) == session:
                words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                found.append((pid, words))
    return found


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("PPid:")[2].split()[0])
