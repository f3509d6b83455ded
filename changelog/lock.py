"""A lock of one process and one holder in it, for as long as that process lives."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from pathlib import Path

from changelog.errors import LogLocked
from changelog.processes import DEAD, state_of

NOTE_BYTES = 200
UNKNOWN = "it is not known which"


class FileLock:
    """An flock, and a table of this process's own: threads sharing a descriptor both "get" a flock.

    The file is never unlinked, or two processes could each lock "the" file. A forked child
    neither holds nor releases its parent's lock.
    """

    _mutex = threading.RLock()  # garbage that is collected meanwhile may release one
    _held: dict[str, int] = {}
    """By path, the descriptor that holds it."""

    def __init__(self, path: Path, note: str) -> None:
        self._key = os.path.realpath(path)
        self._pid = os.getpid()
        with FileLock._mutex:
            if self._key in FileLock._held:
                raise LogLocked(f"{path} is already locked by this process (pid {self._pid})")
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._take(path, note)
            except BaseException:
                os.close(self._descriptor)
                raise
            FileLock._held[self._key] = self._descriptor

    def _take(self, path: Path, note: str) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogLocked(f"{path} is locked by another process ({holder(path)})") from None
        # In this order a full disk does not refuse a lock that was there before: nothing is given back.
        written = os.pwrite(self._descriptor, note.encode(), 0)
        os.ftruncate(self._descriptor, written)

    def release(self) -> None:
        with FileLock._mutex:
            if self._descriptor < 0 or os.getpid() != self._pid:
                return
            FileLock._held.pop(self._key, None)
            # Closing alone would leave it to a child that is being forked and has not yet let go.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    @classmethod
    def forget_after_fork(cls) -> None:
        """In a forked child: the parent's locks are not ours, and end with the parent."""
        cls._mutex = threading.RLock()
        for descriptor in cls._held.values():
            os.close(descriptor)
        cls._held = {}


os.register_at_fork(after_in_child=FileLock.forget_after_fork)


def holder(path: Path) -> str:
    """What a lock file that is held says of its holder; UNKNOWN if it names a process that has ended.

    A note stays when its lock is released, and the next holder has the lock a moment before it
    writes its own.
    """
    try:
        note = path.read_bytes()[:NOTE_BYTES].decode(errors="replace").strip()
    except OSError:
        return UNKNOWN
    pid = _PID.match(note)
    has_ended = pid is not None and state_of(int(pid[1]))[0] in DEAD
    return UNKNOWN if has_ended or not note else note


_PID = re.compile(r"pid (\d{1,9})\b")
