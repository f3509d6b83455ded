"""Durations as users write them: "10m", a timedelta, or milliseconds."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any

from strandline.changelog.errors import InvalidConfig

SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS

MAX_YEARS = 1000
"""Greatest duration, so that no sum of a time and a few durations exceeds 64 bits."""

_UNITS_MS = {"ms": 1, "s": SECOND_MS, "m": 60 * SECOND_MS, "h": HOUR_MS, "d": DAY_MS, "w": WEEK_MS}
_MONTHS = {"mo": 1, "y": 12}
_PART = re.compile(r"(\d+)(ms|mo|[smhdwy])")


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time: milliseconds, or months, whose length depends on the calendar.

    >>> print(duration("90m", "size"), duration(86_400_000, "size"), duration("1y", "size"))
    90m 1d 1y
    """

    ms: int = 0
    """Milliseconds; 0 for months."""
    months: int = 0
    """Months of the calendar; 0 for milliseconds."""

    @property
    def whole_days(self) -> int:
        """Number of days; 0 if it is not a whole number of days."""
        return 0 if self.ms % DAY_MS else self.ms // DAY_MS

    def __str__(self) -> str:
        """Return the duration as it may be written, in the largest unit that is whole."""
        if self.months:
            years, months = divmod(self.months, 12)
            return f"{self.months}mo" if months else f"{years}y"
        unit = next((u for u in ("w", "d", "h", "m", "s") if self.ms % _UNITS_MS[u] == 0), "ms")
        return f"{self.ms // _UNITS_MS[unit]}{unit}" if self.ms else "0ms"


Given = str | int | dt.timedelta
"""Duration as a user gives it."""


def duration(given: Given, name: str, *, zero: bool = False) -> Duration:
    """Return a duration that a user gave.

    Args:
        given: A text such as "1h", "1h30m" or "1mo" (units ms, s, m, h, d, w, mo and y), a
            timedelta, or milliseconds.
        name: Name of the argument, for errors.
        zero: True to accept a duration of 0.

    Raises:
        InvalidConfig: It is no duration, negative, too large, or 0 without `zero`.
    """
    found = _parsed(given)
    if found is None:
        raise InvalidConfig(
            f'{name}={given!r} is no duration; use a text such as "30s", "10m", "1h30m", "1d" or '
            '"1mo", a timedelta of whole milliseconds, or an int of milliseconds'
        )
    least = 0 if zero else 1
    years = max(found.ms / (366 * DAY_MS), found.months / 12)
    if found.ms + found.months < least or years > MAX_YEARS:
        bounds = "from 0" if zero else "greater than 0"
        raise InvalidConfig(
            f"{name}={given!r}: the duration must be {bounds}, and at most {MAX_YEARS} years"
        )
    return found


def milliseconds_of(given: Given, name: str, *, zero: bool = False) -> int:
    """Return a duration of fixed length that a user gave, in milliseconds. Raises InvalidConfig."""
    found = duration(given, name, zero=zero)
    if found.months:
        raise InvalidConfig(
            f'{name}={given!r}: the length of a month differs; use days, as "30d", or tumbling '
            "windows, which may be months"
        )
    return found.ms


def _parsed(given: Any) -> Duration | None:
    """Return a duration, which may be out of range; None if `given` is none."""
    if isinstance(given, bool):
        return None
    if isinstance(given, int):
        return Duration(given)
    if isinstance(given, dt.timedelta):
        ms, rest = divmod(given, dt.timedelta(milliseconds=1))
        return None if rest else Duration(ms)
    if not isinstance(given, str) or not re.fullmatch(rf"({_PART.pattern})+", given):
        return None
    parts = [(int(amount), unit) for amount, unit in _PART.findall(given)]
    months = sum(amount * _MONTHS.get(unit, 0) for amount, unit in parts)
    ms = sum(amount * _UNITS_MS.get(unit, 0) for amount, unit in parts)
    if months and any(unit not in _MONTHS for _, unit in parts):
        return None
    return Duration(ms, months)
