"""A connection's bytes, passed between two sockets in both directions until either side ends.

One thread serves one connection. It holds at most one buffer for each direction, and reads no more
from one side before the other side has taken what is held, so a slow peer slows the other down
instead of filling memory. TLS connections are used by one thread only, as OpenSSL demands.
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
"""Is shown bytes before they are passed on; raises CutOff to end the connection."""


class ConnectionCut(Exception):
    """The connection is to end, with the reason."""


class Splice:
    """Passes bytes between `near` and `far` while `run` runs.

    Args:
        near: The peer's socket, of TLS or not. It is closed when `run` returns.
        far: The socket on the other side. It is closed when `run` returns.
        to_far: Inspects what goes to `far`.
        to_near: Inspects what goes to `near`.
        stall_s: Seconds in which `near` takes nothing of what waits for it before the connection
            ends; None for no such limit.
        clock: Measures that time.
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
        """Whether it was ended because the peer went over a limit."""

    def run(self) -> str:
        """Pass bytes until a side ends, or `stop`. Return why it ended."""
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
        """End the connection from any thread, without waiting for it."""
        self._stopping.set()
        for side in (self._near, self._far):
            # Not SSLSocket.shutdown, which takes the TLS object away under the other thread.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(side, socket.SHUT_RDWR)

    def _passed(self) -> str:
        directions = (self._inward, self._outward)
        waiting_since = self._clock.monotonic()
        while not self._stopping.is_set():
            before = self._outward.held
            for direction in directions:
                direction.pass_on()
            if any(direction.over for direction in directions):
                return "the other side has closed the connection"
            if not self._outward.held or self._outward.held != before:
                waiting_since = self._clock.monotonic()
            if not self._wait(waiting_since):
                raise ConnectionCut(f"the client took nothing for {self._stall_s:g} s")
        return "the connection was closed"

    def _wait(self, waiting_since: float) -> bool:
        """Wait until something can be passed on; False if the peer has stalled."""
        if any(direction.readable_at_once for direction in (self._inward, self._outward)):
            return True
        poll = select.poll()
        for side, reads, writes in (
            (self._near, self._inward, self._outward),
            (self._far, self._outward, self._inward),
        ):
            wanted = (0 if reads.held else select.POLLIN) | (select.POLLOUT if writes.held else 0)
            if wanted:
                poll.register(side, wanted)
        if self._stall_s is None or not self._outward.held:
            poll.poll()
            return True
        left = waiting_since + self._stall_s - self._clock.monotonic()
        return left > 0 and bool(poll.poll(max(1, left * 1000)))


def end_if_peer_vanishes(peer: socket.socket) -> None:
    """Let the system end a TCP connection whose other machine has vanished."""
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
    """One direction: at most one buffer that was read and not written yet."""

    def __init__(
        self, source: socket.socket, target: socket.socket, inspect: Inspect | None
    ) -> None:
        self._source, self._target = source, target
        self._inspect = inspect
        self._buffer = memoryview(bytearray(PASS_BYTES))
        self._start = self._end = 0
        self._ended = False

    @property
    def held(self) -> int:
        """Bytes that were read and not written yet."""
        return self._end - self._start

    @property
    def over(self) -> bool:
        """Whether the source has ended and all of it was passed on."""
        return self._ended and not self.held

    @property
    def readable_at_once(self) -> bool:
        """Whether TLS holds bytes, of which the socket says nothing."""
        source = self._source
        return not self.held and isinstance(source, ssl.SSLSocket) and source.pending() > 0

    def pass_on(self) -> None:
        """Read if nothing is held, and write what is held, as far as neither waits."""
        if not self.held and not self._ended:
            self._read()
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while self.held:
                self._start += self._target.send(self._buffer[self._start : self._end])

    def _read(self) -> None:
        self._start = self._end = 0
        # A TLS socket gives a record at a time, a plain one all that there is.
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
