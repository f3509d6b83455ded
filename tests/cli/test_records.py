"""`produce` and `consume`: JSON lines that are produced are consumed as the same JSON lines."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from tests.cli.conftest import Command

T0 = 1_700_000_000_000
KEPT = {"retention.ms": "-1"}
"""Settings for topics whose records have old times: retention would remove them."""


def lines(*records: object) -> str:
    return "".join(msgspec.json.encode(record).decode() + "\n" for record in records)


def test_produced_records_are_consumed(log: Log, strandline: Command) -> None:
    log.create_topic("orders", config=KEPT)
    record = {
        "key": "AA",
        "value": {"n": 1, "tags": ["x", None], "ratio": 0.5},
        "timestamp": T0,
        "headers": [["trace", "7"], ["none", None], ["raw", {"base64": "/w=="}]],
    }
    produced = strandline("produce", "orders", stdin=lines(record))
    assert (produced.code, produced.err.strip()) == (0, "1 record to orders")
    assert strandline("consume", "orders").lines == [{"partition": 0, "offset": 0, **record}]


@pytest.mark.parametrize(
    "key", ["text", "", 7, -7, {"base64": "/wA="}, ["JFK", 1], {"a": [1, None]}, None]
)
def test_keys_are_consumed_as_they_were_produced(
    log: Log, strandline: Command, key: object
) -> None:
    log.create_topic("orders")
    strandline("produce", "orders", stdin=lines({"key": key, "value": 1}))
    assert strandline("consume", "orders").lines[0]["key"] == key


@pytest.mark.parametrize(
    "value", ["text", "é", "", 65, -1.5, True, [1, {"b": {"base64": "/w=="}}], None]
)
def test_values_are_consumed_as_they_were_produced(
    log: Log, strandline: Command, value: object
) -> None:
    log.create_topic("orders")
    strandline("produce", "orders", stdin=lines({"value": value}))
    assert strandline("consume", "orders").lines[0]["value"] == value


def test_an_offset_beyond_the_end_is_said(log: Log, strandline: Command) -> None:
    log.create_topic("orders", 2)
    log.append("orders", [{"key": b"a", "value": b"1"}, {"key": b"a", "value": b"2"}])
    beyond = strandline("consume", "orders", "--from", "7")
    assert (beyond.code, beyond.out) == (0, "")
    assert beyond.err.strip() == "no partition has offset 7: the longest one ends at 2"
    assert strandline("consume", "orders", "--from", "2").err == ""


def test_consume_can_be_piped_into_produce(log: Log, strandline: Command) -> None:
    log.create_topic("source", 3)
    log.create_topic("copy", 3)
    log.append("source", [{"key": bytes([n]), "value": bytes([n, 255 - n])} for n in range(256)])
    consumed = strandline("consume", "source").out
    assert strandline("produce", "copy", stdin=consumed).code == 0
    columns = ["partition", "timestamp", "key", "value"]
    assert log.read("copy").select(columns) == log.read("source").select(columns)


@pytest.mark.parametrize("value", [b"\0\1", b'{"a": 1}', b"text", b"A", b"\xff", b"", b"\xc0"])
def test_bytes_of_other_programs_are_copied_as_they_are(
    log: Log, strandline: Command, value: bytes
) -> None:
    for name in ("source", "copy"):
        log.create_topic(name)
    log.append("source", [{"value": value}])
    strandline("produce", "copy", stdin=strandline("consume", "source").out)
    assert log.read("copy")["value"].to_pylist() == [value]


def test_a_key_that_is_not_utf_8_is_base64(log: Log, strandline: Command) -> None:
    log.create_topic("orders")
    log.append("orders", [{"key": b"\xff\xfe", "value": b"hello"}])
    [record] = strandline("consume", "orders").lines
    assert record["key"] == {"base64": "//4="}
    assert record["value"] == {"utf8": "hello"}


def test_forms_decide_how_bytes_are_interpreted(log: Log, strandline: Command) -> None:
    log.create_topic("orders")
    log.append("orders", [{"key": (0.5).hex().encode(), "value": b'{"n": 1}'}])
    assert strandline("consume", "orders").lines[0]["value"] == {"utf8": '{"n": 1}'}
    [record] = strandline("consume", "orders", "--value-format", "json").lines
    assert record["value"] == {"n": 1}
    [record] = strandline("consume", "orders", "--value-format", "bytes").lines
    assert record["value"] == {"base64": "eyJuIjogMX0="}


def test_produced_json_is_json_in_the_log(log: Log, strandline: Command) -> None:
    log.create_topic("orders", config=KEPT)
    record = lines({"value": {"n": 1}, "key": 1.5})
    strandline("produce", "orders", "--value-format", "json", stdin=record)
    assert log.read("orders").select(["key", "value"]).to_pylist() == [
        {"key": bytes.fromhex("3ff8000000000000"), "value": b'{"n":1}'}
    ]
    assert strandline("consume", "orders", "--key-format", "float").lines[0]["key"] == 1.5


# Typed topics -------------------------------------------------------------------------

FLIGHTS = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("delay", pa.float64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("raw", pa.binary()),
        pa.field("stops", pa.list_(pa.string())),
    ]
)


def test_values_of_a_typed_topic_are_objects_of_columns(log: Log, strandline: Command) -> None:
    log.create_topic("flights", schema=FLIGHTS)
    full = {
        "carrier": "AA",
        "delay": 3.5,
        "at": "2013-01-01T10:00:00Z",
        "raw": {"base64": "/w=="},
        "stops": ["JFK", "LAX"],
    }
    sparse = {"carrier": "UA"}
    records = [{"key": "x", "value": value} for value in (full, sparse, None)]
    assert strandline("produce", "flights", stdin=lines(*records)).code == 0
    values = [record["value"] for record in strandline("consume", "flights").lines]
    nothing = dict.fromkeys(["delay", "at", "raw", "stops"])
    assert values == [full, sparse | nothing, None]


def test_the_key_may_be_taken_from_a_column(log: Log, strandline: Command) -> None:
    log.create_topic("flights", schema=FLIGHTS)
    record = lines({"value": {"carrier": "AA"}})
    strandline("produce", "flights", "--key-column", "carrier", stdin=record)
    assert log.read("flights")["key"].to_pylist() == [b"AA"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"carrier": "AA", "delya": 1}, "delya"),
        ({"delay": 1}, "carrier"),
        ({"carrier": "AA", "delay": "late"}, "delay"),
        ({"carrier": "AA", "at": "noon"}, "at"),
        ("AA", "object of its columns"),
    ],
)
def test_an_object_that_does_not_fit_is_refused_by_its_column(
    log: Log, strandline: Command, value: object, says: str
) -> None:
    log.create_topic("flights", schema=FLIGHTS)
    outcome = strandline("produce", "flights", stdin=lines({"value": value}))
    assert outcome.code == 1
    assert says in outcome.err
    assert "line 1" in outcome.err


# Beginning and end --------------------------------------------------------------------


def ten(log: Log) -> None:
    log.create_topic("numbers", config=KEPT)
    rows = [{"value": str(n).encode() + b"!", "timestamp": T0 + n * 1000} for n in range(10)]
    log.append("numbers", rows)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", None),
        ("4", 4),
        ("-3", 7),
        ("-30", 0),
        ("100", None),
        ("2023-11-14T22:13:25", 5),
        ("2023-11-14T23:13:24.500+01:00", 5),
        ("2030-01-01", None),
    ],
)
def test_consume_begins_at_the_given_position(
    log: Log, strandline: Command, start: str, first: int | None
) -> None:
    ten(log)
    offsets = [
        record["offset"] for record in strandline("consume", "numbers", "--from", start).lines
    ]
    assert offsets == ([] if first is None else list(range(first, 10)))


def test_the_last_records_are_counted_without_markers_and_aborted_ones(
    log: Log, strandline: Command
) -> None:
    log.create_topic("orders")
    with log.producer(transactional_id="t") as producer:
        for n in range(12):
            producer.begin_transaction()
            producer.append("orders", [{"value": b"n" + str(n).encode()}])
            if n % 3 == 0:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    for count, values in {"-2": ["n6", "n9"], "-9": ["n0", "n3", "n6", "n9"]}.items():
        records = strandline("consume", "orders", "--from", count).lines
        assert [record["value"]["utf8"] for record in records] == values


def test_consume_stops_after_max(log: Log, strandline: Command) -> None:
    ten(log)
    assert len(strandline("consume", "numbers", "--max", "3").lines) == 3


def test_consume_follows_until_max(log: Log, strandline: Command) -> None:
    ten(log)
    outcome = strandline("consume", "numbers", "--from", "8", "--follow", "--max", "2")
    assert [record["offset"] for record in outcome.lines] == [8, 9]


def test_consume_reads_only_the_named_partitions(log: Log, strandline: Command) -> None:
    log.create_topic("many", 4)
    log.append("many", [{"key": str(n), "value": b"!!"} for n in range(100)])
    outcome = strandline("consume", "many", "-p", "1", "-p", "3")
    assert {record["partition"] for record in outcome.lines} == {1, 3}
    outcome = strandline("consume", "many", "-p", "4")
    assert (outcome.code, outcome.out) == (1, "")
    assert "0 to 3" in outcome.err


def test_open_transactions_are_read_on_request(log: Log, strandline: Command) -> None:
    log.create_topic("orders")
    with log.producer(transactional_id="t", linger_ms=0) as producer:
        producer.begin_transaction()
        producer.append("orders", [{"value": b"open"}])
        assert strandline("consume", "orders").lines == []
        outcome = strandline("consume", "orders", "--isolation", "read_uncommitted")
        assert [record["value"] for record in outcome.lines] == [{"utf8": "open"}]


# Lines that cannot be produced --------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("not json", "line 2"),
        ('{"key": "a"}', "tombstone"),
        ('{"value": 1, "vaule": 2}', "vaule"),
        ('{"value": 1, "timestamp": "noon"}', "noon"),
        ('{"value": 1, "key": {"base64": "!"}}', "base64"),
        ('{"value": 1, "headers": [["a", 1]]}', "header"),
        ('{"value": 1, "partition": 9}', "9"),
    ],
)
def test_a_bad_line_is_named_and_the_lines_before_it_are_produced(
    log: Log, strandline: Command, line: str, says: str
) -> None:
    log.create_topic("orders")
    outcome = strandline("produce", "orders", stdin='{"value": "fine"}\n' + line + "\n")
    assert outcome.code == 1
    assert says in outcome.err
    assert "Traceback" not in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert len(log.read("orders")) == 1


def test_produce_prints_the_position_of_each_record(log: Log, strandline: Command) -> None:
    log.create_topic("orders", 2)
    records = [{"value": "x", "partition": 1}, {"value": "y", "partition": 1}]
    outcome = strandline("produce", "orders", "--json", stdin=lines(*records) + "\n")
    assert outcome.lines == [{"partition": 1, "offset": 0}, {"partition": 1, "offset": 1}]


def test_produce_does_not_create_a_topic(log: Log, strandline: Command) -> None:
    for command in ("produce", "consume"):
        outcome = strandline(command, "nowhere", stdin=lines({"value": 1}))
        assert outcome.code == 1
        assert "nowhere" in outcome.err
    assert log.topics() == []


def test_an_empty_partition_does_not_block_consume(log: Log, strandline: Command) -> None:
    log.create_topic("orders", 3)
    assert log.broker.offsets([TopicPartition("orders", 2)])
    assert strandline("consume", "orders").lines == []


def test_produce_refuses_seconds_and_accepts_iso_times(log: Log, strandline: Command) -> None:
    log.create_topic("times")
    for wrong in ("1760000400", "1760000400.5"):
        given = f'{{"key": "a", "value": 1, "timestamp": {wrong}}}'
        outcome = strandline("produce", "times", stdin=given)
        assert (outcome.code, "milliseconds" in outcome.err) == (1, True), outcome.err
    early = '{"key": "a", "value": 1, "timestamp": "1970-01-20"}'
    assert strandline("produce", "times", stdin=early).code == 0
    [time] = log.read("times")["timestamp"].to_pylist()
    assert time.timestamp() == 19 * 86_400
