"""Messages between the driver and the executor slots of an app's workers: lines of JSON over TCP.

    driver → slot    challenge              a random text, first
    slot → driver    hello                  worker, attempt, and the proof that it knows the secret
    slot → driver    output, notes, status  while the worker runs
    driver → slot    an empty line          every second: the driver lives
    driver → slot    `stop`                 for each signal of the driver
    slot → driver    end                    the result, last

The secret is part of the Spark task and never sent on the connection. Nothing else is protected
here: like Spark's own traffic, lines and reports are readable for others in the network.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
from collections.abc import Iterator

import msgspec

from strandline.changelog.decoding import CheckedDecoder, known_json_decoder
from strandline.changelog.errors import UNREADABLE
from strandline.framework.peers import Deadline, receive
from strandline.framework.supervisor.slots import WorkerRow

HEARTBEAT_S = 1.0
"""Seconds between two signs of life of the driver; a slot's are its status reports."""
SILENT_S = 60.0
"""Seconds without a byte from the peer after which a connection is lost.

A peer whose process ends closes its connections at once. This is for machines that vanish.
"""
MAX_HELLO_BYTES = 4 << 10
"""Maximum length of a line before the peer has proved that it knows the secret."""
MAX_MESSAGE_BYTES = 1 << 20
"""Maximum length of a line after that."""
ALIVE, STOP = b"\n", b"stop\n"


class SlotHello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a slot."""

    worker: int
    """Number of the worker, from 0."""
    attempt: int
    """Number of Spark's attempt at the worker's task, from 0."""
    host: str
    """Name of the executor's machine."""
    proof: str
    """Result of `proof` for the driver's challenge."""


class SlotOutput(msgspec.Struct, frozen=True, tag="output"):
    """Lines that a worker has printed."""

    lines: list[str]


class SlotNotes(msgspec.Struct, frozen=True, tag="notes"):
    """Lines about a worker, such as its restart."""

    lines: list[str]


class SlotStatus(msgspec.Struct, frozen=True, tag="status"):
    """Status of a worker."""

    row: WorkerRow


class SlotEnd(msgspec.Struct, frozen=True, tag="end"):
    """Result of a slot."""

    records: int
    """Number of records handled and committed by the worker's processes in this slot."""
    failure: str
    """Reason for a failure; "" if the worker has ended in order."""
    is_permanent: bool
    """True if a restart does not fix the failure."""


SlotMessage = SlotHello | SlotOutput | SlotNotes | SlotStatus | SlotEnd


class ConnectionRefused(Exception):
    """The peer sent something that is no message, too long, or without the right proof."""


def encoded_message(message: SlotMessage) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decoded_message(line: bytes) -> SlotMessage:
    """Return the message in a line. Raises ConnectionRefused."""
    decoder: CheckedDecoder[SlotMessage] = known_json_decoder(SlotMessage)
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        raise ConnectionRefused("the peer sent something that is no message") from error


def proof(secret: str, challenge: str) -> str:
    """Return what a peer that knows the secret answers to a challenge.

    >>> proof("secret", "one") == proof("secret", "one"), proof("secret", "one") == proof("other", "one")
    (True, False)
    """
    return hmac.digest(secret.encode(), challenge.encode(), hashlib.sha256).hex()


def is_proof(given: str, secret: str, challenge: str) -> bool:
    """Return True for the right answer; the time that this takes tells nothing about it."""
    return hmac.compare_digest(given.encode(errors="replace"), proof(secret, challenge).encode())


class LineStream:
    """Lines of a connection, without their ends; empty lines are skipped.

    A wait for the next byte ends after SILENT_S.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    def one(self, deadline: Deadline) -> bytes:
        """Return the first line. Raises OSError, and ConnectionRefused if there is none."""
        while b"\n" not in self._rest:
            if len(self._rest) > MAX_HELLO_BYTES or not self._more(deadline):
                raise ConnectionRefused("the peer has not sent a first line")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def lines(self) -> Iterator[bytes]:
        """Yield lines until the peer has closed. Raises OSError and ConnectionRefused."""
        while True:
            *lines, self._rest = self._rest.split(b"\n")
            yield from filter(None, lines)
            if len(self._rest) > MAX_MESSAGE_BYTES:
                raise ConnectionRefused("the peer sent a line that is too long")
            if not self._more(Deadline(SILENT_S)):
                return

    def _more(self, deadline: Deadline) -> bool:
        data = receive(self._connection, MAX_MESSAGE_BYTES, deadline)
        self._rest += data
        return bool(data)


def close_now(connection: socket.socket) -> None:
    """Close a connection, and wake the threads that wait for it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
