"""All access to files goes through here, so that a test can fail, tear or stop any of it.

`Storage` is a folder of files named by relative POSIX paths. `LocalStorage` is a real
folder, `MemoryStorage` lives in memory. Both translate every OSError once, into
`StorageFailed`; opening a missing file is Python's own FileNotFoundError.

`DiskFull` and `TooManyFiles` mean that an operation did not take place. Of an append a part
may stand behind the file's end: the next append overwrites it, `truncate` takes it away. No
`sync` raises them: after one that failed, nobody knows what is on the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa

from changelog.errors import LogLocked, from_failed_sync, from_os_error, out_of_memory
from changelog.lock import FileLock

Bytes = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. Reads are positioned and may run beside an append."""

    def append(self, *parts: Bytes) -> int:
        """Write `parts` one after another at the end; return the position of the first."""
        ...

    def rewrite(self, position: int, data: Bytes) -> None:
        """Write what is at `position` once more, so that the next `sync` brings it to the disk.

        `data` is what was read there: after a failed fsync, or a failed write-back that nobody saw, the
        system may hold bytes that it takes for written and are not.
        """
        ...

    def read(self, position: int, size: int) -> Bytes:
        """Up to `size` bytes from `position` (fewer at the end)."""
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut everything from byte `size` on."""
        ...

    def sync(self) -> None:
        """Return when all that was appended and rewritten before the call survives a power cut."""
        ...

    def write_back(self, position: int) -> None:
        """Begin to bring what stands from `position` on to the disk, and wait for nothing.

        That promises nothing: it leaves less to do to the next `sync`, and to those of other files,
        which the disk makes wait for all that is given to it at once.
        """
        ...

    def close(self) -> None:
        """Let go of the file; harmless when repeated."""
        ...


class Storage(Protocol):
    """A folder of files."""

    def create(self, path: str) -> File:
        """A new, empty file open for appending; FileExistsError if there is one."""
        ...

    def open(self, path: str, *, writable: bool = False) -> File:
        """An existing file; FileNotFoundError if there is none."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` in one step; durable after `sync_dir`."""
        ...

    def link(self, source: str, target: str) -> None:
        """A second name for a file (a hard link); durable after `sync_dir` of the target's folder.

        FileNotFoundError if there is no `source`, FileExistsError if there is a `target`.
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove a file if it exists."""
        ...

    def make_dir(self, path: str) -> None:
        """Make a folder and its parents if they do not exist, and make that durable."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it, if it exists."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty if there is none."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name exists."""
        ...

    def sync_dir(self, path: str) -> None:
        """Return when files created, renamed and removed in the folder survive a power cut."""
        ...

    def lock(self, path: str, note: str) -> Lock:
        """Take the exclusive lock file `path` and write `note` into it; LogLocked if it is taken."""
        ...


class Lock(Protocol):
    """A lock that is held until released, or until its process dies."""

    def release(self) -> None:
        """Let go; harmless when repeated."""
        ...


def replace(storage: Storage, path: str, content: bytes) -> None:
    """Put `content` at `path` so that after any crash it is the old or the new, whole.

    Temporary file, fsync, rename, fsync of the folder.
    """
    temporary = path + ".tmp"
    storage.unlink(temporary)
    file = storage.create(temporary)
    try:
        file.append(content)
        file.sync()
    finally:
        file.close()
    storage.rename(temporary, path)
    storage.sync_dir(path.rpartition("/")[0])


