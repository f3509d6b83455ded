"""Backups of the log in a folder, also while it is in use, and new logs restored from them.

    store.py       the backup folder: blocks by their hash, and a list of files for each backup
    making.py      creates a backup from a snapshot of the log
    restoring.py   restores a backup to a new log
    pruning.py     lists backups, and removes the earliest ones
    report.py      the results of all these

A block is stored once, however many backups have it. Each backup after the first therefore copies
only new blocks. The backup folder has no hard links to files of the log, so that a failing disk or
a misbehaving program damages only one of the two.
"""

from __future__ import annotations

from strandline.changelog.backups.making import backup
from strandline.changelog.backups.pruning import prune, stored_backups
from strandline.changelog.backups.report import (
    BackupReport,
    PruneReport,
    RestoreReport,
    StoredBackup,
)
from strandline.changelog.backups.restoring import restore

__all__ = [
    "BackupReport",
    "PruneReport",
    "RestoreReport",
    "StoredBackup",
    "backup",
    "prune",
    "restore",
    "stored_backups",
]
