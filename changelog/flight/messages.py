"""Every type that crosses the wire, as MessagePack, and the version of it all.

A client says `SessionHello` on its session stream, with its version first; the owner answers
`SessionWelcome`. From then on each call carries the session's id as a header. A request is a
struct named like the Broker's method; as a Flight action its class name is the action's type,
its fields the body. `FetchRequest` is a Flight ticket, or the body of LOCATE; `AppendHeader` and
`FetchedHeader` go with the batches (see batches.py), errors travel as `RemoteFailure` by type name and message.

Bodies are decoded into these types and nothing else: no pickles, bounded in size.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from strandline.changelog import errors
from strandline.changelog.decoding import converter, msgpack_decoder
from strandline.changelog.depth import check_msgpack
from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.producer_state import EndedTransaction
from strandline.changelog.embedded.view import RecordView
from strandline.changelog.errors import (
    UNREADABLE,
    InvalidRequest,
    OwnerUnavailable,
    StrandlineError,
)
from strandline.changelog.history import Epochs
from strandline.changelog.pins import PinName
from strandline.changelog.records import (
    Appended,
    Isolation,
    ProducerIdentity,
    TopicPartition,
)
from strandline.changelog.schema import read_schema

WIRE_VERSION = 2
MAX_MESSAGE = 16 << 20
"""Bytes of one encoded request, ticket or header."""
MAX_APPEND = 1 << 30
"""Bytes of all the batches of one append call."""
MAX_FETCH = 256 << 20
"""Bytes that one fetch may ask for; a single larger batch comes whole all the same."""
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
REMOTE_APPEND = "RemoteAppend"
"""Action that brings any append over TCP; its body is a SmallAppend."""
LOCATE = "Locate"
"""Action that asks where a fetch would find its records; answered by `Located`."""
HELLO = "Hello"
"""Action with which a client knocks, before it opens its session stream."""
GOODBYE = b"goodbye"
"""What the owner says on the session stream before it closes in order."""

T = TypeVar("T")
Positions = dict[TopicPartition, int]
Located = dict[TopicPartition, RecordView]


class SessionEnded(OwnerUnavailable):
    """The owner does not (any longer) know the session of a call; only a new connection helps."""


class FlightMessage(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages: arrays of fields, so a field may only be added at the end, with a default."""


class SessionHello(FlightMessage, frozen=True):
    """The first thing a client says. `version` stays the first field in every version."""

    version: int
    pid: int
    program: str


class SessionWelcome(FlightMessage, frozen=True):
    """The owner's answer to Hello."""

    version: int
    pid: int
    session: str
    locates: bool = False
    """Whether it answers LOCATE."""


class RemoteFailure(FlightMessage, frozen=True):
    """An error, by its type's name in changelog.errors."""

    kind: str
    message: str


class FetchRequest(FlightMessage, frozen=True):
    """Broker.fetch; the ticket of a DoGet, or the body of LOCATE."""

    positions: Positions
    max_bytes: int
    isolation: Isolation
    timeout: float
    pin: PinName | None = None
    """Of a DoGet: Pins.fetch instead, of each position."""


class AppendHeader(FlightMessage, frozen=True):
    """Goes with each batch to append."""

    topic: str
    partition: int
    schema: int
    """Number of the columns' schema in this stream."""
    producer: ProducerIdentity | None
    base_sequence: int
    transactional: bool
    schema_id: int


class AppendAnswer(FlightMessage, frozen=True):
    """Answers all the batches of one append call."""

    appended: list[Appended]


class FetchedState(FlightMessage, frozen=True):
    """One partition of a fetch's answer, apart from its batches."""

    topic: str
    partition: int
    next_offset: int
    log_start: int
    high_watermark: int
    last_stable_offset: int
    epochs: Epochs = ()


class FetchedHeader(FlightMessage, frozen=True):
    """Goes with each batch of a fetch's answer."""

    topic: str
    partition: int
    schema: int
    """Number of the columns' schema in this stream."""
    base_offset: int
    leader_epoch: int


class StreamHeader(FlightMessage, frozen=True):
    """The first message of a stream of batches: its schemas, and what is known before them."""

    schemas: list[pa.Schema]
    states: list[FetchedState] = []


class SmallAppend(FlightMessage, frozen=True):
    """A few small batches in one action: half the time of a stream, and a copy more."""

    schemas: list[pa.Schema]
    batches: list[tuple[AppendHeader, bytes]]
    """Each an IPC record-batch message."""


def encode(message: Any) -> bytes:
    """A message as MessagePack.

    >>> encode(RemoteFailure("DiskFull", "full"))
    b'\\x92\\xa8DiskFull\\xa4full'
    """
    return _ENCODER.encode(message)


def decode(body: Any, kind: Any, max_bytes: int = MAX_MESSAGE) -> Any:
    """A message of type `kind`. Raises InvalidRequest for anything else, or too much of it.

    >>> decode(b"\\x92\\xa8DiskFull\\xa4full", RemoteFailure)
    RemoteFailure(kind='DiskFull', message='full')
    """
    view = memoryview(body)
    if view.nbytes > max_bytes:
        raise InvalidRequest(
            f"a message of {view.nbytes:,} bytes is over the limit of {max_bytes:,}; "
            "ask for fewer partitions at a time"
        )
    try:
        check_msgpack(view)
        return _decoder(kind).decode(view)
    except (pa.ArrowException, *UNREADABLE) as error:
        raise InvalidRequest(f"cannot read a message as {kind}: {error}") from error


def check_version(hello: Any) -> SessionHello:
    """The Hello of a client that speaks our version; InvalidRequest for any other."""
    try:
        start = memoryview(hello)[:MAX_ERROR]
        check_msgpack(start)
        version = msgspec.msgpack.decode(start)[0]
    except (LookupError, TypeError, *UNREADABLE):
        version = None
    if version != WIRE_VERSION:
        raise InvalidRequest(
            f"the client speaks version {version} of the wire protocol, the log's owner version "
            f"{WIRE_VERSION}; run the same release of strandline in both"
        )
    return _as(SessionHello, decode(hello, SessionHello))


def failure_of(error: Exception) -> RemoteFailure:
    """How an error goes over the wire; one that is not ours goes as StrandlineError."""
    kind = type(error).__name__
    if _error_type(kind) is not type(error):
        return RemoteFailure(
            "StrandlineError", f"the log's owner failed: {kind}: {error}"[:MAX_ERROR]
        )
    return RemoteFailure(kind, str(error)[:MAX_ERROR])


def error_of(failure: RemoteFailure) -> StrandlineError:
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
        return AbortedTransactions(_ENDED(value))
    raise ValueError(f"expected the bytes of a {kind.__name__}, got a {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_wire)
_ENDED = converter(list[EndedTransaction])


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgpack_decoder(kind, dec_hook=_from_wire)
