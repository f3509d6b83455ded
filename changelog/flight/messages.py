"""Every type that crosses the wire, as MessagePack, and the version of it all.

A client says `Hello` on its session stream, with its version first; the owner answers
`Welcome`. From then on each call carries the session's id as a header. A request is a
struct named like the Broker's method; as a Flight action its class name is the action's type,
its fields the body. `FetchRequest` is a Flight ticket, or the body of LOCATE; `AppendHeader` and
`FetchedHeader` go with the batches (see batches.py), errors travel as `Failure` by type name and message.

Bodies are decoded into these types and nothing else: no pickles, bounded in size.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec
import pyarrow as pa

from changelog import errors
from changelog.broker import Broker
from changelog.cleaning import CleaningStatus
from changelog.embedded.aborted import AbortedTransactions
from changelog.embedded.producer_state import EndedTransaction
from changelog.embedded.view import View
from changelog.errors import UNREADABLE, InvalidRequest, OwnerUnavailable, StrandlineError
from changelog.groups import Grant, GroupInfo, GroupMember, Subscription
from changelog.pins import PinName, PinnedRange
from changelog.records import (
    Appended,
    CommittedOffset,
    Isolation,
    PartitionOffsets,
    ProducerIdentity,
    TopicInfo,
    TopicPartition,
)
from changelog.schema import read_schema

WIRE_VERSION = 1
MAX_MESSAGE = 16 << 20
"""Bytes of one encoded request, ticket or header."""
MAX_APPEND = 1 << 30
"""Bytes of all the batches of one append call."""
MAX_FETCH = 256 << 20
"""Bytes that one fetch may ask for; a single larger batch comes whole all the same."""
MAX_BEAT_SECONDS = 5.0
"""How long a beat of a group's member may wait for something new."""
MAX_ERROR = 2_000
"""Characters of an error's message; it travels in a header."""

SESSION_HEADER = "strandline-session"
SESSION = b"session"
"""Descriptor of the session stream."""
APPEND = b"append"
"""Descriptor of a stream of batches to append."""
MAX_SMALL_APPEND = 32 << 10
"""Bytes of batches that go as a SmallAppend."""
SMALL_APPEND = "SmallAppend"
"""Action that brings one."""
LOCATE = "Locate"
"""Action that asks where a fetch would find its records; answered by `Located`."""
HELLO = "Hello"
"""Action with which a client knocks, before it opens its session stream."""
GOODBYE = b"goodbye"
"""What the owner says on the session stream before it closes in order."""

T = TypeVar("T")
Positions = dict[TopicPartition, int]
Located = dict[TopicPartition, View]


class SessionEnded(OwnerUnavailable):
    """The owner does not (any longer) know the session of a call; only a new connection helps."""


