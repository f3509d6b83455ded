"""Spark on a Kafka cluster through the same source: topics, stores and streams, committed records
only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline import changelog
from tests.kafka.apps import Totals, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
WORDS = [f"word {n % 7}" for n in range(210)]


def take(app: Totals) -> None:
    """Append all words, and count them."""
    app.words.append((word, 1) for word in WORDS)
    app.app.run(until="idle", progress=False)


@pytest.fixture
def counted(kafka: str, name: str, tmp_path: Path) -> Iterator[Totals]:
    """An app that has counted its words, next to the records of an aborted transaction."""
    app = totals(name, kafka, tmp_path)
    take(app)
    with changelog.open(kafka) as log:
        producer = log.producer(transactional_id=name)
        producer.begin_transaction()
        for partition in range(2):
            producer.send(app.out.name, b"never", key=b"never", partition=partition)
        producer.flush()
        producer.abort_transaction()
        producer.close()
    yield app
    app.app.close()


@pytest.mark.long
def test_topics_stores_and_streams_of_a_cluster_are_read(
    spark: SparkSession, kafka: str, counted: Totals, tmp_path: Path
) -> None:
    source = {"subscribe": counted.out.name, "startingOffsets": "earliest"}
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
    take(counted)
    assert read_on() == 2 * len(WORDS)
