"""Making a backup: a snapshot by the log's owner, of whose files blocks are copied that are new."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from strandline.changelog import location
from strandline.changelog.backups.report import BackupReport, Progress
from strandline.changelog.backups.store import BLOCK_BYTES, Backup, BackupFile, BackupStore
from strandline.changelog.clock import Clock
from strandline.changelog.embedded.folder import lock_note
from strandline.changelog.embedded.names import CATALOG, FOLDER_META, snapshot_folder
from strandline.changelog.embedded.snapshots import Snapshot, SnapshotFile
from strandline.changelog.errors import CorruptLog, InvalidConfig, StorageFailed, StrandlineError
from strandline.changelog.flight import attach
from strandline.changelog.snapshots import in_folder
from strandline.changelog.storage import LocalStorage, Storage

Closed = dict[str, BackupFile]
"""By path, the files of the last backup whose content never changes."""


def backup(
    log: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Back up the log in the folder `log` into the folder `to`, while it is in use or not.

    The backup shows the whole log at one moment: records, transactions, committed offsets, settings.
    State folders and pins are no part of it. What `to` has already is verified and not copied again.

    Args:
        log: Folder of the log. Without an owner one is started in the background.
        to: Folder of the backups, made if need be; it takes any number of backups.
        clock: Clock of the process; the system's by default.
        progress: Called with how many bytes of how many are done.

    Returns:
        The backup's name and moment, and how much was copied.

    Raises:
        InvalidConfig: `log` is no folder with a log (a cluster or a served log has no files here), or
            `to` is a folder with something else in it, or one of the two is inside of the other.
        LogLocked: Another process works in `to`.
        DiskFull: There is no room in `to`; what was copied is used by the next attempt.
        StorageFailed: A disk failed, or the owner of the log ended meanwhile.
    """
    source, target = _folders(log, to)
    broker = attach.attach_or_own(source, role="attach_or_spawn", clock=clock)
    with contextlib.closing(broker):
        snapshots = in_folder(broker.snapshots)
        storage = LocalStorage(source)
        goal = LocalStorage(target)
        goal.make_dir("")
        store = BackupStore(goal)
        with store.locked(lock_note("backup")):
            name = snapshots.take()
            try:
                return _copy(storage, name, store, progress)
            finally:
                with contextlib.suppress(StrandlineError):  # the owner removes it in its own time
                    snapshots.release(name)


def _folders(log: str | os.PathLike[str], to: str | os.PathLike[str]) -> tuple[Path, Path]:
    for given in (log, to):
        if location.is_url(given):
            raise InvalidConfig(
                f"{location.shown(os.fspath(given))} is no folder: a backup is made where the files of the "
                "log are, into a folder. A Kafka cluster keeps replicas of its own; `strandline move` "
                "copies its topics to a folder"
            )
        location.check_folder(given)
    source, target = Path(os.path.abspath(log)), Path(os.path.abspath(to))
    if not any((source / name).exists() for name in (FOLDER_META, CATALOG)):
        raise InvalidConfig(f"{source} holds no log; give the folder of one")
    real, goal = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real == goal or real in goal.parents or goal in real.parents:
        raise InvalidConfig(f"{target} and {source} are inside of each other; give another folder")
    return source, target


def _copy(
    storage: Storage, name: str, store: BackupStore, progress: Progress | None
) -> BackupReport:
    try:
        snapshot = Snapshot.load(storage, name)
        store.begin(snapshot.log.log_id)
        known = _closed_files(store)
        total = sum(file.size for file in snapshot.files)
        done, files = 0, []
        for file in snapshot.files:
            files.append(_kept(storage, snapshot_folder(name), file, store, known))
            done += file.size
            if progress is not None:
                progress(done, total)
    except FileNotFoundError as error:
        raise StorageFailed(
            f"the snapshot {name} is gone ({error}): the owner of the log has ended, or it took longer "
            "than a day; back up again, which goes on with what was copied"
        ) from error
    made = Backup(taken_ms=snapshot.taken_ms, log=snapshot.log, files=files)
    saved = store.save(made)
    return BackupReport(
        saved,
        made.log.log_id,
        made.taken_ms,
        len(files),
        made.bytes,
        store.written_bytes,
        store.repaired_blocks,
    )


def _closed_files(store: BackupStore) -> Closed:
    for name in reversed(store.names()):
        with contextlib.suppress(CorruptLog):
            return {file.path: file for file in store.load(name).files if file.closed}
    return {}


def _kept(
    storage: Storage, folder: str, file: SnapshotFile, store: BackupStore, known: Closed
) -> BackupFile:
    """A file whose blocks are all in the store."""
    if not file.link:
        return BackupFile(path=file.path, size=len(file.content), content=file.content)
    before = known.get(file.path)
    unchanged = file.closed and before is not None and before.size == file.size
    if unchanged and before is not None and all(store.has(digest) for digest in before.blocks):
        return before
    blocks = [store.put(data) for data in _pieces(storage, f"{folder}/{file.link}", file.size)]
    return BackupFile(path=file.path, size=file.size, closed=file.closed, blocks=blocks)


def _pieces(storage: Storage, path: str, size: int) -> Iterator[bytes]:
    with contextlib.closing(storage.open(path)) as file:
        for position in range(0, size, BLOCK_BYTES):
            wanted = min(BLOCK_BYTES, size - position)
            data = bytes(file.read(position, wanted))
            if len(data) != wanted:
                raise CorruptLog(f"{path}: has {position + len(data)} bytes, {size} were expected")
            yield data
