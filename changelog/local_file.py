"""A file of a real folder, and system calls for files that Python lacks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import stat
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa

from strandline.changelog.errors import from_failed_sync, from_os_error, out_of_memory
from strandline.changelog.trust import check_trusted

Bytes = bytes | bytearray | memoryview


class LocalFile:
    """A file of a real folder, accessed through its descriptor."""

    def __init__(
        self, descriptor: int, path: str, check: Callable[[], None] = lambda: None
    ) -> None:
        self._descriptor = descriptor
        self._path = path
        self._check = check
        self._closed = False
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            # `__del__` closes the descriptor.
            raise OSError(errno.EINVAL, "it is no regular file")
        check_trusted(found, path)
        self._end = found.st_size

    def append(self, *parts: Bytes) -> int:
        start = self._end
        self._end = self._write("append to", start, parts)
        return start

    def rewrite(self, position: int, data: Bytes) -> None:
        self._write("write again", position, (data,))

    def _write(self, doing: str, position: int, parts: Sequence[Bytes]) -> int:
        """Write `parts` at `position`, and return the position after the last byte."""
        try:
            pending = [memoryview(part).cast("B") for part in parts if len(part)]
            while pending:
                written = os.pwritev(self._descriptor, pending[:_IOV_MAX], position)
                position += written
                pending = _after(pending, written)
        except OSError as error:
            raise from_os_error(error, doing, self._path) from error
        return position

    def read(self, position: int, size: int) -> Bytes:
        size = max(0, min(size, self._end - position))
        # Arrow's pool reuses freed memory. New memory would cost as much time as the read.
        try:
            view = memoryview(pa.allocate_buffer(size)).cast("B")
        except MemoryError as error:
            raise out_of_memory(error, f"read {size} bytes of {self._path}") from error
        done = 0
        try:
            while done < size:
                count = os.preadv(self._descriptor, [view[done:]], position + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise from_os_error(error, "read", self._path) from error
        return view[:done]

    def size(self) -> int:
        return self._end

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise from_os_error(error, "truncate", self._path) from error
        self._end = size

    def sync(self) -> None:
        try:
            _sync_descriptor(self._descriptor)
            if os.fstat(self._descriptor).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "it was removed while the log was open")
        except OSError as error:
            raise from_failed_sync(error, self._path) from error
        # After the fsync: nothing may be acknowledged if the folder was replaced meanwhile.
        self._check()

    def write_back(self, position: int) -> None:
        if _sync_file_range is not None:  # errors are reported by the next `sync`
            _sync_file_range(self._descriptor, position, self._end - position, _WRITE)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def __del__(self) -> None:
        self.close()


_IOV_MAX = 512
_MANY_FILES = 65_536


def _after(parts: list[memoryview], written: int) -> list[memoryview]:
    """Return `parts` without the first `written` bytes."""
    for index, part in enumerate(parts):
        if written < len(part):
            return [part[written:], *parts[index + 1 :]]
        written -= len(part)
    return []


def allow_many_files() -> int:
    """Raise this process's limit of open files as far as allowed, and return the limit.

    An owner keeps a file open for each partition, and a store keeps several.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MANY_FILES if soft == resource.RLIM_INFINITY else soft


def _linux_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the C function sync_file_range(2), which Python lacks; None if it does not exist."""
    function: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int]", function)


_sync_file_range = _linux_sync_file_range()
_WRITE = 2
"""Flag SYNC_FILE_RANGE_WRITE, without those that wait: they would consume an error that the next
fdatasync must report."""


def _sync_descriptor(descriptor: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS, fsync does not flush the disk's own cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def sync_folder(descriptor: int) -> None:
    """Fsync a folder, so that names created and removed in it are durable."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)
