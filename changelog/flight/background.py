"""A background owner for short-lived tools, which exits when it has no clients.

    python -m strandline.changelog.flight.background DIR --idle 10

A tool that finds no owner starts this process detached and attaches to it. The tool does not become
the owner itself, so it may end at any time without an election among the other clients. The process
logs to `owner.log` in the folder.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import site
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from strandline.changelog import signals
from strandline.changelog.directory import Directory
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import LogLocked, StorageFailed, StrandlineError, from_os_error
from strandline.changelog.flight import endpoint as endpoints
from strandline.changelog.flight.owning import ServedOwner
from strandline.changelog.layout import LOCK
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.lock import holder
from strandline.changelog.storage import Durability
from strandline.changelog.trust import check_trusted

IDLE_S = 10.0
"""Seconds without a session after which a background owner exits."""
BACKGROUND = "owner in the background"
"""Name of a background owner in the lock file."""
LOG_FILE = "owner.log"
MAX_LOG_BYTES = 1 << 20
"""Size in bytes from which the next background owner truncates the log file."""
MAX_KILLED = 3
"""Number of background owners, ended by a signal one after the other, after which no more start."""
TAIL_BYTES = 500
"""Number of bytes of the end of LOG_FILE that an error quotes."""

EXIT_LOCKED = 75
"""Exit status: another process owns the folder (BSD's EX_TEMPFAIL)."""
EXIT_FAILED = 70
"""Exit status: the log cannot be opened (BSD's EX_SOFTWARE)."""

_log = logging.getLogger("changelog.background")


class Spawner:
    """Starts background owners for a folder, one at a time."""

    def __init__(self, folder: Path, idle: float, durability: Durability) -> None:
        self._folder = folder
        self._idle = idle
        self._durability = durability
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = 0
        """Number of owners that were ended by a signal, one after the other."""

    def ensure(self, _left: float = 0.0) -> None:
        """Start a background owner unless the last one is still running.

        Raises the error that kept the last one from opening the folder, or StorageFailed if the
        program cannot be run.
        """
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            if status == EXIT_FAILED:
                # An exit status cannot carry the error, so the folder is opened here, which raises
                # the same one.
                Owner(LocalStorage(self._folder), durability=self._durability).close()
            self._killed = self._killed + 1 if status < 0 else 0
            failed = status > 0 and status != EXIT_LOCKED
            # One may be killed by chance. Several are killed for a reason, such as too little memory.
            if failed or self._killed == MAX_KILLED:
                end = f"status {status}" if failed else f"signal {-status}, {MAX_KILLED} times"
                raise StorageFailed(
                    f"a background owner for {self._folder} ended with {end}; "
                    f"{self._folder / LOG_FILE} ends with: {_tail(self._folder / LOG_FILE)}"
                )
        self._process = self._spawn()
        # Waiting for its end removes it from the process table.
        threading.Thread(target=self._process.wait, name="strandline-reaper", daemon=True).start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "strandline.changelog.flight.background",
            str(self._folder),
        ]
        command += ["--idle", str(self._idle), "--durability", self._durability]
        try:
            LocalStorage(self._folder).make_dir("")
            log = _open_log(self._folder)
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=environment(),
                    start_new_session=True,
                )
            finally:
                os.close(log)
        except OSError as error:
            raise from_os_error(error, "start a background owner in", str(self._folder)) from error


def run(folder: Path, *, idle: float = IDLE_S, durability: Durability = "fsync") -> int:
    """Own `folder` until SIGTERM, or until it has had no session for `idle` seconds.

    Returns the exit status.
    """
    with signals.awaited(signal.SIGTERM, signal.SIGINT) as received:
        return _run(folder, idle, durability, lambda: not received.empty())


def ask_to_leave(folder: Path) -> bool:
    """Send SIGTERM to the background owner of `folder`; return False if there is none.

    Its clients elect a new owner and continue.
    """
    endpoint = endpoints.read(folder)
    if endpoint is None or endpoint.life() != "alive":
        return False
    if not holder(folder / LOCK).startswith(f"pid {endpoint.pid}, {BACKGROUND}"):
        return False
    try:
        os.kill(endpoint.pid, signal.SIGTERM)
    except OSError:  # it has just exited, or belongs to another user
        return False
    return True


def _run(folder: Path, idle: float, durability: Durability, stopped: Callable[[], bool]) -> int:
    try:
        served = ServedOwner(folder, durability=durability, role=BACKGROUND)
    except LogLocked as error:
        _log.info("%s", error)
        return EXIT_LOCKED
    except StrandlineError:
        _log.exception("cannot open %s", folder)
        return EXIT_FAILED
    _log.info("process %d owns %s", os.getpid(), folder)
    try:
        served.server.sessions.wait_idle(idle, stopped)
    finally:
        served.close()
        _log.info("process %d leaves %s", os.getpid(), folder)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m strandline.changelog.flight.background")
    parser.add_argument("folder", type=Path, help="the log's folder")
    parser.add_argument(
        "--idle", type=float, default=IDLE_S, help="seconds without a client to leave after"
    )
    parser.add_argument("--durability", choices=["fsync", "os"], default="fsync")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    durability: Literal["fsync", "os"] = given.durability
    return run(given.folder, idle=given.idle, durability=durability)


def _open_log(folder: Path) -> int:
    """Open the log file for appending and return its descriptor.

    Raises OSError, also if the file is a link: writing through a link could damage another file.
    """
    directory = Directory(folder)
    # O_APPEND, because several background owners may start at once and must not overwrite each
    # other's lines.
    descriptor = directory.open_file(LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    found = os.fstat(descriptor)
    check_trusted(found, str(folder / LOG_FILE))
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, f"{LOG_FILE} is not a regular file with one link")
    if found.st_size >= MAX_LOG_BYTES:
        os.ftruncate(descriptor, 0)
    return descriptor


def environment() -> dict[str, str]:
    """Return this process's environment for a child, with this package's folder in PYTHONPATH.

    The child runs in another working directory, and this process may have found the package
    through its working directory only.
    """
    root = str(Path(os.path.abspath(__file__)).parents[3])  # abspath keeps the package's links
    if root in site.getsitepackages():
        return dict(os.environ)  # PYTHONPATH would put it before the standard library
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{others}" if others else root}


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return "(nothing)"


if __name__ == "__main__":
    sys.exit(main())
