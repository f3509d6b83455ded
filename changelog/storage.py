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
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from strandline.changelog.directory import (
    Directory,
    Identity,
    inode_of,
    is_folder,
    is_link,
    open_folder,
)
from strandline.changelog.errors import LogLocked, from_failed_sync, from_os_error
from strandline.changelog.local_file import Bytes, LocalFile, allow_many_files, sync_folder
from strandline.changelog.lock import FileLock


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

    def links(self, path: str) -> int:
        """Number of names of a file; FileNotFoundError if there is none."""
        ...

    def stamp(self, path: str) -> object:
        """Value that another one follows when `path` is replaced; None if there is no file."""
        ...

    def sync_dir(self, path: str) -> None:
        """Return when files created, renamed and removed in the folder survive a power cut."""
        ...

    def lock(self, path: str, note: str, *, whole: bool = False) -> Lock:
        """Take the exclusive lock file `path` and write `note` into it; LogLocked if it is taken.

        With `whole` the storage's folder itself is locked too, so that a removed lock file
        lets nobody in.
        """
        ...

    def identity(self) -> Identity | None:
        """What tells this folder from its copies; None where there can be none."""
        ...

    def check(self) -> None:
        """Raise FolderLost if this is not the folder at its path any more, or its lock is gone."""
        ...


