"""Documents about the log folder itself: identity, settings, orderly close, lock."""

from __future__ import annotations

import logging
import os
import time

import msgspec

from strandline.changelog.directory import Identity
from strandline.changelog.embedded import document
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.errors import (
    REPAIR,
    CorruptLog,
    FutureFormat,
    InvalidConfig,
    StorageFailed,
)
from strandline.changelog.layout import CATALOG, CLEAN, FOLDER_META, LOCK, LOG_CONFIG
from strandline.changelog.log_config import LogConfig
from strandline.changelog.storage import Storage

FOLDER_KIND = "log"
CLEAN_KIND = "clean"
CONFIG_KIND = "config"

MAX_ANCESTORS = 32
"""Maximum number of ancestors kept for a log. Older ones are forgotten first."""

_log = logging.getLogger("strandline")

ClosedSizes = dict[str, int]
"""Bytes of the active segment at the orderly close, by partition folder."""


class Ancestor(msgspec.Struct):
    """A log that this one was copied from."""

    log_id: str
    left_ms: int
    """Milliseconds since the epoch at which the copy got an id of its own."""


class FolderMeta(msgspec.Struct):
    """Identity of a log folder."""

    log_id: str
    created_ms: int
    configured: bool = False
    """True if a settings document exists, so that its loss is noticed."""
    folder: Identity | None = None
    """Identity of the folder that has this log id.

    None if an older version created it, or if the storage cannot tell folders apart."""
    ancestors: list[Ancestor] = []
    """Most recent ancestors, the nearest one last."""
    is_new_copy: bool = False
    """True for a copy until its first opening has completed recovery."""

    def is_of(self, folder: Identity | None) -> bool:
        """Return True if this document was written for `folder`, and not copied into it.

        A device number may change with every boot, so it is compared only if a birth time is
        unknown.
        """
        known = self.folder
        if known is None or folder is None:
            return True
        if known.born_ns and folder.born_ns:
            return known[1:] == folder[1:]
        return known[:2] == folder[:2]

    def of_copy(self, new_id: str, now_ms: int) -> FolderMeta:
        """Return the document for a copy of this log."""
        ancestors = [*self.ancestors, Ancestor(self.log_id, now_ms)][-MAX_ANCESTORS:]
        return msgspec.structs.replace(self, log_id=new_id, ancestors=ancestors, is_new_copy=True)


def folder_meta(context: LogContext) -> FolderMeta:
    """Read the folder's identity, or create it in an empty folder.

    A copied log gets a new id. Raises CorruptLog, FutureFormat, StorageFailed.
    """
    storage, clock = context.storage, context.clock
    try:
        meta = document.load(storage, FOLDER_META, FOLDER_KIND, FolderMeta)
        return _in_its_folder(context, meta)
    except FileNotFoundError:
        if storage.exists(CATALOG):
            raise CorruptLog(
                f"{FOLDER_META} is missing though there are topics; {REPAIR}"
            ) from None
        meta = FolderMeta(clock.new_id(), clock.now_ms(), folder=storage.identity())
        document.save(storage, FOLDER_META, FOLDER_KIND, meta)
        return meta


def note_recovered(storage: Storage, meta: FolderMeta) -> None:
    """Record that the log has been recovered, if it was a new copy. Raises StorageFailed."""
    if meta.is_new_copy:
        meta.is_new_copy = False
        document.save(storage, FOLDER_META, FOLDER_KIND, meta)


def _in_its_folder(context: LogContext, meta: FolderMeta) -> FolderMeta:
    """Return the identity of the log in this folder. A copy of another log gets a new id."""
    storage, clock = context.storage, context.clock
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
    """Raise StorageFailed if the folder was copied by hard links.

    The log never links its lock file, so a second link shows that the whole folder was copied this
    way.
    """
    if storage.links(LOCK) > 1:
        raise StorageFailed(
            "this folder is a copy by hard links, so its files are those of the original too, and "
            "writing here would damage that; copy it without links (`cp -a`, not `cp -al`), or make "
            "it with `strandline backup`"
        )


def log_config(storage: Storage) -> LogConfig:
    """Read the settings of the log as a whole. Raises CorruptLog, FutureFormat."""
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
    """Save the settings of the log as a whole, durably. After DiskFull nothing has changed."""
    # The document exists before `configured` is set, and `configured` is set before any setting is
    # saved. A crash in between therefore never looks like lost settings.
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
        return False  # the code that needs the document reports it


def closed_sizes(storage: Storage) -> ClosedSizes | None:
    """Read the record of an orderly close; None if the log was not closed in order."""
    try:
        return document.load(storage, CLEAN, CLEAN_KIND, ClosedSizes)
    except FileNotFoundError:
        return None


def save_closed_sizes(storage: Storage, sizes: ClosedSizes) -> None:
    """Record that the log is being closed in order."""
    document.save(storage, CLEAN, CLEAN_KIND, sizes)


def lock_note(role: str) -> str:
    """Return the content of the lock file while this process has the lock."""
    started = time.strftime("%Y-%m-%dT%H:%M:%S")
    return f"pid {os.getpid()}, {role}, started {started}\n"
