"""The brake that holds the cleaner to what it may read and write (Kafka's Throttler)."""

from __future__ import annotations

import threading

from changelog.clock import Clock


class Throttle:
    """Lets bytes pass at a rate, those of several threads together."""

    def __init__(self, clock: Clock, stopping: threading.Event) -> None:
        self._clock = clock
        self._stopping = stopping
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.waited = 0.0
        """Seconds, all threads together."""

    def take(self, nbytes: int, rate: float) -> None:
        """Return when `nbytes` may pass at `rate` bytes per second, or nothing matters any more."""
        with self._lock:
            now = self._clock.monotonic()
            begins = max(now, self._free_at)
            self._free_at = begins + nbytes / rate
            self.waited += begins - now
        if begins > now:
            self._stopping.wait(begins - now)
