"""List the backups of a folder, and prune the earliest ones."""

from __future__ import annotations

import os

from strandline.changelog.backups.report import PruneReport, StoredBackup
from strandline.changelog.backups.store import BackupStore
from strandline.changelog.embedded.folder import lock_note
from strandline.changelog.errors import CorruptLog
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.settings import check_number


def stored_backups(backups: str | os.PathLike[str]) -> list[StoredBackup]:
    """Return the backups in the folder `backups`, the earliest first.

    Args:
        backups: Backup folder.

    Raises:
        InvalidConfig: `backups` is not a backup folder.
        CorruptLog: The document of a backup is damaged.
    """
    store = _store(backups)
    loaded = [(name, store.load(name)) for name in store.names()]
    return [
        StoredBackup(name, backup.log.log_id, backup.taken_ms, len(backup.files), backup.bytes)
        for name, backup in loaded
    ]


def prune(backups: str | os.PathLike[str], *, keep: int) -> PruneReport:
    """Remove all but the last backups in a folder, and the blocks that no other backup has.

    First the documents of the backups are removed durably, then the blocks. If that is interrupted,
    blocks without a backup remain, which the next call removes.

    Args:
        backups: Backup folder.
        keep: Number of backups to keep, at least 1.

    Returns:
        The names of the removed backups, and the bytes freed.

    Raises:
        InvalidConfig: `backups` is not a backup folder, or `keep` is not a positive number.
        CorruptLog: The document of a backup to be kept is damaged, so that its blocks are not
            known; nothing is removed.
        LogLocked: Another process uses the folder.
        StorageFailed: The disk failed.
    """
    check_number("keep", keep, 1)
    store = _store(backups)
    with store.locked(lock_note("prune")):
        return prune_store(store, keep)


def prune_store(store: BackupStore, keep: int) -> PruneReport:
    """Remove all but the last `keep` backups of a store that this process has locked."""
    names = store.names()
    removed, kept = names[:-keep], names[-keep:]
    blocks = _digests(store, kept)
    store.remove(removed)
    count, freed_bytes = store.remove_blocks(blocks)
    return PruneReport(tuple(removed), tuple(kept), count, freed_bytes)


def _store(backups: str | os.PathLike[str]) -> BackupStore:
    store = BackupStore(LocalStorage(backups))
    store.check(os.fspath(backups))
    return store


def _digests(store: BackupStore, names: list[str]) -> set[str]:
    """Return the digests of all blocks of these backups. Raises CorruptLog."""
    found = set[str]()
    for name in names:
        try:
            backup = store.load(name)
        except CorruptLog as error:
            raise CorruptLog(
                f"{error}; nothing was removed, because the blocks of backup {name} are not known. "
                "Move that file out of the folder, and prune again"
            ) from error
        found.update(digest for file in backup.files for digest in file.blocks)
    return found
