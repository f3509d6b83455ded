"""Which folder an engine opens: the partition's own, or one beside it.

    0        of whoever holds the partition
    0.2 …    beside it: a copy that is kept warm for another holder (standby), or what was begun
             anew because a stalled holder had the lock of its own

Whoever opens a partition takes the folder that reaches furthest, and it becomes the partition's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from changelog.clock import Clock, SystemClock
from changelog.errors import LogLocked, StrandlineError
from changelog.storage import LocalStorage
from statestore.engine import Position
from statestore.engines.rocksdb import RocksEngine, wait_until

log = logging.getLogger("strandline.state")


def open_when_free(
    folder: str | os.PathLike[str], *, timeout: float = 10.0, clock: Clock | None = None
) -> RocksEngine:
    """The engine of a partition's folder, waiting up to `timeout` seconds for its lock.

    If a folder beside it that nobody uses reaches further, it takes its place; others that nobody
    uses are removed. If the old holder does not let go, one beside it is opened, and filled from
    the changelog: a stalled process must not hold up the one that takes over.
    """
    clock = clock or SystemClock()
    path = Path(folder)
    opened: list[RocksEngine] = []

    def is_free() -> bool:
        with contextlib.suppress(LogLocked):
            opened.append(RocksEngine(path, clock=clock))
        return bool(opened)

    if not wait_until(is_free, timeout, clock):
        said = {"folder": path}
        log.warning("%s stays locked; restoring into a folder beside it", path, extra=said)
        return open_beside(path, clock)
    own = opened[0]
    further = _further(own, clock)
    if further is None:
        return own
    own.close()
    siblings = LocalStorage(path.parent)
    siblings.remove_tree(path.name)
    siblings.rename(further.name, path.name)
    siblings.sync_dir("")
    try:
        return RocksEngine(path, clock=clock)
    except LogLocked:  # taken as a copy in the moment before it was moved
        return open_beside(path, clock)


def open_beside(folder: str | os.PathLike[str], clock: Clock) -> RocksEngine:
    """The first folder beside the partition's own that nobody else uses, made if need be."""
    path = Path(folder)
    for number in range(2, 1_000):
        with contextlib.suppress(LogLocked):
            return RocksEngine(path.with_name(f"{path.name}.{number}"), clock=clock)
    raise LogLocked(f"{path} and all folders beside it are locked; stop the old workers")


def _further(own: RocksEngine, clock: Clock) -> Path | None:
    """The folder beside it that holds more of the same changelog; others that are free are removed."""
    siblings = LocalStorage(own.folder.parent)
    best, further = own.position(), None
    for path in sorted(own.folder.parent.glob(f"{own.folder.name}.*")):
        with contextlib.suppress(StrandlineError):
            beside = RocksEngine(path, clock=clock)
            position = beside.position()
            beside.close()
            if not _is_further(position, best):
                siblings.remove_tree(path.name)
                continue
            if further is not None:
                siblings.remove_tree(further.name)
            best, further = position, path
    return further


def _is_further(position: Position | None, than: Position | None) -> bool:
    if position is None or than is None:
        return than is None and position is not None
    return position.topic_id == than.topic_id and position.offset > than.offset
