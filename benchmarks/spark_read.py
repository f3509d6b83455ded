"""Read a typed topic in a Spark batch, against Spark reading the same rows from Parquet.

Both read 4 partitions, or files, and compute an aggregate over every column, so that none can be
left out, in the same warm session. Parquet is the format that Spark reads best: with its own
columnar reader in the JVM, without a Python worker, and with dictionaries where values repeat.
"""

from __future__ import annotations

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

PARTITIONS = 4
USERS = 100_000
AT_ONCE = 50_000
"""Number of rows of a batch in the log."""

QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
SCHEMA = pa.schema([("user", pa.int64()), ("amount", pa.float64()), ("name", pa.string())])


def run(*, quick: bool = False) -> list[Figure]:
    """Measure rows per second (target: 0.5 of Parquet)."""
    count = 400_000 if quick else 4_000_000
    spark = session("benchmarks", config=QUIET)
    try:
        with folder() as path, changelog.open(path / "log") as log:
            log.create_topic("rows", PARTITIONS, schema=SCHEMA)
            (path / "parquet").mkdir()
            for partition in range(PARTITIONS):
                rows = _rows(partition, count // PARTITIONS)
                for start in range(0, len(rows), AT_ONCE):
                    log.append("rows", rows.slice(start, AT_ONCE), partition=partition)
                pq.write_table(rows, path / "parquet" / f"{partition}.parquet")
            return [_figure(spark, path, count, rounds=3 if quick else 5)]
    finally:
        spark.stop()


def _figure(spark: SparkSession, path: Path, count: int, *, rounds: int) -> Figure:
    found: set[Row] = set()

    def read(frame: DataFrame) -> float:
        watch = Stopwatch()
        [row] = _aggregate(frame).collect()
        rate = count / watch.seconds
        assert row.rows == count, (row, count)
        found.add(row)
        return rate

    figure = compare(
        f"Spark batch read, {count:,} rows",
        lambda: read(
            spark.read.format("strandline").option("subscribe", "rows").load(str(path / "log"))
        ),
        lambda: read(spark.read.parquet(str(path / "parquet"))),
        peer_name="Spark reading Parquet",
        unit="rows/s",
        target=0.5,
        rounds=rounds,
    )
    assert len(found) == 1, f"the two reads differ: {found}"
    return figure


def _aggregate(frame: DataFrame) -> DataFrame:
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
