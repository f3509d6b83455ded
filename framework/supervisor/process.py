"""A worker's process, seen by the supervisor.

It is spawned, in a process group of its own, so that a terminal's Ctrl-C reaches the supervisor
alone. It has a socket to the supervisor, the number of which it is told (`--supervised`): on it it
reports, and by its end it knows that the supervisor is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

CHUNK = 1 << 16
LONGEST = 1 << 16
"""Bytes after which a line is cut."""
QUOTED = 200
"""Characters of a last line."""
LEFT = 64
"""Chunks that are read of what a dead process has left; children of its own may go on writing."""


class Descriptor(Protocol):
    """Anything that has a file descriptor."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class LineReader:
    """The lines that come out of a pipe or socket, without waiting for them."""

    def __init__(self, source: Descriptor) -> None:
        self._source = source
        self._rest = b""
        self.ended = False
        os.set_blocking(source.fileno(), False)

    def fileno(self) -> int:
        """For a selector."""
        return self._source.fileno()

    def come(self) -> list[str]:
        """Those that have come."""
        try:
            data = os.read(self.fileno(), CHUNK)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            data = b""
        self.ended = not data
        *lines, rest = (self._rest + data).split(b"\n")
        if rest and (self.ended or len(rest) >= LONGEST):
            lines, rest = [*lines, rest], b""
        self._rest = rest
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def left(self) -> list[str]:
        """All that a process which is dead has left."""
        lines: list[str] = []
        for _ in range(LEFT):
            if self.ended:
                break
            lines += self.come()
        return lines

    def close(self) -> None:
        self._source.close()


class WorkerProcess:
    """Started when it is made. Raises OSError."""

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
        """Its exit status, or minus the number of the signal that killed it; None: it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """SIGTERM: it commits and leaves."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, to what it has started too."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()

    def close(self) -> None:
        """Let go of its pipes; it must have ended."""
        for source in (self.out, self.err, self.reports):
            source.close()
        self._process.wait()


def ending(status: int, last_line: str) -> str:
    """How a process has ended, in words. Who is killed says nothing of it, but who aborts does.

    >>> ending(-9, "a line of its log"), ending(1, "ValueError: no")
    ('was killed by SIGKILL', 'ended with status 1, saying: ValueError: no')
    """
    if status < 0:
        said = f"was killed by {_name(-status)}"
    else:
        said = f"ended with status {status}"
    says_why = status > 0 or status == -signal.SIGABRT
    return f"{said}, saying: {_short(last_line)}" if last_line and says_why else said


def _short(line: str) -> str:
    return line if len(line) <= QUOTED else f"{line[:QUOTED]}…"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
