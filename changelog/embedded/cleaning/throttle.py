"""The brake that holds the cleaner to what it may read and write (Kafka's Throttler)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.changelog.clock import Clock

PIECE_S = 0.1
"""How long who waits does not look whether that is still wanted."""
LEAST_S = 0.0001
"""What is less is left to the next one that waits: no system wakes anybody so soon."""


class Throttle:
    """Lets bytes pass at a rate, those of several threads together.

    `rate` tells how many per second at the moment. A new one holds at once: for who waits, too.
    """

    def __init__(self, clock: Clock, stopping: threading.Event, rate: Callable[[], float]) -> None:
        self._clock = clock
        self._stopping = stopping
        self._rate = rate
        self._lock = threading.Lock()
        self._held_to = rate()
        self._free_at = 0.0
        self.waited = 0.0
        """Seconds, all threads together."""

    def take(self, nbytes: int, check: Callable[[], None]) -> None:
        """Return when `nbytes` may pass, or nothing matters any more. Raises what `check` does."""
        with self._lock:
            now, rate = self._clock.monotonic(), self._rate()
            if rate != self._held_to:
                self._held_to, self._free_at = rate, now
            begins = max(now, self._free_at)
            self._free_at = begins + nbytes / rate
        left = begins - now
        while left > LEAST_S and rate == self._rate() and not self._stopping.is_set():
            check()
            piece = min(left, PIECE_S)
            self._stopping.wait(piece)
            left -= piece
            with self._lock:
                self.waited += piece
