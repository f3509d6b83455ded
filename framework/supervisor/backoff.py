"""Pauses between restarts of a worker, and the number of deaths after which to give up."""

from __future__ import annotations

from dataclasses import dataclass

JITTER = 0.2
"""Fraction by which a pause is randomly changed, so that workers restart at different times."""


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff; times in seconds."""

    first: float = 0.5
    """Seconds of the first pause; it doubles with each death."""
    longest: float = 30.0
    """Maximum seconds of a pause."""
    healthy: float = 60.0
    """Seconds of life after which earlier deaths no longer count."""
    give_up: int = 5
    """Number of consecutive deaths, each after a short life, after which a worker is hopeless."""

    def deaths_in_a_row(self, before: int, lived: float) -> int:
        """Return the number of consecutive deaths, including one after `lived` seconds.

        >>> Backoff().deaths_in_a_row(4, 1.0), Backoff().deaths_in_a_row(4, 61.0)
        (5, 1)
        """
        return 1 if lived >= self.healthy else before + 1

    def pause(self, deaths: int, chance: float) -> float:
        """Return the seconds to wait after `deaths`; `chance` is a random number from 0 to 1.

        >>> [Backoff().pause(deaths, 0.5) for deaths in (1, 2, 3, 6, 7, 2000)]
        [0.5, 1.0, 2.0, 16.0, 30.0, 30.0]
        >>> round(Backoff().pause(2, 0.0), 6), round(Backoff().pause(2, 1.0), 6)
        (0.8, 1.2)
        """
        doubled = self.first * 2.0 ** min(deaths - 1, 30)
        return min(doubled, self.longest) * (1 - JITTER + 2 * JITTER * chance)
