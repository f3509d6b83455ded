"""The parts of a log folder that this process owns, opened, ticked and closed together."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence

from strandline.changelog.clock import Clock
from strandline.changelog.embedded import folder
from strandline.changelog.embedded.cleaning.schedule import Cleaners
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.coordinator import Coordinator
from strandline.changelog.embedded.folder_watch import FolderWatch
from strandline.changelog.embedded.groups.groups import GroupCoordinator
from strandline.changelog.embedded.maintenance import LogMaintenance, sync_quietly
from strandline.changelog.embedded.offsets import GroupOffsets
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.pins import KeptPins
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.embedded.snapshots import KeptSnapshots
from strandline.changelog.embedded.syncing import sync_all
from strandline.changelog.embedded.ticker import Ticker
from strandline.changelog.embedded.topic import OpenTopic, TopicCatalog
from strandline.changelog.embedded.transaction_log import TransactionLog
from strandline.changelog.errors import (
    NO_EFFECT_ERRORS,
    FolderLost,
    InvalidConfig,
    OwnerUnavailable,
)
from strandline.changelog.layout import (
    CLEAN,
    CONSUMER_OFFSETS,
    LOCK,
    TOPICS,
    TRANSACTION_STATE,
)
from strandline.changelog.records import (
    TopicPartition,
)
from strandline.changelog.storage import Durability, Storage

_log = logging.getLogger("strandline")


class OpenFolder:
    """An open log folder.

    Args:
        storage: The log folder. It is created if it does not exist.
        clock: Source of time and random identifiers.
        durability: See `Owner`.
        background: True starts a thread that calls `tick`.
        role: Name of this process in the lock file.

    Raises:
        LogLocked, CorruptLog, FutureFormat, StorageFailed: As `Owner` describes.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        durability: Durability,
        *,
        background: bool,
        role: str,
    ) -> None:
        if durability not in ("fsync", "os"):
            raise InvalidConfig(f"durability is 'fsync' or 'os', got {durability!r}")
        self.context = LogContext(storage, clock, durability)
        self._watch = FolderWatch(self.context)
        self._background = background
        self._closed = False
        self._pid = os.getpid()
        """Process that opened the log. A forked child must not use it."""
        self._admin_lock = threading.RLock()
        """Serializes changes of topics and settings, and the deletion of files."""
        storage.make_dir("")
        self._lock = storage.lock(LOCK, folder.lock_note(role), whole=True)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        self.ticking = Ticker(self.tick) if background else None
        """Thread that calls `tick`; without one, the caller does, and a fetch does not wait."""

    def _open(self) -> None:
        context, storage = self.context, self.context.storage
        self.meta = folder.folder_meta(context)
        closed = folder.closed_sizes(storage)
        storage.sync_dir("")  # make the names found durable before anything depends on them
        storage.check(TOPICS)  # and from now on with each check
        context.config = folder.log_config(storage)
        self.catalog = TopicCatalog(context, closed)
        self.maintenance = LogMaintenance(context, self.catalog)
        self.cleaners = Cleaners(context, self.catalog, self._schedule_delete, self._background)
        self.pins = KeptPins(context, self.partition, self.admin)
        self.snapshots = KeptSnapshots(context, self.meta, self.partitions, self.admin)
        # Removed before the first append, because a stale record of an orderly close would vouch
        # for segment sizes that are no longer right.
        storage.unlink(CLEAN)
        storage.sync_dir("")
        offsets = GroupOffsets(self._system_partition(CONSUMER_OFFSETS), self.catalog.has_id)
        log = TransactionLog(self._system_partition(TRANSACTION_STATE))
        self.coordinator = Coordinator(context, log, offsets.ended)
        self.coordinator.recover(
            self.catalog.partition_by_id, self.partitions, is_new_copy=self.meta.is_new_copy
        )
        folder.note_recovered(storage, self.meta)
        offsets.load()  # after recovery, which has ended all open transactions
        self.offsets = offsets
        self.groups = GroupCoordinator(context.clock, self._partition_count)

    def _partition_count(self, topic: str) -> int:
        return len(self.catalog.get(topic).partitions) if self.catalog.has(topic) else 0

    def _system_partition(self, name: str) -> Partition:
        """Return the partition of an internal topic, which the first opening creates."""
        if not self.catalog.has(name):
            config = {"cleanup.policy": "compact"}
            self.catalog.create(name, 1, config, None, internal=True)
        return self.catalog.get(name).partition(0)

    def partitions(self) -> Iterator[Partition]:
        return (partition for topic in self.catalog for partition in topic.partitions)

    def close(self) -> None:
        """Make everything durable, record the orderly close, and release the folder's lock."""
        if self._closed:
            return
        self._closed = True
        if self.ticking is not None:
            self.ticking.stop()
        self.cleaners.stop()
        try:
            if not self._watch.finds_loss(self.partitions()):
                self._close_in_order()
        except (*NO_EFFECT_ERRORS, FolderLost) as error:
            message = "the log is closed, and the next opening runs recovery: %s"
            _log.warning(message, error, extra={"error": error})
        finally:
            self.context.pool.shutdown()
            self.context.notifier.notify()
            self._lock.release()

    def _close_in_order(self) -> None:
        """Make all partitions durable, and record their sizes if nothing has failed.

        An append that began before the close may go on until its partition is shut, and may write a
        partition's first segment. So the sizes are taken afterwards, of all partitions.
        """
        try:
            self.coordinator.close()
            self.maintenance.delete_all()
        finally:
            synced = self.context.in_parallel(sync_quietly, self._written())
            for partition in self.partitions():
                partition.shut()
            written = self._written()
            # After an orderly close the next opening takes the manifests as durable, and removes
            # files that they do not list. If a save has failed, the close must not be recorded.
            known = all(partition.is_known for partition in self.partitions())
        if known and all(synced) and all(p.log_end == p.synced_end for p in written):
            sizes = {partition.folder: partition.segments[-1].size for partition in written}
            folder.save_closed_sizes(self.context.storage, sizes)

    def _written(self) -> list[Partition]:
        return [partition for partition in self.partitions() if partition.segments]

    def tick(self) -> None:
        """Do the periodic work that is due.

        It covers transaction timeouts, durable markers, group members, retention, pins, snapshots
        and cleaning.
        """
        if self._watch.finds_loss(self.partitions()):
            return
        self.coordinator.tick()
        self.groups.tick()
        # Makes the records of open transactions durable, so that read_uncommitted readers see them.
        sync_all(self.context, [p for p in self.partitions() if p.synced_end < p.log_end])
        with self._admin_lock:
            self.maintenance.tick()
            self.pins.tick()
            self.snapshots.tick()
        self.cleaners.tick()

    def _schedule_delete(self, topic: OpenTopic, segments: Sequence[Segment]) -> None:
        with self._admin_lock:
            self.maintenance.schedule_delete(topic, segments)

    @contextlib.contextmanager
    def admin(self) -> Iterator[None]:
        """Hold the administration lock. Raises OwnerUnavailable if the log is closed."""
        self.check_open()
        with self._admin_lock:
            yield

    def partition(self, tp: TopicPartition) -> Partition:
        return self.catalog.get(tp.topic).partition(tp.partition)

    def check_open(self) -> None:
        """Raise OwnerUnavailable if the log is closed or this process was forked, or FolderLost."""
        if os.getpid() != self._pid:
            raise OwnerUnavailable(
                "this process was forked from the log's owner, which alone may use it; open the "
                "log again with changelog.open, which attaches"
            )
        if self._closed:
            raise OwnerUnavailable("this log is closed; open it again with changelog.open")
        self._watch.check()
