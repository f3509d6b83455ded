"""Loads of topics into Parquet files, from every system that can hold a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import strandline as sl
from strandline.changelog.errors import InvalidConfig, OffsetOutOfRange
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from tests.offload.kit import committed, places, stored


@dataclass
class Trip:
    """A value whose fields are columns."""

    origin: str
    minutes: int


def send(log: Log, topic: str, values: list[bytes]) -> None:
    """Append values to two partitions, with headers."""
    producer = log.producer()
    for number, value in enumerate(values):
        producer.send(topic, value, key=b"k", partition=number % 2, headers=[("h", b"x")])
    producer.close()


def test_a_topic_is_loaded_by_several_runs_and_each_committed_record_once(
    log: Log, topic: str, tmp_path: Path
) -> None:
    to = tmp_path / "lake"
    send(log, topic, [b"0", b"1", b"2"])
    assert sl.offload(topic, to, log=log).rows == 3
    aborted = log.producer(transactional_id=f"{topic}-aborted")
    aborted.begin_transaction()
    aborted.send(topic, b"aborted", partition=0)
    aborted.flush()
    aborted.abort_transaction()
    aborted.close()
    send(log, topic, [b"3", b"4", b"5"])
    assert sl.offload(topic, to, log=log).rows == 3
    assert sl.offload(topic, to, log=log).rows == 0
    found = stored("parquet", to)
    assert places(found) == committed(log, topic)
    assert sorted(found["value"].to_pylist()) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert found["headers"].to_pylist()[0] == [{"key": "h", "value": b"x"}]


def test_deleted_records_and_another_topic_are_refused(
    log: Log, topic: str, name: str, tmp_path: Path
) -> None:
    to = tmp_path / "lake"
    send(log, topic, [b"0", b"1"])
    sl.offload(topic, to, log=log)
    send(log, topic, [b"2", b"3", b"4", b"5"])
    log.broker.delete_records(TopicPartition(topic, 1), 2)
    with pytest.raises(OffsetOutOfRange, match="partition 1: records from offset 1 to 1"):
        sl.offload(topic, to, log=log)
    report = sl.offload(topic, to, log=log, on_data_loss="continue")
    assert (report.rows, len(report.gaps)) == (3, 1)
    log.create_topic(f"{name}-other", 2)
    with pytest.raises(InvalidConfig, match="another topic"):
        sl.offload(f"{name}-other", to, log=log)


def test_a_declared_topic_is_loaded_in_columns(log: Log, name: str, tmp_path: Path) -> None:
    app = sl.App(f"{name}-app", log=log)
    trips = app.topic(f"{name}-trips", key=str, value=Trip, partitions=2)
    trips.append([("AA", Trip("JFK", 7)), ("UA", Trip("EWR", 9))])
    sl.offload(trips, tmp_path / "lake")
    rows = stored("parquet", tmp_path / "lake").to_pylist()
    assert sorted((row["_key"], row["origin"], row["minutes"]) for row in rows) == [
        ("AA", "JFK", 7),
        ("UA", "EWR", 9),
    ]
