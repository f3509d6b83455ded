"""What a backup and a restore say of what they have done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with how many bytes of how many are done."""


@dataclass(frozen=True)
class BackupReport:
    """A backup that was made."""

    name: str
    log_id: str
    taken_ms: int
    """The moment that it shows, in ms since 1970."""
    files: int
    bytes: int
    """Bytes of all its files."""
    copied_bytes: int
    """Bytes that were written; the rest was there already, and was verified."""
    repaired_blocks: int
    """Blocks of earlier backups that were damaged and have been written again."""


@dataclass(frozen=True)
class RestoreReport:
    """A log that was made of a backup."""

    backup: str
    log_id: str
    """The new log's own."""
    original_log_id: str
    taken_ms: int
    """The moment that it shows, in ms since 1970."""
    files: int
    bytes: int
