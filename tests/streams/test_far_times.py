"""Times that Python's datetime has not, and values for which Polars panics: errors of one record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline import testing
from strandline.framework.streams.windows import FIRST_TIME_MS, LAST_TIME_MS

NOW = 1_700_000_000_000
YEAR_10000 = 253_402_300_800_000
FAR = [YEAR_10000, YEAR_10000 - 1, 8_640_000_000_000_000, 2**63 - 1, LAST_TIME_MS + 1]
WINDOWS = [sl.tumbling("1h"), sl.hopping("1h", every="10m"), sl.sliding("1h"), sl.session("1h")]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("far", FAR)
def test_a_record_of_a_far_year_is_left_out_alone(window: Any, far: int) -> None:
    app = sl.App("hourly")
    clicks = app.topic("clicks", value=int)
    rows = app.stream(clicks, on_error="skip").group_by("key").window(window)
    counts = rows.agg(n=sl.count(), name="counts").to("counts-of-hours")
    with testing.TestDriver(app) as driver:
        driver.run([("a", 1, NOW), ("b", 1, far), ("c", 1, far), ("a", 1, NOW)], until="end")
        found = driver.output(counts)
    kept = {(row.value["key"], row.value["n"]) for row in found}
    assert max(kept) == ("a", 2)
    assert {name for name, _ in kept} == {"a"}


@pytest.mark.parametrize("time", [LAST_TIME_MS, 0])
@pytest.mark.parametrize("size", ["1h", "365000d"])
def test_a_record_of_the_last_year_has_a_result(time: int, size: str) -> None:
    app = sl.App("hourly")
    clicks = app.topic("clicks", value=int)
    rows = app.stream(clicks).group_by("key").window(sl.hopping(size, every=size))
    counts = rows.agg(n=sl.count(), name="counts").to("counts-of-hours")
    with testing.TestDriver(app) as driver:
        driver.run([("a", 1, time)], until="end")
        [row] = driver.output(counts)
    assert row.value["window_start"] <= dt.datetime.fromtimestamp(time / 1000, dt.UTC)


@pytest.mark.parametrize("by", ["key", "value"])
@pytest.mark.parametrize("days", [0, 20_000])
@pytest.mark.filterwarnings("error")
def test_windows_of_old_records_are_closed_by_later_ones_and_by_the_end(by: str, days: int) -> None:
    """As numbers, their times look like seconds: no user has given these."""
    app = sl.App("hourly")
    clicks = app.topic("clicks", value=int)
    rows = app.stream(clicks, idle=None).group_by(by).window(sl.tumbling("1h"))
    counts = rows.agg(n=sl.count(), name="counts").to("counts-of-hours")
    old = dt.datetime(1970, 1, 9, tzinfo=dt.UTC)
    times = [old, old + dt.timedelta(hours=2), old + dt.timedelta(hours=3, days=days)]
    with testing.TestDriver(app, now_ms=NOW) as driver:
        driver.run([("a", 1, at) for at in times], until="end")
        found = [record.value["window_start"] for record in driver.output(counts)]
    assert found == times


def test_the_first_and_the_last_time_are_those_of_years() -> None:
    at = [dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp() for year in (1003, 8999)]
    assert tuple(int(second) * 1000 for second in at) == (FIRST_TIME_MS, LAST_TIME_MS + 1)


def panics(_: object) -> None:
    pl.DataFrame({"t": pl.Series([8_640_000_000_000_000]).cast(pl.Datetime("ms"))}).rows()


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_panic_in_a_handler_is_an_error_of_its_record(policy: Any, batch: bool) -> None:
    app = sl.App("shop")
    sales = app.topic("sales", value=int)
    done = app.topic("done", value=int)

    def handle(given: Any) -> None:
        for record in given.records() if batch else [given]:
            if record.value == 2:
                panics(record)
            done.send(record.key, record.value)

    app.task(sales, on_error=policy, batch=batch, name="handle")(handle)
    with testing.TestDriver(app) as driver:
        driver.run([("a", value) for value in range(5)])
        assert [record.value for record in driver.output(done)] == [0, 1, 3, 4]


@pytest.mark.parametrize("make", ["map", "map_batches", "filter"])
def test_a_panic_in_the_function_of_a_stream_is_an_error_of_its_record(make: str) -> None:
    app = sl.App("shop")
    stream = app.stream(app.topic("sales", value=int), on_error="skip")

    def row(given: Any) -> Any:
        if given.value == 2:
            panics(given)
        return {"value": given.value}

    def frame(given: pl.DataFrame) -> pl.DataFrame:
        if 2 in given["value"]:
            panics(given)
        return given

    functions: dict[str, Callable[[], Any]] = {
        "map": lambda: stream.map(row, schema=pa.schema([("value", pa.int64())])),
        "map_batches": lambda: stream.map_batches(frame),
        "filter": lambda: stream.filter(lambda given: bool(row(given))),
    }
    done = functions[make]().to("done")
    with testing.TestDriver(app) as driver:
        driver.run([("a", value) for value in range(5)])
        assert [record.value["value"] for record in driver.output(done)] == [0, 1, 3, 4]


def test_a_group_by_a_time_that_python_has_not_is_left_out_alone() -> None:
    app = sl.App("shop")
    kind = pa.schema([("at", pa.timestamp("ms", "UTC")), ("n", pa.int64())])
    stream = app.stream(app.topic("sales", value=kind), on_error="skip")
    sums = stream.group_by("at").agg(total=sl.sum("n"), name="sums").to("totals")
    times = pa.array([NOW, 8_640_000_000_000_000, NOW]).cast(pa.timestamp("ms", "UTC"))
    with testing.TestDriver(app) as driver:
        driver.run(pa.table({"at": times, "n": [1, 2, 4]}))
        totals = [record.value["total"] for record in driver.output(sums)]
    assert totals[-1] == 5
