"""Spark on a Kafka cluster through the same source: topics, stores and streams, committed records only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import changelog
import strandline as sl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
WORDS = [f"word {n % 7}" for n in range(210)]


class Counted(NamedTuple):
    """An app, and what it reads."""

    app: sl.App
    words: sl.Topic[str, int]

    def take(self) -> None:
        """Append all words, and count them."""
        self.words.append((word, 1) for word in WORDS)
        self.app.run(until="idle", progress=False)


@pytest.fixture
def counted(kafka: str, name: str, tmp_path: Path) -> Iterator[Counted]:
    """An app that has counted its words; besides there is what an aborted transaction has left."""
    app = sl.App(name, log=kafka, state_dir=tmp_path)
    words = app.topic(f"{name}-words", key=str, value=int, partitions=2)
    sent = app.topic(f"{name}-sent", key=str, value=int, partitions=2)
    seen = app.store("seen", key=str, value=int, default=0)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1
        sent.send(record.key, seen[record.key])

    done = Counted(app, words)
    done.take()
    with changelog.open(kafka) as log:
        producer = log.producer(transactional_id=name)
        producer.begin_transaction()
        for partition in range(2):
            producer.send(sent.name, b"never", key=b"never", partition=partition)
        producer.flush()
        producer.abort_transaction()
        producer.close()
    yield done
    app.close()


def test_topics_stores_and_streams_are_read(
    spark: SparkSession, kafka: str, counted: Counted, tmp_path: Path
) -> None:
    source = {"subscribe": f"{counted.app.name}-sent", "startingOffsets": "earliest"}
    batch = spark.read.format("strandline").options(**source).load(kafka)
    assert batch.count() == len(WORDS)
    assert batch.select("key").distinct().count() == 7
    store = spark.read.format("strandline").option("store", f"{counted.app.name}/seen").load(kafka)
    assert {row.key: row.value for row in store.collect()} == dict.fromkeys(WORDS, 30)

    stream = spark.readStream.format("strandline").options(**source).load(kafka)

    def read_on() -> int:
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "read"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / "read")).count()

    assert read_on() == len(WORDS)
    counted.take()
    assert read_on() == 2 * len(WORDS)
