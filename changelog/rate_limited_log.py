"""Rate-limited log messages: the first at once, later ones summed up from time to time."""

from __future__ import annotations

import logging
import threading

from strandline.changelog.clock import Clock
from strandline.changelog.printable import printable

EVERY_SECONDS = 10.0


class RateLimitedLog:
    """Logs a first message at once, then at most one in `every` seconds with the number skipped.

    `close` logs the last one that was skipped. Characters that a terminal would act on are escaped,
    because the texts may contain records. Thread-safe.

    >>> from strandline.changelog.clock import ManualClock
    >>> clock, logged = ManualClock(), []
    >>> log = logging.Logger("doctest")
    >>> log.addFilter(lambda record: logged.append(record.getMessage()))
    >>> limited = RateLimitedLog(log, clock)
    >>> limited.note("a"); limited.note("b"); limited.note("c")
    >>> clock.advance(10_000); limited.note("d")
    >>> limited.note("e"); limited.note("f"); limited.close()
    >>> logged
    ['a', 'd (and 2 before it)', 'f (and 1 before it)']
    """

    def __init__(self, log: logging.Logger, clock: Clock, every: float = EVERY_SECONDS) -> None:
        self._log = log
        self._clock = clock
        self._every = every
        self._lock = threading.Lock()
        self._skipped = 0
        self._last: tuple[int, str, dict[str, object]] | None = None
        """Level, text and fields of the last message that was skipped."""
        self._next = clock.monotonic()

    def note(self, text: str, *, level: int = logging.WARNING, **fields: object) -> None:
        """Log `text`, or count it as skipped. `fields` are added to the log record (for JSON)."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._next:
                self._skipped += 1
                self._last = level, text, fields
                return
            unsaid, self._skipped = self._skipped, 0
            self._next = now + self._every
        self._write(level, text, fields, unsaid)

    def close(self) -> None:
        """Log the last message that was skipped since one was logged, and the number of others."""
        with self._lock:
            unsaid, self._skipped = self._skipped, 0
        if unsaid and self._last is not None:
            self._write(*self._last, unsaid - 1)

    def _write(self, level: int, text: str, fields: dict[str, object], unsaid: int) -> None:
        more = f" (and {unsaid:,} before it)" if unsaid else ""
        self._log.log(level, "%s", printable(text) + more, extra={**fields, "times": unsaid + 1})
