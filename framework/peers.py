"""Connections with peers of which nothing is known: every wait has a total deadline, and every
listener takes only so many of them.

A timeout of a socket begins anew with each byte. So a peer that sends a byte now and then holds a
thread for ever, and `Deadline` is what waits go by here.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from changelog.clock import SystemClock

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


def receive(source: socket.socket, most: int, deadline: Deadline | None) -> bytes:
    """Return some bytes, at most `most`; none if the peer has closed. Raises OSError."""
    if deadline is not None:
        source.settimeout(deadline.left)
    return source.recv(min(most, AT_ONCE))


def send_all(target: socket.socket, data: bytes, deadline: Deadline) -> None:
    """Send all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        target.settimeout(deadline.left)
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


class Budget:
    """A number of bytes, or of other things, that are shared. Thread-safe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._left = total
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, count: int, deadline: Deadline) -> Iterator[None]:
        """Take `count` for the block, waiting for it until the deadline. Raises TimeoutError.

        More than there is in all is given when nobody else has any.
        """
        count = min(count, self._total)
        with self._changed:
            while self._left < count:
                self._changed.wait(deadline.left)
            self._left -= count
        try:
            yield
        finally:
            with self._changed:
                self._left += count
                self._changed.notify_all()


_CLOCK = SystemClock()
