"""Differences between Spark 4.1, 4.2 and 4.3, kept out of the source itself.

Spark 4.2 added admission control: `latestOffset` receives the query's position and how much it may
read, and a source can fix its end for `Trigger.AvailableNow`. Spark 4.1 calls it without arguments,
and makes one batch of everything for `Trigger.AvailableNow`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ImportError:
        AvailableNow = object

__all__ = [
    "HAS_ADMISSION_CONTROL",
    "AvailableNow",
    "read_limit",
    "rows_allowed",
    "to_arrow",
    "to_spark",
]

HAS_ADMISSION_CONTROL = AvailableNow is not object
"""True if Spark passes the query's position to `latestOffset` (from 4.2 on)."""


def read_limit(max_rows: int | None) -> ReadLimit:
    """Return Spark's form of a limit for each micro-batch (from 4.2 on)."""
    return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)


def rows_allowed(limit: ReadLimit) -> int | None:
    """Return the number of rows that Spark allows; None for all."""
    return getattr(limit, "max_rows", None)


def to_spark(schema: pa.Schema) -> StructType:
    """Return an Arrow schema of `table_types.spark_type`s as Spark's."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema in which Spark expects batches of `schema`."""
    options: dict[str, Any] = {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        options["timezone"] = "UTC"
    return to_arrow_schema(schema, **options)
