"""Definitions of windows, and the columns that follow from them.

Windows are `[start, end)`: a record at the end belongs to the next window. A window is closed when
the watermark has reached its end plus the grace; a record all of whose windows were closed by the
watermark before it is late. Both depend on the record's position only, not on how the records are
cut into batches.

Times are columns of datetimes or of milliseconds since the epoch, and starts and ends are columns
of the same type. Watermarks are always in milliseconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from strandline.changelog.errors import InvalidRecord
from strandline.framework.streams.calendars import MONDAY_MS, Calendar
from strandline.framework.streams.closings import Closings
from strandline.framework.streams.durations import (
    SECOND_MS,
    WEEK_MS,
    Duration,
)
from strandline.statestore.aggregates.batch import milliseconds

if TYPE_CHECKING:
    import polars as pl

Times = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T", int, "pl.Series")

MAX_TIME_MS = 1 << 61
"""Greatest time in ms, before or after the epoch, with which windows can compute."""
FIRST_TIME_MS, LAST_TIME_MS = -30_515_616_000_000, 221_813_855_999_999
"""Times of records that windows take, in ms since the epoch: the years 1003 to 8998.

A window begins or ends at most `durations.MAX_YEARS` away from the time of a record, so its times
are those of a `datetime`, which has the years 1 to 9999. Others could be neither key nor value.
"""


class Window(ABC):
    """A definition of windows: the base of all kinds."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the definition as plain data, equal for equal definitions."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the definition as it may be written."""


class TimeWindow(Window):
    """A definition of windows by time: the base of all kinds but count windows."""

    grace_ms: int
    """Milliseconds after its end for which a window waits for records that are out of order."""

    @abstractmethod
    def end_of(self, starts: T) -> T:
        """Return the end (exclusive) of windows: of one, in ms, or of a column of them."""

    @property
    def closings(self) -> Closings:
        """Times in ms of the watermark at which windows are closed: at most a second apart."""
        return Closings(SECOND_MS, 0)

    @abstractmethod
    def last_end(self, times: pl.Series) -> pl.Series:
        """Return the end in ms of the last window that each time belongs to."""

    def closed_at(self, starts: T) -> T:
        """Return the watermark at which windows are closed, in ms: their end plus the grace."""
        end = self.end_of(starts)
        if isinstance(end, int):
            return end + self.grace_ms
        return milliseconds(end) + self.grace_ms

    def late(self, times: pl.Series, watermarks: pl.Series) -> pl.Series:
        """Return which records are late, because all their windows are closed.

        Args:
            times: Timestamps of the records.
            watermarks: Watermark in ms before each record.

        Returns:
            True for each late record.
        """
        import polars as pl

        ms = _taken(times).to_numpy()
        if not (ms < watermarks.to_numpy() - self.grace_ms).any():
            # A window ends after each of its times, so none of these windows is closed.
            return pl.Series("late", np.zeros(len(ms), np.bool_))
        late = self.last_end(times) + self.grace_ms <= watermarks
        return late.alias("late")


@dataclass(frozen=True, slots=True)
class TumblingWindow(TimeWindow):
    """Windows of one size that follow each other, so that each record is in one of them."""

    size: Duration
    """Length of a window."""
    grace_ms: int = 0
    tz: str | None = None
    """Zone whose calendar the windows follow; None for windows of fixed length."""
    offset_ms: int = 0
    """Milliseconds by which windows begin later than midnight, Monday, or a multiple of the size."""

    def assign(self, times: pl.Series) -> pl.Series:
        """Return the start of the window of each time. Raises InvalidRecord for times too far."""
        ms = _checked(times)
        calendar = self._calendar
        if calendar is not None:
            import polars as pl

            return _as_given(pl.Series(calendar.starts(ms.to_numpy())), times)
        return _as_given(_floor(ms, self.size.ms, self._anchor), times)

    def end_of(self, starts: T) -> T:
        """Return the end (exclusive) of windows: of one, in ms, or of a column of them."""
        calendar = self._calendar
        if calendar is None:
            return _shifted(starts, self.size.ms)
        if isinstance(starts, int):
            return int(calendar.ends(np.array([starts]))[0])
        import polars as pl

        return _as_given(pl.Series(calendar.ends(_checked(starts).to_numpy())), starts)

    def last_end(self, times: pl.Series) -> pl.Series:
        """Return the end in ms of the window of each time."""
        return milliseconds(self.end_of(self.assign(times)))

    def first_open(self, watermark: int) -> int:
        """Return the start in ms of the first window that a watermark has not closed.

        >>> from strandline.framework.streams.window_declarations import tumbling
        >>> tumbling(10, grace=5).first_open(24), tumbling(10, grace=5).first_open(25)
        (10, 20)
        """
        import polars as pl

        return int(self.assign(pl.Series([watermark - self.grace_ms]))[0])

    @property
    def closings(self) -> Closings:
        """Times in ms of the watermark at which windows are closed."""
        if self._calendar is not None:
            return Closings(SECOND_MS, 0)
        return Closings(self.size.ms, self._anchor + self.grace_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return the definition as plain data, equal for equal definitions."""
        found = {"kind": "tumbling", "size": str(self.size), "grace_ms": self.grace_ms}
        return {**found, "tz": self.tz, "offset_ms": self.offset_ms}

    def __str__(self) -> str:
        """Return the definition as it may be written."""
        tz = "" if self.tz is None else f', tz="{self.tz}"'
        offset = f', offset="{Duration(self.offset_ms)}"' if self.offset_ms else ""
        return f'tumbling("{self.size}"{_shown_grace(self.grace_ms)}{tz}{offset})'

    @property
    def _calendar(self) -> Calendar | None:
        """Calendar of the windows; None if their length is fixed."""
        if self.tz is None:
            return None
        return Calendar(self.tz, self.size.whole_days, self.size.months, self.offset_ms)

    @property
    def _anchor(self) -> int:
        return _anchor(self.size.ms) + self.offset_ms


