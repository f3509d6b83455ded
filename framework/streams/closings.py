"""Times at which windows are closed, at equal distances."""

from __future__ import annotations

from typing import NamedTuple


class Closings(NamedTuple):
    """Times of the watermark in ms at which windows are closed: `first`, and each `every` from it.

    >>> hours = Closings(60, 10)
    >>> hours.between(65, 70), hours.between(70, 129), hours.later(5)
    (True, False, Closings(every=60, first=15))
    """

    every: int
    """Milliseconds from one closing to the next."""
    first: int
    """Time of any closing, in ms since the epoch."""

    def between(self, before: int, watermark: int) -> bool:
        """Return True if there is a closing after `before`, and at or before `watermark`."""
        return (watermark - self.first) // self.every > (before - self.first) // self.every

    def later(self, ms: int) -> Closings:
        """Return the closings moved by some milliseconds to later times."""
        return Closings(self.every, (self.first + ms) % self.every)
