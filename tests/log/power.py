"""A storage whose power can be cut: what was not synced may be lost, in any part.

It keeps what a folder on a disk promises, and no more:

- A byte of a file is safe once `File.sync` has returned after it was appended. Of later ones
  there may be none, a beginning, all, or all with blocks of zeros; a truncation that was not
  synced may not have happened.
- An fsync that fails forgets what it should have written, as Linux does: readers see those
  bytes still, no later sync writes them, the power takes them.
- A name is safe once its folder was synced. Of later creations, renames and removals any
  subset may have happened, whatever became of the bytes.

`crash` is the milder death, kill -9: the process is gone, all that it has written stays. After
either, the file handles of before are dead, so that no straggler writes into the next life.

`hook` sees each operation before it takes place and may raise: a StorageFailed is an error of
the disk, `Died` the end of the process, after which nothing more can be done before `crash` or
`power_cut`. `lies` names operations which the disk acknowledges and does not do.

Chance is passed in. Without it a cut takes all that was not synced, and an append that fails
writes nothing; with it any part may be left of either, always the same for the same seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple, TypeVar

from changelog.embedded.environment import Environment
from changelog.embedded.owner import Owner
from changelog.errors import LogLocked, StorageFailed
from changelog.storage import Bytes
from tests.log.kit import World

BLOCK = 64
"""Bytes that reach the disk together or not at all."""

Kind = Literal[
    "append",
    "rewrite",
    "truncate",
    "fsync",
    "create",
    "rename",
    "unlink",
    "make_dir",
    "sync_dir",
    "read",
]


class Operation(NamedTuple):
    """What is about to be done, and to which path (of a rename: the target)."""

    kind: Kind
    path: str

    @property
    def folder(self) -> str:
        return _folder(self.path)


class Died(BaseException):
    """The process stopped at this operation. Not an Exception: nobody may go on after it."""


Hook = Callable[[Operation], None]


class NameChange(NamedTuple):
    """A creation, renaming or removal that its folder's next sync makes durable."""

    kind: Literal["create", "rename", "unlink"]
    path: str
    source: str = ""
    inode: Inode | None = None

    def apply(self, names: dict[str, Inode]) -> None:
        names.pop(self.source or self.path, None)
        if self.inode is not None:
            names[self.path] = self.inode


