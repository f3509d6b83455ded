"""Records are merged into the sessions of their keys, wherever batches are cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.changelog.errors import InvalidRecord
from strandline.framework.streams.sessions import merge_sessions
from strandline.framework.streams.watermark import NO_WATERMARK, running
from strandline.framework.streams.windows import SessionWindow
from strandline.statestore.aggregates import Aggregates

GAP = 10
Row = tuple[str | None, int]
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-60, 60)), max_size=25)
SCHEMA = {"key": pl.String, "timestamp": pl.Int64}
KEPT = Aggregates(n=sl.count(), first=sl.first("timestamp"), last=sl.last("timestamp"))
STORED = pl.Schema(
    {"key": pl.String, "start": pl.Int64, "end": pl.Int64, **KEPT.state_schema(SCHEMA)}
)


def by_rows(rows: Sequence[Row], window: SessionWindow) -> tuple[list[Any], int]:
    """Return all sessions (key, start, end, records), and the late records, one at a time."""
    open_ones: list[list[Any]] = []
    closed: list[list[Any]] = []
    late, mark = 0, NO_WATERMARK
    for key, time in rows:
        closed += [one for one in open_ones if one[2] + window.grace_ms <= mark]
        open_ones = [one for one in open_ones if one[2] + window.grace_ms > mark]
        if time + window.grace_ms < mark:
            late += 1
            continue
        mine = [key, time, time + window.gap_ms, 1]
        for one in [one for one in open_ones if one[0] == key]:
            if one[1] < mine[2] and mine[1] < one[2]:
                open_ones.remove(one)
                mine = [key, min(one[1], mine[1]), max(one[2], mine[2]), one[3] + mine[3]]
        open_ones.append(mine)
        mark = max(mark, time)
    return sorted([*closed, *open_ones], key=str), late


def by_batches(
    rows: Sequence[Row], window: SessionWindow, cuts: Sequence[int]
) -> tuple[list[Any], int]:
    """Return all sessions and the late records, a batch at a time."""
    stored = pl.DataFrame(schema=STORED)
    closed: list[pl.DataFrame] = []
    late, mark = 0, NO_WATERMARK
    for start, end in pairwise([0, *sorted(min(at, len(rows)) for at in cuts), len(rows)]):
        batch = pl.DataFrame(rows[start:end], schema=SCHEMA, orient="row")
        times = batch["timestamp"]
        marks = pl.Series(running(times.to_numpy(), mark, 0), dtype=pl.Int64)
        is_late = window.late(times, marks)
        late += int(is_late.sum())
        stored = applied(batch.filter(~is_late), stored, window)
        mark = max([mark, *times])
        is_closed = stored["end"] + window.grace_ms <= mark
        closed.append(stored.filter(is_closed))
        stored = stored.filter(~is_closed)
    found = pl.concat([*closed, stored])
    return sorted(map(list, found.select("key", "start", "end", "n").iter_rows()), key=str), late


def applied(batch: pl.DataFrame, stored: pl.DataFrame, window: SessionWindow) -> pl.DataFrame:
    """Return the stored sessions after a batch, with their states."""
    merged = merge_sessions(batch, stored, ["key"], "timestamp", window.gap_ms)
    fields = KEPT.state_schema(SCHEMA).names()
    olds = stored.with_columns(merged.stored).filter(pl.col("session").is_not_null())
    news = KEPT.partial(batch.with_columns(merged.records), ["session"])
    states = KEPT.combine(pl.concat([olds.select("session", *fields), news]), ["session"])
    written = merged.sessions.hstack(states.sort("session").select(fields))
    # Sessions that are neither deleted nor written again stay as they were.
    kept = stored.filter(merged.stored.is_null())
    same = stored.filter(merged.stored.is_not_null() & ~merged.absorbed)
    again = same.join(written, on=["key", "start", "end"], how="anti", nulls_equal=True)
    assert again.is_empty()
    return pl.concat([kept, written])


@settings(max_examples=200)
@given(ROWS, st.integers(0, 30), st.lists(st.integers(0, 25), max_size=4))
@example([("a", 0), ("a", 10), ("a", 5)], 10, [2])
def test_sessions_are_the_same_wherever_batches_are_cut(
    rows: list[Row], grace: int, cuts: list[int]
) -> None:
    window = sl.session(GAP, grace=grace)
    expected = by_rows(rows, window)
    assert by_batches(rows, window, []) == expected
    assert by_batches(rows, window, cuts) == expected


@pytest.mark.long
@given(ROWS)
def test_the_states_of_a_session_are_those_of_its_records(rows: list[Row]) -> None:
    window = sl.session(GAP, grace=1000)
    stored = pl.DataFrame(schema=STORED)
    for row in rows:
        batch = pl.DataFrame([row], schema=SCHEMA, orient="row")
        stored = applied(batch, stored, window)
    for one in stored.iter_rows(named=True):
        assert one["first"] == one["start"]
        assert one["last"] + GAP == one["end"]


def test_a_record_that_joins_two_sessions_absorbs_both() -> None:
    stored = pl.DataFrame({"key": ["a", "a", "b"], "start": [0, 18, 0], "end": [10, 28, 10]})
    batch = pl.DataFrame({"key": ["a"], "timestamp": [9]})
    merged = merge_sessions(batch, stored, ["key"], "timestamp", GAP)
    assert merged.sessions.rows() == [("a", 0, 28)]
    assert merged.records.to_list() == [0]
    assert merged.stored.to_list() == [0, 0, None]
    assert merged.absorbed.to_list() == [True, True, False]


def test_a_record_exactly_a_gap_later_begins_a_new_session() -> None:
    stored = pl.DataFrame({"key": ["a"], "start": [0], "end": [10]})
    batch = pl.DataFrame({"key": ["a", "a"], "timestamp": [10, 5]})
    later = merge_sessions(batch[:1], stored, ["key"], "timestamp", GAP)
    assert (later.sessions.rows(), later.stored.to_list()) == ([("a", 10, 20)], [None])
    both = merge_sessions(batch, stored, ["key"], "timestamp", GAP)
    assert both.sessions.rows() == [("a", 0, 20)]


def test_a_record_within_a_session_leaves_its_bounds() -> None:
    stored = pl.DataFrame({"key": ["a"], "start": [0], "end": [30]})
    batch = pl.DataFrame({"key": ["a"], "timestamp": [15]})
    merged = merge_sessions(batch, stored, ["key"], "timestamp", GAP)
    assert merged.sessions.rows() == [("a", 0, 30)]
    assert (merged.stored.to_list(), merged.absorbed.to_list()) == ([0], [False])


def test_sessions_need_no_key_and_take_datetimes() -> None:
    times = pl.Series("timestamp", [0, 25, 8]).cast(pl.Datetime("ms"))
    stored = pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    merged = merge_sessions(times.to_frame(), stored, [], "timestamp", GAP)
    assert merged.sessions.rows() == [(0, 18), (25, 35)]
    assert merged.records.to_list() == [0, 1, 0]


def test_keys_of_another_type_are_refused() -> None:
    stored = pl.DataFrame({"key": ["a"], "start": [0], "end": [10]})
    batch = pl.DataFrame({"key": [1], "timestamp": [0]})
    with pytest.raises(InvalidRecord, match="cast it to the stored type"):
        merge_sessions(batch, stored, ["key"], "timestamp", GAP)


def test_keys_and_times_that_are_far_apart_do_not_mix() -> None:
    far = 1 << 60  # several keys over this width exceed 64 bits
    times = [-far, far, 0, far + 5, -far + 5]
    batch = pl.DataFrame({"key": ["a", "a", "b", "c", "a"], "timestamp": times})
    stored = pl.DataFrame(schema={"key": pl.String, "start": pl.Int64, "end": pl.Int64})
    merged = merge_sessions(batch, stored, ["key"], "timestamp", GAP)
    assert merged.sessions.rows() == [
        ("a", -far, -far + 15),
        ("a", far, far + 10),
        ("b", 0, 10),
        ("c", far + 5, far + 15),
    ]
    assert merged.records.to_list() == [0, 1, 2, 3, 0]


def test_no_records_change_no_sessions() -> None:
    stored = pl.DataFrame({"key": ["a"], "start": [0], "end": [10]})
    batch = pl.DataFrame(schema=SCHEMA)
    merged = merge_sessions(batch, stored, ["key"], "timestamp", GAP)
    assert merged.sessions.is_empty()
    assert (merged.stored.to_list(), merged.absorbed.to_list()) == ([None], [False])
