"""Records without a key go to all partitions of a topic, however they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import strandline as sl
from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.client.producer import METADATA_MAX_AGE_S
from strandline.framework.testing import TestDriver

PARTITIONS = 4
VALUE = b"x" * 1_000


@pytest.fixture
def app(tmp_path: Path) -> Iterator[sl.App]:
    with sl.App("keyless", log=tmp_path / "log", durability="os", commit_records=1) as app:
        yield app


def spread(topic: sl.Topic[str, bytes]) -> list[int]:
    """Return how many records each partition has."""
    counted = topic.to_polars().group_by("partition").len()
    found = dict(counted.iter_rows())
    return [found.get(number, 0) for number in range(PARTITIONS)]


def test_of_single_appends_each_partition_has_some(app: sl.App) -> None:
    topic = app.topic("t", value=bytes, partitions=PARTITIONS)
    for _ in range(60):
        topic.append([(None, VALUE)])
    assert sum(spread(topic)) == 60
    assert min(spread(topic)) > 0


def test_of_a_large_append_each_partition_has_some(app: sl.App) -> None:
    topic = app.topic("t", value=bytes, partitions=PARTITIONS)
    topic.append([(None, VALUE)] * 1_000)
    topic.append(pl.DataFrame({"value": [VALUE] * 1_000}))
    assert sum(spread(topic)) == 2_000
    assert min(spread(topic)) > 100


def test_of_many_commits_of_one_worker_each_partition_has_some(app: sl.App) -> None:
    source = app.topic("source", value=int)
    topic = app.topic("t", value=bytes, partitions=PARTITIONS)

    @app.task(source)
    def send(record: sl.Record[str, int]) -> None:
        topic.send(None, VALUE * 100)

    source.append([("a", number) for number in range(120)])
    app.run(until="idle", progress=False)
    assert sum(spread(topic)) == 120
    assert min(spread(topic)) > 0


def test_a_key_is_never_moved_by_records_without_one(app: sl.App) -> None:
    topic = app.topic("t", value=int, partitions=PARTITIONS)
    rows = [("a" if number % 2 else None, number) for number in range(1_000)]
    for at in range(0, 1_000, 10):
        topic.append(rows[at : at + 10])
    keyed = topic.to_polars().filter(pl.col("key") == "a")
    assert keyed["partition"].n_unique() == 1
    assert keyed["value"].to_list() == list(range(1, 1_000, 2))


def test_partitions_added_to_an_output_are_written_by_a_running_worker() -> None:
    app = sl.App("app")
    source = app.topic("source", key=str, value=int)
    topic = app.topic("t", key=str, value=int)

    @app.task(source)
    def send(record: sl.Record[str, int]) -> None:
        topic.send(record.key, record.value)

    given = [(str(number), number) for number in range(20)]
    with TestDriver(app) as driver:
        driver.run(given)
        driver.owner.alter_topic("t", partitions=2)
        driver.advance(int(METADATA_MAX_AGE_S * 1_000))
        added_at = driver.clock.now_ms()
        driver.run(given)
        sent = driver.output(topic)
    later = {record.key: record.partition for record in sent if record.timestamp >= added_at}
    assert {record.partition for record in sent if record.timestamp < added_at} == {0}
    assert set(later.values()) == {0, 1}
    assert later == {key: partition_for(key.encode(), 2) for key, _ in given}
