"""The owner of a log folder: the one process that appends to the log.

The owner has the folder's lock, the topic catalog, the transaction coordinator and the committed
offsets. It serves `Broker` calls directly. `changelog.flight` forwards the calls of attached
processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from strandline.changelog.cleaning import CleaningStatus
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.embedded import folder, reading, retention
from strandline.changelog.embedded.admission import admitted, identity_of
from strandline.changelog.embedded.cleaning.schedule import Cleaners
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.coordinator import Coordinator
from strandline.changelog.embedded.folder_watch import FolderWatch
from strandline.changelog.embedded.groups.groups import GroupCoordinator
from strandline.changelog.embedded.maintenance import LogMaintenance, sync_quietly
from strandline.changelog.embedded.offsets import GroupOffsets, located
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.pins import KeptPins
from strandline.changelog.embedded.readings import log_readings
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.embedded.snapshots import KeptSnapshots
from strandline.changelog.embedded.syncing import begin_epochs, sync_all
from strandline.changelog.embedded.ticker import Ticker
from strandline.changelog.embedded.topic import OpenTopic, TopicCatalog
from strandline.changelog.embedded.transaction_log import TransactionLog
from strandline.changelog.embedded.view import RecordView
from strandline.changelog.errors import (
    NO_EFFECT_ERRORS,
    FolderLost,
    InvalidConfig,
    InvalidTopic,
    OwnerUnavailable,
)
from strandline.changelog.groups import (
    Assignment,
    GroupInfo,
    GroupMember,
    Subscription,
    check_commit,
)
from strandline.changelog.layout import (
    CLEAN,
    CONSUMER_OFFSETS,
    LOCK,
    SYSTEM_TOPICS,
    TRANSACTION_STATE,
)
from strandline.changelog.metrics import MetricReading
from strandline.changelog.records import (
    Append,
    Appended,
    CommittedOffset,
    Fetched,
    Isolation,
    PartitionOffsets,
    ProducerIdentity,
    TopicInfo,
    TopicPartition,
)
from strandline.changelog.storage import Durability, Storage

_log = logging.getLogger("strandline")

T = TypeVar("T")


class Owner:
    """An open log in a folder. Implements Broker.

    Args:
        storage: The log folder. It is created if it does not exist.
        clock: Source of time and random identifiers; by default the system's.
        durability: "fsync": an acknowledged append survives a power cut. "os": it survives `kill
            -9`.
        background: With False no thread is started: the caller calls `tick`, and a fetch does not
            wait.
        role: Name of this process in the lock file.

    Raises:
        LogLocked: Another process owns the folder.
        CorruptLog: A file does not hold what was written to it.
        FutureFormat: A later version of Strandline wrote the folder.
        StorageFailed: The file system refused an operation.
    """

    holds_columns = True
    earliest_ms = 0

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        background: bool = True,
        role: str = "owner",
    ) -> None:
        if durability not in ("fsync", "os"):
            raise InvalidConfig(f"durability is 'fsync' or 'os', got {durability!r}")
        self._environment = LogContext(storage, clock or SystemClock(), durability)
        self._watch = FolderWatch(self._environment)
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
        self._ticking = Ticker(self.tick) if background else None

    # Opening and closing --------------------------------------------------------------

    def _open(self) -> None:
        environment, storage = self._environment, self._environment.storage
        self.meta = folder.folder_meta(environment)
        closed = folder.closed_sizes(storage)
        storage.sync_dir("")  # make the names found durable before anything depends on them
        environment.config = folder.log_config(storage)
        self._catalog = TopicCatalog(environment, closed)
        self._maintenance = LogMaintenance(environment, self._catalog)
        self._cleaners = Cleaners(
            environment, self._catalog, self._schedule_delete, self._background
        )
        self.pins = KeptPins(environment, self._partition, self._admin)
        self.snapshots = KeptSnapshots(environment, self.meta, self._partitions, self._admin)
        # Removed before the first append, because a stale record of an orderly close would vouch
        # for segment sizes that are no longer right.
        storage.unlink(CLEAN)
        storage.sync_dir("")
        offsets = GroupOffsets(self._system_partition(CONSUMER_OFFSETS), self._catalog.has_id)
        log = TransactionLog(self._system_partition(TRANSACTION_STATE))
        self._coordinator = Coordinator(environment, log, offsets.ended)
        self._coordinator.recover(self._catalog.partition_by_id, self._partitions)
        offsets.load()  # after recovery, which has ended all open transactions
        self._offsets = offsets
        self._groups = GroupCoordinator(environment.clock, self._partition_count)

    def _partition_count(self, topic: str) -> int:
        return len(self._catalog.get(topic).partitions) if self._catalog.has(topic) else 0

    def _system_partition(self, name: str) -> Partition:
        """Return the partition of an internal topic, which the first opening creates."""
        if not self._catalog.has(name):
            config = {"cleanup.policy": "compact"}
            self._catalog.create(name, 1, config, None, internal=True)
        return self._catalog.get(name).partition(0)

    def _partitions(self) -> Iterator[Partition]:
        return (partition for topic in self._catalog for partition in topic.partitions)

    def close(self) -> None:
        """Make everything durable, record the orderly close, and release the folder's lock."""
        if self._closed:
            return
        self._closed = True
        if self._ticking is not None:
            self._ticking.stop()
        self._cleaners.stop()
        try:
            if not self._watch.finds_loss(self._partitions()):
                self._close_in_order()
        except (*NO_EFFECT_ERRORS, FolderLost) as error:
            message = "the log is closed, and the next opening runs recovery: %s"
            _log.warning(message, error, extra={"error": error})
        finally:
            self._environment.pool.shutdown()
            self._environment.notifier.notify()
            self._lock.release()

    def _close_in_order(self) -> None:
        """Make all partitions durable, and record their sizes if nothing has failed."""
        written = [partition for partition in self._partitions() if partition.segments]
        try:
            self._coordinator.close()
            self._maintenance.delete_all()
        finally:
            synced = self._environment.in_parallel(sync_quietly, written)
            # After an orderly close the next opening takes the manifests as durable, and removes
            # files that they do not list. If a save has failed, the close must not be recorded.
            known = all(partition.is_known for partition in self._partitions())
            for partition in self._partitions():
                partition.shut()
        if known and all(synced) and all(p.log_end == p.synced_end for p in written):
            sizes = {partition.folder: partition.segments[-1].size for partition in written}
            folder.save_closed_sizes(self._environment.storage, sizes)

    def tick(self) -> None:
        """Do the periodic work that is due.

        It covers transaction timeouts, durable markers, group members, retention, pins, snapshots
        and cleaning.
        """
        if self._watch.finds_loss(self._partitions()):
            return
        self._coordinator.tick()
        self._groups.tick()
        # Makes the records of open transactions durable, so that read_uncommitted readers see them.
        sync_all(self._environment, [p for p in self._partitions() if p.synced_end < p.log_end])
        with self._admin_lock:
            self._maintenance.tick()
            self.pins.tick()
            self.snapshots.tick()
        self._cleaners.tick()

    def _schedule_delete(self, topic: OpenTopic, segments: Sequence[Segment]) -> None:
        with self._admin_lock:
            self._maintenance.schedule_delete(topic, segments)

    # Topics ---------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        schema: pa.Schema | None = None,
        internal: bool = False,
    ) -> TopicInfo:
        with self._admin():
            return self._catalog.create(
                name, partitions, config or {}, schema, internal=internal
            ).info()

    def delete_topic(self, name: str) -> None:
        with self._admin():
            self._refuse_system(name, "delete")
            self._catalog.delete(name)
            for group, partitions in self._offsets.of_topic(name).items():
                self._commit_offsets(group, dict.fromkeys(partitions))

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        with self._admin():
            if partitions is not None:
                self._refuse_system(name, "add partitions to")
            return self._catalog.alter(name, config, partitions, schema).info()

    def topics(self) -> list[TopicInfo]:
        self._check_open()
        return sorted((topic.info() for topic in self._catalog), key=lambda info: info.name)

    def topic(self, name: str) -> TopicInfo:
        self._check_open()
        return self._catalog.get(name).info()

    def describe_config(self) -> dict[str, str]:
        self._check_open()
        return dict(self._environment.config.given)

    def alter_config(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        with self._admin():
            return dict(self._catalog.alter_log(changes).given)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[None]:
        """Hold the administration lock. Raises OwnerUnavailable if the log is closed."""
        self._check_open()
        with self._admin_lock:
            yield

    @staticmethod
    def _refuse_system(name: str, doing: str) -> None:
        if name in SYSTEM_TOPICS:
            raise InvalidTopic(f"cannot {doing} {name!r}: it belongs to the log itself")

    # The log --------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        self._check_open()
        appended: list[Appended] = []
        plain: dict[Partition, None] = {}
        with self._environment.traffic:
            begin_epochs(self._environment, self._partition, appends)
            try:
                for request in appends:
                    topic = self._catalog.get(request.topic)
                    partition = topic.partition(request.partition)
                    appended.append(self._append(topic, partition, request))
                    if not request.transactional:
                        plain[partition] = None
            finally:  # even after an error, because earlier requests are in the log already
                self._sync(plain)
        return appended

    def _append(self, topic: OpenTopic, partition: Partition, request: Append) -> Appended:
        self._refuse_system(request.topic, "append to")
        payload = admitted(topic, request, self._environment.clock.now_ms())
        producer = request.producer
        joined: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if request.transactional:
            joined = self._coordinator.joined(identity_of(producer), partition)
        with joined:
            return partition.append(
                payload, producer, request.base_sequence, transactional=request.transactional
            )

    def _sync(self, partitions: Collection[Partition]) -> None:
        if partitions:
            for error in sync_all(self._environment, partitions).values():
                raise error

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 8 << 20,
        isolation: Isolation = "read_committed",
        timeout: float = 0.0,
    ) -> dict[TopicPartition, Fetched]:
        def fetch(tp: TopicPartition, offset: int) -> Fetched:
            partition = self._partition(tp)
            return reading.fetch(partition, offset, max_bytes=max_bytes, isolation=isolation)

        return self._poll(positions, fetch, lambda one: bool(one.batches), timeout)

    def locate(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int,
        isolation: Isolation,
        timeout: float,
    ) -> dict[TopicPartition, RecordView]:
        """Return views of the records that a fetch would return.

        Attached processes read the files themselves by these views. If no partition has anything
        new, the call waits up to `timeout` seconds. Raises what `fetch` raises.
        """

        def locate(tp: TopicPartition, offset: int) -> RecordView:
            partition = self._partition(tp)
            return reading.view(partition, offset, max_bytes=max_bytes, isolation=isolation)

        return self._poll(positions, locate, lambda view: bool(view.pieces), timeout)

    def _poll(
        self,
        positions: Mapping[TopicPartition, int],
        look: Callable[[TopicPartition, int], T],
        is_new: Callable[[T], bool],
        timeout: float,
    ) -> dict[TopicPartition, T]:
        """Return what `look` finds in each partition, once something new is found.

        It waits up to `timeout` seconds, and not at all without a background thread.
        """

        def look_at_all() -> dict[TopicPartition, T]:
            self._check_open()
            return {tp: look(tp, offset) for tp, offset in positions.items()}

        seconds = timeout if self._ticking else 0.0
        return self._environment.poll_until(
            look_at_all, lambda found: any(map(is_new, found.values())), seconds
        )

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        self._check_open()
        return {tp: self._partition(tp).offsets() for tp in partitions}

    def offset_for_time(
        self,
        partition: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> int | None:
        self._check_open()
        return reading.offset_for_time(self._partition(partition), timestamp, isolation=isolation)

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        with self._admin():
            self._refuse_system(partition.topic, "delete records of")
            log = self._partition(partition)
            self._maintenance.schedule_delete(
                self._catalog.get(partition.topic), retention.delete_records(log, before)
            )
            return log.log_start

    def clean(self, topics: Collection[str] | None = None) -> None:
        self._check_open()
        self._cleaners.request(topics)

    def cleaning(self) -> list[CleaningStatus]:
        self._check_open()
        return self._cleaners.status()

    def _partition(self, tp: TopicPartition) -> Partition:
        return self._catalog.get(tp.topic).partition(tp.partition)

    # Producers and transactions -------------------------------------------------------

    def init_producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 10_000
    ) -> ProducerIdentity:
        self._check_open()
        return self._coordinator.init_producer(transactional_id, timeout_ms)

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
    ) -> None:
        self._check_open()
        if not offsets and not member_id:
            return
        check_commit(group, offsets)
        located = {tp: self._located(tp, offset) for tp, offset in offsets.items()}
        check = partial(self._groups.check_commit, group, member_id, located)
        with self._coordinator.joined(producer, self._offsets.partition, check):
            owned = () if located else self._groups.held(group, member_id)
            self._offsets.add(producer, group, located, owned)

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        self._check_open()
        with self._environment.traffic:
            return self._coordinator.end(producer, commit=commit)

    # Consumer groups ------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset | None],
        *,
        member_id: str = "",
    ) -> None:
        self._check_open()
        if offsets:
            check_commit(group, offsets)
            self._groups.check_commit(group, member_id, offsets)
            located = {tp: offset and self._located(tp, offset) for tp, offset in offsets.items()}
            self._commit_offsets(group, located)

    def _commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | None]
    ) -> None:
        with self._environment.traffic:
            changes = self._offsets.write(group, offsets)
            self._sync([self._offsets.partition])
            self._offsets.apply(changes)  # after the fsync: an offset that clients see is durable

    def committed(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        self._check_open()
        return self._offsets.committed(group, partitions, require_stable=require_stable)

    def groups(self) -> list[str]:
        self._check_open()
        return sorted({*self._offsets.groups(), *self._groups.names()})

    def describe_group(self, group: str) -> GroupInfo:
        self._check_open()
        return self._groups.info(group)

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        self._check_open()
        return self._groups.join(group, subscription)

    def heartbeat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        *,
        timeout: float = 0.0,
    ) -> Assignment:
        self._check_open()
        return self._groups.beat(member, call, seen, holds, timeout if self._ticking else 0.0)

    def leave_group(self, member: GroupMember) -> None:
        self._check_open()
        self._groups.leave(member)

    def metrics(self) -> list[MetricReading]:
        """Return counters since the opening, and gauges of the present state."""
        counters, open_ = self._environment.counters, self._coordinator.open_transactions
        return [*log_readings(self._catalog, counters, open_), *self._cleaners.readings()]

    def _located(self, tp: TopicPartition, offset: CommittedOffset) -> CommittedOffset:
        return located(tp, offset, self._partition(tp).offsets())

    def _check_open(self) -> None:
        """Raise OwnerUnavailable if the log is closed or this process was forked, or FolderLost."""
        if os.getpid() != self._pid:
            raise OwnerUnavailable(
                "this process was forked from the log's owner, which alone may use it; open the "
                "log again with changelog.open, which attaches"
            )
        if self._closed:
            raise OwnerUnavailable("this log is closed; open it again with changelog.open")
        self._watch.check()
