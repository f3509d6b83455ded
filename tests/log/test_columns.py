"""Rows and tables of any library become the same batches; data that does not fit is refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Any

import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from strandline.changelog.client.columns import to_batches
from strandline.changelog.errors import InvalidRecord, SchemaMismatch
from strandline.changelog.records import HEADERS_TYPE, TopicInfo, columns_schema

NOW = 1_700_000_000_000
HOUR = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)
HOUR_MS = 1_357_016_400_000
SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("delay", pa.int32()),
        pa.field("hour", pa.timestamp("ms", "UTC")),
    ]
)
FLIGHTS = TopicInfo("flights", "id", 4, {}, SCHEMA, 1)
BYTES = TopicInfo("bytes", "id", 4, {})
ROWS = [
    {"carrier": "AA", "delay": 5, "hour": HOUR},
    {"carrier": "B6", "delay": None, "hour": HOUR},
]


@dataclasses.dataclass
class Flight:
    carrier: str
    delay: int | None
    hour: dt.datetime


class FlightStruct(msgspec.Struct):
    carrier: str
    delay: int | None
    hour: dt.datetime


def converted(data: Any, topic: TopicInfo = FLIGHTS, **named: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in to_batches(data, topic, now_ms=NOW, **named):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize(
    "form",
    [
        lambda rows: rows,
        lambda rows: iter(rows),
        lambda rows: [Flight(**row) for row in rows],
        lambda rows: [FlightStruct(**row) for row in rows],
        pa.Table.from_pylist,
        pa.RecordBatch.from_pylist,
        pl.DataFrame,
        lambda rows: pl.DataFrame(rows).with_columns(pl.col("carrier").cast(pl.Categorical)),
        pd.DataFrame,
        lambda rows: pd.DataFrame(rows, index=[7, 9]),
        lambda rows: pa.concat_tables([pa.Table.from_pylist([row], SCHEMA) for row in rows]),
    ],
)
def test_every_form_of_data_gives_the_same_records(form: Callable[[Any], Any]) -> None:
    assert converted(form(ROWS), key="carrier", timestamp="hour") == [
        {"timestamp": HOUR_MS, "key": row["carrier"].encode(), "value": row} for row in ROWS
    ]


def test_the_batch_has_the_schema_of_the_log() -> None:
    [batch] = to_batches(ROWS, FLIGHTS, now_ms=NOW)
    assert batch.schema == columns_schema(pa.struct(list(SCHEMA)), headers=False)
    assert batch.column("timestamp").to_pylist() == [NOW, NOW]
    assert batch.column("key").to_pylist() == [None, None]


def test_a_key_is_encoded_in_the_topics_type_even_if_the_data_has_another() -> None:
    # pandas turns a column of integers with a gap into floats.
    with_gap = pd.DataFrame(ROWS)
    assert with_gap["delay"].dtype == float
    assert [row["key"] for row in converted(with_gap, key="delay")] == [bytes(7) + b"\5", None]


def test_a_topic_of_bytes_accepts_key_value_timestamp_and_headers() -> None:
    rows = [
        {"key": "a", "value": b"1", "timestamp": 5, "headers": [("h", b"x")]},
        {"key": 1, "value": None, "timestamp": 6, "headers": []},
    ]
    first, second = converted(rows, BYTES)
    assert first == {
        "timestamp": 5,
        "key": b"a",
        "value": b"1",
        "headers": [{"key": "h", "value": b"x"}],
    }
    assert second == {"timestamp": 6, "key": bytes(7) + b"\1", "value": None, "headers": []}


def test_text_on_a_topic_of_bytes_becomes_utf8() -> None:
    frame = pl.DataFrame({"user": ["ü"], "value": ["{}"]})
    assert converted(frame, BYTES, key="user") == [
        {"timestamp": NOW, "key": "ü".encode(), "value": b"{}"}
    ]


def test_unused_headers_are_left_out() -> None:
    table = pa.table({"value": [b"1"], "headers": pa.array([[]], HEADERS_TYPE)})
    assert converted(table, BYTES) == [{"timestamp": NOW, "key": None, "value": b"1"}]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"delay": 1.5}, "column 'delay': expected int32, got double"),
        ({"delay": 1 << 40}, "column 'delay': expected int32, got int64, which loses something"),
        ({"delay": "5"}, "column 'delay': expected int32, got string"),
        ({"carrier": 5}, "column 'carrier': expected string, got int64"),
        ({"carrier": None}, "column 'carrier' (string not null) is null in row 0"),
        ({"hour": HOUR.replace(tzinfo=None)}, "column 'hour': expected timestamp[ms, tz=UTC]"),
        ({"hour": HOUR.replace(microsecond=1)}, "column 'hour'"),
        ({"dealy": 5}, "there is no column 'dealy'"),
        (
            {"carrier": "lone \ud800"},
            "column 'carrier', expected string: 'utf-8' codec can't encode",
        ),
        ({"headers": [("\ud800", b"")]}, "column 'headers'"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_name(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        converted([{**ROWS[0], **change}])
    assert problem in str(caught.value)
    assert "topic 'flights'" in str(caught.value)


NOT_UTF8 = pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())
BEYOND = pa.Array.from_buffers(
    pa.string(),
    2,
    [None, pa.array([0, 1_000_000, 2], pa.int32()).buffers()[1], pa.py_buffer(b"abcdef")],
)


@pytest.mark.parametrize(
    ("column", "topic", "name"),
    [
        (NOT_UTF8, FLIGHTS, "carrier"),
        (BEYOND, FLIGHTS, "carrier"),
        (BEYOND, BYTES, "value"),
        (NOT_UTF8.cast(pa.large_string()), FLIGHTS, "carrier"),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1]), NOT_UTF8), FLIGHTS, "carrier"),
        (NOT_UTF8, FLIGHTS, "key"),
    ],
)
def test_invalid_arrow_data_is_refused_by_name(
    column: pa.Array, topic: TopicInfo, name: str
) -> None:
    """Before, `check` called it damage and `repair` removed it, and Polars panicked or crashed."""
    columns = {"carrier": pa.array(["AA", "B6"])} if topic is FLIGHTS else {}
    with pytest.raises(InvalidRecord, match=rf"topic '{topic.name}': column '{name}' is not valid"):
        converted(pa.table({**columns, name: column}), topic)


def test_a_misspelt_column_is_answered_with_the_right_one() -> None:
    row = {"carrier": "AA", "dealy": 5, "hour": HOUR}
    with pytest.raises(SchemaMismatch, match="did you mean 'delay'"):
        converted([row])


@pytest.mark.parametrize(
    ("data", "topic", "named", "problem"),
    [
        ([{"delay": 5, "hour": HOUR}], FLIGHTS, {}, "column 'carrier' is missing"),
        (pl.DataFrame({"delay": [5]}), FLIGHTS, {}, "column 'carrier' is missing"),
        ([ROWS[0], {"delay": 5}], FLIGHTS, {}, "(string not null) is null in row 1"),
        ([{"carrier": "AA"}], FLIGHTS, {"key": "delay"}, "key='delay' names no column"),
        ([{"carrier": "AA"}], FLIGHTS, {"timestamp": "hour"}, "timestamp='hour' names no column"),
        ([{"carrier": "AA", "offset": 5}], FLIGHTS, {}, "there is no column 'offset'"),
        ([{}], BYTES, {}, "column 'value' is missing"),
        (ROWS, FLIGHTS, {"key": "origin"}, "key='origin' names no column"),
        (ROWS, FLIGHTS, {"timestamp": "carrier"}, "must hold datetimes or integer milliseconds"),
        ([{**ROWS[0], "hour": None}], FLIGHTS, {"timestamp": "hour"}, "is null in row 0"),
        (
            [ROWS[0], {**ROWS[0], "hour": dt.datetime(1960, 1, 1, tzinfo=dt.UTC)}],
            FLIGHTS,
            {"timestamp": "hour"},
            "before 1970 in row 1",
        ),
        ([{"key": b"k"}], BYTES, {}, "column 'value' is missing"),
        ([{"value": 5}], BYTES, {}, "column 'value': expected binary, got int64"),
        ([{"value": b"", "offset": 5}], BYTES, {}, "there is no column 'offset'"),
    ],
)
def test_missing_and_unusable_columns_are_refused(
    data: Any, topic: TopicInfo, named: dict[str, str], problem: str
) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        converted(data, topic, **named)
    assert problem in str(caught.value)


@pytest.mark.parametrize("data", [b"value", "value", {"value": b"x"}, 5, [b"value"], [None]])
def test_objects_that_are_no_data_are_refused(data: Any) -> None:
    with pytest.raises(InvalidRecord, match="topic 'bytes'"):
        converted(data, BYTES)


@pytest.mark.parametrize("form", [list, pl.DataFrame, pd.DataFrame, pa.Table.from_pylist])
def test_nullable_columns_that_are_left_out_are_null(form: Callable[[Any], Any]) -> None:
    assert converted(form([{"carrier": "AA"}])) == [
        {"timestamp": NOW, "key": None, "value": {"carrier": "AA", "delay": None, "hour": None}}
    ]


def test_rows_need_not_have_the_same_columns_and_an_empty_one_is_a_record() -> None:
    loose = TopicInfo("loose", "id", 1, {}, pa.schema([("a", pa.int64()), ("b", pa.string())]), 1)
    assert [row["value"] for row in converted([{"a": 1}, {"b": "x"}, {}], loose)] == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": None, "b": None},
    ]
    assert [row["value"] for row in converted([{}, {}], loose)] == [{"a": None, "b": None}] * 2


@pytest.mark.parametrize("form", [list, pl.DataFrame, pd.DataFrame, pa.Table.from_pylist])
@pytest.mark.parametrize("named", [{}, {"key": "user", "timestamp": "at"}])
def test_key_and_timestamp_may_be_columns_next_to_those_of_the_value(
    form: Callable[[Any], Any], named: dict[str, str]
) -> None:
    key, timestamp = named.get("key", "key"), named.get("timestamp", "timestamp")
    rows = [{"carrier": "AA", key: user, timestamp: 7} for user in (1, 2)]
    value = {"carrier": "AA", "delay": None, "hour": None}
    assert converted(form(rows), **named) == [
        {"timestamp": 7, "key": bytes(7) + bytes([user]), "value": value} for user in (1, 2)
    ]


def test_a_value_column_called_key_is_not_the_key_unless_it_is_named() -> None:
    own = TopicInfo("own", "id", 1, {}, pa.schema([("key", pa.string())]), 1)
    [row] = converted([{"key": "a"}], own)
    assert row == {"timestamp": NOW, "key": None, "value": {"key": "a"}}
    assert converted([{"key": "a"}], own, key="key")[0]["key"] == b"a"


def test_no_rows_give_no_batches() -> None:
    assert converted([]) == []
    assert converted(pl.DataFrame(schema={"value": pl.Binary}), BYTES) == []


def test_large_data_is_converted_in_pieces() -> None:
    table = pa.table({"value": pa.array([b"x" * (1 << 20)] * 300, pa.binary())})
    sizes = [batch.num_rows for batch in to_batches(table, BYTES, now_ms=NOW)]
    assert sum(sizes) == 300
    assert max(sizes) <= 128


PLACE = pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int32())])
NESTED = {
    "struct": (PLACE, lambda place: place),
    "list": (pa.list_(PLACE), lambda place: [place]),
    "map": (pa.map_(pa.string(), PLACE), lambda place: [("home", place)]),
    "struct in a struct": (pa.struct([("place", PLACE)]), lambda place: {"place": place}),
}


def nested_topic(kind: pa.DataType) -> TopicInfo:
    return TopicInfo("nested", "id", 1, {}, pa.schema([("places", kind)]), 1)


def inferred(kind: pa.DataType, place: pa.StructArray) -> pa.Array:
    """Return a column as `kind`, but with the place's own fields."""
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays([0, 1], pa.array(["home"]), place)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays([0, 1], place)
    return place if kind == PLACE else pa.StructArray.from_arrays([place], ["place"])


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize(
    "place",
    [
        {"city": "York", "zip": 1, "street": "Main St"},
        {"City": "York", "Zip": 1},
        {"city": "York", "zip": 1.5},
    ],
    ids=["unknown field", "other case", "not an int"],
)
def test_nothing_within_a_value_is_dropped_or_shortened(name: str, place: Any) -> None:
    kind, nest = NESTED[name]
    topic = nested_topic(kind)
    with pytest.raises(SchemaMismatch, match=r"places|there is no column"):
        list(to_batches([{"places": nest(place)}], topic, now_ms=NOW))
    table = pa.table({"places": inferred(kind, pa.array([place]))})
    with pytest.raises(SchemaMismatch, match="places"):
        list(to_batches(table, topic, now_ms=NOW))


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("place", [{"city": "York", "zip": 1}, {"zip": 1}, {"city": None}])
def test_fields_that_may_be_null_may_be_left_out(name: str, place: Any) -> None:
    kind, nest = NESTED[name]
    topic = nested_topic(kind)
    expected = nest({"city": None, "zip": None} | place)
    [batch] = to_batches([{"places": nest(place)}], topic, now_ms=NOW)
    assert batch["value"].to_pylist() == [{"places": expected}]
    table = pa.table({"places": inferred(kind, pa.array([place]))})
    [batch] = to_batches(table, topic, now_ms=NOW)
    assert batch["value"].to_pylist() == [{"places": expected}]


def test_naive_times_within_a_value_are_not_taken_for_utc() -> None:
    topic = nested_topic(pa.struct([("at", pa.timestamp("us", "UTC"))]))
    table = pa.table({"places": pa.array([{"at": dt.datetime(2026, 1, 1)}])})
    with pytest.raises(SchemaMismatch, match="convert it first"):
        list(to_batches(table, topic, now_ms=NOW))
