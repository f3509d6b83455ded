"""The storage interface for all access to files, so that tests can fail, tear or stop any of it.

`Storage` is a folder of files named by relative POSIX paths. `LocalStorage` is a real
folder, `MemoryStorage` is in memory. Both translate every OSError once, into
`StorageFailed`; opening a missing file is Python's own FileNotFoundError.

`DiskFull` and `TooManyFiles` mean that an operation had no effect. A failed append may leave a
part of its bytes after the file's end: the next append overwrites them, `truncate` removes them.
`sync` does not raise these two, because after a failed fsync the content of the disk is unknown.
"""

from __future__ import annotations

from typing import Literal, Protocol

from strandline.changelog.directory import (
    Identity,
)
from strandline.changelog.local_file import Bytes

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
