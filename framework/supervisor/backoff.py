"""How long to wait before a worker is started again, and when to give up."""

from __future__ import annotations

from dataclasses import dataclass

JITTER = 0.2
"""Part of a pause by which it is longer or shorter, so that workers do not start in step."""


@dataclass(frozen=True)
class Backoff:
    """The rules; times in seconds."""

    first: float = 0.5
    longest: float = 30.0
    healthy: float = 60.0
    """After so long a life what came before is forgotten."""
    give_up: int = 5
    """Deaths in a row, each after a short life, after which a worker counts as hopeless."""

    def deaths_in_a_row(self, before: int, lived: float) -> int:
        """How many it is now, after a life of that length.

        >>> Backoff().deaths_in_a_row(4, 1.0), Backoff().deaths_in_a_row(4, 61.0)
        (5, 1)
        """
        return 1 if lived >= self.healthy else before + 1

    def pause(self, deaths: int, chance: float) -> float:
        """Seconds to wait after so many deaths; `chance` is a random number from 0 to 1.

        >>> [Backoff().pause(deaths, 0.5) for deaths in (1, 2, 3, 6, 7, 2000)]
        [0.5, 1.0, 2.0, 16.0, 30.0, 30.0]
        >>> round(Backoff().pause(2, 0.0), 6), round(Backoff().pause(2, 1.0), 6)
        (0.8, 1.2)
        """
        doubled = self.first * 2.0 ** min(deaths - 1, 30)
        return min(doubled, self.longest) * (1 - JITTER + 2 * JITTER * chance)
