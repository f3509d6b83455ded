"""Declarations of windows: the functions that users call, which check their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strandline.changelog.errors import InvalidConfig
from strandline.framework.streams.calendars import check_zone
from strandline.framework.streams.durations import (
    DAY_MS,
    Given,
    duration,
    milliseconds_of,
)
from strandline.framework.streams.windows import (
    CountWindow,
    HoppingWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    Window,
)


def tumbling(
    size: Given, *, grace: Given = 0, tz: str | None = None, offset: Given | None = None
) -> TumblingWindow:
    """Declare windows of one size that follow each other.

    Windows of fixed length begin at multiples of it since the epoch; those of whole weeks on
    Mondays. With `tz`, windows of days or weeks follow the calendar of a zone, so a day has 23 to
    25 hours where clocks change; windows of months and years always do.

    Args:
        size: Length, as "10m", "1h", "1d", "1mo" or "1y", a timedelta, or milliseconds.
        grace: Time after its end for which a window accepts records that are out of order.
        tz: Zone, as "Europe/Paris"; by default "UTC" for months and years, and none for others.
        offset: Time by which windows begin later, as "6h" for days from 6 to 6 o'clock. By default
            0; it must be less than `size`. With `tz` it is a time on the clock: in an hour that
            clocks skip, 2:30 becomes 3:30; in one that they show twice, the first time counts.

    Returns:
        The definition, for `window` of a stream.

    Raises:
        InvalidConfig: A duration or the zone is not valid, or `tz` is given for less than a day.

    >>> print(tumbling("60m", grace="10m"), tumbling("1mo"))
    tumbling("1h", grace="10m") tumbling("1mo", tz="UTC")
    """
    length = duration(size, "size")
    zone = (
        check_zone("UTC" if tz is None and length.months else tz) if tz or length.months else None
    )
    if zone is not None and not (length.months or length.whole_days):
        raise InvalidConfig(
            f"tumbling({size!r}, tz={tz!r}): a zone is for windows of whole days, weeks, months or "
            "years; leave tz= out, and use offset= if windows must begin later"
        )
    shift = 0 if offset is None else milliseconds_of(offset, "offset", zero=True)
    if shift >= (length.ms or 28 * DAY_MS * length.months):
        raise InvalidConfig(
            f"tumbling({size!r}, offset={offset!r}): windows begin again after each size; "
            "give an offset that is less than it"
        )
    return TumblingWindow(length, milliseconds_of(grace, "grace", zero=True), zone, shift)


def hopping(size: Given, every: Given, *, grace: Given = 0) -> HoppingWindow:
    """Declare windows of one size that begin at equal distances, and overlap.

    Windows begin at multiples of `every` since the epoch; for whole weeks on Mondays. A record that
    is late for some of its windows counts for the others.

    Args:
        size: Length of a window, as "1h", a timedelta, or milliseconds.
        every: Time from the start of a window to that of the next one, at most `size`.
        grace: Time after its end for which a window accepts records that are out of order.

    Returns:
        The definition, for `window` of a stream.

    Raises:
        InvalidConfig: A duration is not valid, or `every` is greater than `size`.

    >>> print(hopping("1h", "10m"))
    hopping("1h", "10m")
    """
    size_ms, every_ms = milliseconds_of(size, "size"), milliseconds_of(every, "every")
    if every_ms > size_ms:
        raise InvalidConfig(
            f"hopping({size!r}, {every!r}): records between windows would be in none; "
            "give every= at most the size"
        )
    return HoppingWindow(size_ms, every_ms, milliseconds_of(grace, "grace", zero=True))


def sliding(size: Given, *, grace: Given = 0) -> SlidingWindow:
    """Declare, for each record, the window of the records of its key up to `size` before it.

    It has both ends, as SQL's `RANGE BETWEEN size PRECEDING AND CURRENT ROW`.

    Args:
        size: Greatest time between a record and the earliest one in its window.
        grace: Time after a record for which its window accepts records that are out of order.

    Returns:
        The definition, for `window` of a stream.

    Raises:
        InvalidConfig: A duration is not valid.

    >>> print(sliding("5m", grace="1m"))
    sliding("5m", grace="1m")
    """
    return SlidingWindow(milliseconds_of(size, "size"), milliseconds_of(grace, "grace", zero=True))


def session(gap: Given, *, grace: Given | None = None) -> SessionWindow:
    """Declare windows of records with less than `gap` between one and the next.

    Args:
        gap: Time without a record of the key after which a session ends.
        grace: Time by which a record may be older than the watermark. A session is closed when the
            watermark has reached its end plus this time. By default `gap`, so that a record that
            extends a session by its own end is not late.

    Returns:
        The definition, for `window` of a stream.

    Raises:
        InvalidConfig: A duration is not valid.

    >>> print(session("30m", grace=0), session("30m"))
    session("30m") session("30m", grace="30m")
    """
    gap_ms = milliseconds_of(gap, "gap")
    return SessionWindow(
        gap_ms, gap_ms if grace is None else milliseconds_of(grace, "grace", zero=True)
    )


def count_window(n: int) -> CountWindow:
    """Declare windows of `n` records of a key, in the order of their arrival.

    Args:
        n: Number of records of a window.

    Returns:
        The definition, for `window` of a stream.

    Raises:
        InvalidConfig: `n` is not a positive int.

    >>> print(count_window(100))
    count_window(100)
    """
    if type(n) is not int or n < 1:
        raise InvalidConfig(f"count_window({n!r}): n is a number of records from 1")
    return CountWindow(n)


def recorded_window(data: Mapping[str, Any]) -> Window:
    """Return the window that `to_dict` has described. Raises InvalidConfig for unknown ones.

    >>> print(recorded_window(tumbling("1d", tz="Europe/Paris").to_dict()))
    tumbling("1d", tz="Europe/Paris")
    """
    given = dict(data)
    try:
        return _RECORDED[given.pop("kind")](**given)
    except (KeyError, TypeError, InvalidConfig) as error:
        raise InvalidConfig(f"unknown window {dict(data)!r:.200}; use a later version") from error


_RECORDED: Mapping[str, Callable[..., Window]] = {
    "tumbling": lambda size, grace_ms, tz, offset_ms: tumbling(
        size, grace=grace_ms, tz=tz, offset=offset_ms
    ),
    "hopping": lambda size_ms, every_ms, grace_ms: hopping(size_ms, every_ms, grace=grace_ms),
    "sliding": lambda size_ms, grace_ms: sliding(size_ms, grace=grace_ms),
    "session": lambda gap_ms, grace_ms: session(gap_ms, grace=grace_ms),
    "count": count_window,
}
"""Function that makes the windows of a kind of what `to_dict` returns besides the kind."""