class Wire(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages: arrays of fields, so a field may only be added at the end, with a default."""


class Hello(Wire, frozen=True):
    """The first thing a client says. `version` stays the first field in every version."""

    version: int
    pid: int
    program: str


class Welcome(Wire, frozen=True):
    """The owner's answer to Hello."""

    version: int
    pid: int
    session: str
    locates: bool = False
    """Whether it answers LOCATE."""


class Failure(Wire, frozen=True):
    """An error, by its type's name in changelog.errors."""

    kind: str
    message: str


class FetchRequest(Wire, frozen=True):
    """Broker.fetch; the ticket of a DoGet, or the body of LOCATE."""

    positions: Positions
    max_bytes: int
    isolation: Isolation
    timeout: float
    pin: PinName | None = None
    """Of a DoGet: Pins.fetch instead, of each position."""


class AppendHeader(Wire, frozen=True):
    """Goes with each batch to append."""

    topic: str
    partition: int
    schema: int
    """Number of the columns' schema in this stream."""
    producer: ProducerIdentity | None
    base_sequence: int
    transactional: bool
    schema_id: int


class AppendAnswer(Wire, frozen=True):
    """Answers all the batches of one append call."""

    appended: list[Appended]


class FetchedState(Wire, frozen=True):
    """One partition of a fetch's answer, apart from its batches."""

    topic: str
    partition: int
    next_offset: int
    log_start: int
    high_watermark: int
    last_stable_offset: int


class FetchedHeader(Wire, frozen=True):
    """Goes with each batch of a fetch's answer."""

    topic: str
    partition: int
    schema: int
    """Number of the columns' schema in this stream."""
    base_offset: int
    leader_epoch: int


class StreamHeader(Wire, frozen=True):
    """The first message of a stream of batches: its schemas, and what is known before them."""

    schemas: list[pa.Schema]
    states: list[FetchedState] = []


class SmallAppend(Wire, frozen=True):
    """A few small batches in one action: half the time of a stream, and a copy more."""

    schemas: list[pa.Schema]
    batches: list[tuple[AppendHeader, bytes]]
    """Each an IPC record-batch message."""


class Request(Wire, frozen=True):
    """A call answered by one small message; `run` carries it out on the owner's side."""

    answer: ClassVar[Any]
    """Type of what `run` returns."""

    def run(self, broker: Broker) -> Any:
        """Ask the broker."""
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


class Topics(Request, frozen=True):
    answer = list[TopicInfo]

    def run(self, broker: Broker) -> list[TopicInfo]:
        return broker.topics()


class Topic(Request, frozen=True):
    answer = TopicInfo
    name: str

    def run(self, broker: Broker) -> TopicInfo:
        return broker.topic(self.name)


class Offsets(Request, frozen=True):
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


class Clean(Request, frozen=True):
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
        return broker.pins.hold(self.name, self.ranges, timeout_ms=self.timeout_ms)


class UsePin(Request, frozen=True):
    answer = dict[TopicPartition, PinnedRange]
    name: PinName

    def run(self, broker: Broker) -> dict[TopicPartition, PinnedRange]:
        return broker.pins.use(self.name)


class ReleasePins(Request, frozen=True):
    answer = type(None)
    holder: str
    until: str

    def run(self, broker: Broker) -> None:
        broker.pins.release(self.holder, self.until)


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


class Committed(Request, frozen=True):
    answer = dict[TopicPartition, CommittedOffset]
    group: str
    partitions: list[TopicPartition] | None
    require_stable: bool

    def run(self, broker: Broker) -> dict[TopicPartition, CommittedOffset]:
        return broker.committed(self.group, self.partitions, require_stable=self.require_stable)


class Groups(Request, frozen=True):
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


class BeatGroup(Request, frozen=True):
    answer = Grant
    member: GroupMember
    call: int
    seen: int
    holds: list[TopicPartition]
    timeout: float

    def run(self, broker: Broker) -> Grant:
        timeout = max(0.0, min(self.timeout, MAX_BEAT_SECONDS))  # it may be no number
        return broker.beat_group(self.member, self.call, self.seen, self.holds, timeout=timeout)


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


def encode(message: Any) -> bytes:
    """A message as MessagePack.

    >>> encode(Topic("flights"))
    b'\\x91\\xa7flights'
    """
    return _ENCODER.encode(message)


def decode(body: Any, kind: Any) -> Any:
    """A message of type `kind`. Raises InvalidRequest for anything else, or too much of it.

    >>> decode(b"\\x91\\xa7flights", Topic)
    Topic(name='flights')
    """
    view = memoryview(body)
    if view.nbytes > MAX_MESSAGE:
        raise InvalidRequest(
            f"a message of {view.nbytes:,} bytes is over the limit of {MAX_MESSAGE:,}; "
            "ask for fewer partitions at a time"
        )
    try:
        return _decoder(kind).decode(view)
    except (pa.ArrowException, *UNREADABLE) as error:
        raise InvalidRequest(f"cannot read a message as {kind}: {error}") from error


def check_version(hello: Any) -> Hello:
    """The Hello of a client that speaks our version; InvalidRequest for any other."""
    try:
        version = msgspec.msgpack.decode(memoryview(hello)[:MAX_ERROR])[0]
    except (LookupError, TypeError, *UNREADABLE):
        version = None
    if version != WIRE_VERSION:
        raise InvalidRequest(
            f"the client speaks version {version} of the wire protocol, the log's owner version "
            f"{WIRE_VERSION}; run the same release of strandline in both"
        )
    return _as(Hello, decode(hello, Hello))


def failure_of(error: Exception) -> Failure:
    """How an error goes over the wire; one that is not ours goes as StrandlineError."""
    kind = type(error).__name__
    if _error_type(kind) is not type(error):
        return Failure("StrandlineError", f"the log's owner failed: {kind}: {error}"[:MAX_ERROR])
    return Failure(kind, str(error)[:MAX_ERROR])


def error_of(failure: Failure) -> StrandlineError:
    """The error to raise on the client's side."""
    kind = _error_type(failure.kind)
    if kind is None:
        return StrandlineError(f"{failure.kind}: {failure.message}")
    return kind(failure.message)


def _error_type(name: str) -> type[StrandlineError] | None:
    if name == SessionEnded.__name__:
        return SessionEnded
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, StrandlineError) else None


def _as(kind: type[T], value: Any) -> T:
    assert isinstance(value, kind)
    return value


def _to_wire(value: Any) -> Any:
    if isinstance(value, pa.Schema):
        return value.serialize().to_pybytes()
    if isinstance(value, AbortedTransactions):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__index__"):
        return value.__index__()
    raise TypeError(f"cannot send a {type(value).__name__}: {value!r}")


def _from_wire(kind: type, value: Any) -> Any:
    if kind is pa.Schema and isinstance(value, bytes):
        return read_schema(value)
    if kind is AbortedTransactions:
        return AbortedTransactions(msgspec.convert(value, list[EndedTransaction]))
    raise ValueError(f"expected the bytes of a {kind.__name__}, got a {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_wire)


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_from_wire)
