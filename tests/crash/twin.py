"""The storage twin: a folder in memory whose power can be cut at any operation.

It keeps the guarantees of a folder on a disk, and no more:

- A byte of a file is safe once `File.sync` has returned after the append. Of later bytes a cut may
  leave none, a beginning, all, or all with blocks of zeros. A truncation that was not synced may
  be undone.
- A name is safe once its folder was synced. Of later creations, links, renames and removals any
  subset may have happened, independently of the files' bytes.

`crash` is the milder death, kill -9: the process is gone, and all that it has written stays. After
either death the old file handles are dead, so that no late thread writes into the next life.

`hook` sees each operation before it takes place, `after` sees it afterwards. Both may raise: a
StorageFailed is an error of the disk, `Died` ends the process, after which nothing more can be
done before `crash` or `power_cut`. `lies` selects operations that the disk acknowledges and does
not do. A `forgetful` disk treats the bytes of a failed fsync as written, as Linux does: a later
fsync succeeds without them.

Randomness is passed in. Without it a cut takes everything unsynced, and an append that fails
writes nothing. With it any part of either may be left, always the same for the same seed. The
possible results of a cut can also be enumerated: `outcomes` names each, `clone` makes a twin to
try it on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Literal, NamedTuple

from strandline.changelog.errors import LogLocked, StorageFailed
from strandline.changelog.storage import Bytes, Storage
from tests.crash.inode import Inode

Kind = Literal[
    "append",
    "rewrite",
    "truncate",
    "fsync",
    "create",
    "link",
    "rename",
    "unlink",
    "make_dir",
    "sync_dir",
    "read",
]


def read_all(storage: Storage, path: str) -> bytes:
    """Return the whole content of a file."""
    file = storage.open(path)
    return bytes(file.read(0, file.size()))


class Operation(NamedTuple):
    """An operation about to be done, and its path (of a rename: the target)."""

    kind: Kind
    path: str
    size: int = 0
    """Number of bytes of an append."""

    @property
    def folder(self) -> str:
        return _folder(self.path)


class Died(BaseException):
    """The process stopped at this operation. Not an Exception, so that no handler carries on."""


Hook = Callable[[Operation], None]


class NameChange(NamedTuple):
    """A creation, linking, renaming or removal that its folder's next sync makes durable."""

    kind: Literal["create", "link", "rename", "unlink"]
    path: str
    source: str = ""
    inode: Inode | None = None

    def apply(self, names: dict[str, Inode]) -> None:
        names.pop(self.source or self.path, None)
        if self.inode is not None:
            names[self.path] = self.inode


class Outcome(NamedTuple):
    """One way in which a power cut treats unsynced things: some are lost, or a seed decides."""

    name: str
    lost: frozenset[int] = frozenset()
    """Positions in `PowerStorage.unsynced` of the things that are lost."""
    seed: int | None = None


