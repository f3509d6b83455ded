"""Connections with peers of which nothing is known: every wait has a total deadline, and every
listener takes only so many of them.

A timeout of a socket begins anew with each byte. So a peer that sends a byte now and then holds a
thread for ever, and `Deadline` is what waits go by here.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections import Counter

from strandline.changelog.clock import SystemClock

SLACK_S = 0.05
"""How much later than its deadline one call may end: a timeout that is there is not set anew for less."""
AT_ONCE = 64 << 10
"""Bytes that are read or sent at a time."""


class Deadline:
    """Counts down once, whatever happens in the meantime."""

    def __init__(self, seconds: float) -> None:
        self._until = _CLOCK.monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Give so much more time, as for bytes that were announced."""
        self._until += seconds

    @property
    def left(self) -> float:
        """Seconds that are left. Raises TimeoutError if there are none."""
        left = self._until - _CLOCK.monotonic()
        if left <= 0:
            raise TimeoutError("it took longer than it may")
        return left


def bounded(connection: socket.socket, receive_s: float, send_s: float) -> bool:
    """Let the kernel end each call that takes longer; whether it does, which it cannot for TLS.

    A call costs one look into the kernel then, where a timeout of Python's costs two. What takes more
    than one call still needs a `Deadline`.
    """
    if isinstance(connection, ssl.SSLSocket):
        return False
    connection.settimeout(None)
    for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
        whole = int(seconds)
        value = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, option, value)
    return True


def within(connection: socket.socket, deadline: Deadline) -> None:
    """Let the next call end at the deadline, or a little later. Raises TimeoutError."""
    left, now = deadline.left, connection.gettimeout()
    if now is None or not 0.8 * left <= now <= left + SLACK_S:
        connection.settimeout(left)


def receive(source: socket.socket, most: int, deadline: Deadline | None) -> bytes:
    """Return some bytes, at most `most`; none if the peer has closed. Raises OSError."""
    if deadline is not None:
        within(source, deadline)
    return source.recv(min(most, AT_ONCE))


def send_all(target: socket.socket, data: bytes, deadline: Deadline) -> None:
    """Send all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        within(target, deadline)
        view = view[target.send(view[:AT_ONCE]) :]


class Admission:
    """Counts peers against the most that may be there, in all and from one address. Thread-safe."""

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._there: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, address: str) -> bool:
        """Whether one more may come from there; if so it is counted until `leave`."""
        with self._lock:
            if self._there.total() >= self.total or self._there[address] >= self.each:
                return False
            self._there[address] += 1
            return True

    def leave(self, address: str) -> None:
        """One that had entered is gone."""
        with self._lock:
            self._there[address] -= 1
            if not self._there[address]:
                del self._there[address]


class SharedBudget:
    """A number of bytes, or of other things, that are shared. Thread-safe."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._left = total
        self._waiting = 0
        self._changed = threading.Condition()

    def take(self, count: int, within_s: float) -> None:
        """Take `count`, at most `total`, until `give`, waiting for it. Raises TimeoutError."""
        with self._changed:
            deadline = None
            while self._left < count:
                deadline = deadline or Deadline(within_s)
                self._waiting += 1
                try:
                    self._changed.wait(deadline.left)
                finally:
                    self._waiting -= 1
            self._left -= count

    def give(self, count: int) -> None:
        """What was taken is free."""
        with self._changed:
            self._left += count
            if self._waiting:
                self._changed.notify_all()


_CLOCK = SystemClock()
