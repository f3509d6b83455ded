"""Every type that crosses the wire between a client and a worker, and the frames they go in.

A frame is a length (4 bytes, big-endian) and so many bytes of MessagePack. A client says `QueryHello` first and
is told `QueryWelcome`, over TCP after both have proved that they know the token (`proofs`); then each request
has one answer, or a `QueryFailure`. Bodies are decoded into these types and nothing else. Sizes are checked
before memory is taken, and memory is taken for what has come, not for what was announced.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple

import msgspec

from strandline.changelog.decoding import msgpack_decoder
from strandline.changelog.depth import check_msgpack
from strandline.changelog.errors import UNREADABLE, InvalidRequest
from strandline.changelog.history import UNKNOWN_EPOCH
from strandline.framework.peers import AT_ONCE, Deadline, receive

WIRE_VERSION = 2
HEAD = 4
"""Bytes of a frame's length."""
MAX_HELLO = 4_096
"""Bytes of what a client that is not known yet may send."""
REQUEST_SECONDS = 10.0
"""How long a request, or an answer, may take to come, from its first byte on."""
SLOWEST = 1 << 20
"""Bytes a second that a large message must come with, or be taken with."""
MAX_REQUEST = 4 << 20
MAX_PARTITIONS = 10_000
"""Partitions that one request may name."""
MAX_ANSWER = 1 << 30
"""A page is about 1 MiB, but a single value may be as large as a record."""


class ReflectedPosition(NamedTuple):
    """Position in a changelog partition up to which an answer reflects it, with its history."""

    topic_id: str
    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    """With `incarnation`, the history that the offset is of: see `changelog.history`."""
    incarnation: str = ""


Partitions = Annotated[list[int], msgspec.Meta(max_length=MAX_PARTITIONS)]


class QueryMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all: arrays of fields, so a field may only be added at the end, with a default."""


class QueryHello(QueryMessage, frozen=True):
    """The first thing a client says."""

    version: int
    token: str = ""
    """Empty. Version 1 sent the token here."""
    nonce: bytes = b""
    """For the worker's proof, over TCP."""


class Challenge(QueryMessage, frozen=True):
    """The answer to Hello over TCP."""

    version: int
    nonce: bytes


class Proof(QueryMessage, frozen=True):
    """The client's answer to Challenge."""

    proof: bytes


class QueryWelcome(QueryMessage, frozen=True):
    """The answer to Hello, over TCP to Proof."""

    version: int
    proof: bytes = b""
    """The worker's, over TCP."""


class Describe(QueryMessage, frozen=True):
    """How was a store declared?"""

    store: str


class StoreDescription(QueryMessage, frozen=True):
    """A store's declaration, as far as it can be sent."""

    inputs: list[str]
    """Topics: whoever holds partition n of one of them has partition n of the store."""
    key: Any
    """Type of the keys; see `declared.py`."""
    form: str
    """Of the values: messagepack, bytes, typed or serde."""
    named: str
    """Name of the values' type or serde: module:name."""
    figures: dict[str, tuple[str, str | None]] | None
    """Of aggregates: kind and column of each."""
    default: bytes | None
    """A value for keys that were never set."""
    counter: bool = False
    """Values of several partitions for one key are to be added."""


class GetKeys(QueryMessage, frozen=True):
    """What do these keys have, in these partitions?"""

    store: str
    partitions: Partitions
    keys: list[bytes]
    at_least: dict[int, ReflectedPosition]
    """By partition what the answer must reflect."""


class KeyValues(QueryMessage, frozen=True):
    """What keys have in one partition."""

    partition: int
    values: list[bytes | None]
    """Of the first keys asked for: of all, unless the answer is full."""
    at: ReflectedPosition


class FoundKeys(QueryMessage, frozen=True):
    """The answer to Get; partitions that are not here (any more, or yet) are left out."""

    parts: list[KeyValues]
    full: bool = False
    """There is more: the last part may lack keys, and partitions after it were not looked at."""


