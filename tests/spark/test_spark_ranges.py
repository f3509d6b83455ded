"""Spark reads by time and by size, in one task or several; streams follow new partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strandline.changelog.records import TopicPartition
from strandline.framework.spark import lag
from tests.spark.test_spark import Stream, admission_control, numbers
from tests.spark.writing import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.changelog.log import Log

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FUTURE_MS = "99999999999999"


@pytest.fixture
def read(spark: SparkSession, log: Log, tmp_path: Path) -> Callable[..., DataFrame]:
    """Function that reads topic t, which has three partitions of a hundred records."""
    log.broker.create_topic("t", 3)
    for partition in range(3):
        Writer(log.broker).write(numbers(0, 100), partition=partition)
    reader = spark.read.format("strandline").option("subscribe", "t")
    return lambda **options: reader.options(**options).load(str(tmp_path / "log"))


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def test_tasks_are_as_many_as_the_sizes_and_options_ask_for(read: Any) -> None:
    assert read().rdd.getNumPartitions() == 1
    several = read(minPartitions="8")
    assert several.rdd.getNumPartitions() == 8
    assert sorted(map(repr, several.collect())) == sorted(map(repr, read().collect()))
    assert read(maxBytesPerTask="1000").rdd.getNumPartitions() >= 3


@pytest.mark.long
def test_a_batch_is_read_between_times(read: Any) -> None:
    times = sorted({int(r.timestamp.timestamp() * 1000) for r in read().collect()})
    assert read(startingTimestamp=str(times[0])).count() == 300
    assert read(endingTimestamp=str(times[0])).count() == 0
    assert read(endingTimestamp=FUTURE_MS).count() == 300
    with pytest.raises(Exception, match="all records of t-0 are before"):
        read(startingTimestamp=FUTURE_MS).collect()
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(startingTimestamp=FUTURE_MS, **latest).count() == 0


@pytest.mark.long
def test_a_stream_reads_in_batches_of_a_size(log: Log, stream: Stream) -> None:
    log.broker.create_topic("t", 2)
    for partition in range(2):
        for start in range(0, 100, 20):
            Writer(log.broker).write(numbers(start, start + 20), partition=partition)
    stream.run(maxBytesPerTrigger="2000", minPartitions="3")
    assert stream.seen() == sorted([*range(100)] * 2)
    if admission_control(stream.spark):
        assert len(stream.batches) > 2


@pytest.mark.long
def test_a_stream_reads_added_partitions_from_their_beginning(log: Log, stream: Stream) -> None:
    log.broker.create_topic("t", 1)
    Writer(log.broker).write(numbers(0, 5))
    stream.run()
    log.broker.alter_topic("t", partitions=3)
    Writer(log.broker).write(numbers(5, 9), partition=2)
    stream.run(startingOffsets="latest")  # the option counts for a new query only
    assert stream.seen() == [*range(9)]


def test_progress_tells_the_lag(log: Log, stream: Stream) -> None:
    log.broker.create_topic("t", 1)
    Writer(log.broker).write(numbers(0, 10))
    query = stream.run(maxOffsetsPerTrigger="4")
    found = [lag(each) for each in query.recentProgress]
    if admission_control(stream.spark):
        left = [each[TopicPartition("t", 0)] for each in found]
        assert left[:3] == [6, 2, 0]
    else:
        assert found[0] == {}
    assert lag(None) == {}