@dataclass(frozen=True, slots=True)
class HoppingWindow(TimeWindow):
    """Windows of one size that begin at equal distances and overlap.

    State is kept for *panes*, the parts that the windows have in common, so that a record changes
    one pane and not all its windows. A window's result is merged from its panes when it is emitted.

    A record may be late for its earlier windows and not for its later ones. It then counts for the
    later ones only: it goes into a pane of its own, which has as `since` the start of the first
    window that it counts for.
    """

    size_ms: int
    """Length of a window in ms."""
    every_ms: int
    """Milliseconds from the start of a window to that of the next one."""
    grace_ms: int = 0

    @property
    def pane_ms(self) -> int:
        """Length of a pane in ms: the greatest that divides both size and distance of windows."""
        return math.gcd(self.size_ms, self.every_ms)

    def assign(self, times: pl.Series) -> pl.Series:
        """Return the start of the pane of each time. Raises InvalidRecord for times too far."""
        return _as_given(self._panes(times), times)

    def since(self, times: pl.Series, watermarks: pl.Series) -> pl.Series:
        """Return the start of the first window that each record counts for.

        Args:
            times: Timestamps of records that are not late.
            watermarks: Watermark in ms before each record.

        Returns:
            The starts: of the first window with the record's pane, or of the first one that is not
            closed.
        """
        ms = self._first_window(self._panes(times))
        # A window is open while start + size + grace > watermark.
        first_open = watermarks - self.size_ms - self.grace_ms + 1
        rounded = -_floor(-(first_open - self._anchor), self.every_ms, 0) + self._anchor
        later = rounded > ms
        return _as_given(rounded.zip_with(later, ms), times)

    def windows_of_panes(
        self,
        panes: pl.Series,
        since: pl.Series | None = None,
        *,
        after: int | None = None,
        last: int | None = None,
    ) -> pl.DataFrame:
        """Return the windows of panes.

        Args:
            panes: Starts of panes.
            since: Start of the first window that each pane counts for, by default the first one
                that has the pane.
            after: Start in ms of a window; only later ones are returned.
            last: Start in ms of the last window to return.

        Returns:
            A row for each window of each pane, by pane and start: `row`, the number of the row in
            `panes`, and `start`, the start of the window.
        """
        import polars as pl

        at = _checked(panes).to_numpy()
        first = self._first_window(pl.Series(at)).to_numpy()
        final = self._last_window(pl.Series(at)).to_numpy()
        if since is not None:
            first = np.maximum(first, _checked(since).to_numpy())
        if after is not None:
            first = np.maximum(first, self.last_window(after) + self.every_ms)
        if last is not None:
            final = np.minimum(final, last)
        counts = np.maximum((final - first) // self.every_ms + 1, 0)
        rows = np.repeat(np.arange(len(at)), counts)
        ordinal = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = _as_given(pl.Series(first[rows] + ordinal * self.every_ms), panes)
        return pl.DataFrame({"row": rows, "start": starts})

    def end_of(self, starts: T) -> T:
        """Return the end (exclusive) of windows: of one, in ms, or of a column of them."""
        return _shifted(starts, self.size_ms)

    def last_end(self, times: pl.Series) -> pl.Series:
        """Return the end in ms of the last window that each time belongs to."""
        return self._last_window(_checked(times)) + self.size_ms

    def last_closed(self, watermark: int) -> int:
        """Return the start in ms of the last window that a watermark has closed.

        >>> from strandline.framework.streams.window_declarations import hopping
        >>> hopping(10, 5).last_closed(24), hopping(10, 5).last_closed(25)
        (10, 15)
        """
        return self.last_window(watermark - self.grace_ms - self.size_ms)

    def last_window(self, time: int) -> int:
        """Return the start in ms of the last window that a time belongs to."""
        return (time - self._anchor) // self.every_ms * self.every_ms + self._anchor

    @property
    def closings(self) -> Closings:
        """Times in ms of the watermark at which windows are closed."""
        return Closings(self.every_ms, self._anchor + self.size_ms + self.grace_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return the definition as plain data, equal for equal definitions."""
        found = {"kind": "hopping", "size_ms": self.size_ms, "every_ms": self.every_ms}
        return {**found, "grace_ms": self.grace_ms}

    def __str__(self) -> str:
        """Return the definition as it may be written."""
        size, every = Duration(self.size_ms), Duration(self.every_ms)
        return f'hopping("{size}", "{every}"{_shown_grace(self.grace_ms)})'

    def _panes(self, times: pl.Series) -> pl.Series:
        return _floor(_checked(times), self.pane_ms, self._anchor)

    def _last_window(self, ms: pl.Series) -> pl.Series:
        return _floor(ms, self.every_ms, self._anchor)

    def _first_window(self, panes: pl.Series) -> pl.Series:
        """Return the start of the first window that ends after the start of each pane."""
        return _floor(panes - self.size_ms, self.every_ms, self._anchor) + self.every_ms

    @property
    def _anchor(self) -> int:
        return _anchor(self.every_ms)


@dataclass(frozen=True, slots=True)
class SlidingWindow(TimeWindow):
    """For each record of a key, the window of the records up to `size` before it, and of itself.

    The window of a record at t is `[t - size, t]`, with both ends, as SQL's
    `RANGE BETWEEN size PRECEDING AND CURRENT ROW`; records of equal times share it. A record that
    is out of order also counts for the windows of the later records that are not closed.
    """

    size_ms: int
    """Greatest time in ms between a record and the earliest one in its window."""
    grace_ms: int = 0

    def assign(self, times: pl.Series) -> pl.Series:
        """Return the start of the window of each record. Raises InvalidRecord for times too far."""
        return _as_given(_checked(times) - self.size_ms, times)

    def end_of(self, starts: T) -> T:
        """Return the end (exclusive) of windows: 1 ms after the time of their last record."""
        return _shifted(starts, self.size_ms + 1)

    def last_end(self, times: pl.Series) -> pl.Series:
        """Return the end in ms of the last window that each record may count for."""
        return _checked(times) + self.size_ms + 1

    def since(self, times: pl.Series, watermarks: pl.Series) -> pl.Series:
        """Return the time in ms of the first record whose window each record may count for.

        It is the record's own time, unless its own window was closed before it.

        Args:
            times: Timestamps of records that are not late.
            watermarks: Watermark in ms before each record.
        """
        ms, first_open = _checked(times), watermarks - self.grace_ms
        return first_open.zip_with(first_open > ms, ms).alias("since")

    def last_closed(self, watermark: int) -> int:
        """Return the last time in ms of which windows are closed by a watermark.

        >>> from strandline.framework.streams.window_declarations import sliding
        >>> sliding(10, grace=5).last_closed(26)
        20
        """
        return watermark - self.grace_ms - 1

    def to_dict(self) -> dict[str, Any]:
        """Return the definition as plain data, equal for equal definitions."""
        return {"kind": "sliding", "size_ms": self.size_ms, "grace_ms": self.grace_ms}

    def __str__(self) -> str:
        """Return the definition as it may be written."""
        return f'sliding("{Duration(self.size_ms)}"{_shown_grace(self.grace_ms)})'


@dataclass(frozen=True, slots=True)
class SessionWindow(TimeWindow):
    """For each key, windows of records with less than `gap` between one and the next.

    A session begins with its first record, and ends `gap` after its last one. `sessions.py` merges
    records into sessions.

    A record is late if it is older than the watermark less the grace, also if a session of its key
    is open at that time. So no other record can reach into a session that is closed, and the same
    sessions result wherever batches are cut. (Kafka Streams adds it to the open session.)
    """

    gap_ms: int
    """Milliseconds without a record after which a session ends."""
    grace_ms: int = 0

    def end_of(self, starts: T) -> T:
        """Return the end (exclusive) of sessions of one record each."""
        return _shifted(starts, self.gap_ms)

    def last_end(self, times: pl.Series) -> pl.Series:
        """Return the end in ms of the session of each record alone."""
        return _checked(times) + self.gap_ms

    def late(self, times: pl.Series, watermarks: pl.Series) -> pl.Series:
        """Return which records are late, because they are older than the watermark less the grace.

        Args:
            times: Timestamps of the records.
            watermarks: Watermark in ms before each record.

        Returns:
            True for each late record.
        """
        return (_taken(times) + self.grace_ms < watermarks).alias("late")

    def to_dict(self) -> dict[str, Any]:
        """Return the definition as plain data, equal for equal definitions."""
        return {"kind": "session", "gap_ms": self.gap_ms, "grace_ms": self.grace_ms}

    def __str__(self) -> str:
        """Return the definition as it may be written."""
        return f'session("{Duration(self.gap_ms)}"{_shown_grace(self.grace_ms)})'


@dataclass(frozen=True, slots=True)
class CountWindow(Window):
    """For each key, windows of `n` records in the order of their arrival; none is ever late."""

    n: int
    """Number of records of a window."""

    def positions(self, keys: pl.DataFrame, counted: pl.Series) -> pl.Series:
        """Return the position of each record among those of its key, from 0.

        Args:
            keys: Columns that identify the key of each record.
            counted: Number of records of its key before the batch, for each record.
        """
        import polars as pl

        within = keys.select(pl.int_range(pl.len()).over(keys.columns)).to_series()
        return (counted + within).alias("position")

    def assign(self, positions: pl.Series) -> pl.Series:
        """Return the position of the first record of each record's window."""
        return positions // self.n * self.n

    def end_of(self, starts: T) -> T:
        """Return the position after the last record of windows."""
        return starts + self.n

    def to_dict(self) -> dict[str, Any]:
        """Return the definition as plain data, equal for equal definitions."""
        return {"kind": "count", "n": self.n}

    def __str__(self) -> str:
        """Return the definition as it may be written."""
        return f"count_window({self.n})"


def _anchor(size_ms: int) -> int:
    """Return a time at which windows of a size begin: a Monday for whole weeks, else the epoch."""
    return MONDAY_MS if size_ms % WEEK_MS == 0 else 0


def _floor(ms: pl.Series, size: int, anchor: int) -> pl.Series:
    """Return times rounded down to a multiple of `size` from `anchor`, also before it."""
    import polars as pl

    return pl.Series(ms.name, (ms.to_numpy() - anchor) // size * size + anchor)


def _checked(times: pl.Series) -> pl.Series:
    """Return times in ms since the epoch. Raises InvalidRecord for nulls and times too far."""
    ms = milliseconds(times)
    if ms.null_count():
        raise InvalidRecord(
            f"{ms.null_count()} of {len(ms)} times in column {times.name!r} are null; "
            "drop these records, or give them a time"
        )
    bounds: list[Any] = [ms.min() or 0, ms.max() or 0]
    if max(map(abs, bounds)) > MAX_TIME_MS:
        raise InvalidRecord(
            f"times in column {times.name!r} are from {bounds[0]} to {bounds[1]} ms, which is "
            "beyond all windows; correct the timestamps, which are in ms since the epoch"
        )
    return ms


def _taken(times: pl.Series) -> pl.Series:
    """Return times of records in ms. Raises InvalidRecord for nulls, and other years than allowed."""
    ms = _checked(times)
    bounds: list[Any] = [ms.min(), ms.max()]
    if len(ms) and not FIRST_TIME_MS <= bounds[0] <= bounds[1] <= LAST_TIME_MS:
        raise InvalidRecord(
            f"times of records are from {bounds[0]} to {bounds[1]} ms, and windows take those of the "
            "years 1003 to 8998; correct the timestamps, which are in ms since the epoch"
        )
    return ms


def _as_given(ms: pl.Series, times: pl.Series) -> pl.Series:
    """Return times in ms in the type of `times`, with its name."""
    import polars as pl

    found = ms.alias(times.name)
    if not isinstance(times.dtype, pl.Datetime):
        return found.cast(pl.Int64)
    unit = {"ms": 1, "us": 1000, "ns": 1_000_000}[times.dtype.time_unit]
    return (found.cast(pl.Int64) * unit).cast(times.dtype)


def _shifted(starts: T, by_ms: int) -> T:
    """Return times later by some milliseconds."""
    if isinstance(starts, int):
        return starts + by_ms
    return _as_given(_checked(starts) + by_ms, starts)


def _shown_grace(grace_ms: int) -> str:
    return f', grace="{Duration(grace_ms)}"' if grace_ms else ""
