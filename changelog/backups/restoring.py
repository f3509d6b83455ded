"""Restore a backup: create the log in a folder beside the target, verify it, and rename it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from strandline.changelog import location
from strandline.changelog.backups.report import Progress, RestoreReport
from strandline.changelog.backups.store import Backup, BackupFile, BackupStore
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.embedded.filesystem import check_local, is_mount_point
from strandline.changelog.embedded.folder import FOLDER_KIND, FolderMeta, lock_note
from strandline.changelog.errors import CorruptLog, InvalidConfig, StorageFailed
from strandline.changelog.layout import CATALOG, FOLDER_META, LOCK, LOG_CONFIG, TOPIC_ID
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.storage import Lock, Storage

MARK = "restoring"
"""File that marks a folder as created by a restore, which the next restore may remove."""
_SEGMENT = r"\d{20}-\d{8}\.(?:log|index|aborted)"
_PATH = re.compile(
    f"{re.escape(CATALOG)}|{re.escape(LOG_CONFIG)}|topics/{TOPIC_ID}/topic\\.meta|"
    rf"topics/{TOPIC_ID}/\d{{1,9}}/(?:manifest\.meta|{_SEGMENT}|\d{{20}}\.producers)"
)
"""Pattern of the files in a backup, except `strandline.meta`, which is written with a new id."""


def restore(
    backups: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    name: str | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Restore a backup in the folder `backups` to a new log in the folder `to`.

    The new log has the state that a kill at the moment of the backup would have left, and a new id.
    Opening it aborts open transactions and completes prepared ones. Stores are restored from their
    changelogs. Before the log appears at `to`, every block is verified by its hash, and the whole
    log is checked.

    Args:
        backups: Backup folder.
        to: Folder of the new log; it must not exist or be empty.
        name: Name of the backup, as reported by `backup`; the last one by default.
        clock: Clock of the process; the system's by default.
        progress: Called with the bytes done and the total bytes.

    Returns:
        The ids of the new log and of the backed-up one, and the moment of the backup.

    Raises:
        InvalidConfig: `backups` has no such backup, or `to` is not empty.
        CorruptLog: A block or the log is damaged; `to` is not created.
        LogLocked: Another process is restoring to the same folder.
        StorageFailed: A disk failed or is full; `to` is not created.
    """
    for given in (backups, to):
        if location.is_url(given):
            raise InvalidConfig(f"{location.shown(os.fspath(given))} is not a folder; give one")
        location.check_folder(given)
    goal = Path(os.path.abspath(to))
    check_local(goal)
    store = BackupStore(LocalStorage(backups))
    store.check(os.fspath(backups))
    chosen = name or next(reversed(store.names()), None)
    if chosen is None:
        raise InvalidConfig(f"{os.fspath(backups)} has no complete backup")
    return _restore_to(store, chosen, goal, clock or SystemClock(), progress)


def _restore_to(
    store: BackupStore, name: str, goal: Path, clock: Clock, progress: Progress | None
) -> RestoreReport:
    """Restore a backup beside `goal`, then rename it."""
    backup = store.load(name)
    _check_paths(backup, name)
    _check_free(goal)
    parent = LocalStorage(goal.parent)  # may be a folder that others write, such as /tmp
    temporary = f".{goal.name}.restoring"
    storage, lock = _begin(parent, goal.parent / temporary)
    try:
        meta = _fill(storage, store, backup, clock, progress)
        storage.sync_dir("")
        _check_free(goal)
        parent.rename(temporary, goal.name)
        parent.sync_dir("")
    except BaseException:
        with contextlib.suppress(StorageFailed):
            parent.remove_tree(temporary)
        raise
    finally:
        lock.release()
    # Last, because a folder without it would not be removed after a crash before the rename.
    LocalStorage(goal).unlink(MARK)
    return RestoreReport(
        name, meta.log_id, backup.log.log_id, backup.taken_ms, len(backup.files), backup.bytes
    )


def _check_paths(backup: Backup, name: str) -> None:
    """Raise CorruptLog if a path in the backup could lie outside of the log."""
    for file in backup.files:
        if file.path != FOLDER_META and _PATH.fullmatch(file.path) is None:
            raise CorruptLog(f"backup {name}: {file.path!r} is not a file of a log")


def _check_free(goal: Path) -> None:
    """Raise InvalidConfig unless the target is missing, or an empty folder and no mount point."""
    if os.path.lexists(goal) and (goal.is_symlink() or not goal.is_dir() or any(goal.iterdir())):
        raise InvalidConfig(
            f"{goal} exists and is not an empty folder; give another folder to restore to"
        )
    if is_mount_point(goal):
        raise InvalidConfig(
            f"{goal} is a mount point, and the new log is put into place by a rename, which a mount point "
            f"does not have; give a folder inside, {goal / 'log'}"
        )


def _begin(parent: Storage, path: Path) -> tuple[LocalStorage, Lock]:
    """Create and lock an empty folder; remove one left by an interrupted restore."""
    if parent.exists(path.name):
        leftover = LocalStorage(path, follow=False)
        if leftover.list_dir("") and not leftover.exists(MARK):
            raise InvalidConfig(
                f"{path} is in the way, and was not left by an interrupted restore; move it away"
            )
        # Raises LogLocked if another restore is running there.
        leftover.lock(LOCK, lock_note("restore"), whole=True).release()
        parent.remove_tree(path.name)
    storage = LocalStorage(path, follow=False)
    storage.make_dir("")
    storage.create(MARK).close()
    return storage, storage.lock(LOCK, lock_note("restore"), whole=True)


def _fill(
    storage: Storage,
    store: BackupStore,
    backup: Backup,
    clock: Clock,
    progress: Progress | None,
) -> FolderMeta:
    """Write all files durably, and check the resulting log."""
    folders, done = set[str](), 0
    for file in backup.files:
        if file.path != FOLDER_META:
            folder = file.path.rpartition("/")[0]
            if folder not in folders:
                storage.make_dir(folder)
                folders.add(folder)
            _write(storage, store, file)
        done += file.size
        if progress is not None:
            progress(done, backup.bytes)
    for folder in sorted(folders):
        storage.sync_dir(folder)
    meta = backup.log.of_copy(clock.new_id(), clock.now_ms())
    meta = msgspec.structs.replace(meta, folder=storage.identity())
    document.save(storage, FOLDER_META, FOLDER_KIND, meta)
    damage = check_log(storage, clock=clock).report.of(Severity.DAMAGE)
    if damage:
        raise CorruptLog(
            f"the log of this backup is damaged, {damage[0].file}: {damage[0].what}; the damage is older "
            "than the backup: restore an earlier one"
        )
    return meta


def _write(storage: Storage, store: BackupStore, file: BackupFile) -> None:
    """Write one file durably. Raises CorruptLog for a missing or damaged block."""
    with contextlib.closing(storage.create(file.path)) as target:
        if file.content:
            target.append(file.content)
        for digest in file.blocks:
            try:
                target.append(store.block(digest))
            except FileNotFoundError as error:
                raise CorruptLog(
                    f"block {digest} of {file.path} is missing; restore another backup"
                ) from error
        if target.size() != file.size:
            raise CorruptLog(
                f"{file.path}: its blocks have {target.size()} bytes, expected {file.size}"
            )
        target.sync()
