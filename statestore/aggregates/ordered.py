"""Aggregates that keep values as they are: first, last, some value, and lists of a few.

"First" and "last" are by the timestamps of the rows. Rows of equal times are in the order of their
arrival, so the results do not depend on how the rows are divided into batches.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from strandline.statestore.aggregates.aggregate import Aggregate, Figures, Row, StoredField
from strandline.statestore.aggregates.batch import ColumnBatch, MergeChecks
from strandline.statestore.aggregates.lists import ITEM, LIST, merged_lists
from strandline.statestore.aggregates.values import (
    COMPARABLE,
    SCALAR,
    comparable,
    comparable_type,
    kept_type,
    order_of,
    scalar,
)

if TYPE_CHECKING:
    import polars as pl

Exprs = Sequence["pl.Expr"]


class Kept(Aggregate):
    """Base of the aggregates that keep values of a column as they are."""

    takes = takes_alone = "numbers, text or bools"

    def _values(self, batch: ColumnBatch) -> pl.Expr:
        """Return the values of the column in the type in which they are kept."""
        import polars as pl

        return pl.col(self._column).cast(kept_type(self.type_of(batch.schema)))

    @property
    def _column(self) -> str:
        assert self.column is not None
        return self.column


class AnyValue(Kept):
    """Some value of a column that is not None; in fact the one that arrived first."""

    kind = "any"
    stored = (StoredField("", SCALAR),)

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the value that is kept."""
        return (scalar(value),) if old[0] is None else old

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the value of `old`, if it has one."""
        return new if old[0] is None else old

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type of the column."""
        return [kept_type(self.type_of(schema))]

    def partial(self, batch: ColumnBatch) -> Exprs:
        """Find the first value of each group."""
        values = self._values(batch)
        if batch.has_nulls(self._column):
            values = values.drop_nulls()
        return [batch.aggregate("any", self._column, values.first())]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the values of `old`, where there are any."""
        import polars as pl

        return [pl.coalesce(old[0], new[0])]


class FirstValue(Kept):
    """Value of the row with the earliest timestamp among those that have one."""

    kind = "first"
    stored = (StoredField("", SCALAR), StoredField("__time", int | None))
    needs_time = True

    def read(self, row: Row) -> Any:
        """Return a value and its time."""
        value = super().read(row)
        return None if value is None else (scalar(value), row.time)

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the earlier of the kept value and another one."""
        return self.merge(old, value)

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the earlier of two values."""
        if old[1] is None or new[1] is None:
            return new if old[1] is None else old
        return new if self._replaces(new[1], old[1]) else old

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the types of values and times."""
        import polars as pl

        return [kept_type(self.type_of(schema)), pl.Int64()]

    def partial(self, batch: ColumnBatch) -> Exprs:
        """Find the earliest value of each group, and its time."""
        import polars as pl

        values, times = self._values(batch), pl.col(batch.add_time())
        if batch.has_nulls(self._column):
            times = times.filter(values.is_not_null())
            values = values.drop_nulls()
        order = (batch.add_time(), False)
        return [
            batch.aggregate(self.kind, self._column, self._end(values), order),
            batch.aggregate(f"{self.kind} time", self._column, self._end(times), order),
        ]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the earlier values."""
        import polars as pl

        is_new = old[1].is_null() | self._replaces(new[1], old[1])
        return [pl.when(is_new).then(b).otherwise(a) for a, b in zip(old, new, strict=True)]

    def _replaces(self, new: Any, old: Any) -> Any:
        """Return True if a value with the time `new` replaces an earlier arrival."""
        return new < old

    def _end(self, ordered: pl.Expr) -> pl.Expr:
        """Return the expression of the value to keep, given the values sorted by time."""
        return ordered.first()


class LastValue(FirstValue):
    """Value of the row with the latest timestamp among those that have one."""

    kind = "last"

    def _replaces(self, new: Any, old: Any) -> Any:
        """Return True if a value with the time `new` replaces an earlier arrival."""
        return new >= old

    def _end(self, ordered: pl.Expr) -> pl.Expr:
        """Return the expression of the value to keep, given the values sorted by time."""
        return ordered.last()


@dataclass(frozen=True)
class Collected(Kept):
    """First values of a column by timestamp, at most `limit`, with their times."""

    limit: int = 1000

    kind = "collect"
    stored = (StoredField("", tuple[tuple[int, SCALAR], ...], ()),)
    needs_time = True

    @property
    def settings(self) -> dict[str, Any]:
        """Maximum number of values."""
        return {"limit": self.limit}

    def read(self, row: Row) -> Any:
        """Return a time and its value."""
        value = super().read(row)
        return None if value is None else (row.time, scalar(value))

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the list with one value inserted after those of its time."""
        if len(old[0]) >= self.limit and value[0] >= old[0][-1][0]:
            return old
        values = list(old[0])
        insort(values, value, key=_time_of)
        return (tuple(values[: self.limit]),)

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the first values of two lists."""
        return (tuple(islice(sorted([*old[0], *new[0]], key=_time_of), self.limit)),)

    def result(self, state: Figures) -> Any:
        """Return the values as a list."""
        return [value for _, value in state[0]]

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type of lists of times and values."""
        import polars as pl

        return [pl.List(pl.Struct({_TIME: pl.Int64, _VALUE: kept_type(self.type_of(schema))}))]

    def result_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        """Return the type of lists of values."""
        import polars as pl

        return pl.List(kept_type(self.type_of(schema)))

    def partial(self, batch: ColumnBatch) -> Exprs:
        """List the first values of each group."""
        import polars as pl

        values = self._values(batch)
        pairs = pl.struct(pl.col(batch.add_time()).alias(_TIME), values.alias(_VALUE))
        if batch.has_nulls(self._column):
            pairs = pairs.filter(values.is_not_null())
        name = f"collect {self.limit}"
        order = (batch.add_time(), False)
        return [batch.aggregate(name, self._column, pairs.head(self.limit), order)]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the first values of two lists each."""
        import polars as pl

        def by_time(items: pl.DataFrame) -> pl.DataFrame:
            time = pl.col(ITEM).struct.field(_TIME)
            return items.sort(LIST, time, maintain_order=True)

        return [merged_lists(old[0], new[0], checks.types[0], by_time, self.limit)]

    def results(self, state: Exprs) -> pl.Expr:
        """Return the lists of values."""
        return _values_of(state[0])


@dataclass(frozen=True)
class TopValues(Kept):
    """Values of the `n` rows with the greatest `by`, greatest first; of equal ones the earlier."""

    n: int = 1
    by: str | None = None

    kind = "top"
    stored = (StoredField("", tuple[tuple[COMPARABLE, SCALAR], ...], ()),)

    @property
    def settings(self) -> dict[str, Any]:
        """Number of rows, and the column that orders them."""
        return {"n": self.n} if self.by is None else {"n": self.n, "by": self.by}

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the column of values and of that which orders the rows."""
        return self._column, self._by

    def read(self, row: Row) -> Any:
        """Return the rank and the value of a row; None if one of them is None."""
        rank, value = row.value(self._by), row.value(self._column)
        return None if rank is None or value is None else (comparable(rank), scalar(value))

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the list with one value inserted after those of its rank."""
        return self.merge(old, ((value,),))

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the greatest values of two lists; of equal ones those of `old` first."""
        # Sorting from greatest to least keeps the order of equal ranks, also with `reverse`.
        ordered = sorted([*old[0], *new[0]], key=_rank_of, reverse=True)
        return (tuple(ordered[: self.n]),)

    def result(self, state: Figures) -> Any:
        """Return the values as a list, greatest first."""
        return [value for _, value in state[0]]

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type of lists of ranks and values."""
        import polars as pl

        value = kept_type(self.type_of(schema))
        return [pl.List(pl.Struct({_RANK: self._rank_type(schema), _VALUE: value}))]

    def result_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        """Return the type of lists of values."""
        import polars as pl

        self._rank_type(schema)
        return pl.List(kept_type(self.type_of(schema)))

    def partial(self, batch: ColumnBatch) -> Exprs:
        """List the greatest values of each group."""
        import polars as pl

        ranks, values = pl.col(self._by).cast(self._rank_type(batch.schema)), self._values(batch)
        pairs = pl.struct(ranks.alias(_RANK), values.alias(_VALUE))
        if batch.has_nulls(self._column) or batch.has_nulls(self._by):
            pairs = pairs.filter(ranks.is_not_null() & values.is_not_null())
        order = (self._by, True)
        return [batch.aggregate(f"top {self.n}", self._column, pairs.head(self.n), order)]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the greatest values of two lists each."""
        import polars as pl

        def by_rank(items: pl.DataFrame) -> pl.DataFrame:
            rank = pl.col(ITEM).struct.field(_RANK)
            return items.sort(LIST, rank, descending=[False, True], maintain_order=True)

        return [merged_lists(old[0], new[0], checks.types[0], by_rank, self.n)]

    def results(self, state: Exprs) -> pl.Expr:
        """Return the lists of values."""
        return _values_of(state[0])

    @property
    def _by(self) -> str:
        return self.by or self._column

    def _rank_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        return self.suited(schema, comparable_type, self._by)


def _time_of(pair: Figures) -> Any:
    return pair[0]


def _rank_of(pair: Figures) -> Any:
    """Return what orders a pair of rank and value."""
    return order_of(pair[0])


def _values_of(pairs: pl.Expr) -> pl.Expr:
    import polars as pl

    values = pairs.list.eval(pl.element().struct.field(_VALUE))
    return pl.when(pairs.is_null()).then([]).otherwise(values)


_TIME, _VALUE, _RANK = "time", "value", "rank"
"""Names of the fields of the pairs in lists, in columns."""
