"""Connections with untrusted peers: every wait has a total deadline, and every listener a limit of
peers.

A socket's own timeout starts again with each byte. A peer that sends a byte now and then would hold
a thread for ever, so waits in this module are bounded by a `Deadline`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable

from strandline.changelog.clock import SystemClock

SLACK_S = 0.05
"""Seconds by which one call may end after its deadline. A timeout this close is not set again."""
AT_ONCE_BYTES = 64 << 10
"""Maximum number of bytes read or sent at a time."""
DISPLACED_S = 1.0
"""Seconds in which a displaced connection's thread must end."""


class Deadline:
    """Countdown that no byte restarts."""

    def __init__(self, seconds: float) -> None:
        self._until = _CLOCK.monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Add seconds, for example for bytes that were announced."""
        self._until += seconds

    @property
    def left(self) -> float:
        """Seconds that remain. Raises TimeoutError if there are none."""
        left = self._until - _CLOCK.monotonic()
        if left <= 0:
            raise TimeoutError("it took longer than it may")
        return left


def bounded(connection: socket.socket, receive_s: float, send_s: float) -> bool:
    """Set kernel timeouts for each call; return False for TLS, where the kernel cannot apply them.

    A call then costs one system call, and with a timeout of Python's it costs two. An exchange of
    several calls still needs a `Deadline`.
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
    """Make the next call end at the deadline, or shortly after. Raise TimeoutError."""
    left, now = deadline.left, connection.gettimeout()
    if now is None or not 0.8 * left <= now <= left + SLACK_S:
        connection.settimeout(left)


def receive(source: socket.socket, most: int, deadline: Deadline) -> bytes:
    """Return some bytes, at most `most`; none if the peer has closed. Raise OSError."""
    within(source, deadline)
    return source.recv(min(most, AT_ONCE_BYTES))


def send_all(target: socket.socket, data: bytes, deadline: Deadline) -> None:
    """Send all of `data`. Raise OSError; otherwise the socket's own timeout is as before."""
    own = target.gettimeout()
    view = memoryview(data)
    while view:
        within(target, deadline)
        view = view[target.send(view[:AT_ONCE_BYTES]) :]
    target.settimeout(own)


class Admission:
    """Limit on connected peers, in total and per address. Thread-safe."""

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._there: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, address: str) -> bool:
        """Admit a peer from `address` if there is room. It is counted until `leave`."""
        with self._lock:
            if self._there.total() >= self.total or self._there[address] >= self.each:
                return False
            self._there[address] += 1
            return True

    def leave(self, address: str) -> None:
        """Stop counting a peer that was admitted."""
        with self._lock:
            self._there[address] -= 1
            if not self._there[address]:
                del self._there[address]


class Newcomers:
    """Limit on connected peers that have proved nothing, in total and per network. Thread-safe.

    A new peer is not refused because others hold their connections: the oldest connection of the
    network that has the most is ended instead. So a peer that holds connections competes with
    itself, and a peer that sends at once has done so before it is the oldest.

    Args:
        total: Maximum number of connections.
        each: Maximum number of one network.
        displaced: Called when a connection was ended to make room, for a thread of it that waits
            for something else than its bytes.
    """

    def __init__(self, total: int, each: int, displaced: Callable[[], None] = lambda: None) -> None:
        self.total = total
        self.each = each
        self._notify = displaced
        self._there: dict[socket.socket, str] = {}
        """Networks of the connections, the oldest first."""
        self._displaced: set[socket.socket] = set()
        self._left = threading.Condition()

    def enter(self, connection: socket.socket, network: str) -> bool:
        """Count a connection until `leave`; return False if there is no room in time.

        The wait for the thread of a displaced connection keeps the number of threads within the
        limit.
        """
        deadline = Deadline(DISPLACED_S)
        with self._left:
            while (crowded := self._crowded(network)) is not None:
                self._displace(crowded)
                try:
                    self._left.wait(deadline.left)
                except TimeoutError:
                    return False
            self._there[connection] = network
        return True

    def leave(self, connection: socket.socket) -> bool:
        """Stop counting a connection; return False if it was displaced. Idempotent."""
        with self._left:
            self._there.pop(connection, None)
            is_displaced = connection in self._displaced
            self._displaced.discard(connection)
            self._left.notify_all()
        return not is_displaced

    def is_displaced(self, connection: socket.socket) -> bool:
        """Return True if a connection was ended to make room. Takes no lock."""
        return connection in self._displaced

    def _crowded(self, network: str) -> str | None:
        """Return the network that must lose a connection before `network` gets one more."""
        each = Counter(self._there.values())
        if each[network] >= self.each:
            return network
        return each.most_common(1)[0][0] if len(self._there) >= self.total else None

    def _displace(self, network: str) -> None:
        """End the oldest connection of a network, unless one of it is ending already."""
        connections = [one for one, its in self._there.items() if its == network]
        if self._displaced.isdisjoint(connections):
            self._displaced.add(connections[0])
            end_connection(connections[0])
            self._notify()


def end_connection(connection: socket.socket) -> None:
    """End a connection that another thread may be using."""
    with contextlib.suppress(OSError):
        # An SSLSocket's own `shutdown` also takes its TLS away, under the other thread.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class SharedBudget:
    """A shared number of bytes, or of other units. Thread-safe."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._left = total
        self._waiting = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def take(self, count: int, within_s: float) -> None:
        """Take `count`, at most `total`, and wait for it if necessary. Raise TimeoutError."""
        with self._lock:
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
        """Return `count` to the budget."""
        with self._lock:
            self._left += count
            if self._waiting:
                self._changed.notify_all()


_CLOCK = SystemClock()
