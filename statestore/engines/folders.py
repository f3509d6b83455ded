"""Folders and folder locks of engines: a partition's own folder, and those beside it.

    0        the partition's own folder, used by its owner
    0.2 …    beside it: a standby copy, or a store that was restored into a fresh folder because a
             stalled process had the lock of the partition's own
    0.lock, 0.2.lock …    the lock of each folder

**A folder is opened, changed, emptied, moved or removed only by the holder of its lock.** The lock
is taken before the folder is created, and held until the engine is closed and the folder is no
longer touched. RocksDB's own LOCK is not enough: a process releases it when it closes a database to
remove it or to start over, and another process would then open files that are being removed. Lock
files are never removed. No process waits for the lock of a folder beside the own one: if it is
taken, the next number is tried. So a process that stalls with such locks blocks no other.

Opening a partition takes over the folder whose content reaches furthest in the changelog. Its
content is moved into the partition's own folder, and the unused folders beside it are removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import LogLocked, StrandlineError
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.storage import Lock, Storage
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.rocksdb import RocksEngine, wait_until

log = logging.getLogger("strandline.state")


def open_when_free(
    folder: str | os.PathLike[str], *, timeout: float = 10.0, clock: Clock | None = None
) -> RocksEngine:
    """Open the engine of a partition's folder, waiting at most `timeout` seconds for its lock.

    If an unused folder beside it reaches further, its content is moved here. All unused folders
    beside it are removed. If the lock is not released in time, a folder beside it is opened instead
    and restored from the changelog, so that a stalled process does not block the new owner.
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
        fields = {"folder": path}
        log.warning("%s stays locked; restoring into a folder beside it", path, extra=fields)
        return open_beside(path, clock)
    own = opened[0]
    try:
        _take_furthest(own, clock)
    except BaseException:
        own.close()
        raise
    return own


def open_beside(folder: str | os.PathLike[str], clock: Clock) -> RocksEngine:
    """Open the engine of the first unlocked folder beside the partition's own; create it if needed.

    Raises StorageFailed, DiskFull, FutureFormat.
    """
    path = Path(folder)
    for number in range(2, 1_000):
        with contextlib.suppress(LogLocked):
            return _open(path.with_name(f"{path.name}.{number}"), clock)
    raise LogLocked(f"{path} and all folders beside it are locked; stop the old workers")


def remove_all(root: Path) -> None:
    """Remove an app's state: `<root>/<store>/<partition>` of all its stores.

    Raises LogLocked, without removing anything, if a folder is open in any process. Raises
    StorageFailed.
    """
    storage = LocalStorage(root, follow=False)
    with contextlib.ExitStack() as locked:
        for folder in sorted(path for path in root.glob("*/*") if path.is_dir()):
            lock = lock_folder(storage, folder.relative_to(root).as_posix())
            locked.callback(lock.release)
        LocalStorage(root.parent).remove_tree(root.name)


def lock_folder(storage: Storage, folder: str) -> Lock:
    """Lock a state folder of `storage`, whose parent exists. Raises LogLocked if it is locked."""
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
            own.take_over(beside)
        with contextlib.suppress(StrandlineError):  # the next opening tries it again
            beside.remove()


def _free_beside(path: Path, clock: Clock) -> Iterator[RocksEngine]:
    """Yield the engines of unlocked folders beside; skip a folder that cannot be opened."""
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
