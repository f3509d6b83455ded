"""Workers as processes that can be killed, stopped and continued."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.systems import System

ROOT = Path(__file__).resolve().parents[2]
BOUND_SECONDS = 120.0
"""Maximum seconds that a process lives, even if the test does not end it."""


class Process:
    """A process that runs a module, with its output in a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        said: Path,
        *,
        bound: float = BOUND_SECONDS,
        folder: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.said = said
        with said.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            )
        self.pid = self._process.pid
        self._bound = threading.Timer(bound, self._process.kill)
        self._bound.daemon = True
        self._bound.start()

    def text(self) -> str:
        return self.said.read_text(errors="replace")

    @property
    def has_stores(self) -> bool:
        """True once it has logged that it restored partitions of stores."""
        return "store partitions back" in self.text()

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def freeze(self) -> None:
        """Stop it with SIGSTOP, like a suspended machine or a debugger."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def send_usr1(self) -> None:
        """Send SIGUSR1. The meaning depends on the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait(30)
        self._bound.cancel()

    def ended(self, timeout: float = 60.0) -> int:
        """Wait until it ends by itself. Return its exit status."""
        status = self._process.wait(timeout)
        self._bound.cancel()
        return status

    def end(self, timeout: float = 30.0) -> int:
        """End it with SIGTERM. Return its exit status."""
        self._process.terminate()
        return self.ended(timeout)


def is_alive(pid: int) -> bool:
    """Return True if a process runs, and is no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def worker(system: System, said: Path) -> Process:
    """Start a worker of the pipeline."""
    return Process(["tests.workers.pipeline", system.url, str(system.state), system.prefix], said)


@contextmanager
def ending(processes: list[Process]) -> Iterator[None]:
    """Kill the processes at the end of the block."""
    try:
        yield
    finally:
        for process in processes:
            if process.is_running:
                process.thaw()
                process.kill()
