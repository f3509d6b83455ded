"""Keys of groups and outputs: of each type, whatever their columns are called."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.framework.testing import TestDriver

BASE = 1_000_000
DAY = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [5, -5]),
    (pa.int16(), [300, -1]),
    (pa.int32(), [70_000, 1]),
    (pa.int64(), [1 << 40, 1]),
    (pa.uint8(), [5, 200]),
    (pa.uint16(), [300, 60_000]),
    (pa.uint32(), [1 << 31, 1]),
    (pa.uint64(), [1 << 31, 1]),
    (pa.float32(), [1.5, -0.25]),
    (pa.float64(), [1.5, -0.25]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [DAY.date(), dt.date(1960, 2, 29)]),
    (pa.timestamp("us", "UTC"), [DAY, dt.datetime(1960, 2, 29, 1, tzinfo=dt.UTC)]),
    (pa.timestamp("ms", "Europe/Paris"), [DAY, dt.datetime(1960, 2, 29, 1, tzinfo=dt.UTC)]),
    (pa.string(), ["", "a\x00é"]),
    (pa.binary(), [b"", b"\xff\x00"]),
]


@pytest.mark.parametrize(("dtype", "values"), VALUES, ids=[str(dtype) for dtype, _ in VALUES])
def test_a_column_of_any_type_may_be_the_key_of_a_topic(dtype: pa.DataType, values: Any) -> None:
    """Equal keys are in one partition, appended one by one or as a table, and are read back."""
    app = sl.App("app")
    topic = app.topic("rows", value=pa.schema([("k", dtype)]), key="k", partitions=5)
    out = app.stream(topic).group_by("k").agg(n=sl.count(), name="agg").to("out", partitions=5)
    driver = TestDriver(app, now_ms=BASE)
    driver.run([{"k": value} for value in values])
    driver.run(pa.table({"k": pa.array(values, dtype)}))
    records = driver.output(out)
    assert {record.value["k"]: record.value["n"] for record in records} == dict.fromkeys(values, 2)
    if not pa.types.is_date(dtype):  # in MessagePack dates are texts
        assert all(record.key == record.value["k"] for record in records)


@pytest.mark.parametrize("window", [None, sl.tumbling(10), sl.session(10), sl.count_window(2)])
def test_zeros_of_both_signs_are_one_key(window: Any) -> None:
    def results(*parts: list[float]) -> list[Any]:
        app = sl.App("app")
        topic = app.topic("rows", value=pa.schema([("k", pa.float64())]), key=str)
        groups = app.stream(topic).group_by("k")
        windowed = groups if window is None else groups.window(window)
        out = windowed.agg(n=sl.count(), name="agg").to("out")
        driver = TestDriver(app, now_ms=BASE)
        for part in parts:
            driver.run([("a", {"k": value}, BASE) for value in part])
        rows = [record.value for record in driver.end().output(out)]
        return [(row["k"], row["n"]) for row in rows[-1:]]

    assert results([0.0, -0.0]) == results([-0.0], [0.0]) == [(0.0, 2)]


@pytest.mark.parametrize("dtype", [pa.timestamp("us"), pa.timestamp("ns", "UTC")])
def test_a_time_that_is_no_moment_in_microseconds_is_refused_as_a_key(dtype: Any) -> None:
    app = sl.App("app")
    stream = app.stream(app.topic("rows", value=pa.schema([("k", dtype)]), key=str))
    with pytest.raises(sl.InvalidConfig, match="cannot be a key"):
        stream.group_by("k")
    with pytest.raises(sl.InvalidConfig, match="cannot be a key"):
        stream.to("out", key="k")


def test_a_key_that_is_called_as_a_part_of_an_aggregate_is_refused() -> None:
    app = sl.App("app")
    schema = pa.schema([("x__sum", pa.string()), ("v", pa.int64())])
    groups = app.stream(app.topic("rows", value=schema, key=str)).group_by("x__sum")
    with pytest.raises(sl.InvalidConfig, match="agg: 'x__sum' is both a column of the key"):
        groups.agg(x=sl.mean("v"), name="agg")


NAMES = ["start", "end", "list", "item", "session", "position", "counted", "row", "index", "len"]


@pytest.mark.parametrize(
    "window",
    [
        None,
        sl.tumbling(10),
        sl.hopping(10, 5),
        sl.sliding(10),
        sl.session(10),
        sl.count_window(1),
    ],
    ids=str,
)
def test_columns_may_be_called_as_those_of_the_operators(window: Any) -> None:
    app = sl.App("app")
    schema = pa.schema([(name, pa.int64()) for name in [*NAMES, "strandline_watermark"]])
    groups = app.stream(app.topic("rows", value=schema, key=str)).group_by(*NAMES)
    windowed = groups if window is None else groups.window(window)
    figures = {"key_": sl.collect("strandline_watermark"), "number": sl.max("strandline_watermark")}
    out = windowed.agg(**figures, name="agg").to("out")
    row = {name: at for at, name in enumerate(schema.names)}
    driver = TestDriver(app, now_ms=BASE).run([("a", row, BASE)]).end()
    found = driver.output(out)[-1].value
    assert [found[name] for name in NAMES] == [*range(len(NAMES))]
    assert (found["key_"], found["number"]) == ([len(NAMES)], len(NAMES))
