"""Exact number of distinct values, kept as a sorted list of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import InvalidRecord
from strandline.statestore.aggregates.aggregate import Aggregate, Figures, Row, StoredField
from strandline.statestore.aggregates.batch import ColumnBatch, MergeChecks
from strandline.statestore.aggregates.lists import ITEM, LIST, merged_lists
from strandline.statestore.aggregates.values import (
    COMPARABLE,
    comparable,
    comparable_type,
    order_of,
)

if TYPE_CHECKING:
    import polars as pl

MAX_DISTINCT = 100_000
"""Maximum number of distinct values for each key. The list is written with each change."""


class DistinctCount(Aggregate):
    """Number of distinct values of a column."""

    kind = "n_unique"
    stored = (StoredField("", tuple[COMPARABLE, ...], ()),)
    takes = "numbers, text or times"
    takes_alone = "numbers or text"

    def read(self, row: Row) -> Any:
        """Return a value; 0.0 for -0.0, because they are equal."""
        value = super().read(row)
        return None if value is None else unsigned_zero(comparable(value))

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the list with one value in it."""
        [values] = old
        place = bisect_left(values, order_of(value), key=order_of)
        if place < len(values) and order_of(values[place]) == order_of(value):
            return old
        return self._limited((*values[:place], value, *values[place:]))

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the list of the values in two lists."""
        found = {order_of(value): value for value in (*new[0], *old[0])}
        return self._limited(tuple(found[order] for order in sorted(found)))

    def result(self, state: Figures) -> Any:
        """Return the number of values."""
        return len(state[0])

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type of lists of values."""
        import polars as pl

        return [pl.List(self._value_type(schema))]

    def result_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        """Return the type of counts."""
        import polars as pl

        self._value_type(schema)
        return pl.Int64()

    def partial(self, batch: ColumnBatch) -> Sequence[pl.Expr]:
        """List the distinct values of each group."""
        import polars as pl

        assert self.column is not None
        dtype = self._value_type(batch.schema)
        values = pl.col(self.column).cast(dtype)
        if dtype.is_float():
            values += 0.0  # -0.0 becomes 0.0
        found = batch.aggregate("unique", self.column, values.drop_nulls().unique().sort())
        batch.refusals.refuse(found.list.len() > MAX_DISTINCT, _too_many(batch.name))
        return [found]

    def merge_columns(
        self, old: Sequence[pl.Expr], new: Sequence[pl.Expr], checks: MergeChecks
    ) -> Sequence[pl.Expr]:
        """Return the lists of the values in two lists each."""

        import polars as pl

        def sorted_once(items: pl.DataFrame) -> pl.DataFrame:
            return items.unique().sort(LIST, ITEM)

        merged = pl.col(checks.name)
        checks.of_merged.refuse(merged.list.len() > MAX_DISTINCT, _too_many(checks.name))
        return [merged_lists(old[0], new[0], checks.types[0], sorted_once)]

    def results(self, state: Sequence[pl.Expr]) -> pl.Expr:
        """Return the numbers of values."""
        import polars as pl

        return state[0].list.len().cast(pl.Int64).fill_null(0)

    def _value_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        return self.suited(schema, comparable_type)

    def _limited(self, values: tuple[Any, ...]) -> Figures:
        if len(values) > MAX_DISTINCT:
            raise InvalidRecord(_too_many(str(self)))
        return (values,)


def unsigned_zero(value: Any) -> Any:
    """Return a value; 0.0 for -0.0."""
    return value + 0.0 if type(value) is float else value


def _too_many(name: str) -> str:
    return (
        f"{name}: there are more than {MAX_DISTINCT:,} distinct values; "
        "count them with n_unique(…, approx=True)"
    )
