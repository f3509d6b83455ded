"""Snapshots of an open log: all files, as a kill of the owner at one moment would leave them.

A snapshot is a folder of hard links, and a document. At its moment the locks of all partitions are
held, so no partition is appended to. The snapshot therefore contains a Prepare only together with
the records that were durable before it.

While the locks are held, only lists are made and producer snapshots linked. The other files are
linked afterwards, under the administration lock, because deleting a file needs that lock too. The
active segment belongs to the snapshot up to its size at that moment; later bytes of the linked file
do not.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Annotated

import msgspec

from strandline.changelog.embedded import document
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.folder import FOLDER_KIND, FolderMeta
from strandline.changelog.embedded.manifest import KIND as MANIFEST_KIND
from strandline.changelog.embedded.manifest import Count
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.errors import (
    NO_EFFECT_ERRORS,
    REPAIR,
    CorruptLog,
    InvalidRequest,
    StorageFailed,
)
from strandline.changelog.layout import (
    CATALOG,
    FOLDER_META,
    LOG_CONFIG,
    MANIFEST,
    SNAPSHOTS,
    snapshot_file,
    snapshot_folder,
    snapshot_link,
    snapshot_offset,
    topic_copy,
)
from strandline.changelog.storage import Storage

KIND = "snapshot"
LIFETIME_MS = 24 * 60 * 60 * 1000
"""Milliseconds after which a snapshot is removed if no client releases it."""
NAME = "[0-9a-f]{32}"
"""Pattern of the names of snapshots."""

_log = logging.getLogger("strandline")


class SnapshotFile(msgspec.Struct, kw_only=True):
    """A file of the log in a snapshot."""

    path: str
    """Path in the log folder."""
    size: Count = 0
    """Number of bytes that belong to the snapshot."""
    link: Annotated[str, msgspec.Meta(pattern=r"^[\w.-]*$")] = ""
    """Name of the link in the snapshot's folder; empty if `content` has the whole file."""
    content: bytes = b""
    closed: bool = False
    """True if no file of that path ever has another content."""


class Snapshot(msgspec.Struct, kw_only=True):
    """Document of a snapshot: its time, the log, and the files."""

    taken_ms: int
    log: FolderMeta
    files: list[SnapshotFile]

    @staticmethod
    def load(storage: Storage, name: str) -> Snapshot:
        """Load a snapshot in a log folder. Raises FileNotFoundError, CorruptLog, FutureFormat."""
        return document.load(storage, snapshot_file(name), KIND, Snapshot)


