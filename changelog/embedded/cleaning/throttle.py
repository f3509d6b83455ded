"""Limit the bytes per second that the cleaner reads and writes (Kafka's Throttler)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.changelog.clock import Clock

CHECK_INTERVAL_S = 0.1
"""Maximum time between two calls of `check` while a thread waits."""
MIN_WAIT_S = 0.0001
"""Shorter waits are skipped and added to the next one, because threads do not wake up that soon."""


class Throttle:
    """Limits the bytes per second of several threads together.

    `rate` returns the current limit in bytes per second. A changed limit applies at once, also to
    threads that are waiting.
    """

    def __init__(self, clock: Clock, stopping: threading.Event, rate: Callable[[], float]) -> None:
        self._clock = clock
        self._stopping = stopping
        self._rate = rate
        self._lock = threading.Lock()
        self._current_rate = rate()
        self._free_at = 0.0
        self.waited = 0.0
        """Seconds waited, summed over all threads."""

    def take(self, nbytes: int, check: Callable[[], None]) -> None:
        """Wait until `nbytes` may be read or written; return early if the cleaner is stopping.

        `check` is called while waiting; its errors end the wait.
        """
        with self._lock:
            now, rate = self._clock.monotonic(), self._rate()
            if rate != self._current_rate:
                self._current_rate, self._free_at = rate, now
            begins = max(now, self._free_at)
            self._free_at = begins + nbytes / rate
        remaining = begins - now
        while remaining > MIN_WAIT_S and rate == self._rate() and not self._stopping.is_set():
            check()
            piece = min(remaining, CHECK_INTERVAL_S)
            self._stopping.wait(piece)
            remaining -= piece
            with self._lock:
                self.waited += piece
