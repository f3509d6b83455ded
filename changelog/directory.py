"""A folder accessed through its descriptor, which refers to the same folder if its path changes.

A path is not an identity: a folder can be moved or removed while it is in use, another folder can
take its path, and any name inside can be a symbolic link. Therefore every access starts at the
folder's descriptor, links inside are not followed, and `check` compares the folder at the path with
the open one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from strandline.changelog.errors import FolderLost
from strandline.changelog.trust import check_trusted

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_STEP = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
"""Flags to open an intermediate folder of a path."""
_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags to open a file. Without O_NONBLOCK, opening a named pipe would wait for its other end."""

NOT_ALLOWED = (errno.ENOSYS, errno.EPERM, errno.EAGAIN, errno.EINVAL)
"""Errors of openat2 after which the path is walked in Python: the call is unknown, forbidden (by
seccomp), or failed because of a race."""


class Inode(NamedTuple):
    """Identity of a file or folder on this machine, valid until the next boot.

    Device numbers may change at a boot.
    """

    device: int
    number: int


class Identity(NamedTuple):
    """Identity of a folder that copies of it do not share, even at the same path."""

    device: int
    inode: int
    born_ns: int
    """Birth time in nanoseconds since the epoch; 0 if the file system has none. No tool can copy
    it."""


