"""Which folder an engine opens, and who may: the partition's own, or one beside it.

    0        of whoever holds the partition
    0.2 …    beside it: a copy that is kept warm for another holder (standby), or what was begun
             anew because a stalled holder had the lock of its own
    0.lock, 0.2.lock …    who has the folder

**A folder is opened, changed, emptied, moved or removed only by who holds the lock beside it**, taken
before the folder is made, and kept until its engine is closed and the folder left alone. RocksDB's
own LOCK is not enough: whoever closes a database in order to remove it, or to begin anew, gives that
up, and another would open what is just being taken away. Lock files are never removed. Nobody waits
for the lock of a folder beside: with one who stops while he holds some, others take the next number.

Whoever opens a partition takes the content that reaches furthest; it moves into the partition's own
folder, and folders beside that nobody uses are removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import LogLocked, StrandlineError
from strandline.changelog.storage import LocalStorage, Lock, Storage
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.rocksdb import RocksEngine, wait_until

log = logging.getLogger("strandline.state")


def open_when_free(
    folder: str | os.PathLike[str], *, timeout: float = 10.0, clock: Clock | None = None
) -> RocksEngine:
    """The engine of a partition's folder, waiting up to `timeout` seconds for its lock.

    If a folder beside it that nobody uses reaches further, it holds what that one held; all others
    that nobody uses are removed. If the old holder does not let go, one beside it is opened, and
    filled from the changelog: a stalled process must not hold up the one that takes over.
    Raises StorageFailed, DiskFull, FutureFormat.
    """
    clock = clock or SystemClock()
    path = Path(folder)
    opened: list[RocksEngine] = []

    def is_free() -> bool:
        with contextlib.suppress(LogLocked):
            opened.append(_open(path, clock))
        return bool(opened)

    if not wait_until(is_free, timeout, clock):
        said = {"folder": path}
        log.warning("%s stays locked; restoring into a folder beside it", path, extra=said)
        return open_beside(path, clock)
    own = opened[0]
    try:
        _take_furthest(own, clock)
    except BaseException:
        own.close()
        raise
    return own


def open_beside(folder: str | os.PathLike[str], clock: Clock) -> RocksEngine:
    """The first folder beside the partition's own that nobody else uses, made if need be.

    Raises StorageFailed, DiskFull, FutureFormat.
    """
    path = Path(folder)
    for number in range(2, 1_000):
        with contextlib.suppress(LogLocked):
            return _open(path.with_name(f"{path.name}.{number}"), clock)
    raise LogLocked(f"{path} and all folders beside it are locked; stop the old workers")


def remove_all(root: Path) -> None:
    """Remove an app's state: `<root>/<store>/<partition>`, of all its stores.

    Raises LogLocked, and removes nothing, if a folder is open somewhere; StorageFailed.
    """
    storage = LocalStorage(root, follow=False)
    with contextlib.ExitStack() as locked:
        for folder in sorted(path for path in root.glob("*/*") if path.is_dir()):
            lock = lock_folder(storage, folder.relative_to(root).as_posix())
            locked.callback(lock.release)
        LocalStorage(root.parent).remove_tree(root.name)


def lock_folder(storage: Storage, folder: str) -> Lock:
    """Lock a state folder of `storage`, whose parent exists; LogLocked if somebody has it."""
    try:
        return storage.lock(f"{folder}.lock", f"pid {os.getpid()}\n")
    except LogLocked as error:
        raise LogLocked(f"{error}: it has the state in {folder} open; stop that worker") from None


def _open(path: Path, clock: Clock) -> RocksEngine:
    parent = LocalStorage(path.parent, follow=False)
    parent.make_dir("")
    lock = lock_folder(parent, path.name)
    try:
        return RocksEngine(path, clock=clock, lock=lock)
    except BaseException:
        lock.release()
        raise


def _take_furthest(own: RocksEngine, clock: Clock) -> None:
    for beside in _free_beside(own.folder, clock):
        if _is_further(beside.position(), own.position()):
            own.take(beside)
        with contextlib.suppress(StrandlineError):  # the next to come may have more luck
            beside.remove()


def _free_beside(path: Path, clock: Clock) -> Iterator[RocksEngine]:
    """The engines of folders beside that nobody has; one that cannot be opened is left alone."""
    inside = f"{path.name}."
    for name in LocalStorage(path.parent, follow=False).list_dir(""):
        if name.startswith(inside) and name.removeprefix(inside).isdecimal():
            try:
                engine = _open(path.with_name(name), clock)
            except StrandlineError:
                continue
            yield engine


def _is_further(position: StorePosition | None, than: StorePosition | None) -> bool:
    if position is None or than is None:
        return than is None and position is not None
    return position.topic_id == than.topic_id and position.offset > than.offset
