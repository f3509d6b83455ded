"""Every aggregate in running streams: of each type of column, and in each kind of window."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import stdev, variance
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.framework.container import batch_size
from strandline.framework.testing import CRASH, TestDriver
from tests.forms import first_of

BASE = dt.datetime(2025, 10, 9, 9, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


@dataclass(frozen=True)
class Reading:
    """One record of the input."""

    place: str
    count: int | None
    level: float
    name: str | None
    is_open: bool
    day: dt.date
    at: dt.datetime


def reading(number: int) -> Reading:
    return Reading(
        place="abc"[number % 3],
        count=None if number % 7 == 0 else number * 5 % 11,
        level=number * 3 % 8 / 4,
        name=None if number % 5 == 0 else f"n{number * 3 % 4}",
        is_open=number % 4 < 2,
        day=dt.date(2025, 1, 1) + dt.timedelta(days=number * 5 % 9),
        at=BASE + number * MINUTE,
    )


READINGS = [reading(number) for number in range(48)]
Rows = Sequence[Reading]


def of(column: str, kept: Callable[[list[Any]], Any]) -> Callable[[Rows], Any]:
    """Return a function of rows: `kept` of the values of a column, or None if there are none."""

    def figure(rows: Rows) -> Any:
        values = [v for row in rows if (v := getattr(row, column)) is not None]
        return kept(values) if values else None

    return figure


def several(values: list[Any], found: Callable[[list[Any]], float]) -> float | None:
    return found(values) if len(values) > 1 else None


def names_by_day(rows: Rows) -> list[str]:
    named = [row for row in rows if row.name is not None]
    ordered = sorted(named, key=lambda row: row.day, reverse=True)
    return [row.name for row in ordered[:2] if row.name is not None]


AGGREGATES: dict[str, tuple[Any, Callable[[Rows], Any]]] = {
    "rows": (sl.count(), len),
    "values": (sl.count("name"), lambda rows: sum(row.name is not None for row in rows)),
    "total": (sl.sum("count"), of("count", sum)),
    "opened": (sl.sum("is_open"), of("is_open", sum)),
    "levels": (sl.sum("level"), of("level", sum)),
    "mean": (sl.mean("count"), of("count", lambda values: sum(values) / len(values))),
    "var": (sl.var("count"), of("count", lambda values: several(values, variance))),
    "std": (sl.std("count"), of("count", lambda values: several(values, stdev))),
    "least": (sl.min("name"), of("name", min)),
    "first_day": (sl.min("day"), of("day", min)),
    "most": (sl.max("level"), of("level", max)),
    "latest": (sl.max("at"), of("at", max)),
    "first": (sl.first("name"), of("name", lambda values: values[0])),
    "last": (sl.last("at"), of("at", lambda values: values[-1])),
    "some": (sl.any("is_open"), of("is_open", lambda values: values[0])),
    "names": (sl.n_unique("name"), lambda rows: len({r.name for r in rows if r.name is not None})),
    "days": (sl.n_unique("day"), of("day", lambda values: len(set(values)))),
    "about": (sl.n_unique("name", approx=True), lambda rows: len({r.name for r in rows} - {None})),
    "median": (sl.quantile("level", 0.5), of("level", lambda v: sorted(v)[(len(v) - 1) // 2])),
    "list": (sl.collect("name", limit=4), of("name", lambda values: values[:4])),
    "times": (sl.collect("at", limit=2), of("at", lambda values: values[:2])),
    "best": (sl.top("name", 2, by="day"), names_by_day),
    "made": (
        sl.reducer(0, lambda old, row: old + (row["count"] or 0), lambda old, new: old + new),
        lambda rows: sum(row.count or 0 for row in rows),
    ),
}
WINDOWS = {
    "tumbling": sl.tumbling("10m"),
    "hopping": sl.hopping("12m", "4m"),
    "sliding": sl.sliding("6m"),
    "session": sl.session("5m"),
    "count": sl.count_window(5),
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 4)


def readings_app() -> tuple[sl.App, sl.Stream]:
    app = sl.App("app", commit_records=7)
    topic = app.topic("readings", value=Reading, key="place", timestamp="at", partitions=2)
    return app, app.stream(topic, idle=None)


def ran(app: sl.App) -> TestDriver:
    """Run the app over the readings, with two deaths of the process."""
    driver = TestDriver(app, now_ms=round(BASE.timestamp() * 1_000))
    return driver.run([*READINGS[:11], CRASH, *READINGS[11:30], CRASH, *READINGS[30:]]).end()


def rows_of(row: dict[str, Any]) -> list[Reading]:
    """Return the readings of a result's group, and of its window if it has one."""
    group = [each for each in READINGS if each.place == row["place"]]
    start, end = row.get("window_start", 0), row.get("window_end", len(group))
    if isinstance(start, int):
        return group[start:end]
    return [each for each in group if start <= each.at < end]


