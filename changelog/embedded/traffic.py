"""Detection of foreground work, so that background work can yield to it.

Python threads share one interpreter lock. A thread that returns from the disk waits until another
thread releases the lock, and a commit returns from the disk a dozen times. Background work beside
it therefore multiplies the time of a commit, however many processors there are.
"""

from __future__ import annotations

import threading
from types import TracebackType

from strandline.changelog.clock import Clock

SLICE_S = 0.001
"""Seconds of background work that are not interrupted."""
MAX_WAIT_RATIO = 3
"""Maximum time to yield, as a multiple of the time worked.

With 3 the background work gets at least a quarter of the time."""
LOOK_S = 0.001
"""Seconds between two checks while yielding.

The background work resumes only after a whole interval without traffic, so it does not start
between two calls."""


class Traffic:
    """Appends and commits under way: each runs inside `with traffic:`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self.begun = 0
        """Number of appends and commits begun since the opening."""

    @property
    def active(self) -> bool:
        """True if an append or commit is under way."""
        return self._open > 0

    def __enter__(self) -> None:
        with self._lock:
            self._open += 1
            self.begun += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._open -= 1


class BackgroundThrottle:
    """Background work of one thread that yields to traffic."""

    def __init__(self, traffic: Traffic, clock: Clock, stopping: threading.Event) -> None:
        self._traffic = traffic
        self._clock = clock
        self._stopping = stopping
        self._since = clock.monotonic()
        self._seen_begun = traffic.begun

    def give_way(self) -> None:
        """Yield to appends and commits. The background work calls this often.

        It returns when there is no traffic, after MAX_WAIT_RATIO times the time worked, or when the
        thread is to stop.
        """
        now = self._clock.monotonic()
        if now - self._since < SLICE_S:
            return
        until = now + MAX_WAIT_RATIO * (now - self._since)
        while now < until and self._seen_traffic() and not self._stopping.is_set():
            self._stopping.wait(min(until - now, LOOK_S))
            now = self._clock.monotonic()
        self._since = now

    def _seen_traffic(self) -> bool:
        """Return True if there is traffic, or has been any since the last call."""
        seen, self._seen_begun = self._seen_begun, self._traffic.begun
        return self._traffic.active or seen != self._seen_begun