class KeptSnapshots:
    """Implements `changelog.snapshots.Snapshots`."""

    def __init__(
        self,
        context: LogContext,
        meta: FolderMeta,
        partitions: Callable[[], Iterable[Partition]],
        admin: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._context = context
        self._storage = context.storage
        self._meta = meta
        self._partitions = partitions
        self._admin = admin
        self._deadlines: dict[str, int] = {}
        """Steady time (ms) at which each snapshot times out."""
        for name in self._storage.list_dir(SNAPSHOTS):
            if re.fullmatch(NAME, name):  # left by an earlier owner; no client uses it any more
                self._remove(name)

    def take(self) -> str:
        with self._admin():
            name = self._context.clock.new_id()
            folder = snapshot_folder(name)
            try:
                self._storage.make_dir(folder)
                self._write(name, folder)
            except BaseException:
                with contextlib.suppress(StorageFailed):
                    self._remove(name)
                raise
            self._deadlines[name] = self._context.steady_ms() + LIFETIME_MS
            return name

    def release(self, name: str) -> None:
        if re.fullmatch(NAME, name) is None:
            raise InvalidRequest(f"a snapshot's name matches {NAME}, got {name!r}")
        with self._admin():
            self._remove(name)
            self._deadlines.pop(name, None)

    def tick(self) -> None:
        """Remove snapshots that were not released in time.

        The caller holds the administration lock.
        """
        now = self._context.steady_ms()
        for name in [name for name, deadline in self._deadlines.items() if deadline <= now]:
            try:
                self._remove(name)
                del self._deadlines[name]
            except StorageFailed as error:
                fields = {"snapshot": name, "error": error}
                _log.warning("removing snapshot %s: %s", *fields.values(), extra=fields)
                self._deadlines[name] = now + LIFETIME_MS

    def _remove(self, name: str) -> None:
        self._storage.remove_tree(snapshot_folder(name))

    def _write(self, name: str, folder: str) -> None:
        partitions = [partition for partition in self._partitions() if not partition.gate.retired]
        with contextlib.ExitStack() as held:
            for partition in partitions:
                held.enter_context(partition.lock)
            taken_ms = self._context.clock.now_ms()
            cuts = [_Cut(partition, folder) for partition in partitions if partition.segments]
        files = [*self._documents(partitions)]
        for cut in cuts:
            files += cut.linked()
        self._storage.sync_dir(folder)
        snapshot = Snapshot(taken_ms=taken_ms, log=self._meta, files=files)
        document.save(self._storage, snapshot_file(name), KIND, snapshot)

    def _documents(self, partitions: Iterable[Partition]) -> Iterator[SnapshotFile]:
        """Iterate over the documents of the log and its topics.

        They change only under the administration lock, which the caller holds.
        """
        yield SnapshotFile(path=FOLDER_META, content=document.encoded(FOLDER_KIND, self._meta))
        copies = {topic_copy(partition.topic_id): None for partition in partitions}
        for path in (CATALOG, LOG_CONFIG, *copies):
            with contextlib.suppress(FileNotFoundError):
                yield SnapshotFile(path=path, content=_whole(self._storage, path))


class _Cut:
    """The files of one partition at the moment of the snapshot. Its lock is held at creation."""

    def __init__(self, partition: Partition, folder: str) -> None:
        partition.gate.check()  # the files of a poisoned partition may hold anything
        self._storage = partition.context.storage
        self._inside = partition.folder
        self._folder = folder
        self._segments = [(one.name, one.size) for one in partition.segments]
        manifest = document.encoded(MANIFEST_KIND, partition.manifest)
        self._files = [SnapshotFile(path=f"{partition.folder}/{MANIFEST}", content=manifest)]
        for name in self._storage.list_dir(partition.folder):
            if snapshot_offset(name) is not None:  # linked now, because a roll removes older ones
                self._files.append(self._link(name))

    def linked(self) -> list[SnapshotFile]:
        """Link the segments' files into the snapshot's folder. Return all of its files."""
        *closed, active = self._segments
        for segment, size in closed:
            self._files.append(self._link(segment.log_file, size, closed=True))
            for name in (segment.index_file, segment.aborted_file):
                if self._storage.exists(f"{self._inside}/{name}"):  # if not, opening rebuilds it
                    self._files.append(self._link(name))
        self._files.append(self._link(active[0].log_file, active[1]))
        return self._files

    def _link(self, name: str, size: int | None = None, *, closed: bool = False) -> SnapshotFile:
        """Link a file of the partition.

        `size` is the number of bytes that belong to the snapshot, by default all of them.
        """
        path = f"{self._inside}/{name}"
        link = f"{self._folder}/{snapshot_link(path)}"
        try:
            self._storage.link(path, link)
        except FileNotFoundError as error:
            raise CorruptLog(f"{path}: the file is gone; {REPAIR}") from error
        except NO_EFFECT_ERRORS:
            raise
        except StorageFailed as error:
            raise StorageFailed(
                f"{error}; a backup of a log in use needs a file system with hard links. On other "
                "file systems stop all processes that use the log, and copy its folder"
            ) from error
        if size is None:
            with contextlib.closing(self._storage.open(link)) as file:
                size = file.size()
        return SnapshotFile(path=path, size=size, link=snapshot_link(path), closed=closed)


def _whole(storage: Storage, path: str) -> bytes:
    with contextlib.closing(storage.open(path)) as file:
        return bytes(file.read(0, file.size()))
