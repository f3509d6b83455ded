"""Aggregates of numbers: count, sum, least and greatest, mean, and sample variance.

Sums of integers are exact and must fit into 64 bits; sums of decimals are exact and must have at
most 37 digits, one less than the type; sums of floats are equal to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, ClassVar

from strandline.statestore.aggregates.aggregate import Aggregate, Figures, Row, StoredField
from strandline.statestore.aggregates.batch import ColumnBatch, MergeChecks
from strandline.statestore.aggregates.values import (
    COMPARABLE,
    comparable,
    comparable_type,
    is_greater,
    number,
    number_type,
    sum_type,
)
from strandline.statestore.exact_sums import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    import polars as pl

Exprs = Sequence["pl.Expr"]

_DECIMALS = Context(prec=40)


class Count(Aggregate):
    """Number of rows, or of values of a column."""

    kind = "count"
    stored = (StoredField("", int, 0),)
    takes = takes_alone = "any values"

    def read(self, row: Row) -> Any:
        """Return True for a row that is counted."""
        return True if self.column is None else row.value(self.column)

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the count with one more."""
        return (old[0] + 1,)

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the sum of two counts."""
        return (old[0] + new[0],)

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type of counts."""
        import polars as pl

        if self.column is not None:
            self.type_of(schema)
        return [pl.Int64()]

    def partial(self, batch: ColumnBatch) -> Exprs:
        """Count the rows or values of each group."""
        return [batch.size() if self.column is None else batch.count(self.column)]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the sums of counts."""
        return [old[0].fill_null(0) + new[0].fill_null(0)]

    def results(self, state: Exprs) -> pl.Expr:
        """Return the counts, which are never null."""
        return state[0].fill_null(0)


class Sum(Aggregate):
    """Sum of the values of a column; None without values."""

    kind = "sum"
    stored: ClassVar[tuple[StoredField, ...]] = (StoredField("", COMPARABLE),)
    takes = "numbers or decimals"

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the sum with one value added."""
        return (_added(old[0], number(value)),)

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the sum of two sums."""
        return (_added(old[0], new[0]),)

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type of sums: integers of 64 bits, floats, or decimals."""
        return [self._sum_type(schema)]

    def partial(self, batch: ColumnBatch) -> Exprs:
        """Sum the values of each group."""
        return [self._sum(batch)]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the sums of sums, and refuse those that are too large."""
        import polars as pl

        total, dtype = old[0] + new[0], checks.types[0]
        if isinstance(dtype, pl.Decimal):  # two sums of 37 digits fit into the type
            checks.refusals.refuse(_has_38_digits(total, dtype), _too_many_digits(checks.name))
        elif dtype.is_integer():
            # Polars wraps around: then the sum is on the wrong side of `old`.
            checks.refusals.refuse((total < old[0]) != (new[0] < 0), _too_large(checks.name))
        return [pl.coalesce(total, old[0], new[0])]

    def _sum(self, batch: ColumnBatch) -> pl.Expr:
        """Register the sum of each group; null without values."""
        import polars as pl

        assert self.column is not None
        dtype = self._sum_type(batch.schema)
        values = pl.col(self.column)
        if isinstance(dtype, pl.Decimal):
            total = batch.aggregate("sum", self.column, values.cast(dtype).sum())
            # Polars wraps around. The sum of floats shows that, and cannot be confused by it.
            rough = batch.aggregate("rough", self.column, values.cast(pl.Float64).sum())
            batch.refusals.refuse(_has_38_digits(rough, dtype), _too_many_digits(batch.name))
        elif dtype.is_float() or batch.sums_fit(self.column):
            total = batch.aggregate("sum", self.column, values.cast(dtype).sum())
        else:
            total = batch.aggregate("wide", self.column, values.cast(pl.Int128).sum())
            too_large = (total > INT64_MAX) | (total < INT64_MIN)
            batch.refusals.refuse(too_large, _too_large(batch.name))
            total = total.cast(pl.Int64, strict=False)
        if not batch.has_nulls(self.column):
            return total
        return pl.when(batch.count(self.column) > 0).then(total)

    def _sum_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        return self.suited(schema, sum_type)


class Mean(Sum):
    """Arithmetic mean of the values of a column, kept as their sum and count."""

    kind = "mean"
    stored = (StoredField("__sum", COMPARABLE), StoredField("__count", int, 0))

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the sum and count with one value added."""
        return _added(old[0], number(value)), old[1] + 1

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the sum and count of two sums and counts."""
        return _added(old[0], new[0]), old[1] + new[1]

    def result(self, state: Figures) -> Any:
        """Return the mean; None without values."""
        return _number_of(state[0]) / state[1] if state[1] else None

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the types of sums and counts."""
        import polars as pl

        return [self._sum_type(schema), pl.Int64()]

    def result_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        """Return the type of means."""
        import polars as pl

        self._sum_type(schema)
        return pl.Float64()

    def partial(self, batch: ColumnBatch) -> Exprs:
        """Sum and count the values of each group."""
        assert self.column is not None
        return [self._sum(batch), batch.count(self.column)]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the sums of sums and of counts."""
        [total] = super().merge_columns(old, new, checks)
        return [total, old[1].fill_null(0) + new[1].fill_null(0)]

    def results(self, state: Exprs) -> pl.Expr:
        """Return the means; null without values."""
        import polars as pl

        return pl.when(state[1] > 0).then(state[0].cast(pl.Float64) / state[1])


class Extreme(Aggregate):
    """Least or greatest value of a column: the base of both."""

    stored = (StoredField("", COMPARABLE),)
    takes = "numbers, text or times"
    takes_alone = "numbers or text"

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the least or greatest of two."""
        return old if new[0] is None else self.fold(old, new[0])

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type in which values are compared."""
        return [self.suited(schema, comparable_type)]

    def _values(self, batch: ColumnBatch) -> pl.Expr:
        import polars as pl

        assert self.column is not None
        return pl.col(self.column).cast(self.state_types(batch.schema)[0])


class Min(Extreme):
    """Least value of a column; None without values, NaN if there are no others."""

    kind = "min"

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the lesser of the least value and another one."""
        value = comparable(value)
        return (value,) if old[0] is None or is_greater(old[0], value) else old

    def partial(self, batch: ColumnBatch) -> Exprs:
        """Find the least value of each group."""
        assert self.column is not None
        return [batch.aggregate("min", self.column, self._values(batch).min())]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the lesser values. Polars compares NaN as the greatest number, too."""
        import polars as pl

        return [pl.when(new[0] < old[0]).then(new[0]).otherwise(pl.coalesce(old[0], new[0]))]


class Max(Extreme):
    """Greatest value of a column; None without values, NaN if there is one."""

    kind = "max"

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the greater of the greatest value and another one."""
        value = comparable(value)
        return (value,) if old[0] is None or is_greater(value, old[0]) else old

    def partial(self, batch: ColumnBatch) -> Exprs:
        """Find the greatest value of each group."""
        assert self.column is not None
        values = self._values(batch)
        found = values.nan_max() if batch.has_nans(self.column) else values.max()
        return [batch.aggregate("max", self.column, found)]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the greater values. Polars compares NaN as the greatest number, too."""
        import polars as pl

        return [pl.when(new[0] > old[0]).then(new[0]).otherwise(pl.coalesce(old[0], new[0]))]


class Variance(Aggregate):
    """Sample variance of the values of a column, kept as count, mean and sum of squares.

    The squares are those of the differences from the mean, so that large values with a small
    variance lose no precision. States are merged by the formula of Chan, Golub and LeVeque.
    """

    kind = "var"
    stored = (
        StoredField("__count", int, 0),
        StoredField("__mean", float, 0.0),
        StoredField("__m2", float, 0.0),
    )

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the state with one value added."""
        return self.merge(old, (1, float(number(value)), 0.0))

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the state of the values of two states."""
        (n1, mean1, squares1), (n2, mean2, squares2) = old, new
        n = n1 + n2
        if not n:
            return old
        delta = mean2 - mean1
        mean = mean1 + delta * (n2 / n) if n1 else mean2
        squares = squares1 + squares2 + (delta * delta * (n1 * n2 / n) if n1 and n2 else 0.0)
        return (n, mean, squares) if math.isfinite(mean) else (n, math.nan, math.nan)

    def result(self, state: Figures) -> Any:
        """Return the variance; None for fewer than two values."""
        return state[2] / (state[0] - 1) if state[0] > 1 else None

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the types of counts, means and sums of squares."""
        import polars as pl

        self.suited(schema, number_type)
        return [pl.Int64(), pl.Float64(), pl.Float64()]

    def result_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        """Return the type of variances."""
        return self.state_types(schema)[1]

    def partial(self, batch: ColumnBatch) -> Exprs:
        """Find count, mean and sum of squares of each group."""
        import polars as pl

        assert self.column is not None
        self.state_types(batch.schema)
        n = batch.count(self.column)
        values = pl.col(self.column).cast(pl.Float64)
        mean = batch.aggregate("mean", self.column, values.mean())
        spread = batch.aggregate("var", self.column, values.var(ddof=0))
        return [n, *_spread(n, mean, spread * n)]

    def merge_columns(self, old: Exprs, new: Exprs, checks: MergeChecks) -> Exprs:
        """Return the states of the values of two states each, as `merge` does."""
        import polars as pl

        n1, n2 = old[0].fill_null(0), new[0].fill_null(0)
        mean1, mean2 = old[1].fill_null(0.0), new[1].fill_null(0.0)
        n = n1 + n2
        delta = mean2 - mean1
        mean = pl.when(n1 > 0).then(mean1 + delta * (n2 / n)).otherwise(mean2)
        between = pl.when((n1 > 0) & (n2 > 0)).then(delta * delta * (n1 * n2 / n)).otherwise(0.0)
        squares = old[2].fill_null(0.0) + new[2].fill_null(0.0) + between
        return [n, *_spread(n, mean, squares)]

    def results(self, state: Exprs) -> pl.Expr:
        """Return the variances; null for fewer than two values."""
        import polars as pl

        return pl.when(state[0] > 1).then(state[2] / (state[0] - 1))


