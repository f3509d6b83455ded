"""Processes of a Spark driver that leads a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path


def python_processes(driver: subprocess.Popen[bytes], role: str = "") -> Iterator[int]:
    """Yield the ids of the processes that run Python for Spark, and not the driver itself.

    There are none on systems without /proc.

    Args:
        driver: The driver, started with `start_new_session`.
        role: Beginning of the name of the module in `pyspark` that they run; "worker" is that of
            tasks. All by default.
    """
    module = b"\0pyspark." + role.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            if os.getsid(pid) == driver.pid and module in (folder / "cmdline").read_bytes():
                yield pid


def end(driver: subprocess.Popen[bytes]) -> None:
    """Kill the driver with its JVM, if they still run; its Python processes end with them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
