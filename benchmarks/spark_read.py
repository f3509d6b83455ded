"""Spark batch reads of typed topics, against Spark reading the same rows from Parquet.

Each read computes an aggregate over every column, so that none can be left out, in the same warm
session. Parquet is the format that Spark reads best: with its own columnar reader in the JVM,
without a Python worker, and with dictionaries where values repeat.

The rows are in 1, 4 and 64 partitions, or files. Two more figures have no other system as a peer:
one large partition read with two cores against one, and 1 of 10 columns against all of them. With
`--kafka` (`python -m benchmarks.spark_kafka`) there is Spark's own Kafka source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Figure, Stopwatch, compare, folder
from strandline import changelog
from strandline.framework.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from strandline.changelog.log import Log

PARTITIONS = (1, 4, 64)
USERS = 100_000
BATCH_ROWS = 50_000
"""Maximum number of rows of a batch in the log."""
WIDE_COLUMNS = 10
"""Number of columns of the wide topic."""

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
SCHEMA = pa.schema([("user", pa.int64()), ("amount", pa.float64()), ("name", pa.string())])
WIDE = pa.schema([(f"c{n}", pa.float64() if n % 2 else pa.string()) for n in range(WIDE_COLUMNS)])


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yield rows per second, and the two ratios."""
    count, rounds = (400_000, 3) if quick else (4_000_000, 7)
    with folder() as path, changelog.open(path / "log") as log:
        write(log, path, count)
        with running("local[1]") as spark:
            alone = [_rate(_read(spark, path, "rows1"), count) for _ in range(rounds + 1)][1:]
        with running("local[2]") as spark:
            for partitions in PARTITIONS:
                yield _against_parquet(spark, path, partitions, count=count, rounds=rounds)
            yield _against_one_core(spark, path, alone, count=count)
            yield _some_columns(spark, path, count, rounds=rounds)


@contextmanager
def running(master: str, config: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a session, and stop it in the end."""
    spark = session("benchmarks", master=master, config=QUIET | dict(config or {}))
    try:
        yield spark
    finally:
        spark.stop()


def write(log: Log, path: Path, count: int) -> None:
    """Write the same number of rows to each topic, and to Parquet."""
    for partitions in PARTITIONS:
        name = f"rows{partitions}"
        log.create_topic(name, partitions, schema=SCHEMA)
        (path / name).mkdir()
        for partition in range(partitions):
            rows = _rows(partition, count // partitions)
            _append(log, name, rows, partition)
            pq.write_table(rows, path / name / f"{partition}.parquet")
    log.create_topic("wide", 4, schema=WIDE)
    for partition in range(4):
        _append(log, "wide", _wide_rows(partition, count // 4), partition)


def _append(log: Log, topic: str, rows: pa.Table, partition: int) -> None:
    for start in range(0, len(rows), BATCH_ROWS):
        log.append(topic, rows.slice(start, BATCH_ROWS), partition=partition)


def _read(spark: SparkSession, path: Path, topic: str) -> Callable[[], Row]:
    reader = spark.read.format("strandline").option("subscribe", topic)
    return lambda: aggregate(reader.load(str(path / "log"))).collect()[0]


def _rate(read: Callable[[], Row], count: int, found: set[Row] | None = None) -> float:
    watch = Stopwatch()
    row = read()
    rate = count / watch.seconds
    assert row.rows == count, (row, count)
    if found is not None:
        found.add(row)
    return rate


def _against_parquet(
    spark: SparkSession, path: Path, partitions: int, *, count: int, rounds: int
) -> Figure:
    found: set[Row] = set()
    name = f"rows{partitions}"
    read, files = _read(spark, path, name), str(path / name)
    count = count // partitions * partitions
    figure = compare(
        f"Spark batch read, {count:,} rows in {partitions} partitions",
        lambda: _rate(read, count, found),
        lambda: _rate(lambda: aggregate(spark.read.parquet(files)).collect()[0], count, found),
        peer_name="Spark reading Parquet",
        unit="rows/s",
        target=0.8,
        rounds=rounds,
    )
    assert len(found) == 1, f"the two reads differ: {found}"
    return figure


def _against_one_core(spark: SparkSession, path: Path, alone: list[float], *, count: int) -> Figure:
    rates = iter(alone)
    read = _read(spark, path, "rows1")
    _rate(read, count)
    return compare(
        f"Spark batch read of one partition of {count:,} rows, 2 cores",
        lambda: _rate(read, count),
        lambda: next(rates),
        peer_name="1 core",
        unit="rows/s",
        rounds=len(alone),
        warm_up=False,
    )


def _some_columns(spark: SparkSession, path: Path, count: int, *, rounds: int) -> Figure:
    reader = spark.read.format("strandline").option("subscribe", "wide")

    def rate(frame: DataFrame) -> float:
        from pyspark.sql import functions as fn

        sums = [
            fn.sum(name) if kind == "double" else fn.max(fn.length(name))
            for name, kind in frame.dtypes
        ]
        watch = Stopwatch()
        [row] = frame.agg(fn.count("*").alias("rows"), *sums).collect()
        assert row.rows == count // 4 * 4
        return count / watch.seconds

    some = spark.read.format("strandline").option("subscribe", "wide").schema("c1 double")
    return compare(
        f"Spark batch read of 1 of {WIDE_COLUMNS} columns",
        lambda: rate(some.load(str(path / "log"))),
        lambda: rate(reader.load(str(path / "log"))),
        peer_name="all columns",
        unit="rows/s",
        target=3.0,
        rounds=rounds,
    )


def aggregate(frame: DataFrame) -> DataFrame:
    """Return an aggregate over every column."""
    from pyspark.sql import functions as fn

    return frame.agg(
        fn.count("*").alias("rows"),
        fn.sum("user").alias("users"),
        fn.max("amount").alias("most"),
        fn.sum(fn.length("name")).alias("letters"),
    )


def _rows(seed: int, count: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    users = chance.integers(USERS, size=count)
    columns = [users, chance.random(count), [f"user number {n}" for n in users.tolist()]]
    return pa.Table.from_arrays(list(map(pa.array, columns)), schema=SCHEMA)


def _wide_rows(seed: int, count: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    numbers = pa.array(chance.integers(10**6, size=count))
    columns = [pa.array(chance.random(count)) if n % 2 else numbers for n in range(WIDE_COLUMNS)]
    return pa.Table.from_arrays(
        [c.cast(f.type) for c, f in zip(columns, WIDE, strict=True)], schema=WIDE
    )
