"""Messages that may come by the thousand: the first at once, then a sum now and then."""

from __future__ import annotations

import logging
import threading

from strandline.changelog.clock import Clock

EVERY_SECONDS = 10.0


class RateLimitedLog:
    """Logs the first of like messages, and after that at most one in `every` seconds, with their number.

    Thread-safe.

    >>> from strandline.changelog.clock import ManualClock
    >>> clock, said = ManualClock(), []
    >>> log = logging.Logger("doctest")
    >>> log.addFilter(lambda record: said.append(record.getMessage()))
    >>> rarely = RateLimitedLog(log, clock)
    >>> rarely.note("a"); rarely.note("b"); rarely.note("c")
    >>> clock.advance(10_000); rarely.note("d")
    >>> said
    ['a', 'd (and 2 before it)']
    """

    def __init__(self, log: logging.Logger, clock: Clock, every: float = EVERY_SECONDS) -> None:
        self._log = log
        self._clock = clock
        self._every = every
        self._lock = threading.Lock()
        self._unsaid = 0
        self._next = clock.monotonic()

    def note(self, text: str, *, level: int = logging.WARNING, **fields: object) -> None:
        """Something happened; say so if it is time. `fields` are for those who read JSON."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._next:
                self._unsaid += 1
                return
            unsaid, self._unsaid = self._unsaid, 0
            self._next = now + self._every
        more = f" (and {unsaid:,} before it)" if unsaid else ""
        self._log.log(level, "%s", text + more, extra={**fields, "times": unsaid + 1})

    def close(self) -> None:
        """Say how many went unsaid."""
        with self._lock:
            unsaid, self._unsaid = self._unsaid, 0
        if unsaid:
            self._log.warning("(and %s more like the last one)", f"{unsaid:,}")