class PowerStorage:
    """A folder in memory with power cuts. Implements Storage."""

    def __init__(self, chance: Random | None = None) -> None:
        self.chance = chance
        self.hook: Hook | None = None
        self.after: Hook | None = None
        self.lies: Callable[[Operation], bool] = lambda _: False
        self.forgetful = True
        self.short: Callable[[int], int] | None = None
        """Number of bytes written by an append that fails, given its size. None: `chance`
        decides."""
        self.operations = 0
        """Number of operations so far. Reads are not counted, because they leave no trace."""
        self.life = 0
        self._dead = False
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._unsynced: list[NameChange] = []
        self._folders = {""}
        self._locked: set[str] = set()

    # Deaths ---------------------------------------------------------------------------

    def crash(self) -> None:
        """Kill the process (kill -9): locks and handles are gone, all that was written stays."""
        self.life += 1
        self._dead = False
        self._locked = set()
        self.hook = self.after = None

    def power_cut(self, keep: Callable[[NameChange], bool] | None = None) -> None:
        """Cut the power: chance decides what remains of unsynced things.

        `keep` decides instead of chance which changes of names have reached the disk.
        """
        self._cut(self._surviving(keep), lambda inode: inode.after_power_cut(self.chance))

    def cut(self, outcome: Outcome) -> None:
        """Cut the power, with the given outcome."""
        if outcome.seed is not None:
            self.chance = Random(outcome.seed)
            self.power_cut()
            return
        lost = {id(thing) for i, thing in enumerate(self.unsynced()) if i in outcome.lost}
        survivors = [change for change in self._unsynced if id(change) not in lost]
        self._cut(survivors, lambda inode: inode.found(lost=id(inode) in lost))

    def outcomes(self, seeds: Iterable[int] = (), *, keeping: str = "") -> Iterator[Outcome]:
        """Yield the outcomes of a power cut now: all lost, nothing, one thing, or as seeds say.

        With a file for `keeping`, only outcomes that keep its name, and all or a seed's part of its
        bytes.
        """
        things = self.unsynced()
        if not keeping:
            yield Outcome("nothing", frozenset(range(len(things))))
        if not things:
            return
        yield Outcome("everything")
        if len(things) > 1:
            for i, thing in enumerate(things):
                if not keeping or not self._is_of(thing, keeping):
                    yield Outcome(f"all but {self._described(thing)}", frozenset((i,)))
        for seed in seeds:
            yield Outcome(f"seed {seed}", seed=seed)

    def unsynced(self) -> list[NameChange | Inode]:
        """Return everything that a power cut may take: changes of names, and bytes of files."""
        inodes = {**self._durable_names, **self._names}
        each = {id(inode): inode for _, inode in sorted(inodes.items())}  # it may have two names
        return [*self._unsynced, *(inode for inode in each.values() if inode.is_dirty)]

    def _is_of(self, thing: NameChange | Inode, path: str) -> bool:
        """Return True for the name of the file or its bytes."""
        return thing is self._names[path] or (isinstance(thing, NameChange) and thing.path == path)

    def _described(self, thing: NameChange | Inode) -> str:
        if isinstance(thing, NameChange):
            return f"{thing.kind} {thing.path}"
        inodes = {**self._durable_names, **self._names}
        return "bytes of " + next(path for path, inode in inodes.items() if inode is thing)

    def _cut(self, survivors: Iterable[NameChange], found: Callable[[Inode], Inode]) -> None:
        for change in survivors:
            change.apply(self._durable_names)
        self._unsynced = []
        left: dict[int, Inode] = {}
        for _, inode in sorted(self._durable_names.items()):
            if id(inode) not in left:  # a file with two names is still one
                left[id(inode)] = found(inode)
        self._names = {path: left[id(inode)] for path, inode in sorted(self._durable_names.items())}
        self._durable_names = dict(self._names)
        for path in self._names:
            self._note_folder(_folder(path))  # a folder whose removal was undone
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

    def announce(self, kind: Kind, path: str, size: int = 0) -> bool:
        """Show an operation to the hook. Return False if the disk only pretends to do it."""
        if self._dead:
            raise Died(f"{kind} {path}, by a dead process")
        operation = Operation(kind, path, size)
        self.operations += kind != "read"
        self._show(self.hook, operation)
        return not self.lies(operation)

    def done(self, kind: Kind, path: str, size: int = 0) -> None:
        """Show `after` an operation that has taken place."""
        self._show(self.after, Operation(kind, path, size))

    def _show(self, hook: Hook | None, operation: Operation) -> None:
        if hook is not None:
            try:
                hook(operation)
            except Died:
                self._dead = True
                raise

    def clone(self) -> PowerStorage:
        """Return a separate storage with the same content, synced and unsynced; no hooks, no
        locks."""
        twin = copy.copy(self)
        known: dict[int, Inode] = {}

        def copied(inode: Inode) -> Inode:
            if id(inode) not in known:
                known[id(inode)] = inode.clone()
            return known[id(inode)]

        twin._names = {path: copied(inode) for path, inode in self._names.items()}
        twin._durable_names = {p: copied(inode) for p, inode in self._durable_names.items()}
        twin._unsynced = [
            change._replace(inode=change.inode and copied(change.inode))
            for change in self._unsynced
        ]
        twin._folders = set(self._folders)
        twin._locked = set(self._locked)
        twin.chance = copy.deepcopy(self.chance)
        twin.hook = twin.after = None
        return twin

    # Damage ---------------------------------------------------------------------------

    def paths(self, folder: str = "", suffix: str = "") -> list[str]:
        """Return the files below a folder whose names end in `suffix`, sorted."""
        inside = folder + "/" if folder else ""
        return sorted(p for p in self._names if p.startswith(inside) and p.endswith(suffix))

    def content(self, path: str) -> bytes:
        """Return all that was written to a file; nothing if it does not exist."""
        return bytes(self._names[path].content) if path in self._names else b""

    def lose(self, path: str) -> None:
        """Delete a file durably, as an operator might by mistake."""
        del self._names[path]
        self._durable_names.pop(path, None)
        self._unsynced = [change for change in self._unsynced if change.path != path]

    def flip(self, path: str, position: int) -> None:
        """Flip a bit of a file, as a failing disk might. Negative positions count from the end."""
        inode = self._names[path]
        position %= len(inode.content)
        inode.write(position, bytes([inode.content[position] ^ 1]))
        inode.sync()

    def shorten(self, path: str, by: int) -> None:
        """Remove the last bytes of a file, as if they had not been written."""
        inode = self._names[path]
        inode.truncate(len(inode.content) - by)

    # Storage --------------------------------------------------------------------------

    def create(self, path: str) -> PowerFile:
        if path in self._names:
            raise FileExistsError(path)
        self._check_folder(_folder(path))
        self.announce("create", path)
        inode = self._names[path] = Inode()
        self._unsynced.append(NameChange("create", path, inode=inode))
        self.done("create", path)
        return PowerFile(self, inode, path)

    def open(self, path: str, *, writable: bool = False) -> PowerFile:
        if path not in self._names:
            raise FileNotFoundError(path)
        return PowerFile(self, self._names[path], path)

    def rename(self, source: str, target: str) -> None:
        self.announce("rename", target)
        inode = self._names[target] = self._names.pop(source)
        self._unsynced.append(NameChange("rename", target, source, inode))
        self.done("rename", target)

    def link(self, source: str, target: str) -> None:
        if source not in self._names:
            raise FileNotFoundError(source)
        if target in self._names:
            raise FileExistsError(target)
        self._check_folder(_folder(target))
        self.announce("link", target)
        inode = self._names[target] = self._names[source]
        self._unsynced.append(NameChange("link", target, inode=inode))
        self.done("link", target)

    def unlink(self, path: str) -> None:
        if path in self._names:
            self.announce("unlink", path)
            del self._names[path]
            self._unsynced.append(NameChange("unlink", path))
            self.done("unlink", path)

    def make_dir(self, path: str) -> None:
        self.announce("make_dir", path)
        self._note_folder(path)
        self.done("make_dir", path)

    def remove_tree(self, path: str) -> None:
        for name in self.paths(path):
            self.unlink(name)
        self._folders = {f for f in self._folders if f != path and not f.startswith(path + "/")}

    def list_dir(self, path: str) -> list[str]:
        inside = path + "/" if path else ""
        known = [name for name in (*self._folders, *self._names) if name.startswith(inside)]
        names = {name[len(inside) :] for name in known}
        return sorted(name for name in names if name and "/" not in name)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._folders

    def links(self, path: str) -> int:
        return sum(inode is self._names[path] for inode in self._names.values())

    def stamp(self, path: str) -> object:
        return id(self._names[path]) if path in self._names else None

    def sync_dir(self, path: str) -> None:
        self._check_folder(path)
        if self.announce("sync_dir", path):
            for change in self._unsynced:
                if _folder(change.path) == path:
                    change.apply(self._durable_names)
            self._unsynced = [c for c in self._unsynced if _folder(c.path) != path]
        self.done("sync_dir", path)

    def short_write(self, size: int) -> int:
        """Return the number of bytes of a failing append that reach the file."""
        if self.short is not None:
            return self.short(size)
        return self.chance.randrange(size + 1) if self.chance is not None else 0

    def identity(self) -> None:
        return None

    def check(self, *folders: str) -> None:
        pass

    def lock(self, path: str, note: str, *, whole: bool = False) -> PowerLock:
        if path in self._locked:
            raise LogLocked(f"{path} is already locked by this process")
        self._locked.add(path)
        return PowerLock(self, path)

    def _note_folder(self, path: str) -> None:
        """Note a folder and its parents as existing."""
        while path not in self._folders:
            self._folders.add(path)
            path = _folder(path)

    def _check_folder(self, path: str) -> None:
        if path not in self._folders:
            raise FileNotFoundError(path)

    def unlock(self, path: str, life: int) -> None:
        """Release a lock, if it was taken in that life."""
        if life == self.life:
            self._locked.discard(path)