class Directory:
    """The folder at `path`. It is opened when first needed, and kept open from then on.

    With `follow=False` the last part of the path must not be a symbolic link.
    """

    def __init__(self, path: str | os.PathLike[str], *, follow: bool = True) -> None:
        self.path = os.path.abspath(path)
        self._follow = follow
        self._descriptor = -1
        self._inode: Inode | None = None
        self._opening = threading.Lock()

    def descriptor(self) -> int:
        """Return the folder's descriptor. Raises FileNotFoundError if it does not exist."""
        if self._descriptor < 0:
            with self._opening:
                if self._descriptor < 0:
                    descriptor = self._open()
                    self._inode = inode_of(os.fstat(descriptor))
                    self._descriptor = descriptor
        return self._descriptor

    def _open(self) -> int:
        if self._follow:  # the user chose the path, so links in it are followed
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        parent = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return open_folder(os.path.basename(self.path), parent, readable=True)
        finally:
            os.close(parent)

    def check_trusted(self) -> None:
        """Raise UntrustedFolder if others own the folder or may write it."""
        check_trusted(os.fstat(self.descriptor()), self.path)

    def identity(self) -> Identity:
        """Return an identity that copies of the folder do not share. Raises FileNotFoundError."""
        descriptor = self.descriptor()
        found = os.fstat(descriptor)
        return Identity(found.st_dev, found.st_ino, _born_ns(descriptor, found))

    def check(self) -> None:
        """Raise FolderLost if the path no longer leads to this folder."""
        if self._inode is None:
            return
        try:
            found = inode_of(os.stat(self.path))
        except OSError as error:
            raise FolderLost(
                f"{self.path} was removed or moved while in use ({error.strerror}): nothing more is "
                "written; put it back, then open it again"
            ) from error
        if found != self._inode:
            raise FolderLost(
                f"{self.path} was removed or moved while in use, and another folder has taken its "
                "place: nothing more is written, in neither; open it again"
            )

    def missing(self) -> list[str]:
        """Return the paths of the folder and its parents that do not exist, topmost first."""
        missing: list[str] = []
        if self._descriptor >= 0:
            return missing
        folder = self.path
        while not os.path.isdir(folder):
            missing.insert(0, folder)
            folder = os.path.dirname(folder)
        return missing

    def open_file(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Return the descriptor of a file inside. Raises OSError, ELOOP for a symbolic link."""
        if not flags & (os.O_WRONLY | os.O_RDWR):
            descriptor = _opened_beneath(self.descriptor(), path, flags | _FILE)
            if descriptor is not None:
                return descriptor
        folder, _, name = path.rpartition("/")
        with self.folder(folder) as parent:
            return os.open(name, flags | _FILE, mode, dir_fd=parent)

    @contextlib.contextmanager
    def folder(self, path: str, *, readable: bool = False) -> Iterator[int]:
        """Yield the descriptor of a folder inside, closed afterwards; "" is the folder itself.

        It can be used as `dir_fd`; with `readable` it can also be listed and fsynced.
        """
        parts = [part for part in path.split("/") if part not in ("", ".")]
        current = root = self.descriptor()
        try:
            for number, part in enumerate(parts, 1):
                whole = readable and number == len(parts)
                following = open_folder(part, current, readable=whole)
                if current != root:
                    os.close(current)
                current = following
                check_trusted(os.fstat(current), f"{self.path}/{'/'.join(parts[:number])}")
            yield current
        finally:
            if current != root:
                os.close(current)

    def __del__(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def inode_of(found: os.stat_result) -> Inode:
    """Return the inode of a stat result."""
    return Inode(found.st_dev, found.st_ino)


def open_folder(name: str, parent: int, *, readable: bool = False) -> int:
    """Return the descriptor of the folder `name` in `parent`. Raises OSError, ELOOP for a link."""
    if name == "..":
        raise OSError(errno.EXDEV, "it leads out of its folder")
    try:
        return os.open(name, _FOLDER | os.O_RDONLY if readable else _STEP, dir_fd=parent)
    except NotADirectoryError:
        if is_link(name, parent):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def is_folder(name: str, parent: int) -> bool:
    """Return True if `name` in `parent` is a folder, and not a link to one."""
    return stat.S_ISDIR(_mode(name, parent))


def is_link(name: str, parent: int) -> bool:
    """Return True if `name` in `parent` is a symbolic link."""
    return stat.S_ISLNK(_mode(name, parent))


def _mode(name: str, parent: int) -> int:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


# System calls missing in Python's os ----------------------------------------------------------


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_OPENAT2 = 437
"""Number of the system call, the same on all architectures of Linux."""
_BENEATH_WITHOUT_LINKS = 0x08 | 0x04
"""Flags RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS of openat2."""


def _linux_function(name: str, *arguments: Any) -> Any:
    """Return a function of the C library; None if it does not exist."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.restype, function.argtypes = ctypes.c_long, arguments
    return function


_syscall = _linux_function(
    "syscall", ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
)
_statx = _linux_function(
    "statx", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p
)


def _opened_beneath(folder: int, path: str, flags: int) -> int | None:
    """Open a file with openat2, which walks the path in the kernel.

    Return None if the call is not available, and the path must be walked folder by folder.
    """
    if _syscall is None:
        return None
    how = _OpenHow(flags, 0, _BENEATH_WITHOUT_LINKS)
    size = ctypes.sizeof(how)
    descriptor = _syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), size)
    if descriptor >= 0:
        return int(descriptor)
    number = ctypes.get_errno()
    if number in NOT_ALLOWED:
        return None
    raise OSError(number, os.strerror(number), path)


_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_MASK_AT, _BTIME_AT = 0, 80
"""Byte positions of the mask and the birth time in `struct statx`."""


def _born_ns(descriptor: int, found: os.stat_result) -> int:
    """Return the birth time of an open file in nanoseconds since the epoch; 0 if unknown."""
    seconds = getattr(found, "st_birthtime", None)  # macOS
    if seconds is not None:
        return int(seconds * 1_000_000_000)
    if _statx is None:
        return 0
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, buffer) != 0:
        return 0
    mask = int.from_bytes(buffer.raw[_MASK_AT : _MASK_AT + 4], sys.byteorder)
    if not mask & _STATX_BTIME:
        return 0
    seconds = int.from_bytes(buffer.raw[_BTIME_AT : _BTIME_AT + 8], sys.byteorder, signed=True)
    part = int.from_bytes(buffer.raw[_BTIME_AT + 8 : _BTIME_AT + 12], sys.byteorder)
    return seconds * 1_000_000_000 + part
