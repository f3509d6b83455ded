"""The storage interface for all access to files, so that tests can fail, tear or stop any of it.

`Storage` is a folder of files named by relative POSIX paths. `LocalStorage` is a real
folder, `MemoryStorage` is in memory. Both translate every OSError once, into
`StorageFailed`; opening a missing file is Python's own FileNotFoundError.

`DiskFull` and `TooManyFiles` mean that an operation had no effect. A failed append may leave a
part of its bytes after the file's end: the next append overwrites them, `truncate` removes them.
`sync` does not raise these two, because after a failed fsync the content of the disk is unknown.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

from strandline.changelog.directory import (
    Directory,
    Identity,
    Inode,
    inode_of,
    is_folder,
    is_link,
    open_folder,
)
from strandline.changelog.errors import FolderLost, LogLocked, from_failed_sync, from_os_error
from strandline.changelog.local_file import Bytes, LocalFile, allow_many_files, sync_folder
from strandline.changelog.lock import FileLock

Durability = Literal["fsync", "os"]
"""An acknowledged append survives a power cut ("fsync"), or only a kill of the process ("os")."""


class File(Protocol):
    """An open file. Reads are positioned and may run concurrently with an append."""

    def append(self, *parts: Bytes) -> int:
        """Write `parts` one after another at the end; return the position of the first."""
        ...

    def rewrite(self, position: int, data: Bytes) -> None:
        """Write the bytes at `position` again, so that the next `sync` makes them durable.

        `data` must be the bytes that were read there. After a failed fsync or write-back the page
        cache may mark pages as clean although they never reached the disk, and the next fsync
        would skip them.
        """
        ...

    def read(self, position: int, size: int) -> Bytes:
        """Return up to `size` bytes from `position` on; fewer at the end of the file."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Shorten the file to `size` bytes."""
        ...

    def sync(self) -> None:
        """Make everything written before the call durable, so that it survives a power cut."""
        ...

    def write_back(self, position: int) -> None:
        """Start writing the bytes from `position` on to the disk, without waiting.

        Nothing becomes durable. The next `sync` has less to write, and so have those of other
        files, because a disk makes an fsync wait for all writes that were queued at once.
        """
        ...

    def close(self) -> None:
        """Close the file. Repeated calls have no effect."""
        ...


class Storage(Protocol):
    """A folder of files."""

    def create(self, path: str) -> File:
        """Create an empty file and open it for appending. Raises FileExistsError."""
        ...

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing file. Raises FileNotFoundError."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically, replacing it; durable after `sync_dir`."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name (a hard link); durable after `sync_dir` of its folder.

        Raises FileNotFoundError if `source` does not exist, FileExistsError if `target` does.
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove a file if it exists."""
        ...

    def make_dir(self, path: str) -> None:
        """Create a folder and its missing parents, durably."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it, if it exists."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty if the folder does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Return True if a file or folder of this name exists."""
        ...

    def links(self, path: str) -> int:
        """Return the number of names (hard links) of a file. Raises FileNotFoundError."""
        ...

    def stamp(self, path: str) -> object:
        """Return a value that changes when the file `path` is replaced; None if it is missing."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make names created, renamed and removed in the folder durable."""
        ...

    def lock(self, path: str, note: str, *, whole: bool = False) -> Lock:
        """Lock the file `path` exclusively and write `note` into it. Raises LogLocked.

        With `whole` the storage's folder itself is locked too, so that another process cannot
        get a lock by removing the lock file and creating a new one.
        """
        ...

    def identity(self) -> Identity | None:
        """Return a value that distinguishes this folder from copies of it; None in memory."""
        ...

    def check(self, *folders: str) -> None:
        """Raise FolderLost if the path leads to another folder now, or the lock file is gone.

        The same holds for these folders inside, from now on or from their creation on.
        """
        ...


class Lock(Protocol):
    """A lock that is held until it is released or its process dies."""

    def release(self) -> None:
        """Release the lock. Repeated calls have no effect."""
        ...

    def check(self) -> None:
        """Raise FolderLost if the lock is held and its file is no longer at its path."""
        ...


