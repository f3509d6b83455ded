"""The owner of a log folder: the one process that appends to the log.

The owner has the folder's lock, the topic catalog, the transaction coordinator and the committed
offsets. It serves `Broker` calls directly. `changelog.flight` forwards the calls of attached
processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from strandline.changelog.cleaning import CleaningStatus, check_deletes_records
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.embedded import reading, retention
from strandline.changelog.embedded.admission import admitted, identity_of
from strandline.changelog.embedded.context import Seen
from strandline.changelog.embedded.extents import extents_of
from strandline.changelog.embedded.offsets import located
from strandline.changelog.embedded.open_folder import OpenFolder
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.readings import log_readings
from strandline.changelog.embedded.syncing import begin_epochs, sync_all
from strandline.changelog.embedded.topic import OpenTopic
from strandline.changelog.embedded.view import RecordView
from strandline.changelog.errors import (
    InvalidTopic,
)
from strandline.changelog.extents import Extent, OffsetSpan
from strandline.changelog.groups import (
    Assignment,
    GroupInfo,
    GroupMember,
    Subscription,
    check_commit,
)
from strandline.changelog.layout import (
    SYSTEM_TOPICS,
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

T = TypeVar("T")


MAX_UNCHANGED_POLLS = 64
"""Maximum number of polls whose empty results are kept."""


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
        self._log = OpenFolder(
            storage, clock or SystemClock(), durability, background=background, role=role
        )
        self._unchanged: dict[object, Seen[Any]] = {}
        """Latest results of polls that have found nothing new."""
        self.pins = self._log.pins
        self.snapshots = self._log.snapshots

    # Opening and closing --------------------------------------------------------------

    def tick(self) -> None:
        """Do the periodic work that is due: transaction timeouts, group members, retention, ….

        Without a background thread the caller calls it.
        """
        self._log.tick()

    def close(self) -> None:
        """Make everything durable, record the orderly close, and release the folder's lock."""
        self._log.close()

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
        with self._log.admin():
            return self._log.catalog.create(
                name, partitions, config or {}, schema, internal=internal
            ).info()

    def delete_topic(self, name: str) -> None:
        with self._log.admin():
            self._refuse_system(name, "delete")
            self._log.catalog.delete(name)
            for group, partitions in self._log.offsets.of_topic(name).items():
                self._commit_offsets(group, dict.fromkeys(partitions))

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        with self._log.admin():
            if partitions is not None:
                self._refuse_system(name, "add partitions to")
            return self._log.catalog.alter(name, config, partitions, schema).info()

    def topics(self) -> list[TopicInfo]:
        self._log.check_open()
        return sorted((topic.info() for topic in self._log.catalog), key=lambda info: info.name)

    def topic(self, name: str) -> TopicInfo:
        self._log.check_open()
        return self._log.catalog.get(name).info()

    def describe_config(self) -> dict[str, str]:
        self._log.check_open()
        return dict(self._log.context.config.given)

    def alter_config(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        with self._log.admin():
            return dict(self._log.catalog.alter_log(changes).given)

    @staticmethod
    def _refuse_system(name: str, doing: str) -> None:
        if name in SYSTEM_TOPICS:
            raise InvalidTopic(f"cannot {doing} {name!r}: it belongs to the log itself")

    # The log --------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        self._log.check_open()
        appended: list[Appended] = []
        plain: dict[Partition, None] = {}
        with self._log.context.traffic:
            begin_epochs(self._log.context, self._log.partition, appends)
            try:
                for request in appends:
                    topic = self._log.catalog.get(request.topic)
                    partition = topic.partition(request.partition)
                    appended.append(self._append(topic, partition, request))
                    if not request.transactional:
                        plain[partition] = None
            finally:  # even after an error, because earlier requests are in the log already
                self._sync(plain)
        return appended

    def _append(self, topic: OpenTopic, partition: Partition, request: Append) -> Appended:
        self._refuse_system(request.topic, "append to")
        payload = admitted(topic, request, self._log.context.clock.now_ms())
        producer = request.producer
        joined: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if request.transactional:
            joined = self._log.coordinator.joined(identity_of(producer), partition)
        with joined:
            return partition.append(
                payload, producer, request.base_sequence, transactional=request.transactional
            )

    def _sync(self, partitions: Collection[Partition]) -> None:
        if partitions:
            for error in sync_all(self._log.context, partitions).values():
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
            partition = self._log.partition(tp)
            return reading.fetch(partition, offset, max_bytes=max_bytes, isolation=isolation)

        key = "fetch", isolation, tuple(positions.items())
        return self._poll(key, positions, fetch, lambda one: bool(one.batches), timeout)

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
            partition = self._log.partition(tp)
            return reading.view(partition, offset, max_bytes=max_bytes, isolation=isolation)

        key = "locate", isolation, tuple(positions.items())
        return self._poll(key, positions, locate, lambda view: bool(view.pieces), timeout)

    def _poll(
        self,
        key: object,
        positions: Mapping[TopicPartition, int],
        look: Callable[[TopicPartition, int], T],
        is_new: Callable[[T], bool],
        timeout: float,
    ) -> dict[TopicPartition, T]:
        """Return what `look` finds in each partition, once something new is found.

        It waits up to `timeout` seconds, and not at all without a background thread. A repeated
        call that has found nothing costs almost nothing while the log does not change: its result
        is kept by `key`, which says what is looked at. So idle readers of a thousand partitions are
        cheap (the aim of Kafka's fetch sessions, KIP-227).
        """

        def look_at_all() -> dict[TopicPartition, T]:
            self._log.check_open()
            return {tp: look(tp, offset) for tp, offset in positions.items()}

        def any_new(found: dict[TopicPartition, T]) -> bool:
            return any(map(is_new, found.values()))

        self._log.check_open()
        seconds = timeout if self._log.ticking else 0.0
        seen = self._log.context.poll_until(
            look_at_all, any_new, seconds, self._unchanged.pop(key, None)
        )
        if not seen.is_new:
            if len(self._unchanged) >= MAX_UNCHANGED_POLLS:
                self._unchanged.clear()
            self._unchanged[key] = seen
        found: dict[TopicPartition, T] = seen.found
        return found

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        self._log.check_open()
        return {tp: self._log.partition(tp).offsets() for tp in partitions}

    def offset_for_time(
        self,
        partition: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> int | None:
        self._log.check_open()
        return reading.offset_for_time(
            self._log.partition(partition), timestamp, isolation=isolation
        )

    def extents(
        self, spans: Mapping[TopicPartition, OffsetSpan], *, extent_bytes: int
    ) -> dict[TopicPartition, list[Extent]]:
        self._log.check_open()
        return extents_of(self._log.partition, spans, extent_bytes)

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        with self._log.admin():
            self._refuse_system(partition.topic, "delete records of")
            topic, log = self._log.catalog.get(partition.topic), self._log.partition(partition)
            check_deletes_records(partition.topic, topic.config)
            self._log.maintenance.schedule_delete(topic, retention.delete_records(log, before))
            return log.log_start

    def clean(self, topics: Collection[str] | None = None) -> None:
        self._log.check_open()
        self._log.cleaners.request(topics)

    def cleaning(self) -> list[CleaningStatus]:
        self._log.check_open()
        return self._log.cleaners.status()

    # Producers and transactions -------------------------------------------------------

    def init_producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 10_000
    ) -> ProducerIdentity:
        self._log.check_open()
        return self._log.coordinator.init_producer(transactional_id, timeout_ms)

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
    ) -> None:
        self._log.check_open()
        if not offsets and not member_id:
            return
        check_commit(group, offsets)
        located = {tp: at for tp, at in self._located(offsets).items() if at is not None}
        check = partial(self._log.groups.check_commit, group, member_id, located)
        with self._log.coordinator.joined(producer, self._log.offsets.partition, check):
            owned = () if offsets else self._log.groups.held(group, member_id)
            self._log.offsets.add(producer, group, located, owned)

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        self._log.check_open()
        with self._log.context.traffic:
            return self._log.coordinator.end(producer, commit=commit)

    # Consumer groups ------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset | None],
        *,
        member_id: str = "",
    ) -> None:
        self._log.check_open()
        if offsets:
            check_commit(group, offsets)
            self._log.groups.check_commit(group, member_id, offsets)
            if located := self._located(offsets):
                self._commit_offsets(group, located)

    def _commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | None]
    ) -> None:
        with self._log.context.traffic:
            changes = self._log.offsets.write(group, offsets)
            self._sync([self._log.offsets.partition])
            self._log.offsets.apply(
                changes
            )  # after the fsync: an offset that clients see is durable

    def committed(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        self._log.check_open()
        return self._log.offsets.committed(group, partitions, require_stable=require_stable)

    def groups(self) -> list[str]:
        self._log.check_open()
        return sorted({*self._log.offsets.groups(), *self._log.groups.names()})

    def describe_group(self, group: str) -> GroupInfo:
        self._log.check_open()
        return self._log.groups.info(group)

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        self._log.check_open()
        return self._log.groups.join(group, subscription)

    def heartbeat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        *,
        timeout: float = 0.0,
    ) -> Assignment:
        self._log.check_open()
        return self._log.groups.beat(
            member, call, seen, holds, timeout if self._log.ticking else 0.0
        )

    def leave_group(self, *members: GroupMember) -> None:
        self._log.check_open()
        self._log.groups.leave(members)

    def metrics(self) -> list[MetricReading]:
        """Return counters since the opening, and gauges of the present state."""
        counters, open_ = self._log.context.counters, self._log.coordinator.open_transactions
        return [*log_readings(self._log.catalog, counters, open_), *self._log.cleaners.readings()]

    def _located(
        self, offsets: Mapping[TopicPartition, CommittedOffset | None]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return offsets with their topics and histories, without those of deleted topics.

        An offset of a topic that was created again since must not replace one of the new topic.
        """
        found: dict[TopicPartition, CommittedOffset | None] = {}
        for tp, offset in offsets.items():
            if offset is None:  # also of a topic that does not exist any more
                found[tp] = None
                continue
            ends = self._log.partition(tp).offsets()
            if offset.topic_id in ("", ends.topic_id):
                found[tp] = located(tp, offset, ends)
        return found
