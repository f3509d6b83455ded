"""Each time is in the windows of its definition, by fixed lengths and by the calendar of a zone."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.framework.streams.watermark import NO_WATERMARK, running
from strandline.framework.streams.window_declarations import recorded_window
from strandline.framework.streams.windows import HoppingWindow, Window

HOUR, DAY = 3_600_000, 86_400_000
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def ms(text: str, zone: str = "UTC") -> int:
    """Return a local time as ms since the epoch."""
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return (moment - EPOCH) // dt.timedelta(milliseconds=1)


def local(time: int, zone: str) -> dt.datetime:
    return (EPOCH + dt.timedelta(milliseconds=time)).astimezone(zoneinfo.ZoneInfo(zone))


def column(times: Sequence[int]) -> pl.Series:
    return pl.Series("timestamp", times, dtype=pl.Int64)


TIMES = st.integers(-(10**13), 10**13) | st.integers(-50, 50)

# Fixed lengths -------------------------------------------------------------------------------


@given(st.lists(TIMES), st.integers(1, 10**10), st.data())
def test_a_time_is_in_its_tumbling_window(times: list[int], size: int, data: Any) -> None:
    offset = data.draw(st.integers(0, size - 1))
    window = sl.tumbling(size, offset=offset)
    starts = window.assign(column(times))
    ends = window.end_of(starts)
    for time, start, end in zip(times, starts, ends, strict=True):
        assert start <= time < end == start + size
        assert size % (7 * DAY) == 0 or (start - offset) % size == 0
        assert window.end_of(start) == end


def test_windows_of_whole_weeks_begin_on_mondays() -> None:
    for size in ("1w", dt.timedelta(days=7), 7 * DAY):
        [start] = sl.tumbling(size).assign(column([ms("2024-02-29T12:00")]))
        assert local(start, "UTC").isoformat() == "2024-02-26T00:00:00+00:00"
    [start] = sl.tumbling("2w", tz="Europe/Paris").assign(column([ms("1969-12-30T12:00")]))
    assert local(start, "Europe/Paris").isoformat() == "1969-12-29T00:00:00+01:00"


def test_starts_have_the_type_and_name_of_the_times() -> None:
    window = sl.tumbling("1h")
    moment = dt.datetime(1969, 12, 31, 23, 30, 0, 500, tzinfo=dt.UTC)
    for unit in ("ms", "us", "ns"):
        times = pl.Series("at", [moment], dtype=pl.Datetime(unit, "UTC"))  # type: ignore[arg-type]
        starts = window.assign(times)
        assert (starts.name, starts.dtype) == ("at", times.dtype)
        assert starts.item() == moment.replace(minute=0, microsecond=0)
        assert window.end_of(starts).item() == EPOCH
        assert sl.tumbling("1mo").assign(times).item() == dt.datetime(1969, 12, 1, tzinfo=dt.UTC)


def test_no_times_have_no_windows() -> None:
    none = column([])
    for window in (sl.tumbling("1h"), sl.tumbling("1d", tz="UTC"), sl.hopping(4, 2), sl.sliding(5)):
        assert window.end_of(window.assign(none)).is_empty()
        assert window.late(none, none).is_empty()
    assert sl.hopping(4, 2).windows_of_panes(none).is_empty()


def test_only_the_wanted_windows_of_panes_are_laid_out() -> None:
    """All windows of a pane may be more than there is memory for."""
    window = sl.hopping(10**12, 1)
    found = window.windows_of_panes(column([5, 100, 101]), after=98, last=100)
    assert found.rows() == [(1, 99), (1, 100), (2, 99), (2, 100)]


def test_null_and_impossible_times_are_refused_with_the_column() -> None:
    for window in (sl.tumbling("1h"), sl.tumbling("1d", tz="UTC"), sl.hopping(4, 2), sl.sliding(5)):
        with pytest.raises(InvalidRecord, match="1 of 2 times in column 'timestamp' are null"):
            window.assign(pl.Series("timestamp", [1, None]))
        with pytest.raises(InvalidRecord, match="in ms since the epoch"):
            window.assign(column([1 << 62]))
    with pytest.raises(InvalidRecord, match="has no day or month"):
        sl.tumbling("1mo").assign(column([10**15]))


# Calendars -----------------------------------------------------------------------------------

ZONES = [
    "UTC",
    "Europe/Paris",
    "America/New_York",
    "Australia/Lord_Howe",  # clocks change by 30 minutes
    "America/Sao_Paulo",  # clocks skipped midnight
    "America/Havana",  # clocks show the hour after midnight twice
    "Asia/Kolkata",
    "Pacific/Apia",  # skipped 30 December 2011
]
TRANSITIONS = [
    ("Europe/Paris", "2024-03-31", 23),
    ("Europe/Paris", "2024-10-27", 25),
    ("America/New_York", "2024-03-10", 23),
    ("America/New_York", "2024-11-03", 25),
    ("Australia/Lord_Howe", "2024-10-06", 23.5),
    ("Australia/Lord_Howe", "2024-04-07", 24.5),
    ("America/Sao_Paulo", "2018-11-04", 23),
    ("America/Havana", "2024-11-03", 25),
]


@pytest.mark.parametrize(("zone", "day", "hours"), TRANSITIONS)
def test_a_day_on_which_clocks_change_has_its_own_length(zone: str, day: str, hours: float) -> None:
    window = sl.tumbling("1d", tz=zone)
    noon = ms(f"{day}T12:00", zone)
    [start] = window.assign(column([noon]))
    assert window.end_of(start) - start == hours * HOUR
    assert local(start, zone).date().isoformat() == day
    assert local(start - 1, zone).date().isoformat() < day
    every = column([start, start + 1, noon, start + int(hours * HOUR) - 1])
    assert window.assign(every).to_list() == [start] * 4
    assert window.assign(column([start + int(hours * HOUR)])).item() == window.end_of(start)


def label(time: int, zone: str, days: int, months: int) -> int:
    """Return the number of the window of a time by the date on the clock."""
    day = local(time, zone).date()
    if months:
        return (day.year * 12 + day.month - 1) // months
    first = dt.date(1969, 12, 29) if days % 7 == 0 else dt.date(1970, 1, 1)
    return (day - first).days // days


def first_time_of(time: int, zone: str, days: int, months: int) -> int:
    """Return the first time with the label of `time`, by bisection: labels never go back."""
    wanted = label(time, zone, days, months)
    early, late = time - (days + 31 * months + 3) * DAY, time
    while late - early > 1:
        middle = (early + late) // 2
        if label(middle, zone, days, months) == wanted:
            late = middle
        else:
            early = middle
    return late


NEAR_TRANSITIONS = [
    ms(f"{day}T00:00", zone) + hours * HOUR for zone, day, _ in TRANSITIONS for hours in (-1, 0, 3)
]


@settings(max_examples=150)
@given(
    st.lists(
        st.integers(-(10**12), 2 * 10**12)
        | st.builds(int.__add__, st.sampled_from(NEAR_TRANSITIONS), st.integers(-DAY, DAY)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(ZONES),
    st.sampled_from(["1d", "3d", "1w", "2w", "1mo", "3mo", "1y", "5y"]),
)
@example([ms("2011-12-31T00:00", "Pacific/Apia")], "Pacific/Apia", "1d")
@example([ms("2011-12-31T00:00", "Pacific/Apia") - 1], "Pacific/Apia", "1d")
def test_calendar_windows_begin_at_the_first_time_of_their_dates(
    times: list[int], zone: str, size: str
) -> None:
    window = sl.tumbling(size, tz=zone)
    days, months = window.size.whole_days, window.size.months
    starts = window.assign(column(times))
    ends = window.end_of(starts)
    for time, start, end in zip(times, starts, ends, strict=True):
        assert start == first_time_of(time, zone, days, months)
        assert start <= time < end
        assert end == window.end_of(start)
        assert end == first_time_of(end, zone, days, months)
        assert label(end - 1, zone, days, months) == label(time, zone, days, months)


@pytest.mark.parametrize("size", ["1d", "999d", "365000d", "1mo", "1000y"])
def test_calendar_windows_reach_over_all_years(size: str) -> None:
    window = sl.tumbling(size, tz="Europe/Paris")
    times = column([ms("0002-03-01T00:00"), ms("9998-03-01T00:00")])
    starts = window.assign(times)
    assert (starts <= times).all()
    assert (window.end_of(starts) > times).all()


def test_an_offset_moves_the_beginning_of_days_on_the_clock() -> None:
    window = sl.tumbling("1d", tz="Europe/Paris", offset="6h")
    for day, hours in (("2024-03-30", 23), ("2024-10-26", 25), ("2024-06-01", 24)):
        [start] = window.assign(column([ms(f"{day}T20:00", "Europe/Paris")]))
        assert local(start, "Europe/Paris").isoformat()[:16] == f"{day}T06:00"
        assert window.end_of(start) - start == hours * HOUR
    fiscal = sl.tumbling("1y", tz="UTC", offset="5d")
    assert fiscal.assign(column([ms("2024-01-05T23:59")])).item() == ms("2023-01-06T00:00")


def test_a_day_that_begins_in_an_hour_that_clocks_change_begins_as_documented() -> None:
    window = sl.tumbling("1d", tz="Europe/Paris", offset="150m")
    for day, begins in (
        ("2025-03-30", "2025-03-30T03:30:00+02:00"),  # from 2 to 3 o'clock no clock shows a time
        ("2025-10-26", "2025-10-26T02:30:00+02:00"),  # the first of two such times
    ):
        [start] = window.assign(column([ms(f"{day}T20:00", "Europe/Paris")]))
        assert local(start, "Europe/Paris").isoformat() == begins


# Lateness ------------------------------------------------------------------------------------


@given(st.lists(st.integers(-200, 200)), st.integers(1, 50), st.integers(0, 30))
def test_a_record_is_late_when_its_window_and_grace_are_over(
    times: list[int], size: int, grace: int
) -> None:
    window = sl.tumbling(size, grace=grace)
    marks = running(np.array(times, dtype=np.int64), NO_WATERMARK, 0)
    late = window.late(column(times), pl.Series(marks)).to_list()
    before = NO_WATERMARK
    for time, is_late in zip(times, late, strict=True):
        end = (time // size + 1) * size
        assert is_late == (end + grace <= before)
        before = max(before, time)
    starts = window.assign(column(times))
    assert [window.closed_at(start) for start in starts] == window.closed_at(starts).to_list()


def test_a_record_is_late_for_a_sliding_window_after_size_and_grace() -> None:
    window = sl.sliding(10, grace=5)
    marks = pl.Series([115, 116])
    assert window.late(column([100, 100]), marks).to_list() == [False, True]
    assert window.assign(column([100])).item() == 90
    assert (window.end_of(90), window.closed_at(90)) == (101, 106)


# Hopping windows -----------------------------------------------------------------------------

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40)).map(sorted).map(tuple)


def windows_of(time: int, size: int, every: int) -> list[int]:
    """Return the starts of the hopping windows that a time belongs to."""
    last = time // every * every
    return [start for start in range(last, last - size, -every) if start <= time < start + size]


@given(st.lists(st.integers(-200, 200), max_size=10), SIZES)
def test_a_pane_is_in_the_windows_of_its_times(times: list[int], sizes: tuple[int, int]) -> None:
    every, size = sizes
    window = sl.hopping(size, every)
    panes = window.assign(column(times))
    pairs = window.windows_of_panes(panes)
    for row, (time, pane) in enumerate(zip(times, panes, strict=True)):
        assert pane <= time < pane + window.pane_ms
        starts = pairs.filter(pl.col("row") == row)["start"].to_list()
        assert starts == sorted(windows_of(time, size, every))
        assert window.last_end(column([time])).item() == starts[-1] + size


def hopping_by_rows(times: Sequence[int], window: HoppingWindow) -> tuple[Counter[int], int]:
    """Return the number of records of each window, and of late records, one record at a time."""
    counts: Counter[int] = Counter()
    late, mark = 0, NO_WATERMARK
    for time in times:
        starts = windows_of(time, window.size_ms, window.every_ms)
        still_open = [s for s in starts if s + window.size_ms + window.grace_ms > mark]
        counts.update(still_open)
        late += not still_open
        mark = max(mark, time)
    return counts, late


def cut(times: Sequence[int], cuts: Sequence[int]) -> Iterator[Sequence[int]]:
    ends = [0, *sorted(min(place, len(times)) for place in cuts), len(times)]
    for start, end in zip(ends[:-1], ends[1:], strict=True):  # noqa: RUF007
        yield times[start:end]


@settings(max_examples=200)
@given(
    st.lists(st.integers(-100, 200), max_size=20),
    SIZES,
    st.integers(0, 20),
    st.lists(st.integers(0, 20), max_size=3),
)
def test_hopping_windows_count_the_same_records_wherever_batches_are_cut(
    times: list[int], sizes: tuple[int, int], grace: int, cuts: list[int]
) -> None:
    every, size = sizes
    window = sl.hopping(size, every, grace=grace)
    panes: Counter[tuple[int, int]] = Counter()
    emitted: Counter[int] = Counter()
    late, mark = 0, NO_WATERMARK
    for batch in cut(times, cuts):
        at = column(batch)
        marks = pl.Series(running(at.to_numpy(), mark, 0), dtype=pl.Int64)
        is_late = window.late(at, marks)
        late += int(is_late.sum())
        kept, marks = at.filter(~is_late), marks.filter(~is_late)
        panes.update(zip(window.assign(kept), window.since(kept, marks), strict=True))
        mark = max([mark, *batch])
        close(window, panes, emitted, mark)
    close(window, panes, emitted, 1 << 60)
    assert (emitted, late) == hopping_by_rows(times, window)


def close(
    window: HoppingWindow, panes: Counter[tuple[int, int]], emitted: Counter[int], mark: int
) -> None:
    """Emit the windows that are closed by a watermark, once each."""
    kept = list(panes)
    starts, since = (column([pair[i] for pair in kept]) for i in (0, 1))
    found: Counter[int] = Counter()
    for row, start in window.windows_of_panes(starts, since).iter_rows():
        if window.closed_at(start) <= mark and start not in emitted:
            found[start] += panes[kept[row]]
    emitted.update(found)


# Counts --------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("ab"), max_size=20), st.integers(1, 5), st.integers(0, 20))
def test_every_n_records_of_a_key_are_a_window(keys: list[str], n: int, place: int) -> None:
    window = sl.count_window(n)
    counted: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    for batch in (keys[:place], keys[place:]):
        before = pl.Series([counted[key] for key in batch], dtype=pl.Int64)
        frame = pl.DataFrame({"key": batch}, schema={"key": pl.String})
        starts = window.assign(window.positions(frame, before))
        found += zip(batch, starts, strict=True)
        counted.update(batch)
    seen: Counter[str] = Counter()
    for key, start in found:
        assert start == seen[key] // n * n
        assert window.end_of(start) == start + n
        seen[key] += 1


# Declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: sl.tumbling(0), "greater than 0"),
        (lambda: sl.tumbling("-1h"), "is no duration"),
        (lambda: sl.tumbling(dt.timedelta(hours=-1)), "greater than 0"),
        (lambda: sl.tumbling(dt.timedelta(microseconds=1)), "is no duration"),
        (lambda: sl.tumbling("1 hour"), "is no duration"),
        (lambda: sl.tumbling("1mo1d"), "is no duration"),
        (lambda: sl.tumbling(1.5), "is no duration"),
        (lambda: sl.tumbling(True), "is no duration"),
        (lambda: sl.tumbling("1001y"), "at most 1000 years"),
        (lambda: sl.tumbling("1h", grace="-1s"), "is no duration"),
        (lambda: sl.tumbling("1h", grace=-1), "from 0"),
        (lambda: sl.tumbling("1h", grace="1mo"), "the length of a month differs"),
        (lambda: sl.tumbling("1d", tz="Europe/Pariss"), "did you mean 'Europe/Paris'"),
        (lambda: sl.tumbling("1d", tz=3), "is no zone"),
        (lambda: sl.tumbling("1h", tz="Europe/Paris"), "leave tz= out"),
        (lambda: sl.tumbling("36h", tz="Europe/Paris"), "leave tz= out"),
        (lambda: sl.tumbling("1h", offset="1h"), "less than it"),
        (lambda: sl.tumbling("1mo", offset="28d"), "less than it"),
        (lambda: sl.hopping("1h", "2h"), "at most the size"),
        (lambda: sl.hopping("1h", 0), "greater than 0"),
        (lambda: sl.hopping("1mo", "1d"), "the length of a month differs"),
        (lambda: sl.sliding(0), "greater than 0"),
        (lambda: sl.session("0s"), "greater than 0"),
        (lambda: sl.count_window(0), "from 1"),
        (lambda: sl.count_window(True), "from 1"),
    ],
)
def test_a_definition_that_cannot_be_is_refused_with_the_fix(declare: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        declare()


def test_equal_definitions_have_equal_fingerprints_and_others_differ() -> None:
    same = [sl.tumbling("1h"), sl.tumbling(3_600_000), sl.tumbling(dt.timedelta(hours=1))]
    assert len({str(window.to_dict()) for window in same}) == len(set(same)) == 1
    others = [
        *(sl.tumbling("1h", grace=1), sl.tumbling("1h", offset=1), sl.tumbling("1d")),
        *(sl.tumbling("1d", tz="UTC"), sl.tumbling("1mo"), sl.tumbling("1mo", tz="Europe/Paris")),
        *(sl.hopping("1h", "1h"), sl.hopping("1h", "10m"), sl.sliding("1h"), sl.session("1h")),
        *(sl.session("1h", grace=0), sl.count_window(1), sl.count_window(2)),
    ]
    assert len({str(window.to_dict()) for window in [*others, *same]}) == len(others) + 1


@pytest.mark.parametrize(
    "window",
    [
        sl.tumbling("90m", grace="10s", offset="1ms"),
        sl.tumbling("2y", tz="Europe/Paris"),
        sl.tumbling("7mo"),
        sl.hopping("1w", "1d", grace="1h"),
        sl.sliding("1500ms"),
        sl.session("30m", grace="1m"),
        sl.count_window(7),
    ],
)
def test_a_printed_definition_declares_the_same_windows(window: Any) -> None:
    assert eval(f"sl.{window}") == window


# Recorded definitions -----------------------------------------------------------------


@pytest.mark.parametrize(
    "window",
    [
        *(sl.tumbling(7), sl.tumbling("1h", grace="5m", offset="10m"), sl.tumbling("2w")),
        *(sl.tumbling("1d", tz="Europe/Paris", offset="6h"), sl.tumbling("1mo"), sl.tumbling("1y")),
        *(
            sl.hopping("1h", "7m", grace=3),
            sl.sliding("90s"),
            sl.session("5m"),
            sl.session(5, grace=0),
        ),
        sl.count_window(3),
    ],
)
def test_a_window_is_that_of_its_recorded_definition(window: Window) -> None:
    assert recorded_window(window.to_dict()) == window


@pytest.mark.parametrize(
    "changed",
    [
        *({"kind": "jumping"}, {"every_ms": 0}, {"every_ms": -1}, {"size_ms": "1 hour"}),
        *({"size_ms": 5}, {"size_ms": True}, {"size_ms": 1 << 70}, {"more": 1}, {"kind": None}),
    ],
)
def test_a_damaged_definition_of_a_window_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(sl.InvalidConfig, match="unknown window"):
        recorded_window(sl.hopping(20, 10).to_dict() | changed)
