"""Files of one folder of the disk, all reached from its held descriptor."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from strandline.changelog.directory import (
    Directory,
    Identity,
    Inode,
    inode_of,
    is_folder,
    open_folder,
)
from strandline.changelog.errors import FolderLost, from_failed_sync, from_os_error
from strandline.changelog.local_file import LocalFile, allow_many_files, sync_folder
from strandline.changelog.lock import FileLock
from strandline.changelog.storage import File, Lock
from strandline.changelog.trust import check_owner


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

    def check_for_library(self, path: str) -> None:
        """Raise if a folder contains a symbolic link, or a file of another user.

        For folders that are passed by path to a library, which would use both. The modes of the
        files are not compared, because the library chooses them. Raises StorageFailed,
        UntrustedFolder.
        """
        with (
            self._translated("look at", path),
            self._directory.folder(path, readable=True) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                if entry.is_symlink():
                    raise OSError(errno.ELOOP, f"{entry.name}: {os.strerror(errno.ELOOP)}")
                where = f"{self._directory.path}/{path}/{entry.name}"
                check_owner(entry.stat(follow_symlinks=False), where)

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