class Deviation(Variance):
    """Sample standard deviation of the values of a column: the root of their variance."""

    kind = "std"

    def result(self, state: Figures) -> Any:
        """Return the deviation; None for fewer than two values."""
        variance = super().result(state)
        return None if variance is None else math.sqrt(variance)

    def results(self, state: Exprs) -> pl.Expr:
        """Return the deviations; null for fewer than two values."""
        return super().results(state).sqrt()


def _added(old: Any, new: Any) -> Any:
    """Return the sum of two numbers, or of two decimals as text, or the one that is not None.

    Raises OverflowError, and TypeError for a decimal and a number.
    """
    if old is None or new is None:
        return _fitting(new) if old is None else old
    if type(old) is str and type(new) is str:
        return str(_DECIMALS.add(Decimal(old), Decimal(new)))
    if type(old) is str or type(new) is str:
        raise TypeError(f"{old!r} and {new!r} are not both decimals")
    return _fitting(old + new)


def _number_of(total: Any) -> Any:
    return float(total) if type(total) is str else total


def _fitting(total: Any) -> Any:
    if type(total) is int and not INT64_MIN <= total <= INT64_MAX:
        raise OverflowError("a sum of integers exceeds 64 bits; add floats instead")
    return total


def _has_38_digits(total: pl.Expr, dtype: pl.Decimal) -> pl.Expr:
    import polars as pl

    return total.cast(pl.Float64).abs() >= 10.0 ** (37 - dtype.scale)


def _too_many_digits(name: str) -> str:
    return f"{name!r}: a sum of decimals has more than 37 digits; add floats instead"


def _too_large(name: str) -> str:
    return f"{name!r}: a sum of integers exceeds 64 bits; add floats instead"


def _spread(n: pl.Expr, mean: pl.Expr, squares: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return mean and sum of squares: 0 without values, NaN if the mean is infinite or NaN."""
    import polars as pl

    is_known = pl.when(n == 0).then(0.0).when(mean.is_finite())
    return is_known.then(mean).otherwise(math.nan), is_known.then(squares).otherwise(math.nan)
