"""Backups of a log in a folder, made while it is in use, and logs made of backups.

    store.py       the folder of the backups: blocks by their hash, and a list of files for each backup
    making.py      from a snapshot of the log to a backup
    restoring.py   from a backup to a new log
    report.py      what is said of both

A block is stored once, whatever backups have it, so each backup after the first copies only what is
new. Nothing in the folder of the backups is a link to a file of the log: a disk that fails, or a
program that writes where it should not, takes one of the two.
"""

from __future__ import annotations

from strandline.changelog.backups.making import backup
from strandline.changelog.backups.report import BackupReport, RestoreReport
from strandline.changelog.backups.restoring import restore

__all__ = ["BackupReport", "RestoreReport", "backup", "restore"]
