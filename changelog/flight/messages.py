"""All message types of the wire protocol, their encoding (MessagePack) and the protocol's version.

A client sends `SessionHello` on its session stream, with its version first, and the owner answers
`SessionWelcome`. After that each call carries the session's id in a header. A request is a struct
that corresponds to a method of Broker. As a Flight action, its class name is the action's type and
its fields are the body. `FetchRequest` is a Flight ticket, or the body of LOCATE. `AppendHeader`
and `FetchedHeader` accompany batches (batches.py). Errors are sent as `RemoteFailure`, by type name
and message.

Bodies are limited in size and decoded into these types only, without pickle.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
import pyarrow as pa

from strandline.changelog import errors
from strandline.changelog.arrow_messages import FieldBudget
from strandline.changelog.config import MAX_PARTITIONS
from strandline.changelog.decoding import converter, msgpack_value, unchecked_msgpack_decoder
from strandline.changelog.depth import check_msgpack
from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.view import RecordView
from strandline.changelog.errors import (
    UNREADABLE,
    InvalidRequest,
    OwnerUnavailable,
    StrandlineError,
)
from strandline.changelog.history import Epochs
from strandline.changelog.pins import PinName
from strandline.changelog.producer_state import EndedTransaction
from strandline.changelog.records import (
    Appended,
    Isolation,
    ProducerIdentity,
    TopicPartition,
)
from strandline.changelog.schema import read_schema

WIRE_VERSION = 2
MAX_MESSAGE_BYTES = 16 << 20
"""Maximum number of bytes of one encoded request, ticket or header."""
MAX_REQUEST_FIELDS = 1 << 17
"""Maximum number of fields of all schemas in one request, including nested fields."""
MAX_APPEND_BYTES = 1 << 30
"""Maximum number of bytes of all batches of one append call."""
MAX_FETCH_BYTES = 256 << 20
"""Maximum number of bytes of one fetch; a single larger batch is sent whole nevertheless."""
MAX_CALL_PARTITIONS = 4 * MAX_PARTITIONS
"""Maximum number of partitions that one call names: a message may have many more, and decoding them
would stop all other calls for seconds."""
MAX_ANSWER_BYTES = 256 << 20
"""Maximum number of bytes of one encoded answer, page or header of the owner."""
PAGE_BYTES = 4 << 20
"""Number of bytes after which a list is continued in another page."""
MAX_ERROR_CHARS = 2_000
"""Maximum number of characters of an error's message, because it is sent in a header."""

SESSION_HEADER = "strandline-session"
SESSION = b"session"
"""Descriptor of the session stream; over TCP the beginning of its ticket, before the hello."""
APPEND = b"append"
"""Descriptor of a stream of batches to append."""
MAX_SMALL_APPEND_BYTES = 32 << 10
"""Maximum number of bytes of batches that are sent as a SmallAppend instead of a stream."""
SMALL_APPEND = "SmallAppend"
"""Action whose body is a SmallAppend."""
REMOTE_APPEND = "RemoteAppend"
"""Action for larger appends over TCP; its body is a SmallAppend too."""
LOCATE = "Locate"
"""Action that returns where a fetch finds its records, as `Located`."""
HELLO = "Hello"
"""Action by which a client tests the connection before it opens its session stream."""
GOODBYE = b"goodbye"
"""Message that the owner sends on the session stream before an orderly close."""

T = TypeVar("T")
BOUNDED = msgspec.Meta(max_length=MAX_CALL_PARTITIONS)
"""Bound of a list or mapping of partitions, before it is decoded."""
Partitions = Annotated[list[TopicPartition], BOUNDED]
"""Partitions that a call asks about."""
Positions = Annotated[dict[TopicPartition, int], BOUNDED]
Located = dict[TopicPartition, RecordView]


class SessionEnded(OwnerUnavailable):
    """The owner does not know the session of a call; the client must connect again."""


