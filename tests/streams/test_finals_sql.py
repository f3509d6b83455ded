"""Final results of windows, with nulls and NaN, are those of DuckDB on the whole input."""

from __future__ import annotations

import datetime as dt
import math
from random import Random
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.framework.testing import CRASH, TestDriver

MINUTE = 60_000
START = 1_760_000_400_000
ROWS = 400
SCHEMA = pa.schema(
    [
        ("shop", pa.string()),
        ("kind", pa.int64()),
        ("i", pa.int64()),
        ("x", pa.float64()),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)
AGGREGATES: dict[str, Any] = {
    "n": sl.count(),
    "known": sl.count("x"),
    "total": sl.sum("i"),
    "sum_x": sl.sum("x"),
    "least": sl.min("x"),
    "worst": sl.max("x"),
    "mean": sl.mean("i"),
    "spread": sl.var("i"),
    "different": sl.n_unique("i"),
    "earliest": sl.first("i"),
}
FIGURES = """
    count(*) AS n, count(x) AS known, sum(i) AS total, sum(x) AS sum_x, min(x) AS least,
    max(x) AS worst, avg(i) AS mean, var_samp(i) AS spread, count(DISTINCT i) AS different,
    arg_min(i, ms) FILTER (i IS NOT NULL) AS earliest
"""
FIXED = """
    SELECT kind, start, start + {size} AS stop, {figures}
    FROM (
        SELECT *, unnest(range(
            (ms // {every} - ({size} - 1) // {every}) * {every}, ms + 1, {every}
        )) AS start
        FROM rows
    )
    WHERE start + {size} > ms
    GROUP BY kind, start
"""
SLIDING = """
    SELECT kind, own_ms - {size} AS start, own_ms + 1 AS stop, {figures}
    FROM rows
    JOIN (SELECT DISTINCT kind AS own_kind, ms AS own_ms FROM rows)
        ON own_kind = kind AND ms BETWEEN own_ms - {size} AND own_ms
    GROUP BY kind, own_ms
"""
SESSIONS = """
    SELECT kind, min(ms) AS start, max(ms) + {size} AS stop, {figures}
    FROM (
        SELECT *, sum(begins::INT) OVER (PARTITION BY kind ORDER BY ms) AS session
        FROM (
            SELECT *, coalesce(ms - lag(ms) OVER (PARTITION BY kind ORDER BY ms) >= {size}, true)
                AS begins
            FROM rows
        )
    )
    GROUP BY kind, session
"""
KINDS: dict[str, tuple[Any, str, int, int]] = {
    "tumbling": (sl.tumbling("7m"), FIXED, 7 * MINUTE, 7 * MINUTE),
    "tumbling, grace": (sl.tumbling("1h", grace="20m"), FIXED, 60 * MINUTE, 60 * MINUTE),
    "hopping": (sl.hopping("30m", "10m"), FIXED, 30 * MINUTE, 10 * MINUTE),
    "hopping, grace": (sl.hopping("25m", "10m", grace="3m"), FIXED, 25 * MINUTE, 10 * MINUTE),
    "sliding": (sl.sliding("15m"), SLIDING, 15 * MINUTE, 1),
    "session": (sl.session("4m"), SESSIONS, 4 * MINUTE, 1),
}
"""Window, its query, and size and distance of windows in ms."""


def rows() -> pl.DataFrame:
    """Return rows in about the order of their times, with nulls and NaN."""
    chance = Random(7)
    times = [START + number * MINUTE + chance.randrange(9 * MINUTE) for number in range(ROWS)]
    times = [at + chance.choice([0, 0, 0, 40 * MINUTE]) for at in times]
    columns = {
        "shop": [chance.choice(["york", "leeds", "hull", "bath"]) for _ in times],
        "kind": [chance.randrange(3) for _ in times],
        "i": [chance.choice([None, chance.randrange(-9, 9)]) for _ in times],
        "x": [chance.choice([None, math.nan, *[chance.uniform(-9, 9)] * 20]) for _ in times],
        "at": [dt.datetime.fromtimestamp(at / 1_000, dt.UTC) for at in times],
    }
    table = pa.table(columns, schema=SCHEMA)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def finals(window: Any, frame: pl.DataFrame, cuts: list[int]) -> dict[Any, dict[str, Any]]:
    """Return the final results by group and window; the process dies at each cut."""
    app = sl.App("app", commit_records=100)
    sales = app.topic("sales", value=SCHEMA, key="shop", timestamp="at", partitions=3)
    stream = app.stream(sales, delay="1h", idle=None)
    out = stream.group_by("kind").window(window).agg(**AGGREGATES, name="agg").to("out")
    found: dict[Any, dict[str, Any]] = {}
    with TestDriver(app, now_ms=START) as driver:
        for begin, end in zip([0, *cuts], [*cuts, len(frame)], strict=True):
            driver.run([frame[begin:end], CRASH])
        for record in driver.end().output(out):
            row = dict(record.value)
            window_of = (_ms(row.pop("window_start")), _ms(row.pop("window_end")))
            key = (row.pop("kind"), *window_of)
            assert key not in found, f"{key} was sent twice"
            found[key] = row
    return found


def of_duckdb(query: str, size: int, every: int, frame: pl.DataFrame) -> dict[Any, dict[str, Any]]:
    """Return the results of a query on the whole input, by group and window."""
    given = frame.select("kind", "i", "x", ms=pl.col("at").dt.epoch("ms"))
    with duckdb.connect() as database:
        database.register("rows", given.to_arrow())
        found = database.execute(query.format(size=size, every=every, figures=FIGURES))
        names = [column[0] for column in database.description]
        results = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return {(row.pop("kind"), row.pop("start"), row.pop("stop")): row for row in results}


@pytest.mark.parametrize("kind", KINDS)
def test_final_results_are_those_of_duckdb(kind: str) -> None:
    frame = rows()
    window, query, size, every = KINDS[kind]
    found = finals(window, frame, [100, 333])
    expected = of_duckdb(query, size, every, frame)
    assert found.keys() == expected.keys()
    for key, row in found.items():
        assert {n: v for n, v in row.items() if not alike(v, expected[key][n])} == {}, key


def test_the_input_has_nulls_nan_and_rows_out_of_order() -> None:
    frame = rows()
    assert frame["i"].null_count()
    assert frame["x"].null_count()
    assert frame["x"].is_nan().any()
    assert not frame["at"].is_sorted()
    assert frame["at"].is_unique().all()  # else `first` has several answers


def alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, float):
        other = float(other)
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


def _ms(when: dt.datetime) -> int:
    return round(when.timestamp() * 1_000)
