"""Spark batch reads and writes of keys and values, against Spark's own Kafka connector.

    make bench-spark

Both read the same records of bytes from 4 partitions: ours from a folder, Spark's from a Kafka
broker on this machine, through the connector spark-sql-kafka-0-10. Both write to that broker: ours
exactly once, Spark's without transactions. The figures of `spark_read` and `spark_write` come
first, in the same run. Needs confluent-kafka, Java and Maven.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from benchmarks import spark_read, spark_write
from benchmarks.harness import Figure, Stopwatch, compare, folder, report
from benchmarks.kafka_broker import ALONE, cluster
from benchmarks.servers import cached, copy_jars
from strandline import changelog

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

    from strandline.changelog.log import Log

PARTITIONS = 4
BATCH_RECORDS = 20_000
"""Number of records of a batch."""
SCALA = "2.13"
CONNECTOR = "4.2.0"
"""Version of the connector. None has been published for Spark 4.3."""


def main() -> int:
    """Print the figures. Return 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.spark_kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller inputs")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    parser.add_argument("--without-kafka", action="store_true", help="leave Kafka's source out")
    given = parser.parse_args()
    return report(_figures(given.quick, kafka=not given.without_kafka), given.json)


def _figures(quick: bool, *, kafka: bool) -> Iterator[Figure]:
    if kafka:  # first, because the process's JVM takes jars only when it starts
        yield from run(quick=quick)
    yield from spark_read.run(quick=quick)
    yield from spark_write.run(quick=quick)


def run(*, quick: bool) -> list[Figure]:
    """Measure records per second."""
    count, rounds = (200_000, 3) if quick else (4_000_000, 5)
    jars = ",".join(map(str, _connector().glob("*.jar")))
    with folder() as path, cluster(path / "kafka", 1, {}, jvm=ALONE) as brokers:
        url = f"kafka://{brokers[0].address}"
        with changelog.open(url) as there, changelog.open(path / "log") as here:
            for log in (there, here):
                _write(log, count)
            with spark_read.running("local[2]", {"spark.jars": jars}) as spark:
                address = brokers[0].address
                return [
                    _reads(spark, path, address, count, rounds=rounds),
                    _writes(spark, path, there, address, count // 10, rounds=rounds),
                ]


def _writes(
    spark: SparkSession, path: Path, there: Log, address: str, count: int, *, rounds: int
) -> Figure:
    for name in ("ours", "theirs"):
        there.create_topic(name, PARTITIONS)
    reader = spark.read.format("strandline").option("subscribe", "bytes")
    rows = reader.load(str(path / "log")).select("key", "value").limit(count)
    rows = rows.repartition(PARTITIONS).cache()
    assert rows.count() == count

    def ours() -> float:
        watch = Stopwatch()
        writer = rows.write.format("strandline").option("topic", "ours")
        writer.mode("append").save(f"kafka://{address}")
        return count / watch.seconds

    def theirs() -> float:
        watch = Stopwatch()
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", address)
        writer.option("topic", "theirs").save()
        return count / watch.seconds

    return compare(
        f"Spark batch write of {count:,} keys and values to Kafka",
        *(ours, theirs),
        peer_name="Spark's Kafka sink",
        unit="records/s",
        rounds=rounds,
    )


def _reads(spark: SparkSession, path: Path, address: str, count: int, *, rounds: int) -> Figure:
    ours = spark.read.format("strandline").option("subscribe", "bytes")
    theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    theirs = theirs.option("subscribe", "bytes")
    return compare(
        f"Spark batch read of {count:,} keys and values",
        lambda: _rate(ours, count, str(path / "log")),
        lambda: _rate(theirs, count),
        peer_name="Spark's Kafka source",
        unit="records/s",
        rounds=rounds,
    )


def _rate(reader: DataFrameReader, count: int, *place: str) -> float:
    from pyspark.sql import functions as fn

    sums = [fn.sum(fn.length(name)) for name in ("key", "value")]
    watch = Stopwatch()
    [row] = reader.load(*place).agg(fn.count("*").alias("rows"), *sums).collect()
    assert row.rows == count, (row, count)
    return count / watch.seconds


def _write(log: Log, count: int) -> None:
    log.create_topic("bytes", PARTITIONS)
    chance = np.random.default_rng(0)
    for start in range(0, count, BATCH_RECORDS):
        users = chance.integers(100_000, size=BATCH_RECORDS)
        rows = pa.table(
            {
                "key": pa.array([b"%d" % user for user in users.tolist()], pa.binary()),
                "value": pa.array(
                    [b"user number %d" % user for user in users.tolist()], pa.binary()
                ),
            }
        )
        log.append("bytes", rows, partition=start // BATCH_RECORDS % PARTITIONS)


def _connector() -> Path:
    """Return the folder of the connector's jars."""
    wanted = [
        f"org.apache.spark:{name}_{SCALA}:{CONNECTOR}"
        for name in ("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10")
    ]
    others = ["org.apache.kafka:kafka-clients:3.9.1", "org.apache.commons:commons-pool2:2.12.1"]

    def copy(place: Path) -> None:
        copy_jars(place, *wanted, *others, otherwise="give --without-kafka")

    return cached(f"spark-kafka-{CONNECTOR}", copy)


if __name__ == "__main__":
    sys.exit(main())