class PowerStorage:
    """A folder in memory with power cuts. Implements Storage."""

    def __init__(self, chance: Random | None = None) -> None:
        self.chance = chance
        self.hook: Hook | None = None
        self.lies: Callable[[Operation], bool] = lambda _: False
        self.operations = 0
        """How many there were so far; reads are not counted, since they leave no trace."""
        self.life = 0
        self._dead = False
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._unsynced: list[NameChange] = []
        self._folders = {""}
        self._locked: set[str] = set()

    # Deaths ---------------------------------------------------------------------------

    def crash(self) -> None:
        """The process dies (kill -9): locks and handles are gone, whatever was written stays."""
        self.life += 1
        self._dead = False
        self._locked = set()
        self.hook = None

    def power_cut(self, keep: Callable[[NameChange], bool] | None = None) -> None:
        """The machine dies: of what was not synced, chance decides.

        `keep` says instead of chance which changes of names have reached the disk.
        """
        for change in self._surviving(keep):
            change.apply(self._durable_names)
        self._unsynced = []
        self._names = {
            path: inode.after_power_cut(self.chance)
            for path, inode in sorted(self._durable_names.items())
        }
        self._durable_names = dict(self._names)
        for path in self._names:
            self._note_folder(_folder(path))  # one whose removal was undone
        self.crash()

    def _surviving(self, keep: Callable[[NameChange], bool] | None) -> list[NameChange]:
        if keep is not None:
            return [change for change in self._unsynced if keep(change)]
        if self.chance is None:
            return []
        survivors = set()
        for folder in sorted({_folder(change.path) for change in self._unsynced}):
            mine = [i for i, c in enumerate(self._unsynced) if _folder(c.path) == folder]
            if self.chance.random() < 0.5:  # in order, as a journal keeps them
                survivors.update(mine[: self.chance.randrange(len(mine) + 1)])
            else:
                survivors.update(i for i in mine if self.chance.random() < 0.5)
        return [self._unsynced[i] for i in sorted(survivors)]

    def announce(self, kind: Kind, path: str) -> bool:
        """Let the hook see an operation; False if the disk only pretends to do it."""
        if self._dead:
            raise Died(f"{kind} {path}, by a dead process")
        operation = Operation(kind, path)
        self.operations += kind != "read"
        if self.hook is not None:
            try:
                self.hook(operation)
            except Died:
                self._dead = True
                raise
        return not self.lies(operation)

    # Damage ---------------------------------------------------------------------------

    def paths(self, folder: str = "", suffix: str = "") -> list[str]:
        """The files below a folder whose names end in `suffix`."""
        inside = folder + "/" if folder else ""
        return sorted(p for p in self._names if p.startswith(inside) and p.endswith(suffix))

    def lose(self, path: str) -> None:
        """A file disappears, durably, as by a mistaken hand."""
        del self._names[path]
        self._durable_names.pop(path, None)
        self._unsynced = [change for change in self._unsynced if change.path != path]

    def flip(self, path: str, position: int) -> None:
        """A bit of a file changes, as by a failing disk; negative positions count from the end."""
        inode = self._names[path]
        position %= len(inode.content)
        inode.write(position, bytes([inode.content[position] ^ 1]))
        inode.sync()

    # Storage --------------------------------------------------------------------------

    def create(self, path: str) -> PowerFile:
        if path in self._names:
            raise FileExistsError(path)
        self._check_folder(_folder(path))
        self.announce("create", path)
        inode = self._names[path] = Inode()
        self._unsynced.append(NameChange("create", path, inode=inode))
        return PowerFile(self, inode, path)

    def open(self, path: str, *, writable: bool = False) -> PowerFile:
        if path not in self._names:
            raise FileNotFoundError(path)
        return PowerFile(self, self._names[path], path)

    def rename(self, source: str, target: str) -> None:
        self.announce("rename", target)
        inode = self._names[target] = self._names.pop(source)
        self._unsynced.append(NameChange("rename", target, source, inode))

    def unlink(self, path: str) -> None:
        if path in self._names:
            self.announce("unlink", path)
            del self._names[path]
            self._unsynced.append(NameChange("unlink", path))

    def make_dir(self, path: str) -> None:
        self.announce("make_dir", path)
        self._note_folder(path)

    def remove_tree(self, path: str) -> None:
        for name in self.paths(path):
            self.unlink(name)
        self._folders = {f for f in self._folders if f != path and not f.startswith(path + "/")}

    def list_dir(self, path: str) -> list[str]:
        start = len(path) + 1 if path else 0
        folders = {folder for folder in self._folders if folder and _folder(folder) == path}
        files = {name for name in self._names if _folder(name) == path}
        return sorted(name[start:] for name in folders | files)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._folders

    def sync_dir(self, path: str) -> None:
        self._check_folder(path)
        if self.announce("sync_dir", path):
            for change in self._unsynced:
                if _folder(change.path) == path:
                    change.apply(self._durable_names)
            self._unsynced = [c for c in self._unsynced if _folder(c.path) != path]

    def lock(self, path: str, note: str) -> PowerLock:
        if path in self._locked:
            raise LogLocked(f"{path} is already locked by this process")
        self._locked.add(path)
        return PowerLock(self, path)

    def _note_folder(self, path: str) -> None:
        """It is there, with its parents."""
        while path not in self._folders:
            self._folders.add(path)
            path = _folder(path)

    def _check_folder(self, path: str) -> None:
        if path not in self._folders:
            raise FileNotFoundError(path)

    def unlock(self, path: str, life: int) -> None:
        """Let go of a lock that was taken in that life."""
        if life == self.life:
            self._locked.discard(path)


class PowerFile:
    """A handle of a file; like a descriptor of LocalStorage, it knows the end by itself."""

    def __init__(self, storage: PowerStorage, inode: Inode, path: str) -> None:
        self._storage = storage
        self._inode = inode
        self._path = path
        self._life = storage.life
        self._end = len(inode.content)

    def append(self, *parts: Bytes) -> int:
        start, data = self._end, b"".join(parts)
        self._write("append", start, data)
        self._end = start + len(data)
        return start

    def rewrite(self, position: int, data: Bytes) -> None:
        self._write("rewrite", position, bytes(data))

    def _write(self, kind: Kind, position: int, data: bytes) -> None:
        self._check_alive()
        try:
            self._storage.announce(kind, self._path)
        except (Died, StorageFailed):
            chance = self._storage.chance
            if chance is not None:  # a write that is cut short has written something
                self._inode.write(position, data[: chance.randrange(len(data) + 1)])
            raise
        self._inode.write(position, data)

    def read(self, position: int, size: int) -> Bytes:
        self._check_alive()
        self._storage.announce("read", self._path)
        return bytes(self._inode.content[position : min(position + size, self._end)])

    def size(self) -> int:
        return self._end

    def truncate(self, size: int) -> None:
        self._check_alive()
        self._storage.announce("truncate", self._path)
        self._inode.truncate(size)
        self._end = size

    def sync(self) -> None:
        self._check_alive()
        try:
            done = self._storage.announce("fsync", self._path)
        except StorageFailed:
            self._inode.forget()
            raise
        if done:
            self._check_alive()  # the hook may have waited for another life
            self._inode.sync()

    def close(self) -> None:
        pass

    def _check_alive(self) -> None:
        if self._life != self._storage.life:
            raise Died(f"{self._path}, by a handle of a process that is dead")