def figures(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row[name] for name in AGGREGATES}
    return {n: round(v, 9) if type(v) is float else (v or None) for n, v in shown.items()}


def expected(rows: Rows) -> dict[str, Any]:
    found = {name: figure(rows) for name, (_, figure) in AGGREGATES.items()}
    return {n: round(v, 9) if type(v) is float else (v or None) for n, v in found.items()}


@pytest.mark.parametrize("kind", first_of([None, *WINDOWS], 4))
def test_every_aggregate_is_that_of_plain_python(kind: str | None) -> None:
    app, stream = readings_app()
    aggregates = {name: one for name, (one, _) in AGGREGATES.items()}
    groups = stream.group_by("place")
    windowed = groups if kind is None else groups.window(WINDOWS[kind])
    out = windowed.agg(**aggregates, name="agg").to("out")
    driver = ran(app)
    rows = [record.value for record in driver.output(out)]
    if kind is None:
        rows = list({row["place"]: row for row in rows}.values())
    assert len(rows) >= 3
    for row in rows:
        assert figures(row) == expected(rows_of(row))


def test_decimals_are_compared_as_numbers() -> None:
    app = sl.App("app")
    schema = pa.schema([("place", pa.string()), ("price", pa.decimal128(9, 2))])
    prices = app.topic("prices", value=schema, key="place")
    aggregates = {"most": sl.max("price"), "all": sl.collect("price"), "last": sl.last("price")}
    out = app.stream(prices).group_by("place").agg(**aggregates, name="agg").to("out")
    given = [Decimal("9.50"), Decimal("10.00"), Decimal("2.25")]
    driver = TestDriver(app)
    for price in given:
        driver.run(pl.DataFrame({"place": ["a"], "price": [price]}, schema=frame_schema()))
    assert driver.output(out)[-1].value == {
        "place": "a",
        "most": given[1],
        "all": given,
        "last": given[2],
    }


def frame_schema() -> dict[str, Any]:
    return {"place": pl.String(), "price": pl.Decimal(9, 2)}


@pytest.mark.parametrize("aggregate", [sl.first("parts"), sl.collect("parts"), sl.any("raw")])
def test_state_that_no_store_can_hold_is_refused_when_it_is_declared(aggregate: Any) -> None:
    app = sl.App("app")
    schema = pa.schema([("parts", pa.list_(pa.int64())), ("raw", pa.binary())])
    stream = app.stream(app.topic("things", value=schema, key=str))
    with pytest.raises(sl.InvalidConfig, match="state holds numbers, text, bools and times"):
        stream.group_by("key").agg(x=aggregate, name="x")


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "sliding", "count"])
def test_the_last_update_of_a_window_is_its_final_result(kind: str) -> None:
    app, stream = readings_app()
    windowed = stream.group_by("place").window(WINDOWS[kind])
    found = windowed.agg(n=sl.count(), total=sl.sum("count"), name="agg")
    updates, finals = found.to("updates", emit="update"), found.to("finals", emit="final")
    driver = ran(app)
    last = {record.key: record.value for record in driver.output(updates)}
    final = {record.key: record.value for record in driver.output(finals)}
    assert len(final) > 3
    assert {key: last[key] for key in final} == final
    assert kind == "count" or last.keys() == final.keys()


@pytest.mark.parametrize("kind", [None, "tumbling", "count"])
def test_a_reducer_begins_once_for_each_group_however_the_rows_are_divided(
    kind: str | None,
) -> None:
    """The state before the first row need not be neutral for merge=."""
    app, stream = readings_app()
    groups = stream.group_by("place")
    windowed = groups if kind is None else groups.window(WINDOWS[kind])
    made = sl.reducer(100, lambda old, row: old + len(row), lambda old, new: old + new)
    out = windowed.agg(n=sl.count(), made=made, name="agg").to("out")
    columns = len(stream.columns)
    rows = [record.value for record in ran(app).output(out)]
    assert len(rows) >= 3
    assert {row["made"] - columns * row["n"] for row in rows} == {100}


def test_a_row_without_a_time_is_an_error_of_its_record() -> None:
    app, stream = readings_app()
    timed = sl.when(sl.col("count") == 5).then(None).otherwise(sl.col("timestamp"))
    stream.with_columns(timestamp=timed).drop_duplicates(on="place", within=1, name="once").to("x")
    with pytest.raises(sl.TaskFailed, match="once: the 'timestamp' of a row is null"):
        ran(app)
