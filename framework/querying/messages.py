"""All message types between a client and a worker, and their frames.

A frame is a length (4 bytes, big-endian) and that many bytes of MessagePack. Over TCP both sides
first prove that they know the token (`changelog.flight.hello`). Then a client sends `QueryHello` and
receives `QueryWelcome`. After that, each request has one answer, or a `QueryFailure`. Bodies are decoded into
these types only. A size is checked before memory is allocated, and memory is allocated for received
bytes and not for announced ones.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple

import msgspec

from strandline.changelog.decoding import unchecked_msgpack_decoder
from strandline.changelog.depth import check_msgpack
from strandline.changelog.errors import UNREADABLE, InvalidRequest
from strandline.changelog.history import UNKNOWN_EPOCH
from strandline.framework.peers import AT_ONCE_BYTES, Deadline, receive

WIRE_VERSION = 3
HEAD_BYTES = 4
"""Number of bytes of a frame's length."""
MAX_HELLO_BYTES = 4_096
"""Maximum number of bytes of a message before authentication."""
REQUEST_SECONDS = 10.0
"""Seconds for a message from its first byte on, in addition to size / MIN_BYTES_PER_S."""
MIN_BYTES_PER_S = 1 << 20
"""Minimum bytes per second at which a large message must be sent or received."""
MAX_REQUEST_BYTES = 4 << 20
"""Maximum number of bytes of a request."""
MAX_PARTITIONS = 10_000
"""Maximum number of partitions in one request."""
MAX_NAMES = 10_000
"""Maximum number of inputs, and of aggregates, in the description of a store."""
MAX_ANSWER_BYTES = 1 << 30
"""Maximum number of bytes of an answer.

A page has about 1 MiB, but a single value may be as large as a record.
"""


class ReflectedPosition(NamedTuple):
    """Position in a changelog partition: an answer reflects all records before it."""

    topic_id: str
    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    """History of the log to which the offset belongs, with `incarnation` (`changelog.history`)."""
    incarnation: str = ""


NAMES = msgspec.Meta(max_length=MAX_NAMES)
Partitions = Annotated[list[int], msgspec.Meta(max_length=MAX_PARTITIONS)]


class QueryMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages.

    A message is encoded as an array of its fields, so a new field must be the last one and needs a
    default.
    """


class QueryHello(QueryMessage, frozen=True, tag="Hello"):
    """First message of a client."""

    version: int


class QueryWelcome(QueryMessage, frozen=True, tag="Welcome"):
    """Answer to QueryHello."""

    version: int


class Describe(QueryMessage, frozen=True):
    """Request for the description of a store."""

    store: str


class StoreDescription(QueryMessage, frozen=True, tag="Described"):
    """Description of a store: its declaration, as far as that can be sent."""

    inputs: Annotated[list[str], NAMES]
    """Input topics; the worker that owns partition n of one of them serves n of the store."""
    key: Any
    """Type of the keys, see `declared.py`."""
    form: str
    """Form of the values: messagepack, bytes, typed or serde."""
    named: str
    """Name of the values' type or serde: module:name."""
    figures: Annotated[dict[str, tuple[str, str | None]], NAMES] | None
    """Kind and column of each aggregate by name; None if the store has no aggregates."""
    default: bytes | None
    """Value of keys that were never set; None if there is no default."""
    counter: bool = False
    """True if the values of several partitions for one key are added."""


class GetKeys(QueryMessage, frozen=True, tag="Get"):
    """Request for the values of keys in some partitions."""

    store: str
    partitions: Partitions
    keys: list[bytes]
    at_least: dict[int, ReflectedPosition]
    """Minimum position that the answer must reflect, by partition."""


class KeyValues(QueryMessage, frozen=True, tag="Values"):
    """Values of keys in one partition."""

    partition: int
    values: list[bytes | None]
    """Values of the requested keys in order; only of the first ones if the answer is full."""
    at: ReflectedPosition


class FoundKeys(QueryMessage, frozen=True, tag="Got"):
    """Answer to GetKeys, without partitions that the worker does not serve at the moment."""

    parts: list[KeyValues]
    full: bool = False
    """True if keys of the last part, or partitions after it, may be missing from the answer."""


class ScanRange(QueryMessage, frozen=True, tag="Scan"):
    """Request for some entries of one partition, from the beginning (or end) of [lower, upper)."""

    store: str
    partition: int
    lower: bytes
    upper: bytes | None
    reverse: bool
    limit: int
    at_least: ReflectedPosition | None


