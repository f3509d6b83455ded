"""A lock of one process and one holder in it, for as long as that process lives."""

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
    """An flock, and a table of this process's own: threads sharing a descriptor both "get" a flock.

    The file is never unlinked, or two processes could each lock "the" file; one that was unlinked by
    somebody else is noticed by `check`. With `whole` the folder itself is locked too, which no
    removal of a file undoes. A forked child neither holds nor releases its parent's lock.
    """

    _mutex = threading.RLock()  # garbage that is collected meanwhile may release one
    _held: dict[Inode, list[int]] = {}
    """By the lock file, the descriptors that hold it."""

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
            if whole:  # first, as its holder may have lost the lock file
                folder = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory.descriptor())
                undo.callback(os.close, folder)
                held.append(folder)
                self._flock(folder)
            self._flock(descriptor)
            self._taken = True
            self.check()  # between the opening and the lock it may have been replaced
            if (
                os.fstat(descriptor).st_nlink == 1
            ):  # else it may be somebody's file with this name too
                # In this order a full disk does not refuse a lock that was there before.
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
        """Raise FolderLost if it is held, and its file is not at its path any more."""
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
                # Closing alone would leave it to a child that is being forked and has not yet let go.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    @classmethod
    def forget_after_fork(cls) -> None:
        """In a forked child: the parent's locks are not ours, and end with the parent."""
        cls._mutex = threading.RLock()
        for descriptors in cls._held.values():
            for descriptor in descriptors:
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
