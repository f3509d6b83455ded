"""Parts of a planned read that cannot hold a row that passes the filters.

Partitions and offsets are compared with the filters on their columns, if these have the log's own
types: of another type, as in `.schema("offset double")`, Spark evaluates them. A lower bound of the
timestamp skips the records before the first one of that time, found by the segments' time indexes,
and then batches whose header says that all their records are older.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from strandline.changelog.broker import Broker
from strandline.changelog.records import TopicPartition
from strandline.framework.spark.columns import METADATA
from strandline.framework.spark.filters import column_of, passing, supported, values_of
from strandline.framework.spark.planning import OffsetRange
from strandline.framework.table_types import INSTANT

MAX_VALUE = (1 << 63) - 1


class Bounds(NamedTuple):
    """Values of a column of whole numbers that pass its filters; both ends are inclusive."""

    least: int = -MAX_VALUE - 1
    most: int = MAX_VALUE

    def within(self, other: Bounds) -> Bounds:
        """Return the values that are in both bounds."""
        return Bounds(max(self.least, other.least), min(self.most, other.most))


def pushable(
    filters: Sequence[Filter], target: pa.Schema, metadata: Collection[str]
) -> list[Filter]:
    """Return the filters that the source evaluates.

    Args:
        filters: Filters of the query.
        target: Columns of the read.
        metadata: Names that are columns of metadata in all topics.
    """
    return [
        each
        for each in filters
        if supported(each, target) and (column_of(each) not in metadata or _is_exact(each, target))
    ]


def metadata_filters(
    filters: Sequence[Filter], target: pa.Schema, metadata: Collection[str]
) -> list[Filter]:
    """Return the filters by which parts of a read can be left out.

    They are on columns of metadata in the log's own types, not on a topic's own column of such a
    name. The arguments are those of `pushable`.
    """
    return [f for f in filters if column_of(f) in metadata and _is_exact(f, target)]


def _is_exact(filter_: Filter, target: pa.Schema) -> bool:
    """Return True if a filter compares a column of the log's type with values of that type."""
    name = column_of(filter_)
    if name not in METADATA or target.field(name).type != METADATA[name]:
        return False
    return all(type(value) is _EXACT[name] for value in values_of(filter_))


def since_ms(filters: Sequence[Filter]) -> int | None:
    """Return a timestamp (ms) below which no record passes the filters on `timestamp`.

    None if there is no lower bound.
    """
    least = bounds_of(filters, "timestamp", _microseconds).least
    return least // 1000 if least > Bounds().least else None


def pruned(
    broker: Broker, ranges: Sequence[OffsetRange], filters: Sequence[Filter]
) -> list[OffsetRange]:
    """Return the parts of the ranges that may have records that pass the metadata filters."""
    kept = [r for r in ranges if _passes(r.topic_partition, filters)]
    offsets, since = bounds_of(filters, "offset", int), since_ms(filters)
    cut = [_within(each, offsets) for each in kept]
    if since is not None:
        cut = [_from(broker, each, since) for each in cut if each.start < each.end]
    return [each for each in cut if each.start < each.end]


def bounds_of(filters: Sequence[Filter], name: str, number: Callable[..., int]) -> Bounds:
    """Return the bounds of a column that the filters imply.

    >>> bounds_of([GreaterThan(("offset",), 5), In(("offset",), (9, 7, 3))], "offset", int)
    Bounds(least=6, most=9)
    """
    found = Bounds()
    for each in filters:
        limit = _LIMITS.get(type(each))
        if limit is not None and column_of(each) == name:
            found = found.within(limit([number(value) for value in values_of(each)]))
    return found


_EXACT: Mapping[str, type] = {
    "key": bytes,
    "topic": str,
    "partition": int,
    "offset": int,
    "timestamp": datetime,
}
"""Types of Spark's literals for the columns of metadata."""

_LIMITS: Mapping[type[Filter], Callable[[list[int]], Bounds]] = {
    EqualTo: lambda values: Bounds(*values, *values),
    EqualNullSafe: lambda values: Bounds(*values, *values),
    In: lambda values: Bounds(min(values), max(values)),
    GreaterThan: lambda values: Bounds(least=values[0] + 1),
    GreaterThanOrEqual: lambda values: Bounds(least=values[0]),
    LessThan: lambda values: Bounds(most=values[0] - 1),
    LessThanOrEqual: lambda values: Bounds(most=values[0]),
}


def _microseconds(value: object) -> int:
    found: int = pa.scalar(value, INSTANT).value
    return found


def _passes(tp: TopicPartition, filters: Sequence[Filter]) -> bool:
    """Return True if records of a partition may pass the filters on topic and partition."""
    row = pa.record_batch(
        {"topic": pa.array([tp.topic]), "partition": pa.array([tp.partition], pa.int32())}
    )
    found = passing([f for f in filters if column_of(f) in row.schema.names], row)
    return bool(found.num_rows)


def _within(each: OffsetRange, offsets: Bounds) -> OffsetRange:
    start, end = max(each.start, offsets.least), min(each.end, offsets.most + 1)
    # The position at the end is known only for the planned end.
    until = each.until if end == each.end else None
    return replace(each, start=start, end=max(start, end), until=until)


def _from(broker: Broker, each: OffsetRange, since: int) -> OffsetRange:
    """Return a range from its first record of at least that time (ms) on."""
    first = broker.offset_for_time(each.topic_partition, since)
    return replace(each, start=each.end if first is None else min(max(each.start, first), each.end))
