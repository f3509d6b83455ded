"""Records as Spark's columns: their names and types."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from strandline.changelog.errors import InvalidConfig, SchemaMismatch
from strandline.changelog.records import HEADERS_TYPE, Batch, TopicInfo, columns_schema
from strandline.framework.spark.columns import (
    METADATA,
    check_columns,
    metadata_names,
    to_rows,
    to_sized_batches,
    topic_schema,
    topics_schema,
)
from strandline.framework.table_types import INSTANT, spark_type

EVERY_NAME = frozenset({*METADATA, "headers"})
"""Names of metadata of a topic without columns of its own that are called like them."""
FLIGHT = pa.schema([("carrier", pa.large_string()), ("delay", pa.float32())])


def topic(name: str = "t", schema: pa.Schema | None = None) -> TopicInfo:
    return TopicInfo(name, "id", 1, {}, schema)


def batch(*values: bytes | None, headers: pa.Array | None = None) -> Batch:
    count = len(values)
    columns = [pa.array(range(count), pa.int64()), pa.array([b"k"] * count)]
    columns.append(pa.array(values, pa.binary()))
    schema = columns_schema(pa.binary(), headers=headers is not None)
    if headers is not None:
        columns.append(headers)
    return Batch("t", 3, 10, pa.record_batch(columns, schema=schema))


def test_a_topic_of_bytes_has_the_columns_of_sparks_kafka_source() -> None:
    schema = topics_schema([topic()], headers=True)
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    assert schema.names == names
    assert schema.field("partition").type == pa.int32()
    assert schema.field("timestamp").type == INSTANT
    assert topics_schema([topic()]).names == names[:-1]


def test_rows_of_a_topic_of_bytes_have_sparks_values() -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}], None, []], HEADERS_TYPE)
    schema = topics_schema([topic()], headers=True)
    assert to_rows(batch(b"", None, b"w", headers=headers), schema, EVERY_NAME).to_pylist() == [
        {
            "key": b"k",
            "value": value,
            "topic": "t",
            "partition": 3,
            "offset": offset,
            "timestamp": datetime.fromtimestamp(ms / 1000, UTC),
            "headers": pairs,
        }
        for value, offset, ms, pairs in [
            (b"", 10, 0, [{"key": "h", "value": b"1"}]),
            (None, 11, 1, None),
            (b"w", 12, 2, None),
        ]
    ]


def test_batches_without_headers_have_null_headers() -> None:
    schema = pa.schema([("headers", HEADERS_TYPE)])
    assert to_rows(batch(b"x"), schema, EVERY_NAME).to_pylist() == [{"headers": None}]


def test_offsets_with_gaps_are_the_records_own() -> None:
    sparse = Batch("t", 0, 10, batch(b"x", b"y").columns, 0, pa.array([10, 17]))
    schema = pa.schema([("offset", pa.int64())])
    assert to_rows(sparse, schema, EVERY_NAME).column(0).to_pylist() == [10, 17]


def typed(value: pa.StructArray) -> Batch:
    columns = [pa.array([0] * len(value), pa.int64()), pa.array([b"AA"] * len(value)), value]
    schema = columns_schema(value.type, headers=False)
    return Batch("t", 0, 0, pa.record_batch(columns, schema=schema))


def test_a_typed_topic_has_its_own_columns_in_sparks_types() -> None:
    schema = topics_schema([topic(schema=FLIGHT)])
    assert schema == pa.schema([("carrier", pa.string()), ("delay", pa.float32())])
    value = pa.array([{"carrier": "AA", "delay": 1.5}, None], pa.struct(list(FLIGHT)))
    assert to_rows(typed(value), schema, EVERY_NAME).to_pylist() == [
        {"carrier": "AA", "delay": 1.5},
        {"carrier": None, "delay": None},
    ]


def test_metadata_is_next_to_typed_columns_on_request() -> None:
    schema = topics_schema([topic(schema=FLIGHT)], metadata=True)
    assert schema.names == ["carrier", "delay", "key", "topic", "partition", "offset", "timestamp"]
    value = pa.array([{"carrier": "AA", "delay": 1.5}], pa.struct(list(FLIGHT)))
    assert to_rows(typed(value), schema, EVERY_NAME).column("key").to_pylist() == [b"AA"]


def test_a_column_that_is_called_like_metadata_is_not_hidden() -> None:
    own = pa.schema([("offset", pa.int64())])
    assert topics_schema([topic(schema=own)]).names == ["offset"]
    with pytest.raises(InvalidConfig, match="columns of its own called offset"):
        topics_schema([topic(schema=own)], metadata=True)


def test_a_record_from_before_a_column_was_added_has_null_in_it() -> None:
    value = pa.array([{"carrier": "AA"}], pa.struct([("carrier", pa.string())]))
    later = pa.schema([("carrier", pa.string()), ("gate", pa.int32())])
    assert to_rows(typed(value), later, EVERY_NAME).to_pylist() == [{"carrier": "AA", "gate": None}]


def test_the_planned_read_decides_which_columns_are_metadata() -> None:
    own = pa.schema([("n", pa.int64()), ("offset", pa.int64()), ("headers", pa.string())])
    shown, without = topic(schema=own), topic(schema=FLIGHT)
    assert metadata_names(without, metadata=False, headers=False) == EVERY_NAME
    assert metadata_names(topic(), metadata=False, headers=False) == EVERY_NAME
    plain = metadata_names(shown, metadata=False, headers=False)
    assert plain == EVERY_NAME - {"offset", "headers"}
    asked = metadata_names(shown, metadata=True, headers=False)
    assert asked == EVERY_NAME - {"headers"}

    value = pa.array(
        [{"n": 1, "offset": 77}], pa.struct([("n", pa.int64()), ("offset", pa.int64())])
    )
    earlier = pa.array([{"n": 1}], pa.struct([("n", pa.int64())]))
    target = pa.schema([("n", pa.int64()), ("offset", pa.int64())])
    for stored, names, offset in (
        (value, plain, 77),
        (value, asked, 0),
        (earlier, plain, None),
        (earlier, asked, 0),
    ):
        assert to_rows(typed(stored), target, names).to_pylist() == [{"n": 1, "offset": offset}]


@pytest.mark.parametrize(
    ("topics", "names", "problem"),
    [
        (
            [topic("t", FLIGHT)],
            ["carier"],
            "topic t has no column carier, .* did you mean 'carrier'",
        ),
        ([topic("t", FLIGHT)], ["delay", "value"], "no column value"),
        ([topic("t"), topic("u")], ["carrier"], "topic t, u has no column carrier.*its columns: "),
        ([topic("t", FLIGHT)], ["delay", "offset", "key", "headers"], ""),
        ([topic("t")], ["value", "timestamp"], ""),
    ],
)
def test_columns_that_no_topic_has_are_refused(
    topics: list[TopicInfo], names: list[str], problem: str
) -> None:
    given = pa.schema([(name, pa.string()) for name in names])
    with pytest.raises(InvalidConfig, match=problem) if problem else nullcontext():
        check_columns(topics, given, {each.name: EVERY_NAME for each in topics})


PLACE = pa.struct([("city", pa.string()), ("zip", pa.int32())])
NESTED = pa.schema(
    [
        ("place", PLACE),
        ("trip", pa.struct([("to", PLACE)])),
        ("stops", pa.large_list(PLACE)),
        ("ends", pa.list_(PLACE, 2)),
        ("seats", pa.map_(PLACE, pa.list_(PLACE))),
        ("carrier", pa.string()),
    ]
)
TOWN = pa.struct([("town", pa.string())])
ZIP = pa.struct([("zip", pa.int64())])


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("place", TOWN, r"topic t has no field place\.town, .*: place\.city, place\.zip"),
        ("place", pa.struct([("City", pa.string())]), r"did you mean 'place\.city'"),
        ("trip", pa.struct([("to", TOWN)]), r"no field trip\.to\.town"),
        ("trip", pa.struct([("form", ZIP)]), r"no field trip\.form"),
        ("stops", pa.list_(TOWN), r"no field stops\.element\.town"),
        ("ends", pa.list_(TOWN), r"no field ends\.element\.town"),
        ("seats", pa.map_(TOWN, pa.list_(ZIP)), r"no field seats\.key\.town"),
        ("seats", pa.map_(ZIP, pa.list_(TOWN)), r"no field seats\.value\.element\.town"),
        ("headers", pa.list_(TOWN), r"no field headers\.element\.town"),
        ("place", ZIP, ""),
        ("trip", pa.struct([("to", ZIP)]), ""),
        ("stops", pa.list_(ZIP), ""),
        ("seats", pa.map_(ZIP, pa.list_(ZIP)), ""),
        ("headers", HEADERS_TYPE, ""),
    ],
)
def test_fields_that_no_topic_has_are_refused(name: str, kind: pa.DataType, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem) if problem else nullcontext():
        check_columns([topic("t", NESTED)], pa.schema([(name, kind)]), {"t": EVERY_NAME})


def test_a_field_that_one_of_several_topics_has_is_known() -> None:
    topics = [topic("t", NESTED), topic("u", pa.schema([("place", TOWN)]))]
    metadata = {"t": EVERY_NAME, "u": EVERY_NAME}
    check_columns(topics, pa.schema([("place", TOWN)]), metadata)
    with pytest.raises(InvalidConfig, match=r"topic t, u has no field place\.street"):
        street = pa.struct([("street", pa.string())])
        check_columns(topics, pa.schema([("place", street)]), metadata)


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="has no columns, so the rows of topic t"):
        check_columns([topic("t", NESTED)], pa.schema([]), {"t": EVERY_NAME})


def test_own_columns_are_told_from_metadata_whatever_their_case() -> None:
    own = topic("t", pa.schema([("Key", pa.string()), ("a", pa.int64())]))
    assert topic_schema(own, metadata=False, headers=False).names == ["Key", "a"]
    with pytest.raises(InvalidConfig, match="own called Key: leave out includeMetadata"):
        topic_schema(own, metadata=True, headers=False)


def test_only_requested_columns_are_built() -> None:
    value = pa.array([{"carrier": "AA", "delay": 1.5}], pa.struct(list(FLIGHT)))
    schema = pa.schema([("delay", pa.float64())])
    assert to_rows(typed(value), schema, EVERY_NAME).to_pylist() == [{"delay": 1.5}]


def test_topics_read_together_have_the_same_columns() -> None:
    with pytest.raises(SchemaMismatch, match="'t' and 'u' have different columns"):
        topics_schema([topic("t", FLIGHT), topic("u")])


@pytest.mark.parametrize(
    ("kind", "item", "seen"),
    [
        (pa.uint8(), 255, 255),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.large_string(), "ä", "ä"),
        (pa.large_binary(), b"x", b"x"),
        (pa.binary(2), b"xy", b"xy"),
        (pa.date64(), date(2013, 1, 2), date(2013, 1, 2)),
        (pa.timestamp("ns", "Europe/Berlin"), datetime(2013, 1, 1, tzinfo=UTC), None),
        (pa.timestamp("s"), datetime(2013, 1, 1), datetime(2013, 1, 1)),
        (pa.decimal128(9, 2), 1, 1),
        (pa.large_list(pa.large_string()), ["a"], ["a"]),
        (pa.list_(pa.uint16(), 2), [1, 2], [1, 2]),
        (pa.struct([("x", pa.uint32())]), {"x": 7}, {"x": 7}),
        (pa.map_(pa.string(), pa.int8()), [("a", 1)], [("a", 1)]),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
    ],
    ids=str,
)
def test_every_column_is_cast_to_a_type_that_spark_has(
    kind: pa.DataType, item: object, seen: object
) -> None:
    target = pa.schema([pa.field("x", spark_type(kind, "x"))])
    value = pa.StructArray.from_arrays([pa.array([item, None], kind)], ["x"])
    rows = to_rows(typed(value), target, EVERY_NAME)
    assert rows.schema == target
    assert rows.column(0).to_pylist() == [item if seen is None else seen, None]
    assert spark_type(target.field(0).type, "x") == target.field(0).type


def test_a_type_that_spark_does_not_have_is_refused_by_name() -> None:
    kind = pa.struct([("big", pa.decimal256(60, 0))])
    with pytest.raises(SchemaMismatch, match=r"column 'x\.big'"):
        spark_type(kind, "x")


def test_small_batches_are_merged_and_large_ones_kept() -> None:
    parts = [pa.record_batch({"n": list(range(size))}) for size in (2, 3, 9, 1, 1)]
    found = list(to_sized_batches(parts, rows=4))
    assert [part.num_rows for part in found] == [5, 9, 2]
    assert found[1] is parts[2]