class Scanned(QueryMessage, frozen=True):
    """Answer to ScanRange."""

    here: bool
    """False if the worker does not serve the partition; the other fields have no meaning then."""
    entries: list[tuple[bytes, bytes]]
    rest: tuple[bytes, bytes | None] | None
    """Bounds of the remaining range; None at its end."""
    at: ReflectedPosition


class CountKeys(QueryMessage, frozen=True, tag="Count"):
    """Request for the approximate number of keys in some partitions."""

    store: str
    partitions: Partitions


class KeyCounts(QueryMessage, frozen=True, tag="Counted"):
    """Answer to CountKeys."""

    counts: dict[int, int]
    """Approximate number of keys by partition, for partitions that the worker serves."""


class QueryFailure(QueryMessage, frozen=True, tag="Failure"):
    """An error, by the name of its type in changelog.errors."""

    kind: str
    message: str


Request = Describe | GetKeys | ScanRange | CountKeys
Answer = StoreDescription | FoundKeys | Scanned | KeyCounts


def encode(message: QueryMessage) -> bytes:
    """Return the frame of a message: its length and its body."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


@cache
def decoder(kinds: Any) -> Callable[[bytes | bytearray], Any]:
    """Return a function that decodes a message of one of the types `kinds` from its body.

    The function raises InvalidRequest.

    >>> decoder(QueryWelcome)(encode(QueryWelcome(1))[4:]).version
    1
    """
    unchecked = unchecked_msgpack_decoder(kinds).decode

    def decode(body: bytes | bytearray) -> Any:
        try:
            check_msgpack(body)
            return unchecked(body)
        except UNREADABLE as error:
            raise InvalidRequest(f"cannot read a message of a query: {error}") from error

    return decode


def read_frame(
    source: socket.socket,
    limit: int,
    deadline: Deadline | None = None,
    *,
    taking: Callable[[int], None] = lambda _: None,
) -> bytes | bytearray | None:
    """Return the body of the next frame; None if the other side has closed the connection.

    Args:
        source: The connection.
        limit: Maximum number of bytes of the body.
        deadline: Deadline for the whole frame, extended for the bytes that have arrived, by the
            time that they take at MIN_BYTES_PER_S. An announced size gains no time. Without a
            deadline, the first byte is awaited as long as the connection's own timeout allows, and
            the deadline begins with that byte, in REQUEST_SECONDS.
        taking: Called with the body's size before memory is allocated for it.

    Raises:
        InvalidRequest: The body is too large, or another frame follows it.
        OSError: The connection has failed; TimeoutError if the deadline has passed.
    """
    if deadline is not None:
        return _frame(source, receive(source, AT_ONCE_BYTES, deadline), limit, deadline, taking)
    first = source.recv(AT_ONCE_BYTES)
    if (
        HEAD_BYTES
        <= len(first)
        == HEAD_BYTES + int.from_bytes(first[:HEAD_BYTES], "big")
        <= HEAD_BYTES + limit
    ):
        return first[HEAD_BYTES:]  # the usual case: the whole frame arrives at once
    own = source.gettimeout()
    frame = _frame(source, first, limit, Deadline(REQUEST_SECONDS), taking)
    source.settimeout(own)
    return frame


def _frame(
    source: socket.socket,
    first: bytes,
    limit: int,
    deadline: Deadline,
    taking: Callable[[int], None],
) -> bytes | bytearray | None:
    """Return the body of the frame that begins with `first`; None as `read_frame`."""
    while 0 < len(first) < HEAD_BYTES:
        more = receive(source, AT_ONCE_BYTES, deadline)
        first = first + more if more else b""
    if not first:
        return None
    size = int.from_bytes(first[:HEAD_BYTES], "big")
    if size > limit:
        raise InvalidRequest(f"a message of {size:,} bytes is over the limit of {limit:,}")
    if len(first) > HEAD_BYTES + size:
        raise InvalidRequest("a message arrived before the previous one was answered")
    if len(first) == HEAD_BYTES + size:
        return first[HEAD_BYTES:]
    taking(size)
    return _whole(source, first[HEAD_BYTES:], size, deadline)


def _whole(source: socket.socket, first: bytes, size: int, deadline: Deadline) -> bytearray | None:
    """Return `size` bytes that begin with `first`; None if the other side has closed."""
    body = bytearray(first)
    while len(body) < size:
        more = receive(source, size - len(body), deadline)
        if not more:
            return None
        body += more
        deadline.extend(len(more) / MIN_BYTES_PER_S)
    return body


_ENCODER = msgspec.msgpack.Encoder()
