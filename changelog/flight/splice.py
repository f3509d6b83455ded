"""Copies bytes between two sockets in both directions until either side ends.

One thread serves one connection. It has one buffer for each direction, and reads from one side only
after the other side has accepted the buffered bytes. So a slow peer slows the other side down
instead of filling memory. A TLS connection is used by one thread only, as OpenSSL requires.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.flight.limits import IDLE_PROBE_S, PASS_BYTES, VANISHED_MS

Inspect = Callable[[memoryview], None]
"""Inspects bytes before they are passed on; raises ConnectionCut to end the connection."""


class ConnectionCut(Exception):
    """The connection must end; the message is the reason."""


class Splice:
    """Copies bytes between `near` and `far` while `run` runs.

    Args:
        near: Socket of the peer, with or without TLS. It is closed when `run` returns.
        far: Socket on the other side. It is closed when `run` returns.
        to_far: Inspects bytes sent to `far`.
        to_near: Inspects bytes sent to `near`.
        stall_s: Seconds after which the connection ends if `near` accepts none of its pending
            bytes; None for no such limit.
        clock: Measures `stall_s`.
    """

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        *,
        to_far: Inspect | None = None,
        to_near: Inspect | None = None,
        stall_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._near, self._far = near, far
        self._outward = _Direction(far, near, to_near)
        self._inward = _Direction(near, far, to_far)
        self._stall_s = stall_s
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self.cut_off = False
        """True if the connection was ended because the peer exceeded a limit."""

    def run(self) -> str:
        """Copy bytes until a side ends or `stop` is called. Return the reason in words."""
        try:
            self._near.settimeout(0)
            self._far.settimeout(0)
            return self._passed()
        except ConnectionCut as reason:
            self.cut_off = True
            return str(reason)
        except OSError as error:
            return f"the connection broke: {error}"
        finally:
            self.stop()
            for side in (self._near, self._far):
                with contextlib.suppress(OSError):
                    side.close()

    def stop(self) -> None:
        """End the connection, from any thread and without waiting for it."""
        self._stopping.set()
        for side in (self._near, self._far):
            # SSLSocket.shutdown would remove the TLS object while the other thread uses it.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(side, socket.SHUT_RDWR)

    def _passed(self) -> str:
        directions = (self._inward, self._outward)
        waiting_since = self._clock.monotonic()
        while not self._stopping.is_set():
            before = self._outward.buffered
            for direction in directions:
                direction.pass_on()
            if any(direction.finished for direction in directions):
                return "the other side has closed the connection"
            if not self._outward.buffered or self._outward.buffered != before:
                waiting_since = self._clock.monotonic()
            if not self._wait(waiting_since):
                raise ConnectionCut(f"the client took nothing for {self._stall_s:g} s")
        return "the connection was closed"

    def _wait(self, waiting_since: float) -> bool:
        """Wait until bytes can be passed on; return False if the peer has stalled."""
        if any(direction.readable_at_once for direction in (self._inward, self._outward)):
            return True
        poll = select.poll()
        for side, reads, writes in (
            (self._near, self._inward, self._outward),
            (self._far, self._outward, self._inward),
        ):
            wanted = (0 if reads.buffered else select.POLLIN) | (
                select.POLLOUT if writes.buffered else 0
            )
            if wanted:
                poll.register(side, wanted)
        if self._stall_s is None or not self._outward.buffered:
            poll.poll()
            return True
        left = waiting_since + self._stall_s - self._clock.monotonic()
        return left > 0 and bool(poll.poll(max(1, left * 1000)))


def end_if_peer_vanishes(peer: socket.socket) -> None:
    """Make the system end a TCP connection whose peer's machine is unreachable."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_PROBE_S),
        ("TCP_KEEPALIVE", IDLE_PROBE_S),  # macOS's name
        ("TCP_USER_TIMEOUT", VANISHED_MS),
    ):
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                peer.setsockopt(socket.IPPROTO_TCP, option, value)


class _Direction:
    """One direction of a connection, with one buffer."""

    def __init__(
        self, source: socket.socket, target: socket.socket, inspect: Inspect | None
    ) -> None:
        self._source, self._target = source, target
        self._inspect = inspect
        self._buffer = memoryview(bytearray(PASS_BYTES))
        self._start = self._end = 0
        self._ended = False

    @property
    def buffered(self) -> int:
        """Number of bytes that were read but not written."""
        return self._end - self._start

    @property
    def finished(self) -> bool:
        """True if the source has ended and all of its bytes were passed on."""
        return self._ended and not self.buffered

    @property
    def readable_at_once(self) -> bool:
        """True if TLS has buffered bytes, which polling the socket does not show."""
        source = self._source
        return not self.buffered and isinstance(source, ssl.SSLSocket) and source.pending() > 0

    def pass_on(self) -> None:
        """Read if the buffer is empty, then write it, as far as possible without waiting."""
        if not self.buffered and not self._ended:
            self._read()
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while self.buffered:
                self._start += self._target.send(self._buffer[self._start : self._end])

    def _read(self) -> None:
        self._start = self._end = 0
        # A TLS socket returns one record per read; a plain socket returns all available bytes.
        records = isinstance(self._source, ssl.SSLSocket)
        try:
            while self._end < len(self._buffer):
                count = self._source.recv_into(self._buffer[self._end :])
                self._ended = count == 0
                self._end += count
                if self._ended or not records:
                    break
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError):
            self._ended = True
        if self._inspect is not None and self._end:
            self._inspect(self._buffer[: self._end])