class PowerFile:
    """A handle of a file. Like a descriptor of LocalStorage, it keeps the end of the file
    itself."""

    def __init__(self, storage: PowerStorage, inode: Inode, path: str) -> None:
        self._storage = storage
        self._inode = inode
        self._path = path
        self._life = storage.life
        self._end = len(inode.content)

    def append(self, *parts: Bytes) -> int:
        start, data = self._end, b"".join(parts)
        self._write("append", start, data)
        return start

    def rewrite(self, position: int, data: Bytes) -> None:
        self._write("rewrite", position, bytes(data))

    def _write(self, kind: Kind, position: int, data: bytes) -> None:
        self._check_alive()
        try:
            self._storage.announce(kind, self._path, len(data))
        except (Died, StorageFailed):  # a write that is cut short may have written something
            self._inode.write(position, data[: self._storage.short_write(len(data))])
            raise
        self._inode.write(position, data)
        self._end = max(self._end, position + len(data))
        self._storage.done(kind, self._path, len(data))

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
        self._storage.done("truncate", self._path)

    def sync(self) -> None:
        self._check_alive()
        try:
            is_done = self._storage.announce("fsync", self._path)
        except StorageFailed:
            if self._storage.forgetful:
                self._inode.forget()
            raise
        if is_done:
            self._check_alive()  # the hook may have waited for another life
            self._inode.sync()
        self._storage.done("fsync", self._path)

    def write_back(self, position: int) -> None:
        pass

    def close(self) -> None:
        pass

    def _check_alive(self) -> None:
        if self._life != self._storage.life:
            raise Died(f"{self._path}, by a handle of a process that is dead")


class PowerLock:
    """A lock that is held until released, or until its process dies."""

    def __init__(self, storage: PowerStorage, path: str) -> None:
        self._storage, self._path, self._life = storage, path, storage.life

    def release(self) -> None:
        self._storage.unlock(self._path, self._life)

    def check(self) -> None:
        pass


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
