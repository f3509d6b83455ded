"""Writing to a Kafka cluster: the same commits, staging topics and numbers of batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline import changelog
from strandline.changelog.errors import InvalidConfig, ProducerFenced
from strandline.changelog.records import TopicPartition
from strandline.framework.spark.writing.commit import SinkCommit
from strandline.framework.spark.writing.staging import names
from tests.forms import by_form
from tests.spark.sinks import Killed, MortalBroker, Sink, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.changelog.broker import Broker
    from strandline.changelog.log import Log

pytestmark = pytest.mark.spark
Eventually = Callable[..., None]


@pytest.fixture
def cluster(kafka: str, name: str) -> Iterator[Log]:
    """A cluster with a topic of this test."""
    with changelog.open(kafka) as log:
        log.create_topic(name, 2)
        yield log


def rows(start: int, end: int) -> list[tuple[str | None, str]]:
    return [(f"k{number % 5}", f"v{number}") for number in range(start, end)]


def once(start: int, end: int) -> Counter[str]:
    return Counter(f"v{number}" for number in range(start, end))


def committed(broker: Broker, topic: str, eventually: Eventually) -> Counter[str]:
    """Return how often each value is in a topic, once the last commit is visible.

    A cluster answers a commit before it has written the markers into the partitions.
    """
    tps = [TopicPartition(topic, number) for number in range(broker.topic(topic).partitions)]

    def is_visible() -> bool:
        now = broker.offsets(tps).values()
        return all(one.last_stable_offset == one.high_watermark for one in now)

    eventually(is_visible, what="the markers of the last commit")
    return values(broker, topic)


def test_a_batch_is_written_once_by_the_query_of_the_sink(
    cluster: Log, name: str, eventually: Eventually
) -> None:
    broker = cluster.broker
    sink = Sink(broker, name, query="one", topic=name)
    sink.stage(rows(100, 110), name)  # rows of an attempt that failed
    assert sink.commit(0, sink.stage(rows(0, 10), name))
    assert not sink.on(broker).commit(0, sink.stage(rows(0, 10), name))
    other = Sink(broker, name, query="two", topic=name)
    with pytest.raises(InvalidConfig, match="is of query one"):
        other.commit(0, other.stage(rows(10, 20), name))
    assert sink.on(broker).commit(1, sink.stage(rows(10, 20), name))
    assert committed(broker, name, eventually) == once(0, 20)


@pytest.mark.long
@pytest.mark.parametrize("call", by_form((5, 7), range(4, 9)))
def test_a_driver_that_dies_after_a_call_writes_each_row_once(
    cluster: Log, name: str, call: int, eventually: Eventually
) -> None:
    broker = cluster.broker
    sink = Sink(broker, name, topic=name)
    sink.commit(0, sink.stage(rows(0, 10), name))
    dying = sink.on(MortalBroker(broker, call - 4, after=True))
    with pytest.raises((Killed, ProducerFenced)):
        for number in range(1, 5):
            dying.commit(number, dying.stage(rows(10 * number, 10 * number + 10), name))
    again = sink.on(broker)
    for number in range(1, 5):
        again.commit(number, again.stage(rows(10 * number, 10 * number + 10), name))
    assert committed(broker, name, eventually) == once(0, 50)


def test_a_batch_write_leaves_no_staging_topic(
    cluster: Log, name: str, eventually: Eventually
) -> None:
    broker = cluster.broker
    job = Sink(broker, name, query="", topic=name)
    assert job.commit(None, job.stage(rows(0, 10), name))
    assert committed(broker, name, eventually) == once(0, 10)
    assert names(broker, job.name) == []
    failed = Sink(broker, name, query="", topic=name)
    failed.stage(rows(0, 10), name)
    SinkCommit(broker, failed.path, failed.name).abort()
    assert names(broker, failed.name) == []
    assert committed(broker, name, eventually) == once(0, 10)


@pytest.mark.slow
def test_spark_copies_a_topic_of_a_cluster_exactly_once(
    spark: SparkSession, kafka: str, cluster: Log, name: str, tmp_path: Path, eventually: Eventually
) -> None:
    cluster.create_topic(f"{name}-in", 2)

    def copy() -> None:
        stream = spark.readStream.format("strandline").options(
            subscribe=f"{name}-in", startingOffsets="earliest"
        )
        writer = stream.load(kafka).select("key", "value").writeStream.format("strandline")
        writer = writer.options(topic=name, checkpointLocation=str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(kafka).awaitTermination()

    for start in (0, 100):
        with cluster.producer() as producer:
            for number in range(start, start + 100):
                producer.send(f"{name}-in", b"v%d" % number, key=b"k%d" % (number % 5))
        copy()
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    for file in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        file.unlink()
    copy()
    assert committed(cluster.broker, name, eventually) == once(0, 200)
