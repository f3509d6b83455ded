"""A file lock with one holder in one process, released at the latest when the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from pathlib import Path

from strandline.changelog.directory import Directory, Inode, inode_of
from strandline.changelog.errors import FolderLost, LogLocked
from strandline.changelog.processes import DEAD, state_of
from strandline.changelog.trust import check_trusted

NOTE_BYTES = 200
UNKNOWN = "it is not known which"


class FileLock:
    """An flock, and a table of the locks of this process.

    The table is necessary because flock does not exclude threads that share a descriptor.

    The file is never unlinked: otherwise two processes could each lock a file at the same path. If
    something else unlinks it, `check` notices. With `whole` the folder itself is locked too, so
    that removing the lock file does not free the lock. A forked child neither holds nor releases
    its parent's lock.
    """

    # Reentrant, because the garbage collector may run with it held and release another lock.
    _mutex = threading.RLock()
    _held: dict[Inode, list[int]] = {}
    """Descriptors that hold a lock, by the inode of the lock file."""

    def __init__(self, directory: Directory, path: str, note: str, *, whole: bool = False) -> None:
        self._path = f"{directory.path}/{path}"
        self._pid = os.getpid()
        self._taken = False
        with FileLock._mutex, contextlib.ExitStack() as undo:
            descriptor = directory.open_file(path, os.O_RDWR | os.O_CREAT)
            undo.callback(os.close, descriptor)
            found = os.fstat(descriptor)
            check_trusted(found, self._path)
            self._inode = inode_of(found)
            if self._inode in FileLock._held:
                raise LogLocked(f"{self._path} is already locked by this process (pid {self._pid})")
            held = [descriptor]
            if whole:  # the folder first, because its holder may have lost the lock file
                folder = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory.descriptor())
                undo.callback(os.close, folder)
                held.append(folder)
                self._flock(folder)
            self._flock(descriptor)
            self._taken = True
            self.check()  # the file may have been replaced between the opening and the lock
            # With a second name it may be another program's file, which must not be overwritten.
            if os.fstat(descriptor).st_nlink == 1:
                # Write before truncating, so that a full disk does not prevent locking a file
                # that exists already: overwriting needs no new space.
                written = os.pwrite(descriptor, note.encode(), 0)
                os.ftruncate(descriptor, written)
            FileLock._held[self._inode] = held
            undo.pop_all()

    def _flock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogLocked(
                f"{self._path} is locked by another process ({holder(Path(self._path))})"
            ) from None

    def check(self) -> None:
        """Raise FolderLost if the lock is held and its file is no longer at its path."""
        if not self._taken:
            return
        try:
            found = inode_of(os.stat(self._path, follow_symlinks=False))
        except OSError:
            found = None
        if found != self._inode:
            raise FolderLost(
                f"{self._path} was removed or moved while it was locked: nothing more is written, as "
                "another process could have locked a new one; open it again"
            )

    def release(self) -> None:
        with FileLock._mutex:
            if not self._taken or os.getpid() != self._pid:
                return
            self._taken = False
            for descriptor in FileLock._held.pop(self._inode, []):
                # Unlock explicitly: a child that was just forked may still have the descriptor
                # open, so that closing it here would not release the flock.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    @classmethod
    def forget_after_fork(cls) -> None:
        """Close the parent's locks in a forked child, without releasing them for the parent."""
        cls._mutex = threading.RLock()
        for descriptors in cls._held.values():
            for descriptor in descriptors:
                os.close(descriptor)
        cls._held = {}


os.register_at_fork(after_in_child=FileLock.forget_after_fork)


def holder(path: Path) -> str:
    """Return the note of the lock file's holder; UNKNOWN if it names a process that has ended.

    The note of an earlier holder remains in the file after its release, and a new holder has the
    lock for a moment before it writes its own.
    """
    try:
        note = path.read_bytes()[:NOTE_BYTES].decode(errors="replace").strip()
    except OSError:
        return UNKNOWN
    pid = _PID.match(note)
    has_ended = pid is not None and state_of(int(pid[1]))[0] in DEAD
    return UNKNOWN if has_ended or not note else note


_PID = re.compile(r"pid (\d{1,9})\b")
