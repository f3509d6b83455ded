"""Aggregates over tumbling windows are those of DuckDB on the whole input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.statestore.aggregates import Aggregates

SCHEMA = {"key": pl.String, "i": pl.Int64, "x": pl.Float64, "timestamp": pl.Datetime("ms")}
KEPT = Aggregates(
    rows=sl.count(),
    known=sl.count("i"),
    total=sl.sum("i"),
    sum_x=sl.sum("x"),
    least=sl.min("i"),
    worst=sl.max("x"),
    mean=sl.mean("i"),
    spread=sl.var("x"),
    earliest=sl.first("i"),
    latest=sl.last("i"),
    different=sl.n_unique("i"),
)
QUERY = """
    SELECT key, time_bucket(INTERVAL '{minutes} minutes', timestamp) AS start,
        count(*) AS rows, count(i) AS known, sum(i) AS total, sum(x) AS sum_x, min(i) AS least,
        max(x) AS worst, avg(i) AS mean, var_samp(x) AS spread,
        first(i ORDER BY timestamp, row) FILTER (i IS NOT NULL) AS earliest,
        last(i ORDER BY timestamp, row) FILTER (i IS NOT NULL) AS latest,
        count(DISTINCT i) AS different
    FROM rows GROUP BY ALL
"""
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(-1000, 1000),
        st.none() | st.floats(-1e3, 1e3),
        st.integers(-(10**9), 10**9) | st.integers(0, 10**7),
    ),
    max_size=60,
)


def windowed(rows: Sequence[Any], minutes: int, places: Sequence[int]) -> dict[Any, dict[str, Any]]:
    """Return the results by key and window, aggregated in several batches."""
    window = sl.tumbling(f"{minutes}m")
    frame = pl.DataFrame(rows, schema={**SCHEMA, "timestamp": pl.Int64}, orient="row").cast(SCHEMA)
    ends = [0, *sorted(min(place, len(rows)) for place in places), len(rows)]
    by = ["key", "start"]
    parts = []
    for start, end in zip(ends[:-1], ends[1:], strict=True):  # noqa: RUF007
        batch = frame[start:end]
        parts.append(KEPT.partial(batch.with_columns(start=window.assign(batch["timestamp"])), by))
    states = KEPT.combine(pl.concat(parts), by)
    results = states.select(by).hstack(KEPT.results(states))
    return {(row.pop("key"), row.pop("start")): row for row in results.iter_rows(named=True)}


@pytest.mark.long
@settings(max_examples=60)
@given(ROWS, st.sampled_from([1, 7, 60, 24 * 60]), st.lists(st.integers(0, 60), max_size=3))
def test_tumbling_aggregates_are_those_of_duckdb(
    rows: list[Any], minutes: int, places: list[int]
) -> None:
    found = windowed(rows, minutes, places)
    frame = pl.DataFrame(rows, schema={**SCHEMA, "timestamp": pl.Int64}, orient="row").cast(SCHEMA)
    with duckdb.connect() as database:
        database.register("rows", frame.with_row_index("row").to_arrow())
        # Weeks and days of DuckDB begin on 2000-01-03, so 7 minutes are counted from there.
        expected = database.execute(shifted(QUERY, minutes)).fetchall()
        names = [column[0] for column in database.description]
    assert len(found) == len(expected)
    for values in expected:
        row = dict(zip(names, values, strict=True))
        result = found[row.pop("key"), row.pop("start")]
        assert {n: v for n, v in result.items() if not alike(v, row[n])} == {}


def shifted(query: str, minutes: int) -> str:
    """Return the query with windows that begin at multiples of their size since the epoch."""
    origin = "TIMESTAMP '1970-01-01 00:00:00'"
    return query.format(minutes=minutes).replace(", timestamp) AS", f", timestamp, {origin}) AS")


def alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, float):
        return math.isclose(one, float(other), rel_tol=1e-9, abs_tol=1e-6)
    return bool(one == other)


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("size", ["1d", "1w", "1mo", "1y"])
def test_calendar_windows_begin_where_polars_truncates(zone: str, size: str) -> None:
    hours = pl.datetime_range(
        pl.datetime(2023, 12, 1, time_zone="UTC"),
        pl.datetime(2025, 2, 1, time_zone="UTC"),
        "30m",
        time_unit="ms",
        eager=True,
    )
    starts = sl.tumbling(size, tz=zone).assign(hours)
    expected = hours.dt.convert_time_zone(zone).dt.truncate(size).dt.convert_time_zone("UTC")
    assert (starts == expected).all()
