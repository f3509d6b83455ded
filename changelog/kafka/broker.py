"""A Kafka cluster as a `changelog.broker.Broker`.

`KafkaBroker` only dispatches calls to its parts: topics, producers (producing, transactions),
offsets, fetching, groups, members.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

import pyarrow as pa

from strandline.changelog.cleaning import CleaningStatus
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.config import check_client_name
from strandline.changelog.errors import InvalidRequest, RebalanceInProgress, TransactionAborted
from strandline.changelog.extents import Extent, OffsetSpan
from strandline.changelog.forks import keep_in_child
from strandline.changelog.groups import Assignment, GroupInfo, GroupMember, Subscription
from strandline.changelog.kafka.address import check_files, parse_url
from strandline.changelog.kafka.connection import KafkaConnection
from strandline.changelog.kafka.coordinators import Coordinators
from strandline.changelog.kafka.fetching import KafkaConsumers
from strandline.changelog.kafka.groups import KafkaGroups
from strandline.changelog.kafka.member_directory import MemberDirectory
from strandline.changelog.kafka.members import Members
from strandline.changelog.kafka.metadata_consumer import MetadataConsumers
from strandline.changelog.kafka.offsets import KafkaOffsets
from strandline.changelog.kafka.producers import Producers
from strandline.changelog.kafka.producing import EARLIEST_MS
from strandline.changelog.kafka.topics import KafkaTopics
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

_BROKERS = "see kafka-configs.sh for the settings of its brokers"
_CLEANER = "its brokers clean by themselves, as their log.cleaner.… settings say"


def connect(url: str, *, clock: Clock | None = None) -> KafkaBroker:
    """Connect to the cluster at `url` (see `changelog.kafka.address`).

    Raises InvalidConfig, Unauthenticated, and OwnerUnavailable if no broker answers.
    """
    cluster = parse_url(url)
    check_files(cluster)
    return KafkaBroker(KafkaConnection(cluster, clock or SystemClock()))


class KafkaBroker:
    """Implements `changelog.broker.Broker`, which documents each call."""

    holds_columns = False
    """False: topics have no schema, values are bytes."""
    earliest_ms = EARLIEST_MS
    """Earliest timestamp of a record, in milliseconds since the epoch."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._topics = KafkaTopics(connection)
        self._metadata_consumers = MetadataConsumers(connection)
        self._offsets = KafkaOffsets(connection, self._topics, self._metadata_consumers)
        self._fetching = KafkaConsumers(connection, self._offsets)
        self._producers = Producers(connection, self._topics)
        self._coordinators = Coordinators(connection, self._metadata_consumers)
        self._groups = KafkaGroups(connection, self._topics, self._coordinators)
        directory = MemberDirectory(
            connection, self._topics, self._offsets, self._fetching, self._producers.write
        )
        self._members = Members(connection, self._topics, self._coordinators, directory)
        keep_in_child(self)

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
        self._connection.check_open()
        return self._topics.create(name, partitions, config or {}, schema, internal=internal)

    def delete_topic(self, name: str) -> None:
        self._connection.check_open()
        self._topics.delete(name)
        self._fetching.forget(name)

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        self._connection.check_open()
        return self._topics.alter(name, config or {}, partitions, schema)

    def topics(self) -> list[TopicInfo]:
        self._connection.check_open()
        return self._topics.all()

    def topic(self, name: str) -> TopicInfo:
        self._connection.check_open()
        return self._topics.describe(name)

    def describe_config(self) -> dict[str, str]:
        self._refuse("settings of the log as a whole", _BROKERS)

    def alter_config(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        self._refuse("settings of the log as a whole", _BROKERS)

    # The log --------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        self._connection.check_open()
        return self._producers.append(appends)

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 8 << 20,
        isolation: Isolation = "read_committed",
        timeout: float = 0.0,
    ) -> dict[TopicPartition, Fetched]:
        self._connection.check_open()
        return self._fetching.fetch(positions, isolation, timeout)

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        self._connection.check_open()
        return self._offsets.of(partitions)

    def offset_for_time(
        self,
        partition: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> int | None:
        self._connection.check_open()
        return self._fetching.offset_for_time(partition, timestamp, isolation)

    def extents(
        self, spans: Mapping[TopicPartition, OffsetSpan], *, extent_bytes: int
    ) -> dict[TopicPartition, list[Extent]]:
        """Return empty lists, because Kafka does not publish how large its records are."""
        self._connection.check_open()
        return {tp: [] for tp in spans}

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        self._connection.check_open()
        return self._offsets.delete_records(partition, before)

    def clean(self, topics: Collection[str] | None = None) -> None:
        self._refuse("asking for a cleaning", _CLEANER)

    def cleaning(self) -> list[CleaningStatus]:
        self._refuse("the state of cleaning", _CLEANER)

    @property
    def snapshots(self) -> None:
        return None

    @property
    def pins(self) -> None:
        """None: Kafka cannot keep records for readers."""

    # Producers and transactions -------------------------------------------------------

    def init_producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 10_000
    ) -> ProducerIdentity:
        self._connection.check_open()
        return self._producers.init(transactional_id, timeout_ms)

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
    ) -> None:
        self._connection.check_open()
        self._groups.check(group, offsets)
        offsets = self._groups.of_present(offsets, is_member=bool(member_id))
        member = self._members.of(group, member_id) if member_id else None
        if member and not offsets:
            # Kafka checks the membership only together with offsets.
            offsets = self._current_offsets(group, member.owned())
        metadata = member.metadata_for(offsets) if member else None
        if not offsets:
            return
        transactions = self._producers.transactions(producer)
        try:
            transactions.add_offsets(producer, group, offsets, metadata)
        except TransactionAborted as error:
            cause = error if isinstance(error, RebalanceInProgress) else error.__cause__
            if member is None or not isinstance(cause, RebalanceInProgress):
                raise
            # Until the member has the next generation, another commit would fail the same way.
            member.wait_for_generation(metadata)
            raise RebalanceInProgress(str(error)) from error

    def _current_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return a group's current offsets. Committing them again changes nothing.

        Without any, they are the log starts. Raises CoordinatorLoading while a transaction is about
        to change them, because they would be set back after it.
        """
        found = self._groups.committed(group, partitions, require_stable=True)
        if found:
            return found
        ends = self._offsets.of(partitions)
        return {tp: CommittedOffset(end.log_start) for tp, end in ends.items()}

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        self._connection.check_open()
        return self._producers.transactions(producer).end(producer, commit=commit)

    # Consumer groups ------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset | None],
        *,
        member_id: str = "",
    ) -> None:
        self._connection.check_open()
        if member_id:
            self._groups.commit_as(self._members.of(group, member_id), offsets)
        elif offsets:
            self._groups.commit(group, offsets)

    def committed(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        self._connection.check_open()
        return self._groups.committed(group, partitions, require_stable=require_stable)

    def groups(self) -> list[str]:
        self._connection.check_open()
        return self._groups.names()

    def describe_group(self, group: str) -> GroupInfo:
        self._connection.check_open()
        return self._members.describe(group)

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        self._connection.check_open()
        check_client_name("a group", group)
        return self._members.join(group, subscription)

    def heartbeat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        *,
        timeout: float = 0.0,
    ) -> Assignment:
        self._connection.check_open()
        return self._members.beat(member, call, seen, holds, timeout)

    def leave_group(self, *members: GroupMember) -> None:
        self._connection.check_process()
        for member in members:
            self._members.leave(member)

    def close(self) -> None:
        if not self._connection.closed and not self._connection.is_foreign:
            self._members.close()
            self._connection.closed = True
            self._producers.close()
            self._fetching.close()
            self._metadata_consumers.close()

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise InvalidRequest(
            f"{self._connection.cluster.name}: {what}: a Kafka cluster keeps that to itself; {instead}"
        )