class LocalStorage:
    """A real folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def create(self, path: str) -> File:
        with self._translated("create", path, passing=FileExistsError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return LocalFile(os.open(self.root / path, flags, 0o600), str(self.root / path))

    def open(self, path: str, *, writable: bool = False) -> File:
        with self._translated("open", path, passing=FileNotFoundError):
            flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
            name = os.path.join(self.root, path)  # a Path would cost more than the call
            return LocalFile(os.open(name, flags), name)

    def rename(self, source: str, target: str) -> None:
        with self._translated("rename", source):
            os.replace(self.root / source, self.root / target)

    def link(self, source: str, target: str) -> None:
        with self._translated("link", source, passing=(FileNotFoundError, FileExistsError)):
            os.link(self.root / source, self.root / target)

    def unlink(self, path: str) -> None:
        with self._translated("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(self.root / path)

    def make_dir(self, path: str) -> None:
        with self._translated("make the folder", path):
            missing = []
            folder = self.root / path
            while not folder.exists():
                if path and folder == self.root:  # removed: a new one would have no lock
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                missing.append(folder)
                folder = folder.parent
            for folder in reversed(missing):
                folder.mkdir(mode=0o700, exist_ok=True)
                self._sync_name_of(folder)

    def _sync_name_of(self, folder: Path) -> None:
        """Or remove it again: the next attempt would take it for durable."""
        try:
            _sync_folder(folder.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise from_failed_sync(error, f"the folder {folder.parent}") from error

    def remove_tree(self, path: str) -> None:
        with self._translated("remove", path):
            folder = self.root / path
            if not folder.exists():
                return
            for name in os.listdir(folder):
                child = folder / name
                if child.is_dir() and not child.is_symlink():
                    self.remove_tree(f"{path}/{name}")
                else:
                    child.unlink(missing_ok=True)
            folder.rmdir()

    def list_dir(self, path: str) -> list[str]:
        with self._translated("list", path):
            folder = self.root / path
            return sorted(os.listdir(folder)) if folder.exists() else []

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def sync_dir(self, path: str) -> None:
        try:
            _sync_folder(self.root / path)
        except OSError as error:
            raise from_failed_sync(error, f"the folder {self.root / path}") from error

    def lock(self, path: str, note: str) -> Lock:
        with self._translated("lock", path):
            allow_many_files()
            return FileLock(self.root / path, note)

    @contextlib.contextmanager
    def _translated(
        self, doing: str, path: str, passing: type[OSError] | tuple[type[OSError], ...] = ()
    ) -> Iterator[None]:
        try:
            yield
        except passing:
            raise
        except OSError as error:
            raise from_os_error(error, doing, str(self.root / path)) from error


class LocalFile:
    """A file of a real folder, by its descriptor."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        self._end = os.fstat(descriptor).st_size
        self._closed = False

    def append(self, *parts: Bytes) -> int:
        start = self._end
        self._end = self._write("append to", start, parts)
        return start

    def rewrite(self, position: int, data: Bytes) -> None:
        self._write("write again", position, (data,))

    def _write(self, doing: str, position: int, parts: Sequence[Bytes]) -> int:
        """The position behind what was written."""
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
        # From Arrow's pool, which keeps what readers give back: fresh memory costs as much as the read.
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

    def write_back(self, position: int) -> None:
        if _sync_file_range is not None:  # what goes wrong here is told by `sync`
            _sync_file_range(self._descriptor, position, self._end - position, _WRITE)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def __del__(self) -> None:
        self.close()


class MemoryStorage:
    """A folder in memory; reopening it finds what was there, as after a process crash."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._locked: set[str] = set()

    def create(self, path: str) -> File:
        if path in self._files:
            raise FileExistsError(path)
        self._files[path] = bytearray()
        return MemoryFile(self._files[path])

    def open(self, path: str, *, writable: bool = False) -> File:
        if path not in self._files:
            raise FileNotFoundError(path)
        return MemoryFile(self._files[path])

    def rename(self, source: str, target: str) -> None:
        self._files[target] = self._files.pop(source)

    def link(self, source: str, target: str) -> None:
        if source not in self._files:
            raise FileNotFoundError(source)
        if target in self._files:
            raise FileExistsError(target)
        self._files[target] = self._files[source]

    def unlink(self, path: str) -> None:
        self._files.pop(path, None)

    def make_dir(self, path: str) -> None:
        pass

    def remove_tree(self, path: str) -> None:
        for name in [name for name in self._files if name.startswith(path + "/")]:
            del self._files[name]

    def list_dir(self, path: str) -> list[str]:
        prefix = path + "/" if path else ""
        inside = (name[len(prefix) :] for name in self._files if name.startswith(prefix))
        return sorted({name.split("/", 1)[0] for name in inside})

    def exists(self, path: str) -> bool:
        return path in self._files or bool(self.list_dir(path))

    def sync_dir(self, path: str) -> None:
        pass

    def lock(self, path: str, note: str) -> Lock:
        if path in self._locked:
            raise LogLocked(f"{path} is already locked by this process")
        self._locked.add(path)
        return _MemoryLock(self._locked, path)

    def crash(self) -> None:
        """What a process's death does to its folder: locks are gone, bytes stay."""
        self._locked = set()


class MemoryFile:
    """A file of a folder in memory."""

    def __init__(self, content: bytearray) -> None:
        self._content = content

    def append(self, *parts: Bytes) -> int:
        start = len(self._content)
        for part in parts:
            self._content += part
        return start

    def rewrite(self, position: int, data: Bytes) -> None:
        self._content[position : position + len(data)] = data

    def read(self, position: int, size: int) -> Bytes:
        return bytes(self._content[position : position + size])

    def size(self) -> int:
        return len(self._content)

    def truncate(self, size: int) -> None:
        del self._content[size:]

    def sync(self) -> None:
        pass

    def write_back(self, position: int) -> None:
        pass

    def close(self) -> None:
        pass


class _MemoryLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


_IOV_MAX = 512
_MANY_FILES = 65_536


def _after(parts: list[memoryview], written: int) -> list[memoryview]:
    """What is left of `parts` once `written` bytes of them are gone."""
    for index, part in enumerate(parts):
        if written < len(part):
            return [part[written:], *parts[index + 1 :]]
        written -= len(part)
    return []


def allow_many_files() -> int:
    """Let this process open as many files as the system allows it, and say how many.

    An owner has a file open for every partition, a store several.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MANY_FILES if soft == resource.RLIM_INFINITY else soft


def _linux_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """sync_file_range(2), which Python does not have; None where there is none."""
    function: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int]", function)


_sync_file_range = _linux_sync_file_range()
_WRITE = 2
"""SYNC_FILE_RANGE_WRITE. The flags that wait would take an error away from the next fdatasync."""


def _sync_descriptor(descriptor: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone does not reach the platter
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
