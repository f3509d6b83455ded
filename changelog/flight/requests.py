"""Calls of a Broker as messages: one struct for each method.

As a Flight action, the class name is the action's type and the fields are the body (messages.py).
`RequestBroker` makes the messages, at the client's side; the owner's side executes them by `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

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

T = TypeVar("T")

MAX_HEARTBEAT_WAIT_S = 5.0
"""Maximum seconds that a heartbeat of a group member may wait for a new assignment."""


class Request(FlightMessage, Generic[T], frozen=True):
    """Call that is answered by one small message of type T; the owner executes it by `run`."""

    paged: ClassVar[bool] = False
    """True if the result is a list that has no limit, and is sent in pages."""

    def run(self, broker: Broker) -> T:
        """Make the call on `broker` and return its result."""
        raise NotImplementedError


class CreateTopic(Request[TopicInfo], frozen=True):
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


class DeleteTopic(Request[None], frozen=True):
    name: str

    def run(self, broker: Broker) -> None:
        broker.delete_topic(self.name)


class AlterTopic(Request[TopicInfo], frozen=True):
    name: str
    config: dict[str, str | None] | None
    partitions: int | None
    schema: pa.Schema | None

    def run(self, broker: Broker) -> TopicInfo:
        return broker.alter_topic(
            self.name, config=self.config, partitions=self.partitions, schema=self.schema
        )


class ListTopics(Request[list[TopicInfo]], frozen=True):
    paged = True

    def run(self, broker: Broker) -> list[TopicInfo]:
        return broker.topics()


class DescribeTopic(Request[TopicInfo], frozen=True):
    name: str

    def run(self, broker: Broker) -> TopicInfo:
        return broker.topic(self.name)


class ListOffsets(Request[dict[TopicPartition, PartitionOffsets]], frozen=True):
    partitions: Partitions

    def run(self, broker: Broker) -> Any:
        return broker.offsets(self.partitions)


class OffsetForTime(Request[int | None], frozen=True):
    partition: TopicPartition
    timestamp: int
    isolation: Isolation

    def run(self, broker: Broker) -> int | None:
        return broker.offset_for_time(self.partition, self.timestamp, isolation=self.isolation)


class ListExtents(Request[dict[TopicPartition, list[Extent]]], frozen=True):
    spans: Annotated[dict[TopicPartition, OffsetSpan], BOUNDED]
    extent_bytes: int

    def run(self, broker: Broker) -> Any:
        return broker.extents(self.spans, extent_bytes=self.extent_bytes)


class DeleteRecords(Request[int], frozen=True):
    partition: TopicPartition
    before: int

    def run(self, broker: Broker) -> int:
        return broker.delete_records(self.partition, self.before)


class CleanTopics(Request[None], frozen=True):
    topics: list[str] | None

    def run(self, broker: Broker) -> None:
        broker.clean(self.topics)


class Cleaning(Request[list[CleaningStatus]], frozen=True):
    paged = True

    def run(self, broker: Broker) -> Any:
        return broker.cleaning()


class HoldPin(Request[dict[TopicPartition, PinnedRange]], frozen=True):
    name: PinName
    ranges: Annotated[dict[TopicPartition, PinnedRange], BOUNDED]
    timeout_ms: int

    def run(self, broker: Broker) -> dict[TopicPartition, PinnedRange]:
        return there(broker.pins).hold(self.name, self.ranges, timeout_ms=self.timeout_ms)


class UsePin(Request[dict[TopicPartition, PinnedRange]], frozen=True):
    name: PinName

    def run(self, broker: Broker) -> dict[TopicPartition, PinnedRange]:
        return there(broker.pins).use(self.name)


class ReleasePins(Request[None], frozen=True):
    holder: str
    until: str

    def run(self, broker: Broker) -> None:
        there(broker.pins).release(self.holder, self.until)


class TakeSnapshot(Request[str], frozen=True):
    def run(self, broker: Broker) -> str:
        return in_folder(broker.snapshots).take()


class ReleaseSnapshot(Request[None], frozen=True):
    name: str

    def run(self, broker: Broker) -> None:
        in_folder(broker.snapshots).release(self.name)


class InitProducer(Request[ProducerIdentity], frozen=True):
    transactional_id: str | None
    timeout_ms: int

    def run(self, broker: Broker) -> ProducerIdentity:
        return broker.init_producer(self.transactional_id, timeout_ms=self.timeout_ms)


class AddOffsets(Request[None], frozen=True):
    producer: ProducerIdentity
    group: str
    offsets: Annotated[dict[TopicPartition, CommittedOffset], BOUNDED]
    member_id: str = ""

    def run(self, broker: Broker) -> None:
        broker.add_offsets(self.producer, self.group, self.offsets, member_id=self.member_id)


class EndTransaction(Request[ProducerIdentity], frozen=True):
    producer: ProducerIdentity
    commit: bool

    def run(self, broker: Broker) -> ProducerIdentity:
        return broker.end_transaction(self.producer, commit=self.commit)


class CommitOffsets(Request[None], frozen=True):
    group: str
    offsets: Annotated[dict[TopicPartition, CommittedOffset | None], BOUNDED]
    member_id: str = ""

    def run(self, broker: Broker) -> None:
        broker.commit_offsets(self.group, self.offsets, member_id=self.member_id)


class FetchOffsets(Request[dict[TopicPartition, CommittedOffset]], frozen=True):
    group: str
    partitions: Partitions | None
    require_stable: bool

    def run(self, broker: Broker) -> dict[TopicPartition, CommittedOffset]:
        return broker.committed(self.group, self.partitions, require_stable=self.require_stable)


class ListGroups(Request[list[str]], frozen=True):
    paged = True

    def run(self, broker: Broker) -> list[str]:
        return broker.groups()


class DescribeGroup(Request[GroupInfo], frozen=True):
    group: str

    def run(self, broker: Broker) -> GroupInfo:
        return broker.describe_group(self.group)


class JoinGroup(Request[GroupMember], frozen=True):
    group: str
    subscription: Subscription

    def run(self, broker: Broker) -> GroupMember:
        return broker.join_group(self.group, self.subscription)


class Heartbeat(Request[Assignment], frozen=True):
    member: GroupMember
    call: int
    seen: int
    owned: Partitions
    timeout: float

    def run(self, broker: Broker) -> Assignment:
        timeout = max(0.0, min(self.timeout, MAX_HEARTBEAT_WAIT_S))  # it may be NaN
        return broker.heartbeat(self.member, self.call, self.seen, self.owned, timeout=timeout)


class LeaveGroup(Request[None], frozen=True):
    members: Annotated[list[GroupMember], BOUNDED]

    def run(self, broker: Broker) -> None:
        broker.leave_group(*self.members)


class DescribeConfig(Request[dict[str, str]], frozen=True):
    def run(self, broker: Broker) -> dict[str, str]:
        return broker.describe_config()


class AlterConfig(Request[dict[str, str]], frozen=True):
    changes: dict[str, str | None]

    def run(self, broker: Broker) -> dict[str, str]:
        return broker.alter_config(self.changes)


Ask = Callable[[Request[Any]], Any]
"""Sends a request to the owner of the log, and returns its answer."""
REQUESTS: Mapping[str, type[Request[Any]]] = {
    kind.__name__: kind for kind in Request.__subclasses__()
}


@cache
def answer_of(kind: type[Request[Any]]) -> Any:
    """Return the type of the answer to a request: the argument of its base class."""
    return get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]


class RequestBroker:
    """The calls of a Broker that are sent as one request each. Subclasses send them by `_ask`."""

    holds_columns = True
    earliest_ms = 0

    def _ask(self, request: Request[T], *, extra_s: float = 0.0) -> T:
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
        return self._ask(CreateTopic(name, partitions, given, schema, internal))

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
        return self._ask(AlterTopic(name, given, partitions, schema))

    def topics(self) -> list[TopicInfo]:
        return self._ask(ListTopics())

    def topic(self, name: str) -> TopicInfo:
        return self._ask(DescribeTopic(name))

    def describe_config(self) -> dict[str, str]:
        return self._ask(DescribeConfig())

    def alter_config(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        return self._ask(AlterConfig(dict(changes)))

    # The log --------------------------------------------------------------------------

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        return self._ask(ListOffsets(list(partitions)))

    def offset_for_time(
        self,
        partition: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> int | None:
        return self._ask(OffsetForTime(partition, timestamp, isolation))

    def extents(
        self, spans: Mapping[TopicPartition, OffsetSpan], *, extent_bytes: int
    ) -> dict[TopicPartition, list[Extent]]:
        return self._ask(ListExtents(dict(spans), extent_bytes))

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        return self._ask(DeleteRecords(partition, before))

    def clean(self, topics: Collection[str] | None = None) -> None:
        self._ask(CleanTopics(None if topics is None else list(topics)))

    def cleaning(self) -> list[CleaningStatus]:
        return self._ask(Cleaning())

    # Producers and transactions -------------------------------------------------------

    def init_producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 10_000
    ) -> ProducerIdentity:
        return self._ask(InitProducer(transactional_id, timeout_ms))

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
        return self._ask(EndTransaction(producer, commit))

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
        return self._ask(FetchOffsets(group, asked, require_stable))

    def groups(self) -> list[str]:
        return self._ask(ListGroups())

    def describe_group(self, group: str) -> GroupInfo:
        return self._ask(DescribeGroup(group))

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        return self._ask(JoinGroup(group, subscription))

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
        return self._ask(beat, extra_s=timeout)

    def leave_group(self, *members: GroupMember) -> None:
        self._ask(LeaveGroup(list(members)))
