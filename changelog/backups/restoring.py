"""A log made of a backup: beside its place, verified, and then put there in one step."""

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
from strandline.changelog.embedded.filesystem import check_local
from strandline.changelog.embedded.folder import FOLDER_KIND, FolderMeta, lock_note
from strandline.changelog.embedded.names import CATALOG, FOLDER_META, LOCK, LOG_CONFIG, TOPIC_ID
from strandline.changelog.errors import CorruptLog, InvalidConfig, StorageFailed
from strandline.changelog.storage import LocalStorage, Lock, Storage

MARK = "restoring"
"""A file in the folder beside: it is none of somebody else's."""
_SEGMENT = r"\d{20}-\d{8}\.(?:log|index|aborted)"
_PATH = re.compile(
    f"{re.escape(CATALOG)}|{re.escape(LOG_CONFIG)}|topics/{TOPIC_ID}/topic\\.meta|"
    rf"topics/{TOPIC_ID}/\d{{1,9}}/(?:manifest\.meta|{_SEGMENT}|\d{{20}}\.producers)"
)
"""Files that a backup may have, besides `strandline.meta`, which is made anew."""


def restore(
    backups: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    name: str | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Make a log in the folder `to`, of a backup in the folder `backups`.

    The log is the one that was backed up, as a kill at that moment would have left it, under an id of
    its own: open transactions are aborted when it is opened, prepared ones completed. Stores are restored from their
    changelogs. Every block is verified by its hash, and the log is checked, before it is in its place.

    Args:
        backups: Folder of backups.
        to: Folder of the new log, which does not exist yet or is empty.
        name: The backup, as `backup` reported it; the last one by default.
        clock: Clock of the process; the system's by default.
        progress: Called with how many bytes of how many are done.

    Returns:
        Ids of the new log and of the one that was backed up, and the moment.

    Raises:
        InvalidConfig: `backups` has no such backup, or there is something at `to`.
        CorruptLog: A block or the log is damaged; there is nothing at `to` then.
        LogLocked: Another process restores to the same place.
        StorageFailed: A disk failed or is full; there is nothing at `to` then.
    """
    for given in (backups, to):
        if location.is_url(given):
            raise InvalidConfig(f"{location.shown(os.fspath(given))} is no folder; give one")
        location.check_folder(given)
    goal = Path(os.path.abspath(to))
    check_local(goal)
    store = BackupStore(LocalStorage(backups))
    store.check()
    chosen = name or next(reversed(store.names()), None)
    if chosen is None:
        raise InvalidConfig(f"{os.fspath(backups)} has no backup that was finished")
    return _restored(store, chosen, goal, clock or SystemClock(), progress)


def _restored(
    store: BackupStore, name: str, goal: Path, clock: Clock, progress: Progress | None
) -> RestoreReport:
    found = store.load(name)
    _check_paths(found, name)
    _check_free(goal)
    parent = LocalStorage(goal.parent)
    parent.make_dir("")
    beside = f".{goal.name}.restoring"
    storage, lock = _begin(parent, goal.parent / beside)
    try:
        meta = _fill(storage, store, found, clock, progress)
        storage.sync_dir("")
        _check_free(goal)
        parent.rename(beside, goal.name)
        parent.sync_dir("")
    except BaseException:
        with contextlib.suppress(StorageFailed):
            parent.remove_tree(beside)
        raise
    finally:
        lock.release()
    LocalStorage(goal).unlink(MARK)  # last: until the log is in its place it marks what is ours
    return RestoreReport(
        name, meta.log_id, found.log.log_id, found.taken_ms, len(found.files), found.bytes
    )


def _check_paths(backup: Backup, name: str) -> None:
    for file in backup.files:
        if file.path != FOLDER_META and _PATH.fullmatch(file.path) is None:
            raise CorruptLog(f"backup {name}: {file.path!r} is no file of a log")


def _check_free(goal: Path) -> None:
    if os.path.lexists(goal) and (goal.is_symlink() or not goal.is_dir() or any(goal.iterdir())):
        raise InvalidConfig(
            f"there is something at {goal}: a log is restored to a place of its own; give another"
        )


def _begin(parent: Storage, path: Path) -> tuple[LocalStorage, Lock]:
    """An empty folder of our own beside the place, locked, without what an interrupted restore left."""
    if parent.exists(path.name):
        left = LocalStorage(path, follow=False)
        if left.list_dir("") and not left.exists(MARK):
            raise InvalidConfig(
                f"{path} is in the way, and was not left by an interrupted restore; move it away"
            )
        left.lock(LOCK, lock_note("restore"), whole=True).release()  # or a restore is under way
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
    """Write all files, durably, and check the log that they are."""
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
            f"the log of this backup is damaged, {damage[0].file}: {damage[0].what}; it was so when it "
            "was backed up: restore an earlier backup"
        )
    return meta


def _write(storage: Storage, store: BackupStore, file: BackupFile) -> None:
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
                f"{file.path}: its blocks have {target.size()} bytes, {file.size} were expected"
            )
        target.sync()
