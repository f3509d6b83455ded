"""Keys of groups and outputs: of each type, whatever their columns are called."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.client.keys import encode_key
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage
from strandline.framework.testing import TestDriver

BASE = 1_000_000
NOON, PARIS = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC), ZoneInfo("Europe/Paris")
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


@dataclass(frozen=True)
class Place:
    height: float


EQUAL_KEYS: list[tuple[Any, list[Any]]] = [
    (float, [0.0, -0.0, 0]),
    (tuple[str, float], [("a", 0.0), ("a", -0.0), ("a", 0)]),
    (tuple[float, ...], [(1.0, 0.0), (1.0, -0.0), (1, 0)]),
    (Any, [0.0, -0.0]),
    (Any, [[0.0], [-0.0]]),
    (Any, [{"a": 0.0}, {"a": -0.0}]),
    (Any, [{"a": 1, "b": [0.0]}, {"b": [-0.0], "a": 1}]),
    (dict[str, int], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
    (frozenset[int], [frozenset([8, 0, 16]), frozenset([0, 16, 8])]),
    (tuple[str, frozenset[int]], [("a", frozenset([8, 0])), ("a", frozenset([0, 8]))]),
    (Place, [Place(0.0), Place(-0.0), Place(0)]),
    (tuple[Place, ...], [(Place(0.0),), (Place(-0.0),)]),
    (dt.datetime, [NOON, NOON.astimezone(PARIS)]),
    (tuple[str, dt.datetime], [("a", NOON), ("a", NOON.astimezone(PARIS))]),
]


@pytest.mark.parametrize(("kind", "keys"), EQUAL_KEYS)
def test_records_with_equal_keys_are_in_one_partition(kind: Any, keys: list[Any]) -> None:
    app = sl.App("app", log=Owner(MemoryStorage(), background=False))
    given = app.topic("given", key=kind, value=int, partitions=64)
    given.append([(key, 1) for key in keys])
    for key in keys:
        given.append([(key, 1)])
    partitions = given.to_polars()["partition"]
    assert (len(partitions), partitions.n_unique()) == (2 * len(keys), 1)


def test_a_key_has_the_bytes_that_msgpack_gives_it() -> None:
    """Only its equal forms have others, so records of earlier versions stay in one partition with
    new ones."""

    @dataclass(frozen=True)
    class Key:
        z: float
        a: tuple[Any, ...]
        at: dt.datetime

    for key in (
        *(Key(1.5, ("x", 1, None, b"y"), NOON), ("a", 2.5, NOON.date()), [1, [2.5, "x"]]),
        *({"a": {"b": 1}}, {1: 2, "a": 3}, frozenset(["x", 1]), frozenset(["x"]), True),
        *(msgspec.msgpack.Ext(1, b"x"), ("a", msgspec.msgpack.Ext(1, b"x"))),
    ):
        assert encode_key(key) == msgspec.msgpack.encode(key)


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
def test_a_group_of_zeros_of_both_signs_has_one_result(type_: pa.DataType) -> None:
    """The key of the topic places the rows, so there is no topic in between."""
    app = sl.App("app", log=Owner(MemoryStorage(), background=False))
    schema = pa.schema([("k", type_), ("v", pa.int64())])
    given = app.topic("given", value=schema, key="k", partitions=64)
    stream = app.stream(given)
    out = stream.group_by("k").window(sl.tumbling("1h")).agg(s=sl.sum("v"), name="agg").to("out")
    once = stream.drop_duplicates(on="k", within="1h", name="once").to("once")
    given.append([{"k": 0.0, "v": 1}, {"k": -0.0, "v": 10}, {"k": 0.0, "v": 100}])
    given.append(pa.table({"k": pa.array([-0.0, 0.0], type_), "v": [1_000, 10_000]}))
    app.run(until="end", progress=False)
    assert out.to_polars()["s"].to_list() == [11_111]
    assert once.to_polars().height == 1


def test_both_times_of_an_hour_that_clocks_repeat_are_kept() -> None:
    """Python calls two local times equal that differ in `fold` only."""
    app = sl.App("app")
    schema = pa.schema([("k", pa.timestamp("us", "Europe/Paris"))])
    stream = app.stream(app.topic("rows", value=schema, key=str, partitions=1))
    once = stream.drop_duplicates(on="k", within="1h", name="once").to("once")
    summer, winter = (dt.datetime(2020, 10, 25, hour, 30, tzinfo=dt.UTC) for hour in (0, 1))
    driver = TestDriver(app, now_ms=BASE)
    driver.run([("a", {"k": time}, BASE) for time in (summer, winter, summer, winter)])
    kept = [record.value["k"].astimezone(dt.UTC) for record in driver.output(once)]
    assert kept == [summer, winter]


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


def test_a_row_without_a_key_is_shown_without_columns_that_a_plan_adds() -> None:
    app = sl.App("app")
    schema = pa.schema([("k", pa.string())])
    stream = app.stream(app.topic("rows", value=schema, key="k"))
    stream.drop_duplicates(on="k", within="1h", name="once").to("once")
    with pytest.raises(sl.TaskFailed, match=r"once: a row has no key: {'k': None};"):
        TestDriver(app, now_ms=BASE).run([{"k": None}])
