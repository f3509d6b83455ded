"""Warnings that may come by the thousand: the first at once, then a sum now and then."""

from __future__ import annotations

import logging

from changelog.clock import Clock

EVERY_SECONDS = 10.0


class Rarely:
    """Logs the first of like warnings, and after that at most one in ten seconds, with their number.

    >>> from changelog.clock import ManualClock
    >>> clock, said = ManualClock(), []
    >>> log = logging.Logger("doctest")
    >>> log.addFilter(lambda record: said.append(record.getMessage()))
    >>> rarely = Rarely(log, clock)
    >>> rarely.note("a"); rarely.note("b"); rarely.note("c")
    >>> clock.advance(10_000); rarely.note("d")
    >>> said
    ['a', 'd (and 2 before it)']
    """

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._unsaid = 0
        self._next = clock.monotonic()

    def note(self, text: str, **fields: object) -> None:
        """Something happened; say so if it is time. `fields` are for those who read JSON."""
        now = self._clock.monotonic()
        if now < self._next:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid:,} before it)" if self._unsaid else ""
        self._log.warning("%s", text + more, extra={**fields, "times": self._unsaid + 1})
        self._unsaid, self._next = 0, now + EVERY_SECONDS

    def close(self) -> None:
        """Say how many went unsaid."""
        if self._unsaid:
            self._log.warning("(and %s more like the last one)", f"{self._unsaid:,}")
            self._unsaid = 0