class ScanRange(QueryMessage, frozen=True):
    """Some entries of one partition, from one end of [lower, upper)."""

    store: str
    partition: int
    lower: bytes
    upper: bytes | None
    reverse: bool
    limit: int
    at_least: ReflectedPosition | None


class Scanned(QueryMessage, frozen=True):
    """The answer to Scan."""

    here: bool
    """False: the partition is not here (any more, or yet), and the rest says nothing."""
    entries: list[tuple[bytes, bytes]]
    rest: tuple[bytes, bytes | None] | None
    """The bounds of what is left; None if nothing is."""
    at: ReflectedPosition


class CountKeys(QueryMessage, frozen=True):
    """About how many keys are in these partitions?"""

    store: str
    partitions: Partitions


class KeyCounts(QueryMessage, frozen=True):
    """The answer to Count: by partition; those that are not here are left out."""

    counts: dict[int, int]


class QueryFailure(QueryMessage, frozen=True):
    """An error, by its type's name in changelog.errors."""

    kind: str
    message: str


Request = Describe | GetKeys | ScanRange | CountKeys
Answer = StoreDescription | FoundKeys | Scanned | KeyCounts


def encode(message: QueryMessage) -> bytes:
    """A message with its length, as it is sent."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(HEAD, "big") + body


def decode(body: bytes | bytearray, kinds: Any) -> Any:
    """A message of one of `kinds`. Raises InvalidRequest for anything else.

    >>> decode(encode(QueryWelcome(1))[4:], QueryWelcome).version
    1
    """
    try:
        check_msgpack(body)
        return _decoder(kinds).decode(body)
    except UNREADABLE as error:
        raise InvalidRequest(f"cannot read a message of a query: {error}") from error


def read_frame(
    source: socket.socket,
    limit: int,
    deadline: Deadline | None = None,
    *,
    idle_s: float | None = None,
    taking: Callable[[int], None] = lambda _: None,
) -> bytes | bytearray | None:
    """Return the body of the next frame; None if the other side has closed.

    Args:
        source: A connection.
        limit: The most bytes that the body may have.
        deadline: Until when all of it must be there, not counting the time that its size takes at
            SLOWEST. None: no limit.
        idle_s: How many seconds the first byte may take; the deadline is made then.
        taking: Called with the body's size before memory is taken for it.

    Raises:
        InvalidRequest: The body is too large, or another one follows.
        OSError: The connection has failed; TimeoutError, if it took too long.
    """
    if idle_s is not None:
        if source.gettimeout() not in (None, idle_s):
            source.settimeout(idle_s)  # with None the kernel sees to it
        first = source.recv(AT_ONCE)
        if HEAD <= len(first) == HEAD + int.from_bytes(first[:HEAD], "big") <= HEAD + limit:
            return first[HEAD:]  # as it mostly is
        deadline = Deadline(REQUEST_SECONDS)
    else:
        first = receive(
            source, AT_ONCE, deadline
        )  # mostly all of it: each side waits for the other
    while 0 < len(first) < HEAD:
        more = receive(source, AT_ONCE, deadline)
        first = first + more if more else b""
    if not first:
        return None
    size = int.from_bytes(first[:HEAD], "big")
    if size > limit:
        raise InvalidRequest(f"a message of {size:,} bytes is over the limit of {limit:,}")
    if len(first) > HEAD + size:
        raise InvalidRequest("a message came before the one before it was answered")
    if len(first) == HEAD + size:
        return first[HEAD:]
    if deadline is not None:
        deadline.extend(size / SLOWEST)
    taking(size)
    return _whole(source, first[HEAD:], size, deadline)


def _whole(
    source: socket.socket, first: bytes, size: int, deadline: Deadline | None
) -> bytearray | None:
    """`size` bytes that begin with those that are here."""
    body = bytearray(first)
    while len(body) < size:
        more = receive(source, size - len(body), deadline)
        if not more:
            return None
        body += more
    return body


@cache
def _decoder(kinds: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgpack_decoder(kinds)


_ENCODER = msgspec.msgpack.Encoder()
