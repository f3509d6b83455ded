"""Parquet files of a load, read by Spark."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import strandline as sl
from strandline.changelog.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("by", ["none", "day", "hour"])
def test_spark_reads_each_record_of_a_parquet_target_once(
    spark: SparkSession, log: Log, tmp_path: Path, by: str
) -> None:
    from tests.offload.kit import HOUR_MS, SALE, append, committed, create, sales

    create(log, "t", 2, schema=SALE)
    to = tmp_path / "lake"
    for number in range(3):
        append(log, "t", sales(40 * number, 40, every_ms=HOUR_MS), 2)
        sl.offload("t", to, log=log, partition_by=by)  # type: ignore[arg-type]
    (to / "_strandline/staging/part-left.parquet.part").write_bytes(b"of a crashed load")
    frame = spark.read.parquet(str(to))
    rows = frame.collect()
    assert sorted((row["_partition"], row["_offset"]) for row in rows) == committed(log, "t")
    assert {row["user"]: row["name"] for row in rows}[9] == "name-2"
    if by != "none":
        day = rows[0]["_timestamp"].astimezone().date()
        assert frame.where(f"utc_day = '{day}'").count() < len(rows)
        assert all(str(row["utc_day"]) in str(row["_timestamp"].astimezone(UTC)) for row in rows)
