"""The results of a backup, of a restore and of pruning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


@dataclass(frozen=True)
class BackupReport:
    """The result of a backup."""

    name: str
    """Name of the backup, for `restore`."""
    log_id: str
    """Id of the log."""
    taken_ms: int
    """Moment of the backup, in milliseconds since the epoch."""
    files: int
    """Number of files."""
    bytes: int
    """Total bytes of all files."""
    copied_bytes: int
    """Bytes written; the other blocks were in the folder already, and were verified."""
    repaired_blocks: int
    """Number of damaged blocks of earlier backups that were written again."""


@dataclass(frozen=True)
class RestoreReport:
    """The result of a restore."""

    backup: str
    """Name of the backup."""
    log_id: str
    """Id of the new log."""
    original_log_id: str
    """Id of the log that was backed up."""
    taken_ms: int
    """Moment of the backup, in milliseconds since the epoch."""
    files: int
    """Number of files."""
    bytes: int
    """Total bytes of all files."""


@dataclass(frozen=True)
class StoredBackup:
    """A backup in a backup folder."""

    name: str
    """Name of the backup, for `restore`."""
    log_id: str
    """Id of the log."""
    taken_ms: int
    """Moment of the backup, in milliseconds since the epoch."""
    files: int
    """Number of files."""
    bytes: int
    """Total bytes of all files."""


@dataclass(frozen=True)
class PruneReport:
    """The result of pruning a backup folder."""

    removed: tuple[str, ...]
    """Names of the removed backups, the earliest first."""
    kept: tuple[str, ...]
    """Names of the backups that remain, the earliest first."""
    blocks: int
    """Number of removed blocks."""
    freed_bytes: int
    """Bytes of the removed blocks."""