class FlightMessage(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages.

    A message is encoded as an array of its fields, so a new field must be the last one and needs a
    default.
    """


class SessionHello(FlightMessage, frozen=True):
    """First message of a client. `version` is the first field in every version of the protocol."""

    version: int
    pid: int
    program: str


class SessionWelcome(FlightMessage, frozen=True):
    """Owner's answer to SessionHello."""

    version: int
    pid: int
    session: str
    locates: bool = False
    """True if the owner answers LOCATE."""


class RemoteFailure(FlightMessage, frozen=True):
    """An error, by the name of its type in changelog.errors."""

    kind: str
    message: str


class FetchRequest(FlightMessage, frozen=True):
    """Call of Broker.fetch: the ticket of a DoGet, or the body of LOCATE."""

    positions: Positions
    max_bytes: int
    isolation: Isolation
    timeout: float
    pin: PinName | None = None
    """Pin from which a DoGet reads each position, by Pins.fetch; None for Broker.fetch."""


class AppendHeader(FlightMessage, frozen=True):
    """Header of each batch to append."""

    topic: str
    partition: int
    schema: int
    """Number of the columns' schema in this stream."""
    producer: ProducerIdentity | None
    base_sequence: int
    transactional: bool
    schema_id: int


class AppendAnswer(FlightMessage, frozen=True):
    """Answer to all batches of one append call."""

    appended: list[Appended]


class FetchedState(FlightMessage, frozen=True):
    """State of one partition in a fetch's answer, without its batches."""

    topic: str
    partition: int
    next_offset: int
    log_start: int
    high_watermark: int
    last_stable_offset: int
    epochs: Epochs = ()
    topic_id: str = ""


class FetchedHeader(FlightMessage, frozen=True):
    """Header of each batch of a fetch's answer."""

    topic: str
    partition: int
    schema: int
    """Number of the columns' schema in this stream."""
    base_offset: int
    leader_epoch: int


class StreamHeader(FlightMessage, frozen=True):
    """First message of a stream of batches: all schemas, and the states of fetched partitions."""

    schemas: list[pa.Schema]
    states: list[FetchedState] = []


class SmallAppend(FlightMessage, frozen=True):
    """All batches of an append in one action.

    For small batches it takes half the time of a stream, at the cost of one more memory copy.
    """

    schemas: list[pa.Schema]
    batches: Annotated[list[tuple[AppendHeader, bytes]], BOUNDED]
    """Header and IPC record-batch message of each batch."""


def encode(message: Any) -> bytes:
    """Return a message as MessagePack. Raises InvalidRequest for text that is not Unicode.

    >>> encode(RemoteFailure("DiskFull", "full"))
    b'\\x92\\xa8DiskFull\\xa4full'
    """
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{error.object[:100]!r} has a lone surrogate, which is no text; a name that is not UTF-8 is "
            "decoded to that"
        ) from error


def encode_pages(items: Sequence[Any]) -> list[bytes]:
    """Return a list as several messages, so that none is too large; at least one.

    >>> encode_pages(["a", "b"])
    [b'\\x92\\xa1a\\xa1b']
    """
    pages: list[list[msgspec.Raw]] = [[]]
    size = 0
    for item in items:
        encoded = encode(item)
        if pages[-1] and size + len(encoded) > PAGE_BYTES:
            pages.append([])
            size = 0
        pages[-1].append(msgspec.Raw(encoded))
        size += len(encoded)
    return [encode(page) for page in pages]


def decode(body: Any, kind: Any, max_bytes: int = MAX_MESSAGE_BYTES) -> Any:
    """Return the message of type `kind` in `body`.

    Raises InvalidRequest if `body` is anything else or has more than `max_bytes`.

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


def decode_answer(body: Any, kind: Any) -> Any:
    """Return the message of an owner, which the client has authenticated.

    Its limit is that of a fetch, because a topic of an earlier release may have a large schema.
    Raises InvalidRequest, as `decode`.
    """
    return decode(body, kind, MAX_ANSWER_BYTES)


def decode_request(body: Any, kind: Any, max_bytes: int = MAX_MESSAGE_BYTES) -> Any:
    """Return the message of a client, whose schemas have at most MAX_REQUEST_FIELDS fields.

    Raises InvalidRequest, as `decode`.
    """
    _request.fields = FieldBudget(MAX_REQUEST_FIELDS)
    try:
        return decode(body, kind, max_bytes)
    finally:
        _request.fields = None


def check_version(hello: Any) -> SessionHello:
    """Return a client's hello. Raises InvalidRequest if it has another protocol version."""
    try:
        start = memoryview(hello)[:MAX_ERROR_CHARS]
        version = msgpack_value(start)[0]
    except (LookupError, TypeError, *UNREADABLE):
        version = None
    if version != WIRE_VERSION:
        raise InvalidRequest(
            f"the client speaks version {version} of the wire protocol, the log's owner version "
            f"{WIRE_VERSION}; run the same release of strandline in both"
        )
    return _as(SessionHello, decode(hello, SessionHello))


def failure_of(error: Exception) -> RemoteFailure:
    """Return the message for an error; unknown types are sent as StrandlineError."""
    # The path of the log's folder may have characters that stand for bytes which are not UTF-8.
    kind, text = type(error).__name__, str(error).encode(errors="backslashreplace").decode()
    if _error_type(kind) is not type(error):
        return RemoteFailure(
            "StrandlineError", f"the log's owner failed: {kind}: {text}"[:MAX_ERROR_CHARS]
        )
    return RemoteFailure(kind, text[:MAX_ERROR_CHARS])


def error_of(failure: RemoteFailure) -> StrandlineError:
    """Return the error that the client raises for a failure of the owner, or of a worker.

    The text is cut again, because a member of a group that pretends to be a worker may send any.
    """
    kind, text = _error_type(failure.kind), failure.message[:MAX_ERROR_CHARS]
    if kind is None:
        return StrandlineError(f"{failure.kind[:MAX_ERROR_CHARS]}: {text}")
    return kind(text)


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
        return read_schema(value, _request.fields)
    if kind is AbortedTransactions:
        return AbortedTransactions(_ENDED(value))
    raise ValueError(f"expected the bytes of a {kind.__name__}, got a {type(value).__name__}")


class _Request(threading.local):
    """Request that the current thread is decoding."""

    fields: FieldBudget | None = None
    """Number of fields that the rest of the request may have; None for an answer."""


_request = _Request()
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_wire)
_ENDED = converter(list[EndedTransaction])


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return unchecked_msgpack_decoder(kind, dec_hook=_from_wire)