class Inode:
    """The bytes of a file: as they are, and as a power cut would find them."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self._durable = content
        self._stable = len(content)
        """So many bytes from the beginning are the same in both."""
        self._dirty: list[tuple[int, int]] = []
        """Where the next sync has something to write, from and to."""
        self._lock = threading.Lock()

    def write(self, position: int, data: bytes) -> None:
        with self._lock:
            if self.content[position : position + len(data)] != data:
                self._stable = min(self._stable, position)
            self.content[position : position + len(data)] = data
            self._dirty.append((position, position + len(data)))

    def truncate(self, size: int) -> None:
        with self._lock:
            del self.content[size:]
            self._stable = min(self._stable, size)

    def sync(self) -> None:
        with self._lock:
            durable = bytearray(self._durable[: len(self.content)]).ljust(len(self.content), b"\0")
            for start, end in self._dirty:
                durable[start:end] = self.content[start:end]
            self._dirty = []
            self._durable = bytes(durable)
            if durable == self.content:
                self._stable = len(durable)

    def forget(self) -> None:
        """A sync has failed: what it should have written counts as written."""
        with self._lock:
            self._dirty = []

    def after_power_cut(self, chance: Random | None) -> Inode:
        """What is found when the power is back."""
        if chance is None:
            return Inode(self._durable)
        truncated = self._stable < len(self._durable)
        if truncated and chance.random() < 0.5:
            return Inode(self._durable)
        safe, tail = self.content[: self._stable], self.content[self._stable :]
        return Inode(bytes(safe) + _torn(bytes(tail), chance))


class PowerLock:
    """A lock that is held until released, or until its process dies."""

    def __init__(self, storage: PowerStorage, path: str) -> None:
        self._storage, self._path, self._life = storage, path, storage.life

    def release(self) -> None:
        self._storage.unlock(self._path, self._life)


@dataclass
class PowerWorld(World):
    """A log on such a storage, which dies either death and is opened again."""

    storage: PowerStorage = field(default_factory=PowerStorage)

    def crash(self) -> Owner:
        self.storage.crash()
        return self.open()

    def power_cut(self, keep: Callable[[NameChange], bool] | None = None) -> Owner:
        self.storage.power_cut(keep)
        return self.open()


# Hooks --------------------------------------------------------------------------------


def failing(
    kind: Kind, where: str = "", *, error: StorageFailed | None = None, times: int = 1 << 62
) -> Hook:
    """An error of the disk at the first `times` operations of a kind, in paths with `where`."""
    left = [times]

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path and left[0] > 0:
            left[0] -= 1
            raise error or StorageFailed(f"cannot {kind} {operation.path}: Input/output error")

    return hook


def stopping(kind: Kind, where: str = "") -> Hook:
    """The process dies at the first operation of a kind in a path with `where`."""

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path:
            raise Died(f"at {kind} {operation.path}")

    return hook


def stopping_after(count: int) -> Hook:
    """The process does `count` more operations and dies at the next."""
    left = [count]

    def hook(operation: Operation) -> None:
        if operation.kind != "read":
            left[0] -= 1
            if left[0] < 0:
                raise Died(f"at {operation.kind} {operation.path}")

    return hook


def doing(action: Callable[[], object], kind: Kind, where: str = "") -> Hook:
    """Something else happens, once, just before the first operation of a kind in such a path."""
    done: list[Operation] = []

    def hook(operation: Operation) -> None:
        if operation.kind == kind and where in operation.path and not done:
            done.append(operation)
            action()

    return hook


T = TypeVar("T")
R = TypeVar("R")


def taking_turns(environment: Environment, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """In place of Environment.at_once: no threads, so that a seed gives the same story again.

    The order is chance's, as it is the scheduler's.
    """
    order = sorted(range(len(items)), key=lambda i: getattr(items[i], "folder", ""))
    storage = environment.storage
    if isinstance(storage, PowerStorage) and storage.chance is not None:
        storage.chance.shuffle(order)
    results = {i: call(items[i]) for i in order}
    return [results[i] for i in range(len(items))]


def _torn(tail: bytes, chance: Random) -> bytes:
    """What may be left of bytes that were not synced."""
    how = chance.choice(("none", "all", "beginning", "holes"))
    if how == "none":
        return b""
    if how == "all":
        return tail
    if how == "beginning":
        return tail[: chance.randrange(len(tail) + 1)]
    blocks = [tail[i : i + BLOCK] for i in range(0, len(tail), BLOCK)]
    return b"".join(bytes(len(b)) if chance.random() < 0.4 else b for b in blocks)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
