"""Calls of a Broker as messages: one struct for each method.

As a Flight action, the class name is the action's type and the fields are the body (messages.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.cleaning import CleaningStatus
from strandline.changelog.flight.messages import FlightMessage
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
    partitions: list[TopicPartition]

    def run(self, broker: Broker) -> Any:
        return broker.offsets(self.partitions)


class OffsetForTime(Request, frozen=True):
    answer = int | None
    partition: TopicPartition
    timestamp: int
    isolation: Isolation

    def run(self, broker: Broker) -> int | None:
        return broker.offset_for_time(self.partition, self.timestamp, isolation=self.isolation)


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
    answer = list[CleaningStatus]

    def run(self, broker: Broker) -> Any:
        return broker.cleaning()


class HoldPin(Request, frozen=True):
    answer = dict[TopicPartition, PinnedRange]
    name: PinName
    ranges: dict[TopicPartition, PinnedRange]
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
    offsets: dict[TopicPartition, CommittedOffset]
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
    offsets: dict[TopicPartition, CommittedOffset | None]
    member_id: str = ""

    def run(self, broker: Broker) -> None:
        broker.commit_offsets(self.group, self.offsets, member_id=self.member_id)


class FetchOffsets(Request, frozen=True):
    answer = dict[TopicPartition, CommittedOffset]
    group: str
    partitions: list[TopicPartition] | None
    require_stable: bool

    def run(self, broker: Broker) -> dict[TopicPartition, CommittedOffset]:
        return broker.committed(self.group, self.partitions, require_stable=self.require_stable)


class ListGroups(Request, frozen=True):
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
    owned: list[TopicPartition]
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


REQUESTS: Mapping[str, type[Request]] = {kind.__name__: kind for kind in Request.__subclasses__()}
