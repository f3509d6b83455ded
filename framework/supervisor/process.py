"""A worker's process, from the supervisor's side.

The process is spawned in its own process group, so that a terminal's Ctrl-C reaches the supervisor
only. It inherits a socket, whose descriptor `--supervised` names. The worker sends its reports on
this socket, and notices the end of the supervisor when the socket is closed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from strandline.changelog.printable import shortened

COMMAND = (sys.executable, "-P", "-m", "strandline")
"""`strandline` in another process; -P because the current folder may hold another `strandline`."""
CHUNK_BYTES = 1 << 16
"""Maximum number of bytes of one read."""
MAX_LINE_BYTES = 1 << 16
"""Number of bytes after which a line is split."""
QUOTED_CHARS = 200
"""Maximum number of characters of a process's last line in an error."""
MAX_REMAINING_READS = 64
"""Maximum number of reads from a dead process's pipe, into which its children may still write."""


class Descriptor(Protocol):
    """Anything that has a file descriptor."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class LineReader:
    """Reads lines from a pipe or socket without blocking."""

    def __init__(self, source: Descriptor) -> None:
        self._source = source
        self._rest = b""
        self.ended = False
        os.set_blocking(source.fileno(), False)

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._source.fileno()

    def read_available(self) -> list[str]:
        """Return the lines that have arrived; set `ended` at the end of the stream."""
        try:
            data = os.read(self.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            data = b""
        self.ended = not data
        *lines, rest = (self._rest + data).split(b"\n")
        if rest and (self.ended or len(rest) >= MAX_LINE_BYTES):
            lines, rest = [*lines, rest], b""
        self._rest = rest
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def read_remaining(self) -> list[str]:
        """Return the remaining lines of a dead process."""
        lines: list[str] = []
        for _ in range(MAX_REMAINING_READS):
            if self.ended:
                break
            lines += self.read_available()
        return lines

    def close(self) -> None:
        self._source.close()


class WorkerProcess:
    """A running worker process; the constructor starts it. Raises OSError."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        mine, its = socket.socketpair()
        with its, contextlib.ExitStack() as undo:
            undo.callback(mine.close)
            self._process = subprocess.Popen(
                [*command, "--supervised", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[its.fileno()],
                process_group=0,
                env=dict(environment),
            )
            undo.pop_all()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pid = self._process.pid
        self.out, self.err = LineReader(self._process.stdout), LineReader(self._process.stderr)
        self.reports = LineReader(mine)

    @property
    def status(self) -> int | None:
        """Exit status, or minus the number of the signal that killed it; None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Send SIGTERM, after which the worker commits and exits."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()

    def close(self) -> None:
        """Close the pipes of the process, which must have ended."""
        for source in (self.out, self.err, self.reports):
            source.close()
        self._process.wait()


def ending(status: int, last_line: str) -> str:
    """Return a description of a process's end.

    It includes the last line of standard error if the process exited with an error or aborted. A
    process that was killed by another signal has printed nothing about it.

    >>> ending(-9, "a line of its log"), ending(1, "ValueError: no")
    ('was killed by SIGKILL', 'ended with status 1, saying: ValueError: no')
    """
    if status < 0:
        said = f"was killed by {_name(-status)}"
    else:
        said = f"ended with status {status}"
    says_why = status > 0 or status == -signal.SIGABRT
    return (
        f"{said}, saying: {shortened(last_line, QUOTED_CHARS)}" if last_line and says_why else said
    )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
