"""Writes of Spark: a batch into a typed topic against Parquet, and micro-batches against no sink.

The batch writes the same cached rows to a topic of 4 partitions and to Parquet files. A row goes to
the partition of its key, and is written twice: staged, and copied by the commit. The micro-batches
are those of Spark's rate source, which has few rows: the figure is what a batch costs by itself.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Figure, Stopwatch, compare, folder
from benchmarks.spark_read import running
from strandline import changelog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.changelog.log import Log

PARTITIONS = 4
MEASURED_BATCHES = 12
"""Number of micro-batches whose time is measured, after the first ones."""
WARM_UP_BATCHES = 4
"""Number of micro-batches before them."""
PATIENCE_S = 120.0
"""Seconds for the micro-batches of one query."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure rows per second (target: 1 M), and micro-batches (target: 150 ms more)."""
    count, rounds = (400_000, 3) if quick else (4_000_000, 5)
    with (
        folder() as path,
        changelog.open(path / "log") as log,
        running("local[2]", {"spark.sql.shuffle.partitions": "2"}) as spark,
    ):
        return [
            _batches(spark, log, path, count, rounds=rounds),
            _micro_batches(spark, log, path, rounds=2 if quick else 3),
        ]


def _batches(spark: SparkSession, log: Log, path: Path, count: int, *, rounds: int) -> Figure:
    rows = _rows(spark, count)
    numbers = itertools.count()

    def ours() -> float:
        topic = f"written{next(numbers)}"
        writer = rows.write.format("strandline").mode("append")
        writer = writer.options(topic=topic, partitions=PARTITIONS, key="user")
        watch = Stopwatch()
        writer.save(str(path / "log"))
        rate = count / watch.seconds
        assert log.read(topic).num_rows == count
        log.broker.delete_topic(topic)
        return rate

    def parquet() -> float:
        watch = Stopwatch()
        rows.write.mode("overwrite").parquet(str(path / "parquet"))
        return count / watch.seconds

    return compare(
        f"Spark batch write, {count:,} rows",
        *(ours, parquet),
        peer_name="Spark writing Parquet",
        unit="rows/s",
        rounds=rounds,
    )


def _rows(spark: SparkSession, count: int) -> DataFrame:
    """Return rows that are in Spark's memory, so that making them costs nothing."""
    rows = spark.range(count, numPartitions=PARTITIONS).selectExpr(
        "cast(rand(1) * 100000 as bigint) AS user",
        "rand(2) AS amount",
        "concat('user number ', cast(rand(1) * 100000 as bigint)) AS name",
    )
    rows = rows.cache()
    assert rows.count() == count
    return rows


def _micro_batches(spark: SparkSession, log: Log, path: Path, *, rounds: int) -> Figure:
    log.create_topic("rate", PARTITIONS)
    numbers = itertools.count()

    def rate(sink: str) -> float:
        """Return micro-batches per second of work."""
        stream = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        rows = stream.selectExpr("string(value) AS key", "string(value) AS value")
        writer = rows.writeStream.format(sink).trigger(processingTime="300 milliseconds")
        checkpoint = str(path / f"checkpoint{next(numbers)}")
        writer = writer.options(topic="rate", checkpointLocation=checkpoint)
        query = writer.start(str(path / "log"))
        try:
            times: dict[int, float] = {}
            end = time.monotonic() + PATIENCE_S
            while len(times) < WARM_UP_BATCHES + MEASURED_BATCHES:
                assert query.isActive, query.exception()
                assert time.monotonic() < end, "the query makes no batches"
                query.awaitTermination(1)
                for progress in query.recentProgress:
                    times[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
            return 1000 / statistics.median(list(times.values())[WARM_UP_BATCHES:])
        finally:
            query.stop()

    return compare(
        "Spark micro-batches of the rate source",
        lambda: rate("strandline"),
        lambda: rate("noop"),
        peer_name="Spark's sink that writes nothing",
        unit="batches/s",
        rounds=rounds,
        warm_up=False,
    )
