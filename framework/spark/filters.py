"""Filters of a batch read, as Spark hands them over, evaluated on Arrow columns.

A filter is taken over only if Arrow gives the same result as Spark for every value; all others stay
with Spark. Two differences are bridged:

- In Spark NaN equals NaN and is larger than any other number. In Arrow it compares as in IEEE 754.
- Arrow's `is_in` returns false for null, where Spark's IN returns null.

A filter gives true, false or null for a row, and rows with true pass. `Not` of null is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

MAX_FLOATS = 100
"""Maximum number of values of IN on floating-point numbers, which are compared one by one."""

Evaluate = Callable[[pa.Array], pa.BooleanArray]
"""Evaluation of a filter on its column."""


def supported(filter_: Filter, schema: pa.Schema) -> bool:
    """Return True if a filter gives the same result here as in Spark."""
    return _compiled(filter_, schema) is not None


def passing(filters: Sequence[Filter], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that pass all of the filters, which are supported."""
    masks = []
    for each in filters:
        compiled = _compiled(each, batch.schema)
        assert compiled is not None, each
        name, evaluate = compiled
        masks.append(evaluate(batch.column(name)))
    if not masks:
        return batch
    mask = reduce(pc.and_kleene, masks)
    return batch if pc.all(mask, skip_nulls=False).as_py() else batch.filter(mask)


def column_of(filter_: Filter) -> str | None:
    """Return the column of a filter; None if it is a field of a struct."""
    inner = filter_.child if isinstance(filter_, Not) else filter_
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else None


def values_of(filter_: Filter) -> list[Any]:
    """Return the values with which a filter compares its column, without nulls."""
    inner = filter_.child if isinstance(filter_, Not) else filter_
    found = inner.value if isinstance(inner, In) else [getattr(inner, "value", None)]
    return [each for each in found if each is not None]


def _compiled(filter_: Filter, schema: pa.Schema) -> tuple[str, Evaluate] | None:
    """Return the column of a filter and its evaluation; None if the filter is not supported."""
    name = column_of(filter_)
    if name is None or name not in schema.names:
        return None
    inner = filter_.child if isinstance(filter_, Not) else filter_
    try:
        evaluate = _evaluation(inner, schema.field(name).type, negated=inner is not filter_)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None  # the value does not fit the column's type
    if evaluate is None:
        return None
    return name, evaluate if inner is filter_ else partial(_inverted, evaluate)


def _inverted(evaluate: Evaluate, column: pa.Array) -> pa.BooleanArray:
    return pc.invert(evaluate(column))


def _evaluation(filter_: Filter, kind: pa.DataType, *, negated: bool) -> Evaluate | None:
    if isinstance(filter_, IsNull):
        return _is_null
    if isinstance(filter_, IsNotNull):
        return _is_valid
    if not _is_comparable(kind):
        return None
    if isinstance(filter_, In):
        return _membership(filter_.value, kind, negated=negated)
    value = getattr(filter_, "value", None)
    if value is None:
        return None
    if (search := _SEARCHES.get(type(filter_))) is not None:
        return partial(search, pattern=value) if pa.types.is_string(kind) else None
    return _comparison(type(filter_), value, kind)


def _comparison(of: type[Filter], value: Any, kind: pa.DataType) -> Evaluate | None:
    if pa.types.is_floating(kind):
        return _FLOAT_COMPARISONS[of](float(value)) if of in _FLOAT_COMPARISONS else None
    scalar = pa.scalar(value, kind)
    if of is EqualNullSafe:
        return lambda column: pc.fill_null(pc.equal(column, scalar), fill_value=False)
    compare = _COMPARISONS.get(of)
    return None if compare is None else lambda column: compare(column, scalar)


def _membership(values: Sequence[Any], kind: pa.DataType, *, negated: bool) -> Evaluate | None:
    """Return IN. A null among the values never makes it true, and NOT IN never."""
    wanted = [value for value in values if value is not None]
    if not wanted or (negated and len(wanted) < len(values)):
        return None
    if not pa.types.is_floating(kind):
        known, null = pa.array(wanted, kind), pa.scalar(None, pa.bool_())
        return lambda column: pc.if_else(
            pc.is_valid(column), pc.is_in(column, value_set=known), null
        )
    if len(wanted) > MAX_FLOATS:
        return None
    equal = [_float_equal(float(value)) for value in wanted]
    return lambda column: reduce(pc.or_kleene, [each(column) for each in equal])


def _is_comparable(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        each(kind)
        for each in (
            *(types.is_boolean, types.is_integer, types.is_string, types.is_binary),
            *(types.is_date32, types.is_timestamp, types.is_decimal128, types.is_float32),
            types.is_float64,
        )
    )


# Comparisons ------------------------------------------------------------------------------

_COMPARISONS: Mapping[type[Filter], Callable[[pa.Array, pa.Scalar], pa.BooleanArray]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_SEARCHES: Mapping[type[Filter], Callable[..., pa.BooleanArray]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}


def _is_null(column: pa.Array) -> pa.BooleanArray:
    return pc.is_null(column)


def _is_valid(column: pa.Array) -> pa.BooleanArray:
    return pc.is_valid(column)


def _is_nan(column: pa.Array) -> pa.BooleanArray:
    return pc.is_nan(column)


def _double(column: pa.Array) -> pa.Array:
    """Return floats as doubles, which hold all of them exactly, as Spark's literals are."""
    return column.cast(pa.float64())


def _float_equal(value: float) -> Evaluate:
    if math.isnan(value):
        return _is_nan
    return lambda column: pc.equal(_double(column), value)


def _float_equal_null_safe(value: float) -> Evaluate:
    equal = _float_equal(value)
    return lambda column: pc.fill_null(equal(column), fill_value=False)


def _float_greater(value: float) -> Evaluate:
    if math.isnan(value):
        return lambda column: pc.greater(_double(column), math.inf)  # false, and null for null
    return lambda column: pc.or_kleene(pc.greater(_double(column), value), pc.is_nan(column))


def _float_greater_equal(value: float) -> Evaluate:
    if math.isnan(value):
        return _is_nan
    return lambda column: pc.or_kleene(pc.greater_equal(_double(column), value), pc.is_nan(column))


def _float_less(value: float) -> Evaluate:
    above = _float_greater_equal(value)
    return lambda column: pc.invert(above(column))


def _float_less_equal(value: float) -> Evaluate:
    above = _float_greater(value)
    return lambda column: pc.invert(above(column))


_FLOAT_COMPARISONS: Mapping[type[Filter], Callable[[float], Evaluate]] = {
    EqualTo: _float_equal,
    EqualNullSafe: _float_equal_null_safe,
    GreaterThan: _float_greater,
    GreaterThanOrEqual: _float_greater_equal,
    LessThan: _float_less,
    LessThanOrEqual: _float_less_equal,
}
