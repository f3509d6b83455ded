"""Differences between Spark 4.1, 4.2 and 4.3, kept out of the source itself.

Spark 4.2 added admission control: `latestOffset` receives the query's position and how much it may
read, and a source can fix its end for `Trigger.AvailableNow`. Spark 4.1 calls it without arguments,
and makes one batch of everything for `Trigger.AvailableNow`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
    )
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ImportError:
        AvailableNow = object

__all__ = [
    "HAS_ADMISSION_CONTROL",
    "AvailableNow",
    "BatchLimit",
    "allowed",
    "read_limit",
    "to_arrow",
    "to_spark",
]

HAS_ADMISSION_CONTROL = AvailableNow is not object
"""True if Spark passes the query's position to `latestOffset` (from 4.2 on)."""


class BatchLimit(NamedTuple):
    """Maximum size of a micro-batch; None is no limit."""

    rows: int | None = None
    size: int | None = None
    """Bytes."""


def read_limit(limit: BatchLimit) -> ReadLimit:
    """Return Spark's form of a limit for each micro-batch (from 4.2 on).

    Spark has no form for two limits. The reader applies the other one as well (`allowed`).
    """
    if limit.rows is not None:
        return ReadMaxRows(limit.rows)
    return ReadAllAvailable() if limit.size is None else ReadMaxBytes(limit.size)


def allowed(limit: ReadLimit, own: BatchLimit) -> BatchLimit:
    """Return how much Spark allows, together with the reader's own limit if that is in force."""
    rows, size = getattr(limit, "max_rows", None), getattr(limit, "max_bytes", None)
    if rows is None and size is None:
        return BatchLimit()
    return BatchLimit(own.rows if rows is None else rows, own.size if size is None else size)


def to_spark(schema: pa.Schema) -> StructType:
    """Return an Arrow schema of `table_types.spark_type`s as Spark's."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema in which Spark expects batches of `schema`."""
    options: dict[str, Any] = {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        options["timezone"] = "UTC"
    return to_arrow_schema(schema, **options)
