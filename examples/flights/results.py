"""Results: topic `carrier-delays` and the latest state of the stores, read by Spark.

`read_without_spark` reads the same data through Strandline alone, for machines without Java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import polars as pl

import strandline as sl
from examples.flights import app as job
from examples.flights.expected import FIGURES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Spark settings for little output."""


@dataclass(frozen=True)
class FlightResults:
    """Stores with one row for each key, and `carrier-delays` in the order of each partition."""

    carriers: pl.DataFrame
    origins: pl.DataFrame
    routes: pl.DataFrame
    running: pl.DataFrame


def read_with_spark(log: str) -> FlightResults:
    """Read all results with Spark."""
    spark = sl.spark.session("flights", config=QUIET)
    try:
        return FlightResults(
            _store(spark, log, job.by_carrier.name, key="key AS carrier"),
            _store(spark, log, job.by_origin.name, key="key AS origin"),
            _store(spark, log, job.by_route.name, key="key._1 AS origin, key._2 AS carrier"),
            _carrier_delays(spark, log),
        )
    finally:
        spark.stop()


def read_without_spark(log: str) -> FlightResults:
    """Read all results through `app.query` and `topic.to_polars`."""
    job.app.log = log
    with job.app:
        carriers = _rows("carrier", job.app.query(job.by_carrier).to_dict())
        origins = _rows("origin", job.app.query(job.by_origin).to_dict())
        routes = _rows("route", job.app.query(job.by_route).to_dict())
        running = job.carrier_delays.to_polars()
    split = pl.col("route").list
    routes = routes.select(split.get(0).alias("origin"), split.get(1).alias("carrier"), *FIGURES)
    named = running.with_columns(carrier=pl.col("key").cast(pl.String))
    return FlightResults(
        carriers.sort("carrier"),
        origins.sort("origin"),
        routes.sort("origin", "carrier"),
        _in_order(named),
    )


def _store(spark: SparkSession, log: str, store: str, *, key: str) -> pl.DataFrame:
    reader = spark.read.format("strandline").option("store", f"{job.app.name}/{store}")
    table = reader.load(log).selectExpr(*key.split(", "), "value.*")
    keys = [name for name in table.columns if name not in FIGURES]
    return _to_polars(table.select(*keys, *FIGURES)).sort(keys)


def _carrier_delays(spark: SparkSession, log: str) -> pl.DataFrame:
    reader = spark.read.format("strandline").option("subscribe", job.carrier_delays.name)
    table = reader.option("includeMetadata", "true").load(log)
    if "value" in table.columns:  # on Kafka the values are JSON
        fields = "n BIGINT, delays BIGINT, total BIGINT, mean DOUBLE, worst BIGINT"
        typed = f"from_json(CAST(value AS STRING), '{fields}') AS value"
        table = table.selectExpr("key", "partition", "offset", typed)
        table = table.select("key", "partition", "offset", "value.*")
    named = table.selectExpr("CAST(key AS STRING) AS carrier", "partition", "offset", *FIGURES)
    return _in_order(_to_polars(named))


def _in_order(running: pl.DataFrame) -> pl.DataFrame:
    """Return each carrier's records in the order of its partition; a carrier has one partition."""
    ordered = running.sort("carrier", "partition", "offset")
    return ordered.select("carrier", "partition", *FIGURES)


def _to_polars(table: DataFrame) -> pl.DataFrame:
    frame = pl.from_arrow(table.toArrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


def _rows(
    key: str, entries: dict[str, job.Delays] | dict[tuple[str, str], job.Delays]
) -> pl.DataFrame:
    return pl.DataFrame(
        [{key: _listed(name), **msgspec.structs.asdict(value)} for name, value in entries.items()],
        infer_schema_length=None,
    )


def _listed(name: str | tuple[str, str]) -> str | list[str]:
    return list(name) if isinstance(name, tuple) else name
