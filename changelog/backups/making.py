"""Create a backup: the log's owner takes a snapshot, and new blocks of its files are copied."""

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
from strandline.changelog.embedded.snapshots import Snapshot, SnapshotFile
from strandline.changelog.errors import CorruptLog, InvalidConfig, StorageFailed, StrandlineError
from strandline.changelog.flight import attach
from strandline.changelog.layout import CATALOG, FOLDER_META, snapshot_folder
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.snapshots import in_folder
from strandline.changelog.storage import Storage

ClosedFiles = dict[str, BackupFile]
"""Files of the last backup whose content never changes, by path."""


def backup(
    log: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Back up the log in the folder `log` to the folder `to`; the log may be in use.

    The backup has the whole log at one moment: records, transactions, committed offsets, settings.
    It does not include state folders and pins. Blocks that `to` has already are verified and not
    copied again.

    Args:
        log: Folder of the log. If the log has no owner, one is started in the background.
        to: Backup folder, created if it does not exist; it can have any number of backups.
        clock: Clock of the process; the system's by default.
        progress: Called with the bytes done and the total bytes.

    Returns:
        The backup's name, its moment, and the bytes copied.

    Raises:
        InvalidConfig: `log` is not the folder of a log (a cluster or a served log has no files
            here), `to` has other files, or one folder is inside the other.
        LogLocked: Another process uses `to`.
        DiskFull: The disk of `to` is full; the next attempt uses the blocks copied so far.
        StorageFailed: A disk failed, or the owner of the log ended during the backup.
    """
    source, target = _folders(log, to)
    broker = attach.attach_or_own(source, role="attach_or_spawn", clock=clock)
    with contextlib.closing(broker):
        snapshots = in_folder(broker.snapshots)
        storage = LocalStorage(source)
        backup_storage = LocalStorage(target)
        backup_storage.make_dir("")
        store = BackupStore(backup_storage)
        store.check_empty_or_own()  # before there is a lock in it
        with store.locked(lock_note("backup")):
            name = snapshots.take()
            try:
                return _copy(storage, name, store, progress)
            finally:
                with contextlib.suppress(StrandlineError):  # the owner removes it when it expires
                    snapshots.release(name)


def _folders(log: str | os.PathLike[str], to: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the absolute paths of both folders. Raises InvalidConfig."""
    for given in (log, to):
        if location.is_url(given):
            raise InvalidConfig(
                f"{location.shown(os.fspath(given))} is not a folder: a backup is made on the machine "
                "with the log's files, to a folder. A Kafka cluster has its own replicas; `strandline "
                "move` copies its topics to a folder"
            )
        location.check_folder(given)
    source, target = Path(os.path.abspath(log)), Path(os.path.abspath(to))
    if not any((source / name).exists() for name in (FOLDER_META, CATALOG)):
        raise InvalidConfig(f"{source} holds no log; give the folder of one")
    real, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real == real_target or real in real_target.parents or real_target in real.parents:
        raise InvalidConfig(
            f"{target} and {source} are the same or one is inside the other; give another folder"
        )
    return source, target


def _copy(
    storage: Storage, name: str, store: BackupStore, progress: Progress | None
) -> BackupReport:
    """Copy the files of a snapshot to a backup."""
    try:
        snapshot = Snapshot.load(storage, name)
        store.begin(snapshot.log.log_id)
        closed = _closed_files(store)
        total = sum(file.size for file in snapshot.files)
        done, files = 0, []
        for file in snapshot.files:
            files.append(_store_file(storage, snapshot_folder(name), file, store, closed))
            done += file.size
            if progress is not None:
                progress(done, total)
    except FileNotFoundError as error:
        raise StorageFailed(
            f"the snapshot {name} was removed ({error}): the owner of the log ended, or the backup took "
            "longer than a day; back up again, which reuses the blocks copied so far"
        ) from error
    new_backup = Backup(taken_ms=snapshot.taken_ms, log=snapshot.log, files=files)
    saved = store.save(new_backup)
    return BackupReport(
        saved,
        new_backup.log.log_id,
        new_backup.taken_ms,
        len(files),
        new_backup.bytes,
        store.written_bytes,
        store.repaired_blocks,
    )


def _closed_files(store: BackupStore) -> ClosedFiles:
    """Return the unchangeable files of the last readable backup."""
    for name in reversed(store.names()):
        with contextlib.suppress(CorruptLog):
            return {file.path: file for file in store.load(name).files if file.closed}
    return {}


def _store_file(
    storage: Storage, folder: str, file: SnapshotFile, store: BackupStore, closed: ClosedFiles
) -> BackupFile:
    """Store a file's blocks; reuse those of the last backup if it cannot have changed."""
    if not file.link:
        return BackupFile(path=file.path, size=len(file.content), content=file.content)
    previous = closed.get(file.path)
    unchanged = file.closed and previous is not None and previous.size == file.size
    if unchanged and previous is not None and all(store.has(digest) for digest in previous.blocks):
        return previous
    blocks = [store.put(data) for data in _blocks(storage, f"{folder}/{file.link}", file.size)]
    return BackupFile(path=file.path, size=file.size, closed=file.closed, blocks=blocks)


def _blocks(storage: Storage, path: str, size: int) -> Iterator[bytes]:
    """Read the first `size` bytes of a file in blocks. Raises CorruptLog if there are fewer."""
    with contextlib.closing(storage.open(path)) as file:
        for position in range(0, size, BLOCK_BYTES):
            wanted = min(BLOCK_BYTES, size - position)
            data = bytes(file.read(position, wanted))
            if len(data) != wanted:
                raise CorruptLog(f"{path}: has {position + len(data)} bytes, expected {size}")
            yield data
