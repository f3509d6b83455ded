"""What a log folder says of itself: which log it is, its settings, how it was closed, who has it open."""

from __future__ import annotations

import logging
import os
import time

import msgspec

from strandline.changelog.directory import Identity
from strandline.changelog.embedded import document
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.names import CATALOG, CLEAN, FOLDER_META, LOCK, LOG_CONFIG
from strandline.changelog.errors import (
    REPAIR,
    CorruptLog,
    FutureFormat,
    InvalidConfig,
    StorageFailed,
)
from strandline.changelog.log_config import LogConfig
from strandline.changelog.storage import Storage

FOLDER_KIND = "log"
CLEAN_KIND = "clean"
CONFIG_KIND = "config"

MAX_ANCESTORS = 32
"""Of which a log knows; a copy of a copy begins to forget the first."""

_log = logging.getLogger("strandline")

ClosedSizes = dict[str, int]
"""By partition folder, how large the active segment was when the log was closed in order."""


class Ancestor(msgspec.Struct):
    """A log of which this one began as a copy."""

    log_id: str
    left_ms: int
    """When the copy got an id of its own."""


class FolderMeta(msgspec.Struct):
    """What a log folder is."""

    log_id: str
    created_ms: int
    configured: bool = False
    """Whether there must be a document of the log's settings: they could not be lost unnoticed."""
    folder: Identity | None = None
    """The folder that has this id; None: an older version made it, or the storage tells no folders apart."""
    ancestors: list[Ancestor] = []
    """The last ones, the nearest at the end."""

    def is_of(self, folder: Identity | None) -> bool:
        """Whether this is the log of that folder, and not of one it was copied from.

        A device's number may change with every boot, so it counts only where no birth time is known.
        """
        known = self.folder
        if known is None or folder is None:
            return True
        if known.born_ns and folder.born_ns:
            return known[1:] == folder[1:]
        return known[:2] == folder[:2]

    def of_copy(self, new_id: str, now_ms: int) -> FolderMeta:
        """What a copy of this log is."""
        ancestors = [*self.ancestors, Ancestor(self.log_id, now_ms)][-MAX_ANCESTORS:]
        return msgspec.structs.replace(self, log_id=new_id, ancestors=ancestors)


def folder_meta(environment: LogContext) -> FolderMeta:
    """Read what the folder is, or make it a log folder if it is empty."""
    storage, clock = environment.storage, environment.clock
    try:
        meta = document.load(storage, FOLDER_META, FOLDER_KIND, FolderMeta)
        return _in_its_folder(environment, meta)
    except FileNotFoundError:
        if storage.exists(CATALOG):
            raise CorruptLog(
                f"{FOLDER_META} is missing though there are topics; {REPAIR}"
            ) from None
        meta = FolderMeta(clock.new_id(), clock.now_ms(), folder=storage.identity())
        document.save(storage, FOLDER_META, FOLDER_KIND, meta)
        return meta


def _in_its_folder(environment: LogContext, meta: FolderMeta) -> FolderMeta:
    """What the folder is, with an id of its own if it is a copy of another one."""
    storage, clock = environment.storage, environment.clock
    here = storage.identity()
    if not meta.is_of(here):
        _refuse_shared_files(storage)
        original = meta.log_id
        meta = meta.of_copy(clock.new_id(), clock.now_ms())
        fields = {"log_id": meta.log_id, "original": original}
        _log.warning(
            "this log is a copy of %(original)s; its id is %(log_id)s now", fields, extra=fields
        )
    elif meta.folder is not None or here is None:
        return meta
    meta = msgspec.structs.replace(meta, folder=here)
    document.save(storage, FOLDER_META, FOLDER_KIND, meta)
    return meta


def _refuse_shared_files(storage: Storage) -> None:
    """The lock file has no second name, unless a whole folder was copied by hard links."""
    if storage.links(LOCK) > 1:
        raise StorageFailed(
            "this folder is a copy by hard links, so its files are those of the original too, and "
            "writing here would damage that; copy it without links (`cp -a`, not `cp -al`), or make "
            "it with `strandline backup`"
        )


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
        return False  # reported by the code that needs the document


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