class Lock(Protocol):
    """A lock that is held until released, or until its process dies."""

    def release(self) -> None:
        """Let go; harmless when repeated."""
        ...

    def check(self) -> None:
        """Raise FolderLost if it is held, and its file is not at its path any more."""
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
    """A real folder, held by its descriptor: all access begins there, and follows no link inside.

    Before each write of a name (create, rename, link, remove) and after each fsync the folder is
    compared with what its path leads to by then, and so is the lock: `FolderLost` if it is not the same.
    """

    def __init__(self, root: str | os.PathLike[str], *, follow: bool = True) -> None:
        """The folder `root`; with `follow=False` its last name is no link either."""
        self.root = Path(root)
        self._directory = Directory(root, follow=follow)
        self._lock: FileLock | None = None

    def create(self, path: str) -> File:
        with self._naming("create", path, passing=FileExistsError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            return self._file(path, self._directory.open_file(path, flags))

    def open(self, path: str, *, writable: bool = False) -> File:
        with self._translated("open", path, passing=FileNotFoundError):
            flags = os.O_RDWR if writable else os.O_RDONLY
            return self._file(path, self._directory.open_file(path, flags))

    def _file(self, path: str, descriptor: int) -> LocalFile:
        # Joined as text: a Path would cost more than the call that opens the file.
        return LocalFile(descriptor, f"{self._directory.path}/{path}", self.check)

    def rename(self, source: str, target: str) -> None:
        with (
            self._naming("rename", source),
            self._parent(source) as (old, name),
            self._parent(target) as (new, renamed),
        ):
            os.replace(name, renamed, src_dir_fd=old, dst_dir_fd=new)

    def link(self, source: str, target: str) -> None:
        passing = (FileNotFoundError, FileExistsError)
        with (
            self._naming("link", source, passing),
            self._parent(source) as (old, name),
            self._parent(target) as (new, linked),
        ):
            os.link(name, linked, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        with (
            self._naming("remove", path),
            contextlib.suppress(FileNotFoundError),
            self._parent(path) as (parent, name),
        ):
            os.unlink(name, dir_fd=parent)

    def make_dir(self, path: str) -> None:
        with self._naming("make the folder", path):
            self._make_root()
            parent = ""
            for name in filter(None, path.split("/")):
                self._make_one(self._directory, parent, name)
                parent = f"{parent}/{name}"

    def _make_root(self) -> None:
        for folder in self._directory.missing():
            above, _, name = folder.rpartition("/")
            self._make_one(Directory(above or "/"), "", name)
        self._directory.check_trusted()

    def check_trusted(self) -> None:
        """Raise UntrustedFolder if others own the folder or may write it; StorageFailed if there is none."""
        with self._translated("look at", ""):
            self._directory.check_trusted()

    def check_no_links(self, path: str) -> None:
        """Raise StorageFailed if anything in a folder is a link: a library that goes by paths would follow it."""
        with (
            self._translated("look at", path),
            self._directory.folder(path, readable=True) as folder,
        ):
            for name in os.listdir(folder):
                if is_link(name, folder):
                    raise OSError(errno.ELOOP, f"{name}: {os.strerror(errno.ELOOP)}")

    def _make_one(self, directory: Directory, path: str, name: str) -> None:
        """Make the folder `name` in the folder `path`, durably; harmless if it is there."""
        with directory.folder(path, readable=True) as parent:
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                os.close(open_folder(name, parent))
                return
            try:
                sync_folder(parent)
            except OSError as error:
                with contextlib.suppress(OSError):  # the next attempt would take it for durable
                    os.rmdir(name, dir_fd=parent)
                where = f"the folder {directory.path}/{path}"
                raise from_failed_sync(error, where) from error

    def remove_tree(self, path: str) -> None:
        with self._naming("remove", path), contextlib.suppress(FileNotFoundError):
            with self._directory.folder(path, readable=True) as folder:
                for name in os.listdir(folder):
                    if is_folder(name, folder):
                        self.remove_tree(f"{path}/{name}")
                    else:  # a link goes, not what it leads to
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(name, dir_fd=folder)
            with self._parent(path) as (parent, name):
                os.rmdir(name, dir_fd=parent)

    def list_dir(self, path: str) -> list[str]:
        with (
            self._translated("list", path),
            contextlib.suppress(FileNotFoundError),
            self._directory.folder(path, readable=True) as folder,
        ):
            return sorted(os.listdir(folder))
        return []

    def exists(self, path: str) -> bool:
        with self._translated("look for", path):
            try:
                with self._parent(path) as (parent, name):
                    os.stat(name or ".", dir_fd=parent, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def links(self, path: str) -> int:
        passing = FileNotFoundError
        with self._translated("look at", path, passing), self._parent(path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False).st_nlink

    def stamp(self, path: str) -> object:
        with self._translated("look at", path), self._parent(path) as (parent, name):
            try:
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return None
            # An inode's number is given again once its file is gone, so it does not do alone.
            return (*inode_of(found), found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def sync_dir(self, path: str) -> None:
        try:
            with self._directory.folder(path, readable=True) as folder:
                sync_folder(folder)
        except OSError as error:
            raise from_failed_sync(error, f"the folder {self.root / path}") from error
        self.check()

    def lock(self, path: str, note: str, *, whole: bool = False) -> Lock:
        with self._translated("lock", path):
            self._directory.check_trusted()
            allow_many_files()
            lock = FileLock(self._directory, path, note, whole=whole)
        if whole:
            self._lock = lock
        return lock

    def identity(self) -> Identity:
        with self._translated("look at", ""):
            return self._directory.identity()

    def check(self) -> None:
        self._directory.check()
        if self._lock is not None:
            self._lock.check()

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that `path` lies in, and its name there."""
        folder, _, name = path.rpartition("/")
        with self._directory.folder(folder) as parent:
            yield parent, name

    @contextlib.contextmanager
    def _naming(
        self, doing: str, path: str, passing: type[OSError] | tuple[type[OSError], ...] = ()
    ) -> Iterator[None]:
        """Translate the errors of a write of a name, which is done in our own folder or not at all."""
        self.check()
        with self._translated(doing, path, passing):
            yield

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

    def links(self, path: str) -> int:
        return sum(content is self._files[path] for content in self._files.values())

    def stamp(self, path: str) -> object:
        found = self._files.get(path)
        return None if found is None else (id(found), len(found))

    def sync_dir(self, path: str) -> None:
        pass

    def identity(self) -> None:
        return None

    def check(self) -> None:
        pass

    def lock(self, path: str, note: str, *, whole: bool = False) -> Lock:
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

    def check(self) -> None:
        pass
