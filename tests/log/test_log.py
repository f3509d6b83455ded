"""A log through its simple interface: append, read back, look at it as a table."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

from strandline.changelog.errors import (
    InvalidRequest,
    OwnerUnavailable,
    SchemaMismatch,
    UnknownTopic,
)
from strandline.changelog.log import Log
from tests.log.kit import START_MS, Client, World

FIRST = ["partition", "offset", "timestamp", "key"]
SCHEMA = pa.schema([pa.field("carrier", pa.string()), pa.field("delay", pa.int32())])
ROWS = [{"carrier": "AA", "delay": 1}, {"carrier": "B6", "delay": None}]
START = dt.datetime.fromtimestamp(START_MS / 1000, tz=dt.UTC)


@pytest.fixture
def log(world: World) -> Log:
    return Log(world.owner, clock=world.clock)


def test_appended_records_are_read_back(log: Log) -> None:
    log.append("t", [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], partition=1)
    assert log.read("t").to_pylist() == [
        {"partition": 1, "offset": 0, "timestamp": START, "key": b"a", "value": b"1"},
        {"partition": 1, "offset": 1, "timestamp": START, "key": b"b", "value": None},
    ]


def test_a_read_is_bounded_by_offsets(world: World, log: Log) -> None:
    client = Client(world)
    for partition in (0, 1):
        for n in range(0, 9, 3):
            client.append(*(b"%d" % k for k in range(n, n + 3)), partition=partition)

    def offsets(**bounds: object) -> list[tuple[int, int]]:
        table = log.read("t", **bounds)  # type: ignore[arg-type]
        return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))

    assert len(offsets()) == 18
    assert offsets(start={0: 7, 1: 100}) == [(0, 7), (0, 8)]
    assert offsets(start=2, end=4) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert offsets(end={0: 0, 1: 1}) == [(1, 0)]
    with pytest.raises(InvalidRequest, match=r"partitions \[2\]"):
        log.read("t", start={2: 0})


def test_a_read_passes_aborted_records_and_stops_at_open_ones(world: World, log: Log) -> None:
    producer = Client(world, "x")
    producer.append(b"1")
    producer.commit()
    producer.append(b"aborted")
    producer.abort()
    producer.append(b"open")
    assert log.read("t")["value"].to_pylist() == [b"1"]


def test_an_empty_topic_is_an_empty_table(log: Log) -> None:
    assert log.read("t").schema.names == ["partition", "offset", "timestamp", "key", "value"]
    log.create_topic("typed", schema=SCHEMA)
    assert log.to_polars("typed").schema["delay"] == pl.Int32


def test_headers_are_a_column_if_any_record_has_headers_and_null_for_the_others(log: Log) -> None:
    log.append("t", [{"value": b"1"}], partition=0)
    rows = [{"value": b"2", "headers": [("h", b"x")]}, {"value": b"3", "headers": []}]
    log.append("t", rows, partition=0)
    headers = log.read("t")["headers"].to_pylist()
    assert headers == [None, [{"key": "h", "value": b"x"}], None]


def test_a_typed_topic_is_a_data_frame_of_its_columns(log: Log) -> None:
    log.create_topic("typed", 2, schema=SCHEMA)
    log.append("typed", pl.DataFrame(ROWS), key="carrier", partition=0)
    frame = log.to_polars("typed")
    assert frame.columns == [*FIRST, "carrier", "delay"]
    assert frame.select("carrier", "delay").to_dicts() == ROWS
    log.append("typed", frame.select("carrier", "delay"), key="carrier", partition=1)
    assert log.to_polars("typed", start={0: 2}).select("carrier", "delay").to_dicts() == ROWS


def test_value_columns_named_like_record_columns_are_kept_apart(log: Log) -> None:
    log.create_topic("typed", schema=pa.schema([("key", pa.int64()), ("offset", pa.int64())]))
    log.append("typed", [{"key": 7, "offset": 8}], key="key")
    frame = log.to_polars("typed")
    assert frame.columns == [*FIRST, "value_key", "value_offset"]
    assert frame.row(0)[-2:] == (7, 8)


def test_a_tombstone_differs_from_a_row_of_nulls(log: Log) -> None:
    log.create_topic("typed", schema=SCHEMA)
    log.append("typed", [{"carrier": "AA", "delay": None}], key="carrier")
    with log.producer() as producer:
        producer.send("typed", None, key="AA")
        producer.send("t", None, key="AA")
    assert log.read("typed")["value"].to_pylist() == [{"carrier": "AA", "delay": None}, None]
    assert log.to_polars("typed").select("offset", "carrier").rows() == [(0, "AA")]
    every = log.to_polars("typed", tombstones=True)
    assert every.columns[3:] == ["key", "tombstone", "carrier", "delay"]
    assert every.select("tombstone", "carrier").rows() == [(False, "AA"), (True, None)]
    assert len(log.to_polars("t")) == 0
    assert log.to_polars("t", tombstones=True).select("tombstone", "value").rows() == [(True, None)]


def test_old_records_have_nulls_in_columns_added_later(log: Log) -> None:
    log.create_topic("typed", schema=SCHEMA)
    log.append("typed", ROWS)
    log.alter_topic("typed", schema=SCHEMA.append(pa.field("origin", pa.string())))
    with log.producer() as producer:
        producer.append("typed", [{**ROWS[0], "origin": "JFK"}])
    assert log.to_polars("typed")["origin"].to_list() == [None, None, "JFK"]


def test_topics_can_be_created_altered_and_deleted(log: Log) -> None:
    log.create_topic("u", 3, config={"cleanup.policy": "compact"})
    assert [topic.name for topic in log.topics()] == ["t", "u"]
    assert len(log.topics(internal=True)) > 2
    assert log.alter_topic("u", config={"segment.bytes": "4096"}).config == {
        "cleanup.policy": "compact",
        "segment.bytes": "4096",
    }
    assert list(log.offsets("u")) == [0, 1, 2]
    log.delete_topic("u")
    with pytest.raises(UnknownTopic):
        log.topic("u")


def test_a_closed_log_refuses_calls(world: World) -> None:
    with Log(world.owner, clock=world.clock) as log:
        log.append("t", [{"value": b"1"}])
    with pytest.raises(OwnerUnavailable):
        log.topics()


def wide(log: Log, kind: pa.DataType, value: object) -> pl.DataFrame:
    log.broker.create_topic("wide", 1, schema=pa.schema([("c", kind)]))
    log.append("wide", [{"c": value}])
    return log.to_polars("wide")


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (pa.decimal256(20, 1), Decimal("1.5"), Decimal("1.5")),
        (pa.decimal256(76, 1), Decimal("1.5"), Decimal("1.5")),
        (pa.list_(pa.decimal256(76, 1)), [Decimal("1.5")], [Decimal("1.5")]),
        (pa.decimal128(5, -2), Decimal(700), Decimal(700)),
    ],
)
def test_decimals_that_polars_lacks_are_read_as_those_it_has(
    log: Log, kind: pa.DataType, value: object, read: object
) -> None:
    """Polars raises a panic, which is no Exception, for these types."""
    assert wide(log, kind, value).get_column("c").to_list() == [read]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.decimal256(76, 0), Decimal(10) ** 60),
        (pa.struct([("x", pa.decimal256(76, 0))]), {"x": Decimal(10) ** 60}),
        (pa.list_(pa.int64(), 0), []),
        (pa.binary(0), b""),
        (pa.month_day_nano_interval(), pa.MonthDayNano([1, 2, 3])),
    ],
)
def test_what_polars_cannot_have_is_refused_by_name(
    log: Log, kind: pa.DataType, value: object
) -> None:
    with pytest.raises(SchemaMismatch, match="column 'c"):
        wide(log, kind, value)
    assert log.read("wide")["value"].to_pylist() == [{"c": value}]
