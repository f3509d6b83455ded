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
    """Milliseconds between two of them."""
    first: int
    """One of them, in ms since the epoch."""

    def between(self, before: int, watermark: int) -> bool:
        """Return True if a watermark has reached one of them that `before` had not."""
        return (watermark - self.first) // self.every > (before - self.first) // self.every

    def later(self, ms: int) -> Closings:
        """Return the times that are some milliseconds later."""
        return Closings(self.every, (self.first + ms) % self.every)
