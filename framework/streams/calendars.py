"""Windows of days, weeks, months and years by the calendar of a zone.

A window begins at midnight in its zone (later by an offset), so days are of 23 to 25 hours where
clocks change. A midnight that clocks skip is replaced by the moment at which they skip it (with an
offset, by the time on the clock before: 2:30 becomes 3:30), and of one that they show twice the
earlier counts. Rows are assigned to windows by comparing times with the windows' beginnings, so
each time is in exactly one window whatever the clocks do.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.framework.streams.durations import DAY_MS

Times = np.ndarray[Any, np.dtype[np.int64]]
"""Times in ms since the epoch."""

MONDAY_MS = -3 * DAY_MS
"""Beginning of the week of the epoch: Monday, 29 December 1969. Weeks are counted from it."""

YEAR_MS = 365 * DAY_MS

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_MS, _END_MS = -62_100_000_000_000, 253_370_000_000_000
"""Times in the years 2 to 9998, around which the calendar of Python has days and months."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """Windows of some days or some months in a zone."""

    zone: str
    """Name of the zone, as "Europe/Paris"."""
    days: int = 0
    """Days of a window; 0 for months. Whole weeks begin on Mondays."""
    months: int = 0
    """Months of a window, counted from January of the year 0; 0 for days."""
    offset_ms: int = 0
    """Milliseconds on the clock after midnight at which windows begin."""

    def starts(self, times: Times) -> Times:
        """Return the beginning of the window of each time. Raises InvalidRecord."""
        if not len(times):
            return times
        _check_range(times)
        boundaries = self._boundaries(times)
        return boundaries[np.searchsorted(boundaries, times, side="right") - 1]

    def ends(self, starts: Times) -> Times:
        """Return the end of each window, which is the beginning of the next one."""
        if not len(starts):
            return starts
        boundaries = self._boundaries(starts)
        return boundaries[np.searchsorted(boundaries, starts, side="right")]

    def _boundaries(self, times: Times) -> Times:
        """Return the beginnings of all windows around times, ascending."""
        days = _distinct_days(times)
        # A clock differs from UTC by less than a day, so two days on each side are enough for the
        # window itself. The windows before and after it are for a day that a zone skipped.
        near = np.concatenate([self._numbers((days + shift) * DAY_MS) for shift in range(-2, 3)])
        numbers = np.unique(np.concatenate([near - 1, near, near + 1, near + 2]))
        return np.unique(np.array([_boundary(self, number) for number in numbers.tolist()]))

    def _numbers(self, clock: Times) -> Times:
        """Return the number of the window of each time on the clock of the zone, in ms."""
        days = (clock - self.offset_ms) // DAY_MS
        if self.months:
            months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
            found: Times = (months + 1970 * 12) // self.months
            return found
        return (days - self._first_day) // self.days

    @property
    def _first_day(self) -> int:
        """Days since the epoch of the beginning of window 0, if windows are of days."""
        return MONDAY_MS // DAY_MS if self.days % 7 == 0 else 0


@lru_cache(maxsize=100_000)
def _boundary(calendar: Calendar, number: int) -> int:
    """Return the beginning of a window by its number, in ms since the epoch."""
    if calendar.months:
        months = np.datetime64(number * calendar.months - 1970 * 12, "M")
        days = int(months.astype("datetime64[D]").astype(np.int64))
    else:
        days = number * calendar.days + calendar._first_day
    # Python has no days before the year 1 and after 9999; all times that are accepted are between.
    ms = min(max(days * DAY_MS + calendar.offset_ms, _FIRST_MS - YEAR_MS), _END_MS + YEAR_MS)
    clock = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)  # noqa: DTZ001
    # Without `fold` an ambiguous time is the earlier one, and a skipped one is the time by the
    # clock before it skipped.
    moment = clock.replace(tzinfo=zoneinfo.ZoneInfo(calendar.zone))
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def check_zone(zone: Any) -> str:
    """Return the name of a zone. Raises InvalidConfig if it is unknown."""
    try:
        return zoneinfo.ZoneInfo(zone).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        near = get_close_matches(str(zone), zoneinfo.available_timezones(), 1)
        hint = f"did you mean {near[0]!r}?" if near else 'use a name as "Europe/Paris" or "UTC"'
        raise InvalidConfig(f"tz={zone!r} is no zone; {hint}") from error


def _distinct_days(times: Times) -> Times:
    """Return days since the epoch, by UTC, that include those of all times."""
    first, last = int(times.min()) // DAY_MS, int(times.max()) // DAY_MS
    if last - first < len(times):
        return np.arange(first, last + 1)
    return np.unique(times // DAY_MS)


def _check_range(times: Times) -> None:
    """Raise InvalidRecord for times beyond the calendar."""
    for time in (int(times.min()), int(times.max())):
        if not _FIRST_MS <= time < _END_MS:
            raise InvalidRecord(
                f"the time {time} ms is beyond the years 2 to 9998, and has no day or month; "
                "correct the record's timestamp, which is in ms since the epoch"
            )
