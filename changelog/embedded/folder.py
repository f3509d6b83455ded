"""What a log folder says of itself: which log it is, its settings, how it was closed, who has it open."""

from __future__ import annotations

import os
import time

import msgspec

from changelog.embedded import document
from changelog.embedded.environment import Environment
from changelog.embedded.names import CATALOG, CLEAN, FOLDER_META, LOG_CONFIG
from changelog.errors import REPAIR, CorruptLog, FutureFormat, InvalidConfig
from changelog.log_config import LogConfig
from changelog.storage import Storage

FOLDER_KIND = "log"
CLEAN_KIND = "clean"
CONFIG_KIND = "config"

ClosedSizes = dict[str, int]
"""By partition folder, how large the active segment was when the log was closed in order."""


class FolderMeta(msgspec.Struct):
    """What a log folder is."""

    log_id: str
    created_ms: int
    configured: bool = False
    """Whether there must be a document of the log's settings: they could not be lost unnoticed."""


def folder_meta(environment: Environment) -> FolderMeta:
    """Read what the folder is, or make it a log folder if it is empty."""
    storage, clock = environment.storage, environment.clock
    try:
        return document.load(storage, FOLDER_META, FOLDER_KIND, FolderMeta)
    except FileNotFoundError:
        if storage.exists(CATALOG):
            raise CorruptLog(
                f"{FOLDER_META} is missing though there are topics; {REPAIR}"
            ) from None
        meta = FolderMeta(clock.new_id(), clock.now_ms())
        document.save(storage, FOLDER_META, FOLDER_KIND, meta)
        return meta


def log_config(storage: Storage) -> LogConfig:
    """What is set for the log as a whole. Raises CorruptLog, FutureFormat."""
    try:
        return LogConfig(document.load(storage, LOG_CONFIG, CONFIG_KIND, dict[str, str]))
    except FileNotFoundError:
        if _is_configured(storage):
            raise CorruptLog(
                f"{LOG_CONFIG} is missing though there were settings; {REPAIR}"
            ) from None
        return LogConfig()
    except InvalidConfig as error:
        raise CorruptLog(f"{LOG_CONFIG}: {error}; {REPAIR}") from error


def save_log_config(storage: Storage, config: LogConfig) -> None:
    """Keep these settings, durably. Raises DiskFull: nothing has changed then."""
    if not _is_configured(storage):
        if not storage.exists(LOG_CONFIG):
            document.save(storage, LOG_CONFIG, CONFIG_KIND, {})
        meta = document.load(storage, FOLDER_META, FOLDER_KIND, FolderMeta)
        meta.configured = True
        document.save(storage, FOLDER_META, FOLDER_KIND, meta)
    document.save(storage, LOG_CONFIG, CONFIG_KIND, dict(config.given))


def _is_configured(storage: Storage) -> bool:
    try:
        return document.load(storage, FOLDER_META, FOLDER_KIND, FolderMeta).configured
    except FutureFormat:
        raise
    except (FileNotFoundError, CorruptLog):
        return False  # which is said by whoever needs the document


def closed_sizes(storage: Storage) -> ClosedSizes | None:
    """What the log noted when it was closed in order; None if it was not."""
    try:
        return document.load(storage, CLEAN, CLEAN_KIND, ClosedSizes)
    except FileNotFoundError:
        return None


def save_closed_sizes(storage: Storage, sizes: ClosedSizes) -> None:
    """Note that the log is being closed in order."""
    document.save(storage, CLEAN, CLEAN_KIND, sizes)


def lock_note(role: str) -> str:
    """What the lock file says while this process holds the lock."""
    started = time.strftime("%Y-%m-%dT%H:%M:%S")
    return f"pid {os.getpid()}, {role}, started {started}\n"
