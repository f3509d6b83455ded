"""Whether somebody is waiting for the log: what runs in the background gives way to that.

Threads of Python take turns: each time one comes back from the disk it waits until another lets go, and
a commit comes back from the disk a dozen times. So background work that goes on beside it makes it
several times as long, however many processors there are.
"""

from __future__ import annotations

import threading
from types import TracebackType

from strandline.changelog.clock import Clock

SLICE_S = 0.001
"""Work of less than this is not interrupted."""
MAX_WAIT_RATIO = 3
"""How many times as long as it has worked who gives way waits at most: it has a quarter of the time."""
LOOK_S = 0.001
"""Who gives way looks so often whether it still has to; so it does not slip between two calls."""


class Traffic:
    """Appends and commits that are under way: `with traffic:` around each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self.begun = 0
        """Of all time."""

    @property
    def active(self) -> bool:
        """Whether anything is under way."""
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
    """Work in the background that gives way to traffic. Of one thread."""

    def __init__(self, traffic: Traffic, clock: Clock, stopping: threading.Event) -> None:
        self._traffic = traffic
        self._clock = clock
        self._stopping = stopping
        self._since = clock.monotonic()
        self._seen_begun = traffic.begun

    def give_way(self) -> None:
        """Call it often. Return when nothing is under way, or it has waited long enough, or shall stop."""
        now = self._clock.monotonic()
        if now - self._since < SLICE_S:
            return
        until = now + MAX_WAIT_RATIO * (now - self._since)
        while now < until and self._seen_traffic() and not self._stopping.is_set():
            self._stopping.wait(min(until - now, LOOK_S))
            now = self._clock.monotonic()
        self._since = now

    def _seen_traffic(self) -> bool:
        """Whether anything is under way, or has been since the last look."""
        seen, self._seen_begun = self._seen_begun, self._traffic.begun
        return self._traffic.active or seen != self._seen_begun
