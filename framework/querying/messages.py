"""Every type that crosses the wire between a client and a worker, and the frames they go in.

A frame is a length (4 bytes, big-endian) and so many bytes of MessagePack. A client says `Hello` first and
is told `Welcome`; then each request has one answer, or a `Failure`. Bodies are decoded into these
types and nothing else, and bounded in size before memory is taken.
"""

from __future__ import annotations

import socket
from functools import cache
from typing import Any

import msgspec

from changelog.depth import check_msgpack
from changelog.errors import UNREADABLE, InvalidRequest

WIRE_VERSION = 1
HEAD = 4
"""Bytes of a frame's length."""
AT_ONCE = 64 << 10
"""Bytes that are read at a time, unless more are known to come."""
MAX_HELLO = 4_096
"""Bytes of what a client that is not known yet may send."""
MAX_REQUEST = 16 << 20
MAX_ANSWER = 1 << 30
"""A page is about 1 MiB, but a single value may be as large as a record."""

At = tuple[str, int]
"""A changelog's topic id, and an offset up to which it is reflected."""


class Wire(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all: arrays of fields, so a field may only be added at the end, with a default."""


class Hello(Wire, frozen=True):
    """The first thing a client says."""

    version: int
    token: str = ""
    """Asked for over TCP."""


class Welcome(Wire, frozen=True):
    """The answer to Hello."""

    version: int


class Describe(Wire, frozen=True):
    """How was a store declared?"""

    store: str


class Described(Wire, frozen=True):
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


class Get(Wire, frozen=True):
    """What do these keys have, in these partitions?"""

    store: str
    partitions: list[int]
    keys: list[bytes]
    at_least: dict[int, At]
    """By partition what the answer must reflect."""


class Values(Wire, frozen=True):
    """What keys have in one partition."""

    partition: int
    values: list[bytes | None]
    at: At


class Got(Wire, frozen=True):
    """The answer to Get; partitions that are not here (any more, or yet) are left out."""

    parts: list[Values]


class Scan(Wire, frozen=True):
    """Some entries of one partition, from one end of [lower, upper)."""

    store: str
    partition: int
    lower: bytes
    upper: bytes | None
    reverse: bool
    limit: int
    at_least: At | None


class Scanned(Wire, frozen=True):
    """The answer to Scan."""

    here: bool
    """False: the partition is not here (any more, or yet), and the rest says nothing."""
    entries: list[tuple[bytes, bytes]]
    rest: tuple[bytes, bytes | None] | None
    """The bounds of what is left; None if nothing is."""
    at: At


class Count(Wire, frozen=True):
    """About how many keys are in these partitions?"""

    store: str
    partitions: list[int]


class Counted(Wire, frozen=True):
    """The answer to Count: by partition; those that are not here are left out."""

    counts: dict[int, int]


class Failure(Wire, frozen=True):
    """An error, by its type's name in changelog.errors."""

    kind: str
    message: str


Request = Describe | Get | Scan | Count
Answer = Described | Got | Scanned | Counted


def encode(message: Wire) -> bytes:
    """A message with its length, as it is sent."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(HEAD, "big") + body


def decode(body: bytes | bytearray, kinds: Any) -> Any:
    """A message of one of `kinds`. Raises InvalidRequest for anything else.

    >>> decode(encode(Welcome(1))[4:], Welcome)
    Welcome(version=1)
    """
    try:
        check_msgpack(body)
        return _decoder(kinds).decode(body)
    except UNREADABLE as error:
        raise InvalidRequest(f"cannot read a message of a query: {error}") from error


def read_frame(source: socket.socket, limit: int) -> bytes | bytearray | None:
    """The body of the next frame; None if the other side has closed. Raises OSError, InvalidRequest."""
    first = source.recv(AT_ONCE)  # mostly all of it: each side waits for the other
    while 0 < len(first) < HEAD:
        more = source.recv(AT_ONCE)
        first = first + more if more else b""
    if not first:
        return None
    size = int.from_bytes(first[:HEAD], "big")
    if size > limit:
        raise InvalidRequest(f"a message of {size:,} bytes is over the limit of {limit:,}")
    if len(first) > HEAD + size:
        raise InvalidRequest("a message came before the one before it was answered")
    return first[HEAD:] if len(first) == HEAD + size else _whole(source, first[HEAD:], size)


def _whole(source: socket.socket, first: bytes, size: int) -> bytearray | None:
    """`size` bytes that begin with those that are here."""
    body = bytearray(size)
    view, done = memoryview(body), len(first)
    view[:done] = first
    while done < size:
        count = source.recv_into(view[done:])
        if not count:
            return None
        done += count
    return body


@cache
def _decoder(kinds: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kinds)


_ENCODER = msgspec.msgpack.Encoder()
