"""Values that aggregates take: numbers and others, in rows and in columns, compared alike.

NaN is a value, greater than all other numbers and equal to itself, as in PostgreSQL, DuckDB and
Spark, and in the order in which Polars sorts. True and False are 1 and 0 wherever numbers are.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

Number = int | float

COMPARABLE = int | float | str | None
"""Type of a stored value that is compared or added; part of the declarations of stores."""
SCALAR = bool | int | float | str | None
"""Type of a stored value that is only kept."""


_TYPED = (Decimal, dt.date, dt.time, dt.timedelta)
"""Types of which a column has a scale, a unit or a zone, and a value alone has none."""


def number(value: Any) -> Number:
    """Return a value as a Python number. Raises TypeError."""
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    if type(value) is bool:
        return int(value)
    if hasattr(value, "item"):  # numpy's and Arrow's scalars
        return number(value.item())
    advice = ", and only a stream aggregates such values" if isinstance(value, _TYPED) else ""
    raise TypeError(f"{value!r} ({type(value).__name__}) is no number{advice}")


def comparable(value: Any) -> Number | str:
    """Return a value as a Python number or text. Raises TypeError."""
    return value if type(value) is str else number(value)


def scalar(value: Any) -> Any:
    """Return a value as a Python number, text or bool. Raises TypeError."""
    return value if type(value) in (str, bool) else number(value)


def order_of(value: Any) -> tuple[int, Any]:
    """Return what orders a value: NaN is greater than all other numbers, and equal to itself."""
    return (1, 0) if value != value else (0, value)  # noqa: PLR0124 - only NaN differs from itself


def is_greater(one: Any, other: Any) -> bool:
    """Return True if `one` is greater than `other`, as `order_of` orders them."""
    return order_of(one) > order_of(other)


def number_type(dtype: pl.DataType) -> pl.DataType | None:
    """Return the type in which numbers of a column are added; None if they are no numbers."""
    import polars as pl

    if dtype == pl.Boolean or (dtype.is_integer() and dtype not in (pl.Int128, _uint128())):
        return pl.Int64()
    return pl.Float64() if dtype.is_float() else None


def sum_type(dtype: pl.DataType) -> pl.DataType | None:
    """Return the type of sums of a column: `number_type`, or decimals of 38 digits for decimals."""
    import polars as pl

    return pl.Decimal(38, dtype.scale) if isinstance(dtype, pl.Decimal) else number_type(dtype)


def comparable_type(dtype: pl.DataType) -> pl.DataType | None:
    """Return the type in which values of a column are compared; None if they have no order."""
    import polars as pl

    if dtype == pl.UInt64:
        return dtype
    found = number_type(dtype)
    if found is not None:
        return found
    return dtype if dtype == pl.String or dtype.is_temporal() or dtype.is_decimal() else None


def kept_type(dtype: pl.DataType) -> pl.DataType:
    """Return the type in which values of a column are kept."""
    import polars as pl

    return dtype if dtype == pl.Boolean else comparable_type(dtype) or dtype


def _uint128() -> Any:
    """Return the type of unsigned integers of 128 bits; None in versions of Polars without it."""
    import polars as pl

    return getattr(pl, "UInt128", None)
