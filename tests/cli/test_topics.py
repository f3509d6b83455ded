"""`strandline topics`."""

from __future__ import annotations

import pyarrow as pa

from strandline.changelog.log import Log
from tests.cli.conftest import Command


def test_topics_are_listed_for_people_and_machines(log: Log, strandline: Command) -> None:
    log.create_topic("orders", 3, config={"cleanup.policy": "compact"})
    log.append("orders", [{"key": "a", "value": b"1"}])
    listed = strandline("topics", "list").out
    assert [word in listed for word in ("orders", "compact", "bytes", "__")] == [True] * 3 + [False]
    [row] = strandline("topics", "list", "--json").json
    assert row == {
        "topic": "orders",
        "partitions": 3,
        "offsets": 1,
        "cleanup": "compact",
        "values": "bytes",
        "internal": False,
    }
    names = [row["topic"] for row in strandline("topics", "list", "--internal", "--json").json]
    assert names == ["__consumer_offsets", "__transaction_state", "orders"]


def test_a_log_without_topics_shows_how_to_create_one(log: Log, strandline: Command) -> None:
    outcome = strandline("topics", "list")
    assert (outcome.code, outcome.out) == (0, "")
    assert "topics create" in outcome.err
    assert strandline("topics", "list", "--json").json == []


def test_a_topic_is_created_with_settings(log: Log, strandline: Command) -> None:
    settings = ["-c", "retention.ms=-1", "-c", "cleanup.policy=compact,delete"]
    outcome = strandline("topics", "create", "orders", "--partitions", "4", *settings)
    assert outcome.code == 0, outcome.err
    info = log.topic("orders")
    assert (info.partitions, info.config) == (
        4,
        {"retention.ms": "-1", "cleanup.policy": "compact,delete"},
    )


def test_a_typed_topic_is_created_by_its_columns(log: Log, strandline: Command) -> None:
    columns = ["--column", "carrier:string!", "--column", "at:timestamp[ms]"]
    outcome = strandline("topics", "create", "flights", *columns, "--json")
    assert outcome.json["columns"] == [
        {"name": "carrier", "type": "string", "nullable": False},
        {"name": "at", "type": "timestamp[ms, tz=UTC]", "nullable": True},
    ]
    assert log.topic("flights").schema == pa.schema(
        [pa.field("carrier", pa.string(), nullable=False), ("at", pa.timestamp("ms", "UTC"))]
    )


def test_describe_shows_columns_partitions_and_settings(log: Log, strandline: Command) -> None:
    log.create_topic("flights", 2, schema=pa.schema([("delay", pa.float64())]))
    log.alter_topic("flights", config={"segment.bytes": "65536"})
    shown = strandline("topics", "describe", "flights").out
    for word in ("delay", "double", "segment.bytes", "65536", "retention.ms", "default"):
        assert word in shown
    described = strandline("topics", "describe", "flights", "--json").json
    assert described["config"] == {"segment.bytes": "65536"}
    assert described["effective_config"]["cleanup.policy"] == "delete"
    assert [row["partition"] for row in described["partition_offsets"]] == [0, 1]


def test_settings_and_columns_are_altered(log: Log, strandline: Command) -> None:
    log.create_topic("flights", schema=pa.schema([("a", pa.int64())]), config={"segment.ms": "9"})
    change = ["-c", "retention.ms=5", "--unset", "segment.ms", "--column", "b:string"]
    assert strandline("topics", "alter", "flights", *change).code == 0
    info = log.topic("flights")
    assert info.config == {"retention.ms": "5"}
    assert info.schema is not None
    assert info.schema.names == ["a", "b"]


def test_altering_nothing_is_a_usage_error(log: Log, strandline: Command) -> None:
    log.create_topic("orders")
    assert strandline("topics", "alter", "orders").code == 2
    outcome = strandline("topics", "alter", "orders", "--column", "a:int64")
    assert (outcome.code, "holds bytes" in outcome.err) == (1, True)


def test_partitions_are_added(log: Log, strandline: Command) -> None:
    log.create_topic("orders", 2)
    outcome = strandline("topics", "add-partitions", "orders", "5")
    assert "another partition" in outcome.err
    assert log.topic("orders").partitions == 5
    assert strandline("topics", "add-partitions", "orders", "3").code == 1
    assert strandline("topics", "add-partitions", "orders", "5").code == 1


def test_a_topic_is_deleted_only_with_confirmation(log: Log, strandline: Command) -> None:
    log.create_topic("orders")
    outcome = strandline("topics", "delete", "orders")
    assert (outcome.code, "--yes" in outcome.err) == (1, True)
    assert strandline("topics", "delete", "orders", "--yes").code == 0
    assert log.topics() == []


def test_mistakes_are_explained_in_one_line(log: Log, strandline: Command) -> None:
    log.create_topic("orders")
    for arguments, says in {
        ("describe", "odrers"): "UnknownTopic",
        ("create", "orders"): "TopicExists",
        ("create", "a/b"): "InvalidTopic",
        ("create", "x", "-c", "retention.sm=1"): "did you mean 'retention.ms'",
        ("delete", "__consumer_offsets", "--yes"): "InvalidTopic",
    }.items():
        outcome = strandline("topics", *arguments)
        assert outcome.code == 1
        assert says in outcome.err
        assert len(outcome.err.strip().splitlines()) == 1


def test_a_malformed_option_is_a_usage_error(log: Log, strandline: Command) -> None:
    for option in (("-c", "retention"), ("--column", "a:strnig"), ("--column", "a")):
        assert strandline("topics", "create", "x", *option).code == 2
