"""Meter for the HTTP/2 connection of a client: counts calls and messages when they begin.

Before any code of ours runs, gRPC allocates a thread for each call and memory for each message, of
the size that the message's first five bytes claim. It also decompresses messages. So the front
checks the frames before gRPC receives them (RFC 9113; the five bytes are gRPC's
"Length-Prefixed-Message"). It parses only the headers of frames and messages, and neither changes
nor delays any bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from strandline.changelog.clock import Clock
from strandline.changelog.errors import QuotaExceeded
from strandline.changelog.flight.budgets import Budgets
from strandline.changelog.flight.clients import Client
from strandline.changelog.flight.limits import (
    CONTROL_FRAMES,
    CONTROL_FRAMES_PER_S,
    COPIES_OF_A_MESSAGE,
    LINGER_S,
    MAX_CALL_BYTES,
    MAX_HEADERS_BYTES,
    MESSAGE_OVERHEAD_BYTES,
)
from strandline.changelog.flight.splice import ConnectionCut

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
_HEAD, _PREFIX = 9, 5


class FlowMeter:
    """Counts the calls and bytes that one client has in flight.

    The methods raise ConnectionCut if the client exceeds a limit. Not thread-safe.
    """

    def __init__(self, client: Client, budgets: Budgets, clock: Clock) -> None:
        self._client = client
        self._budgets = budgets
        self._clock = clock
        self._preface = b""
        self._requests = _Frames(self._on_request, self._on_data)
        self._answers = _Frames(self._on_answer, _ignore)
        self._calls: dict[int, _Call] = {}
        self._latest = 0
        self._header_bytes = 0
        self._reset: deque[tuple[float, int]] = deque()
        self._control = float(CONTROL_FRAMES)
        self._now = clock.monotonic()

    def from_client(self, content: memoryview) -> None:
        """Inspect bytes of the client before gRPC receives them."""
        now = self._clock.monotonic()
        self._control = min(
            CONTROL_FRAMES, self._control + (now - self._now) * CONTROL_FRAMES_PER_S
        )
        self._now = now
        while self._reset and self._reset[0][0] <= now:
            self._release(self._reset.popleft()[1])
        if len(self._preface) < len(PREFACE):
            start = len(PREFACE) - len(self._preface)
            self._preface += bytes(content[:start])
            if not PREFACE.startswith(self._preface):
                raise ConnectionCut("the client does not speak HTTP/2")
            content = content[start:]
        try:
            self._requests.feed(content)
        except QuotaExceeded as error:
            raise ConnectionCut(str(error)) from None

    def from_server(self, content: memoryview) -> None:
        """Inspect bytes of the server, which show the ends of calls."""
        self._answers.feed(content)

    def _on_request(self, kind: int, flags: int, stream: int, length: int) -> bool:
        """Handle the header of a client's frame; return True if its content must be inspected."""
        if kind == DATA:
            if flags & PADDED:
                raise ConnectionCut("the client pads its frames, which gRPC clients never do")
            return stream in self._calls
        if kind in (HEADERS, CONTINUATION):
            self._on_headers(kind, flags, stream, length)
        elif kind == RST_STREAM:
            if (call := self._calls.pop(stream, None)) is not None:
                # The server may still use the call's thread and memory for a while.
                self._reset.append((self._now + LINGER_S, call.taken))
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._control -= 1
            if self._control < 0:
                raise ConnectionCut("the client sends too many pings and settings")
        return False

    def _on_headers(self, kind: int, flags: int, stream: int, length: int) -> None:
        if kind == HEADERS:
            self._header_bytes = 0
            if stream > self._latest:
                self._budgets.calls.take(self._client, 1)
                self._latest = stream
                self._calls[stream] = _Call()
        self._header_bytes += length
        if self._header_bytes > MAX_HEADERS_BYTES:
            raise ConnectionCut(f"the headers of a call have more than {MAX_HEADERS_BYTES:,} bytes")

    def _on_data(self, stream: int, content: memoryview) -> None:
        call = self._calls[stream]
        while content:
            if call.left:
                passed = min(call.left, len(content))
                call.left -= passed
                content = content[passed:]
                continue
            missing = _PREFIX - len(call.prefix)
            call.prefix += bytes(content[:missing])
            content = content[missing:]
            if len(call.prefix) == _PREFIX:
                if call.prefix[0]:
                    raise ConnectionCut(
                        "the client compresses its messages, which is not supported"
                    )
                call.left = int.from_bytes(call.prefix[1:], "big")
                call.prefix = b""
                self._count(call)

    def _count(self, call: _Call) -> None:
        """Count a message of which nothing has reached gRPC."""
        if call.left > MAX_CALL_BYTES:
            raise ConnectionCut(
                f"the client sends a message of {call.left:,} bytes; at most {MAX_CALL_BYTES:,} are "
                "allowed"
            )
        taken = COPIES_OF_A_MESSAGE * call.left + MESSAGE_OVERHEAD_BYTES
        self._budgets.requests.take(self._client, taken)
        call.taken += taken

    def _on_answer(self, kind: int, flags: int, stream: int, _length: int) -> bool:
        """Handle the header of a server's frame; the last frame of a call ends it."""
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            call = self._calls.pop(stream, None)
            if call is not None:
                self._release(call.taken)
        return False

    def _release(self, taken: int) -> None:
        self._budgets.calls.give(self._client, 1)
        self._budgets.requests.give(self._client, taken)


class _Call:
    """A call that has not ended."""

    __slots__ = ("left", "prefix", "taken")

    def __init__(self) -> None:
        self.left = 0
        """Bytes of the current message that have not arrived."""
        self.prefix = b""
        """Arrived part of the next message's first five bytes."""
        self.taken = 0
        """Bytes counted for the call."""


class _Frames:
    """Parser of the frames of one direction, which may arrive in any pieces."""

    def __init__(
        self,
        begin: Callable[[int, int, int, int], bool],
        body: Callable[[int, memoryview], None],
    ) -> None:
        self._begin = begin
        self._body = body
        self._head = b""
        self._left = 0
        self._stream = 0
        self._wanted = False

    def feed(self, content: memoryview) -> None:
        """Parse the next bytes. Raises the errors of `begin` and `body`."""
        at, end = 0, len(content)
        while at < end:
            if self._left:
                size = min(self._left, end - at)
                if self._wanted:
                    self._body(self._stream, content[at : at + size])
                self._left -= size
                at += size
                continue
            size = min(_HEAD - len(self._head), end - at)
            self._head += bytes(content[at : at + size])
            at += size
            if len(self._head) == _HEAD:
                head, self._head = self._head, b""
                self._left = int.from_bytes(head[:3], "big")
                self._stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                self._wanted = self._begin(head[3], head[4], self._stream, self._left)


def _ignore(_stream: int, _content: memoryview) -> None:
    """Ignore the content of an answer."""
