"""Aggregates kept as sketches: small summaries of any number of values, with known error bounds.

The sketches are those of Apache DataSketches, by the package `datasketches`, which is imported
when a sketch is first made or read. A stored sketch is in its library's portable format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import CorruptLog, MissingDependency
from strandline.statestore.aggregates.aggregate import Figures, Row
from strandline.statestore.aggregates.batch import ColumnBatch
from strandline.statestore.aggregates.distinct import unsigned_zero
from strandline.statestore.aggregates.opaque import OpaqueState, each
from strandline.statestore.aggregates.values import (
    comparable_type,
    number,
    number_type,
    scalar,
)
from strandline.statestore.exact_sums import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    import polars as pl

HLL_LG_K = 12
"""Binary logarithm of the number of registers of a sketch of distinct values."""
KLL_K = 200
"""Size of a sketch of quantiles: it keeps some three times as many values."""


class Sketched(OpaqueState):
    """Base of the aggregates whose state is a sketch."""

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the sketch with one value in it."""
        return (self._updated(old[0], [value]),)

    def result(self, state: Figures) -> Any:
        """Return the estimate of a sketch."""
        return self._estimate(state[0])

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the type of sketches."""
        self.suited(schema, self._value_type)
        return super().state_types(schema)

    def partial(self, batch: ColumnBatch) -> Sequence[pl.Expr]:
        """Make a sketch of the values of each group."""
        import polars as pl

        assert self.column is not None
        values = self._lists(batch, pl.col(self.column))
        make = each(lambda array: self._updated(None, array), pl.Binary())
        return [values.map_batches(make, return_dtype=pl.Binary)]

    def results(self, state: Sequence[pl.Expr]) -> pl.Expr:
        """Return the estimates of a column of sketches."""
        dtype = self.estimate_type()
        return state[0].map_batches(each(self._estimate, dtype), return_dtype=dtype)

    def result_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        """Return the type of estimates."""
        self.state_types(schema)
        return self.estimate_type()

    def estimate_type(self) -> pl.DataType:
        """Return the type of estimates, which is the same for all columns."""
        raise NotImplementedError

    def _value_type(self, given: pl.DataType) -> pl.DataType | None:
        raise NotImplementedError

    def _lists(self, batch: ColumnBatch, values: pl.Expr) -> pl.Expr:
        raise NotImplementedError

    def _updated(self, old: bytes | None, values: Iterable[Any]) -> bytes | None:
        raise NotImplementedError

    def _estimate(self, state: bytes | None) -> Any:
        raise NotImplementedError


class DistinctSketch(Sketched):
    """Estimated number of distinct values of a column, by a HyperLogLog sketch."""

    kind = "n_unique"
    takes = "numbers, text, bytes or times"
    takes_alone = "numbers, text or bytes"

    @property
    def settings(self) -> dict[str, Any]:
        """Mark of the approximate form."""
        return {"approx": True}

    def read(self, row: Row) -> Any:
        """Return a value."""
        value = super().read(row)
        return value if value is None or type(value) is bytes else scalar(value)

    def estimate_type(self) -> pl.DataType:
        """Return the type of counts."""
        import polars as pl

        return pl.Int64()

    def _value_type(self, given: pl.DataType) -> pl.DataType | None:
        import polars as pl

        return given if given == pl.Binary else comparable_type(given)

    def _lists(self, batch: ColumnBatch, values: pl.Expr) -> pl.Expr:
        import polars as pl

        assert self.column is not None
        dtype = self._value_type(batch.schema[self.column])
        assert dtype is not None
        values = values.cast(dtype)
        if dtype.is_temporal():
            values = values.to_physical().cast(pl.Int64)
        elif dtype.is_decimal():
            values = values.cast(pl.String)
        return batch.aggregate("distinct", self.column, values.drop_nulls().unique())

    def _updated(self, old: bytes | None, values: Iterable[Any]) -> bytes | None:
        library = _datasketches()
        sketch = library.hll_sketch(HLL_LG_K, library.tgt_hll_type.HLL_8)
        for value in values:
            sketch.update(_hashed(value))
        if sketch.is_empty():
            return old
        made = bytes(sketch.serialize_compact())
        return made if old is None else self.merge_bytes(old, made)

    def merge_bytes(self, old: bytes, new: bytes) -> bytes:
        """Return the sketch of the values of two sketches."""
        library = _datasketches()
        union = library.hll_union(HLL_LG_K)
        for data in (old, new):
            union.update(_read(library.hll_sketch, data))
        return bytes(union.get_result(library.tgt_hll_type.HLL_8).serialize_compact())

    def _estimate(self, state: bytes | None) -> Any:
        if state is None:
            return 0
        return round(_read(_datasketches().hll_sketch, state).get_estimate())


@dataclass(frozen=True)
class QuantileSketch(Sketched):
    """Estimated quantile of the numbers of a column, by a KLL sketch."""

    q: float = 0.5

    kind = "quantile"

    @property
    def settings(self) -> dict[str, Any]:
        """Rank of the value, from 0 to 1."""
        return {"q": self.q}

    def read(self, row: Row) -> Any:
        """Return a number; None for NaN, which has no rank."""
        value = super().read(row)
        found = None if value is None else float(number(value))
        return None if found is None or math.isnan(found) else found

    def estimate_type(self) -> pl.DataType:
        """Return the type of quantiles."""
        import polars as pl

        return pl.Float64()

    def _value_type(self, given: pl.DataType) -> pl.DataType | None:
        return number_type(given)

    def _lists(self, batch: ColumnBatch, values: pl.Expr) -> pl.Expr:
        import polars as pl

        assert self.column is not None
        numbers = values.cast(pl.Float64).drop_nulls().drop_nans()
        return batch.aggregate("numbers", self.column, numbers)

    def _updated(self, old: bytes | None, values: Iterable[Any]) -> bytes | None:
        library = _datasketches()
        kind = library.kll_doubles_sketch
        sketch = kind(KLL_K) if old is None else _read(kind, old)
        for value in values:
            sketch.update(value)
        return None if sketch.is_empty() else bytes(sketch.serialize())

    def merge_bytes(self, old: bytes, new: bytes) -> bytes:
        """Return the sketch of the values of two sketches."""
        kind = _datasketches().kll_doubles_sketch
        sketch = _read(kind, old)
        sketch.merge(_read(kind, new))
        return bytes(sketch.serialize())

    def _estimate(self, state: bytes | None) -> Any:
        if state is None:
            return None
        sketch = _read(_datasketches().kll_doubles_sketch, state)
        if self.q in (0, 1):  # these the sketch knows exactly, apart from its quantiles
            return float(sketch.get_max_value() if self.q else sketch.get_min_value())
        return float(sketch.get_quantile(self.q, inclusive=True))


@cache
def _datasketches() -> Any:
    """Return the library. Raises MissingDependency."""
    try:
        import datasketches
    except ImportError as error:
        raise MissingDependency(
            "quantile() and n_unique(approx=True) need the package datasketches; "
            "pip install 'strandline[sketches]'"
        ) from error
    return datasketches


def check_installed() -> None:
    """Raise MissingDependency if the library of sketches is not installed."""
    _datasketches()


def _read(kind: Any, data: bytes) -> Any:
    """Return the sketch in stored bytes. Raises CorruptLog."""
    try:
        return kind.deserialize(data)
    except (ValueError, IndexError, RuntimeError) as error:
        raise CorruptLog(f"a stored sketch of {len(data)} bytes is damaged: {error}") from error


def _hashed(value: Any) -> Any:
    """Return a value in the form in which it is hashed, equal for equal values only.

    Text is marked, because the library ignores empty text; so are bytes and large integers, which
    it does not take.
    """
    if type(value) is float:
        return math.nan if math.isnan(value) else unsigned_zero(value)
    if type(value) is str:
        return f"t{value}"
    if type(value) is bytes:
        return f"b{value.hex()}"
    whole = int(value)
    return whole if INT64_MIN <= whole <= INT64_MAX else f"i{whole}"
