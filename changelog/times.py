"""Timestamps from users: integers of milliseconds since the epoch, or datetimes.

A common mistake is to pass seconds, as `time.time()` returns them, or microseconds or nanoseconds,
as data frames hold them. Read as milliseconds, seconds are in January 1970 and the others after the
year 9999, so that windows, timers and retention silently go wrong. Therefore a float is rejected,
and so is an integer that is before 1980 in milliseconds but after 1980 in seconds, or that is
between 1980 and 2100 in microseconds or nanoseconds. For older data, pass datetimes, which are
unambiguous. The same holds for times by which records are searched: with seconds, the first record
at or after a time would be the first of all. Records that are already in a log are read whatever
their time, and a handler may use times similar to that of its record.
"""

from __future__ import annotations

import datetime as dt
import operator
import warnings
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.errors import InvalidRecord

SECONDS_OF_1980 = 315_532_800
MS_OF_1980 = 1_000 * SECONDS_OF_1980
SECONDS_OF_2100 = 4_102_444_800
FINER_UNITS = {"microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
"""Units that are mistaken for milliseconds, and how many of them are a second."""
MIN_FINE = min(FINER_UNITS.values()) * SECONDS_OF_1980
"""First number that looks like a finer unit. As milliseconds it is after the year 9999."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIX = (
    "times are integers of milliseconds: int(time.time() * 1000), or datetimes; a time that is "
    "really before 1980 is given as a datetime"
)


def to_ms(at: Any, around: int) -> int:
    """Return a time from a user in milliseconds since the epoch.

    Args:
        at: An integer of milliseconds, or a datetime (UTC if it has no zone).
        around: Time in ms to which `at` is related: now, or that of the record being handled.
            An early time is accepted if `around` is early too, and a late one if it is late.

    Raises:
        InvalidRecord: The time is a float or of another type, or looks like seconds, microseconds
            or nanoseconds.

    >>> to_ms(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), MS_OF_1980)
    1000
    >>> to_ms(1_760_000_400, around=1_760_000_400_000)
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidRecord: the time 1760000400 is 1970-01-21 08:53 in
    milliseconds, and looks like seconds; ...
    """
    if isinstance(at, dt.datetime):
        aware = at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // dt.timedelta(milliseconds=1)
    try:
        ms = operator.index(at)
    except TypeError:
        ms = None
    if ms is None or isinstance(at, bool):
        raise InvalidRecord(f"the time {at!r} is of type {type(at).__name__}; {_FIX}")
    if ms < MS_OF_1980:
        _check_early(ms, around)
    elif ms >= MIN_FINE:
        _check_late(ms, around)
    return ms


def sought_ms(at: Any, *, after: bool = False) -> int:
    """Return the first millisecond at or after a time from a user who searches for it.

    The rules are those of `to_ms`, except that an integer before 1980 gives no warning, because 0
    stands for the beginning.

    Args:
        at: An integer of milliseconds since the epoch, or a datetime (UTC if it has no zone).
        after: Return the first millisecond after the time, even if the time is a whole one.

    >>> at = dt.datetime(1970, 1, 1, microsecond=1_500)
    >>> sought_ms(0), sought_ms(at), sought_ms(at, after=True), sought_ms(2, after=True)
    (0, 2, 2, 3)
    """
    part = isinstance(at, dt.datetime) and at.microsecond % 1_000 > 0
    return to_ms(at, around=0) + (after or part)


def check_column(times: pa.Int64Array, around: int, where: str) -> None:
    """Check a column of times in ms by the rules of `to_ms`. Raises InvalidRecord."""
    early = times.filter(pc.less(times, MS_OF_1980))
    late = times.filter(pc.greater_equal(times, MIN_FINE))
    try:
        if len(early):
            for ms in pc.min_max(early).as_py().values():
                _check_early(ms, around)
        for per_second in FINER_UNITS.values() if len(late) else ():
            _check_late_column(late, per_second, around)
    except InvalidRecord as error:
        raise InvalidRecord(f"{where}: {error}") from None


def _check_late_column(times: pa.Int64Array, per_second: int, around: int) -> None:
    """Check the first of the times that look like `per_second` units a second."""
    begin, end = SECONDS_OF_1980 * per_second, SECONDS_OF_2100 * per_second
    found = times.filter(pc.and_(pc.greater_equal(times, begin), pc.less(times, end)))
    if len(found):
        _check_late(found[0].as_py(), around)


def _check_early(ms: int, around: int) -> None:
    """Raise InvalidRecord for a time that looks like seconds.

    Warn about another time before 1980, unless `around` is before 1980 too.
    """
    if ms >= SECONDS_OF_1980 and not SECONDS_OF_1980 <= around < MS_OF_1980:
        moment = f"{_EPOCH + dt.timedelta(milliseconds=ms):%Y-%m-%d %H:%M}"
        raise InvalidRecord(
            f"the time {ms} is {moment} in milliseconds, and looks like seconds; {_FIX}"
        )
    if around >= MS_OF_1980:
        warnings.warn(f"the time {ms} ms is before 1980; {_FIX}", UserWarning, stacklevel=5)


def _check_late(ms: int, around: int) -> None:
    """Raise InvalidRecord for a time that looks like a finer unit, unless `around` is as late."""
    if around >= MIN_FINE:
        return
    for unit, per_second in FINER_UNITS.items():
        if SECONDS_OF_1980 <= ms // per_second < SECONDS_OF_2100:
            raise InvalidRecord(
                f"the time {ms} is after the year 9999 in milliseconds, and looks like {unit}; {_FIX}"
            )
