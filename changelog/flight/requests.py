"""Calls of a Broker as messages: one struct for each method.

As a Flight action, the class name is the action's type and the fields are the body (messages.py).
`RequestBroker` makes the messages, at the client's side; the owner's side executes them by `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, ClassVar

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.cleaning import CleaningStatus
from strandline.changelog.extents import Extent, OffsetSpan
from strandline.changelog.flight.messages import BOUNDED, FlightMessage, Partitions
from strandline.changelog.groups import Assignment, GroupInfo, GroupMember, Subscription
from strandline.changelog.pins import PinName, PinnedRange, there
from strandline.changelog.records import (
    CommittedOffset,
    Isolation,
    PartitionOffsets,
    ProducerIdentity,
    TopicInfo,
    TopicPartition,
)
from strandline.changelog.snapshots import in_folder

MAX_HEARTBEAT_WAIT_S = 5.0
"""Maximum seconds that a heartbeat of a group member may wait for a new assignment."""


class Request(FlightMessage, frozen=True):
    """Call that is answered by one small message; the owner executes it by `run`."""

    answer: ClassVar[Any]
    """Type of the result of `run`."""
    paged: ClassVar[bool] = False
    """True if the result is a list that has no limit, and is sent in pages."""

    def run(self, broker: Broker) -> Any:
        """Make the call on `broker` and return its result."""
        raise NotImplementedError


class CreateTopic(Request, frozen=True):
    answer = TopicInfo
    name: str
    partitions: int
    config: dict[str, str] | None
    schema: pa.Schema | None
    internal: bool

    def run(self, broker: Broker) -> TopicInfo:
        return broker.create_topic(
            self.name,
            self.partitions,
            config=self.config,
            schema=self.schema,
            internal=self.internal,
        )


class DeleteTopic(Request, frozen=True):
    answer = type(None)
    name: str

    def run(self, broker: Broker) -> None:
        broker.delete_topic(self.name)


class AlterTopic(Request, frozen=True):
    answer = TopicInfo
    name: str
    config: dict[str, str | None] | None
    partitions: int | None
    schema: pa.Schema | None

    def run(self, broker: Broker) -> TopicInfo:
        return broker.alter_topic(
            self.name, config=self.config, partitions=self.partitions, schema=self.schema
        )


class ListTopics(Request, frozen=True):
    paged = True
    answer = list[TopicInfo]

    def run(self, broker: Broker) -> list[TopicInfo]:
        return broker.topics()


class DescribeTopic(Request, frozen=True):
    answer = TopicInfo
    name: str

    def run(self, broker: Broker) -> TopicInfo:
        return broker.topic(self.name)


class ListOffsets(Request, frozen=True):
    answer = dict[TopicPartition, PartitionOffsets]
    partitions: Partitions

    def run(self, broker: Broker) -> Any:
        return broker.offsets(self.partitions)


class OffsetForTime(Request, frozen=True):
    answer = int | None
    partition: TopicPartition
    timestamp: int
    isolation: Isolation

    def run(self, broker: Broker) -> int | None:
        return broker.offset_for_time(self.partition, self.timestamp, isolation=self.isolation)


class ListExtents(Request, frozen=True):
    answer = dict[TopicPartition, list[Extent]]
    spans: Annotated[dict[TopicPartition, OffsetSpan], BOUNDED]
    extent_bytes: int

    def run(self, broker: Broker) -> Any:
        return broker.extents(self.spans, extent_bytes=self.extent_bytes)


class DeleteRecords(Request, frozen=True):
    answer = int
    partition: TopicPartition
    before: int

    def run(self, broker: Broker) -> int:
        return broker.delete_records(self.partition, self.before)


class CleanTopics(Request, frozen=True):
    answer = type(None)
    topics: list[str] | None

    def run(self, broker: Broker) -> None:
        broker.clean(self.topics)


class Cleaning(Request, frozen=True):
    paged = True
    answer = list[CleaningStatus]

    def run(self, broker: Broker) -> Any:
        return broker.cleaning()


class HoldPin(Request, frozen=True):
    answer = dict[TopicPartition, PinnedRange]
    name: PinName
    ranges: Annotated[dict[TopicPartition, PinnedRange], BOUNDED]
    timeout_ms: int

    def run(self, broker: Broker) -> dict[TopicPartition, PinnedRange]:
        return there(broker.pins).hold(self.name, self.ranges, timeout_ms=self.timeout_ms)


class UsePin(Request, frozen=True):
    answer = dict[TopicPartition, PinnedRange]
    name: PinName

    def run(self, broker: Broker) -> dict[TopicPartition, PinnedRange]:
        return there(broker.pins).use(self.name)


class ReleasePins(Request, frozen=True):
    answer = type(None)
    holder: str
    until: str

    def run(self, broker: Broker) -> None:
        there(broker.pins).release(self.holder, self.until)


class TakeSnapshot(Request, frozen=True):
    answer = str

    def run(self, broker: Broker) -> str:
        return in_folder(broker.snapshots).take()


class ReleaseSnapshot(Request, frozen=True):
    answer = type(None)
    name: str

    def run(self, broker: Broker) -> None:
        in_folder(broker.snapshots).release(self.name)


class InitProducer(Request, frozen=True):
    answer = ProducerIdentity
    transactional_id: str | None
    timeout_ms: int

    def run(self, broker: Broker) -> ProducerIdentity:
        return broker.init_producer(self.transactional_id, timeout_ms=self.timeout_ms)


class AddOffsets(Request, frozen=True):
    answer = type(None)
    producer: ProducerIdentity
    group: str
    offsets: Annotated[dict[TopicPartition, CommittedOffset], BOUNDED]
    member_id: str = ""

    def run(self, broker: Broker) -> None:
        broker.add_offsets(self.producer, self.group, self.offsets, member_id=self.member_id)


class EndTransaction(Request, frozen=True):
    answer = ProducerIdentity
    producer: ProducerIdentity
    commit: bool

    def run(self, broker: Broker) -> ProducerIdentity:
        return broker.end_transaction(self.producer, commit=self.commit)


class CommitOffsets(Request, frozen=True):
    answer = type(None)
    group: str
    offsets: Annotated[dict[TopicPartition, CommittedOffset | None], BOUNDED]
    member_id: str = ""

    def run(self, broker: Broker) -> None:
        broker.commit_offsets(self.group, self.offsets, member_id=self.member_id)


class FetchOffsets(Request, frozen=True):
    answer = dict[TopicPartition, CommittedOffset]
    group: str
    partitions: Partitions | None
    require_stable: bool

    def run(self, broker: Broker) -> dict[TopicPartition, CommittedOffset]:
        return broker.committed(self.group, self.partitions, require_stable=self.require_stable)


class ListGroups(Request, frozen=True):
    paged = True
    answer = list[str]

    def run(self, broker: Broker) -> list[str]:
        return broker.groups()


class DescribeGroup(Request, frozen=True):
    answer = GroupInfo
    group: str

    def run(self, broker: Broker) -> GroupInfo:
        return broker.describe_group(self.group)


class JoinGroup(Request, frozen=True):
    answer = GroupMember
    group: str
    subscription: Subscription

    def run(self, broker: Broker) -> GroupMember:
        return broker.join_group(self.group, self.subscription)


class Heartbeat(Request, frozen=True):
    answer = Assignment
    member: GroupMember
    call: int
    seen: int
    owned: Partitions
    timeout: float

    def run(self, broker: Broker) -> Assignment:
        timeout = max(0.0, min(self.timeout, MAX_HEARTBEAT_WAIT_S))  # it may be NaN
        return broker.heartbeat(self.member, self.call, self.seen, self.owned, timeout=timeout)


class LeaveGroup(Request, frozen=True):
    answer = type(None)
    member: GroupMember

    def run(self, broker: Broker) -> None:
        broker.leave_group(self.member)


class DescribeConfig(Request, frozen=True):
    answer = dict[str, str]

    def run(self, broker: Broker) -> dict[str, str]:
        return broker.describe_config()


class AlterConfig(Request, frozen=True):
    answer = dict[str, str]
    changes: dict[str, str | None]

    def run(self, broker: Broker) -> dict[str, str]:
        return broker.alter_config(self.changes)


Ask = Callable[[Request], Any]
"""Sends a request to the owner of the log, and returns its answer."""
REQUESTS: Mapping[str, type[Request]] = {kind.__name__: kind for kind in Request.__subclasses__()}


class RequestBroker:
    """The calls of a Broker that are sent as one request each. Subclasses send them by `_ask`."""

    holds_columns = True
    earliest_ms = 0

    def _ask(self, request: Request, *, extra_s: float = 0.0) -> Any:
        """Return the answer to a request, which may take `extra_s` seconds longer than others."""
        raise NotImplementedError

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
        given = None if config is None else dict(config)
        created: TopicInfo = self._ask(CreateTopic(name, partitions, given, schema, internal))
        return created

    def delete_topic(self, name: str) -> None:
        self._ask(DeleteTopic(name))

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        given = None if config is None else dict(config)
        altered: TopicInfo = self._ask(AlterTopic(name, given, partitions, schema))
        return altered

    def topics(self) -> list[TopicInfo]:
        found: list[TopicInfo] = self._ask(ListTopics())
        return found

    def topic(self, name: str) -> TopicInfo:
        found: TopicInfo = self._ask(DescribeTopic(name))
        return found

    def describe_config(self) -> dict[str, str]:
        given: dict[str, str] = self._ask(DescribeConfig())
        return given

    def alter_config(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        given: dict[str, str] = self._ask(AlterConfig(dict(changes)))
        return given

    # The log --------------------------------------------------------------------------

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        found: dict[TopicPartition, PartitionOffsets] = self._ask(ListOffsets(list(partitions)))
        return found

    def offset_for_time(
        self,
        partition: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> int | None:
        found: int | None = self._ask(OffsetForTime(partition, timestamp, isolation))
        return found

    def extents(
        self, spans: Mapping[TopicPartition, OffsetSpan], *, extent_bytes: int
    ) -> dict[TopicPartition, list[Extent]]:
        found: dict[TopicPartition, list[Extent]] = self._ask(
            ListExtents(dict(spans), extent_bytes)
        )
        return found

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        start: int = self._ask(DeleteRecords(partition, before))
        return start

    def clean(self, topics: Collection[str] | None = None) -> None:
        self._ask(CleanTopics(None if topics is None else list(topics)))

    def cleaning(self) -> list[CleaningStatus]:
        statuses: list[CleaningStatus] = self._ask(Cleaning())
        return statuses

    # Producers and transactions -------------------------------------------------------

    def init_producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 10_000
    ) -> ProducerIdentity:
        identity: ProducerIdentity = self._ask(InitProducer(transactional_id, timeout_ms))
        return identity

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
    ) -> None:
        self._ask(AddOffsets(producer, group, dict(offsets), member_id))

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        identity: ProducerIdentity = self._ask(EndTransaction(producer, commit))
        return identity

    # Consumer groups ------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset | None],
        *,
        member_id: str = "",
    ) -> None:
        self._ask(CommitOffsets(group, dict(offsets), member_id))

    def committed(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        asked = None if partitions is None else list(partitions)
        found: dict[TopicPartition, CommittedOffset] = self._ask(
            FetchOffsets(group, asked, require_stable)
        )
        return found

    def groups(self) -> list[str]:
        found: list[str] = self._ask(ListGroups())
        return found

    def describe_group(self, group: str) -> GroupInfo:
        found: GroupInfo = self._ask(DescribeGroup(group))
        return found

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        member: GroupMember = self._ask(JoinGroup(group, subscription))
        return member

    def heartbeat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        *,
        timeout: float = 0.0,
    ) -> Assignment:
        beat = Heartbeat(member, call, seen, list(holds), timeout)
        assignment: Assignment = self._ask(beat, extra_s=timeout)
        return assignment

    def leave_group(self, member: GroupMember) -> None:
        self._ask(LeaveGroup(member))
