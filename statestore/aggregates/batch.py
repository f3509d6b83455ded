"""Aggregation of the rows of a batch by group, as one or a few group-bys of Polars.

Kinds of aggregates register what they need of a batch. The same need of several kinds, such as the
sum for `sum` and `mean`, is computed once. A kind also asks for facts about a whole column (has it
nulls, NaN, numbers that may overflow), which cost far less than an aggregation, and then registers
the cheapest aggregation that is correct.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from strandline.changelog.errors import InvalidRecord
from strandline.statestore.exact_sums import INT64_MAX
from strandline.statestore.frames import FEW_ROWS, selected

if TYPE_CHECKING:
    import polars as pl

TIME = "__time"
"""Name of the column of timestamps, in ms since the epoch, while a batch is aggregated."""
ROW = "__row"
"""Name of the column of row numbers, while a batch is aggregated."""
GROUP = "__group"
"""Name of the only column of groups, if all rows are one group."""


@dataclass
class Refusals:
    """Conditions on rows of states for which aggregates cannot be kept, and the errors to raise."""

    found: list[tuple[pl.Expr, str]] = field(default_factory=list)

    def refuse(self, condition: pl.Expr, why: str) -> None:
        """Refuse rows of states for which a condition is true."""
        self.found.append((condition, why))

    def check(self, frame: pl.DataFrame, keys: Sequence[str]) -> None:
        """Raise InvalidRecord for the first refused row, which the columns `keys` identify."""
        if not self.found or frame.is_empty():
            return
        named = [condition.alias(str(i)) for i, (condition, _) in enumerate(self.found)]
        refused = selected(frame, named)
        for flags, (_, why) in zip(refused, self.found, strict=True):
            if flags.any():
                row = frame.select(keys).row(flags.fill_null(value=False).arg_max(), named=True)
                raise InvalidRecord(f"{why}, for the key {row}" if row else why)


@dataclass
class MergeChecks:
    """Types of the states to be merged, and refusals of merged states."""

    name: str
    """Name of the aggregate."""
    types: Sequence[pl.DataType]
    """Types of the stored fields of the aggregate."""
    refusals: Refusals
    """Refusals by expressions over the states that are merged."""
    of_merged: Refusals
    """Refusals by expressions over the merged states, which are by the names of their fields."""


class ColumnBatch:
    """Rows of a batch, and the aggregations of their groups that aggregates need."""

    def __init__(self, frame: pl.DataFrame, by: Sequence[str], time: str) -> None:
        self.frame = frame
        """Rows of the batch."""
        self.schema: Mapping[str, pl.DataType] = frame.schema
        """Types of the columns."""
        self.by = tuple(by)
        """Names of the columns that identify a group."""
        self.name = ""
        """Name of the aggregate that registers now."""
        self.refusals = Refusals()
        """Groups that cannot be aggregated."""
        self._time = time
        self._has_time = False
        self._needed: dict[_Order, dict[str, pl.Expr]] = {None: {}}

    def aggregate(
        self, what: str, column: str, expression: pl.Expr, order: _Order = None
    ) -> pl.Expr:
        """Register an aggregation of the rows of each group, once for each of its names.

        Args:
            what: Name of the aggregation.
            column: Column that it aggregates.
            expression: The aggregation.
            order: Order of the rows: None as they arrived, or the name of a column and True for
                descending, whose equal values are in the order of arrival, and nulls last.

        Returns:
            The column of the aggregates, one row for each group.
        """
        import polars as pl

        name = f"__{what}:{column}"
        if order is not None:
            name = f"{name}:{order[0]}:{order[1]}"
        self._needed.setdefault(self._effective(order), {})[name] = expression.alias(name)
        return pl.col(name)

    def size(self) -> pl.Expr:
        """Register the number of rows of each group."""
        import polars as pl

        return self.aggregate("len", "", pl.len().cast(pl.Int64))

    def count(self, column: str) -> pl.Expr:
        """Register the number of values of each group that are not null."""
        import polars as pl

        if not self.has_nulls(column):
            return self.size()
        return self.aggregate("count", column, pl.col(column).count().cast(pl.Int64))

    def has_nulls(self, column: str) -> bool:
        """Return True if a value of a column is null."""
        return self.frame[column].null_count() > 0

    def has_nans(self, column: str) -> bool:
        """Return True if a value of a column is NaN."""
        if not self.schema[column].is_float():
            return False
        return bool(self.frame[column].is_nan().any())

    def sums_fit(self, column: str) -> bool:
        """Return True if no sum of integers of a column can exceed 64 bits."""
        values = self.frame[column]
        least: Any = values.min() or 0
        most: Any = values.max() or 0
        return bool(max(abs(least), abs(most)) * len(values) <= INT64_MAX)

    def add_time(self) -> str:
        """Add the column of timestamps in ms since the epoch, if it is missing; return its name."""
        if not self._has_time:
            self.frame = self.frame.with_columns(milliseconds(self.frame[self._time]).alias(TIME))
            self._has_time = True
        return TIME

    def groups(self) -> pl.DataFrame:
        """Return the registered aggregations of each group, in the order of first appearance."""
        import polars as pl

        if not self.by:
            self.frame = self.frame.with_columns(pl.lit(0).alias(GROUP))
        keys = self.by or (GROUP,)
        if set(self._needed) == {None} and len(self.frame) <= FEW_ROWS:
            in_order = self.frame.group_by(keys, maintain_order=True)
            return in_order.agg(*self._needed[None].values())
        # For many rows, a group-by that maintains their order takes longer than these steps.
        rows = self.frame.with_row_index(ROW)
        found = []
        for order, needed in self._needed.items():
            first = pl.col(ROW).first() if order is None else pl.col(ROW).min()
            grouped = _ordered(rows, order).group_by(keys).agg(first, *needed.values())
            grouped = _by_first_row(grouped, len(rows))
            found.append(grouped if order is None else grouped.drop(keys))
        return reduce(pl.DataFrame.hstack, found)

    def _effective(self, order: _Order) -> _Order:
        """Return the order in which rows must be aggregated: None if they arrived in it."""
        if order is None or order in self._needed:
            return order
        column, descending = order
        values = self.frame[column]
        return None if values.is_sorted(descending=descending, nulls_last=True) else order


_Order = tuple[str, bool] | None


def _ordered(rows: pl.DataFrame, order: _Order) -> pl.DataFrame:
    """Return rows in an order; of equal values, the earlier arrivals first."""
    if order is None:
        return rows
    column, descending = order
    return rows.sort(column, descending=descending, nulls_last=True, maintain_order=True)


def _by_first_row(groups: pl.DataFrame, rows: int) -> pl.DataFrame:
    """Return groups by the number of their first row, without it.

    Groups are put into the places of their first rows, because that is faster than a sort, and
    than a group-by that maintains the order.
    """
    places = np.full(rows, -1, dtype=np.int64)
    places[groups[ROW].to_numpy()] = np.arange(len(groups))
    return groups.drop(ROW)[places[places >= 0]]


def milliseconds(times: pl.Series) -> pl.Series:
    """Return times as milliseconds since the epoch, rounded down, as integers of 64 bits.

    Raises InvalidRecord if the column is neither of integers nor of datetimes.
    """
    import polars as pl

    if isinstance(times.dtype, pl.Datetime):
        # A floor division of our own, because `dt.epoch` rounds times before 1970 up.
        unit = {"ms": 1, "us": 1000, "ns": 1_000_000}[times.dtype.time_unit]
        return times.to_physical() // unit
    if not times.dtype.is_integer():
        raise InvalidRecord(
            f"the times in column {times.name!r} are {times.dtype}; they must be a Datetime, "
            "or integers of milliseconds since the epoch"
        )
    return times.cast(pl.Int64)