def replace(storage: Storage, path: str, content: bytes) -> None:
    """Write `content` to `path` so that after any crash the file is either old or new, whole.

    The steps are: temporary file, fsync, rename, fsync of the folder. Without the first fsync
    the new name could survive a power cut without its content.
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
    """A real folder, accessed through its descriptor; symbolic links inside are not followed.

    Before each change of a name (create, rename, link, remove) and after each fsync, the folder,
    the lock and the folders that `check` was given are compared with those at their paths.
    `FolderLost` is raised if they differ.
    """

    def __init__(self, root: str | os.PathLike[str], *, follow: bool = True) -> None:
        """Use the folder `root`. With `follow=False` the last part of its path must be no link."""
        self.root = Path(root)
        self._directory = Directory(root, follow=follow)
        self._lock: FileLock | None = None
        self._compared: dict[str, Inode | None] = {}
        """Folders inside that are compared too; None until they exist."""

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
        """Raise UntrustedFolder if others own or may write the folder; StorageFailed if missing."""
        with self._translated("look at", ""):
            self._directory.check_trusted()

    def check_no_links(self, path: str) -> None:
        """Raise StorageFailed if a folder contains a symbolic link.

        For folders that are passed by path to a library, which would follow the link.
        """
        with (
            self._translated("look at", path),
            self._directory.folder(path, readable=True) as folder,
        ):
            for name in os.listdir(folder):
                if is_link(name, folder):
                    raise OSError(errno.ELOOP, f"{name}: {os.strerror(errno.ELOOP)}")

    def _make_one(self, directory: Directory, path: str, name: str) -> None:
        """Create the folder `name` in the folder `path`, durably, unless it exists."""
        with directory.folder(path, readable=True) as parent:
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                os.close(open_folder(name, parent))
                return
            try:
                sync_folder(parent)
            except OSError as error:
                # Remove it, because the next attempt would find it and take it for durable.
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=parent)
                where = f"the folder {directory.path}/{path}"
                raise from_failed_sync(error, where) from error

    def remove_tree(self, path: str) -> None:
        with self._naming("remove", path), contextlib.suppress(FileNotFoundError):
            with self._directory.folder(path, readable=True) as folder:
                for name in os.listdir(folder):
                    if is_folder(name, folder):
                        self.remove_tree(f"{path}/{name}")
                    else:  # removes a symbolic link itself, never its target
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
            # Inode numbers are reused after a file is removed, so size and times are compared too.
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

    def check(self, *folders: str) -> None:
        self._directory.check()
        if self._lock is not None:
            self._lock.check()
        for folder in folders:
            self._compared.setdefault(folder, None)
        for folder, known in self._compared.items():
            found = self._inode_of(folder)
            if known is None:
                self._compared[folder] = found
            elif found != known:
                raise FolderLost(
                    f"{self.root / folder} was removed, moved or replaced while in use: nothing more is "
                    "written; put it back, then open the log again"
                )

    def _inode_of(self, folder: str) -> Inode | None:
        try:
            return inode_of(
                os.stat(folder, dir_fd=self._directory.descriptor(), follow_symlinks=False)
            )
        except OSError:
            return None

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the folder that contains `path`, and the last part of `path`."""
        folder, _, name = path.rpartition("/")
        with self._directory.folder(folder) as parent:
            yield parent, name

    @contextlib.contextmanager
    def _naming(
        self, doing: str, path: str, passing: type[OSError] | tuple[type[OSError], ...] = ()
    ) -> Iterator[None]:
        """Check that the folder is still ours, then translate the errors of a change of a name."""
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
    """A folder in memory. Its files survive `crash`, as those on disk survive a process crash."""

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

    def check(self, *folders: str) -> None:
        pass

    def lock(self, path: str, note: str, *, whole: bool = False) -> Lock:
        if path in self._locked:
            raise LogLocked(f"{path} is already locked by this process")
        self._locked.add(path)
        return _MemoryLock(self._locked, path)

    def crash(self) -> None:
        """Simulate the death of the process: release all locks, and keep the bytes."""
        self._locked = set()


class MemoryFile:
    """A file in memory."""

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
