"""Casts of Arrow columns of numbers that keep every value, or raise.

Arrow rounds between floats and decimals silently, so these become each other by way of their
shortest text. Its casts to decimals leave out the highest bits of a value that does not fit, so
the range is checked here before them.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DECIMALS = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
"""Functions that make a type of decimals, by the bits of a value."""

_WHOLE = pa.decimal256(76, 0)
"""Type of the longest decimals without places after the point."""


def is_number(kind: pa.DataType) -> bool:
    """Return True for the types of integers, floats and decimals."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def cast_number(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column of numbers to another type of number.

    A float may become a shorter one, and is rounded then.

    Raises:
        ArrowInvalid: A value would change, or is beyond the range of the type.

    >>> cast_number(pa.array([0.1]), pa.decimal128(4, 2)).to_pylist()
    [Decimal('0.10')]
    """
    types, source = pa.types, column.type
    if types.is_decimal(kind):
        return _to_decimal(column, kind)
    if types.is_decimal(source):
        return _from_decimal(column, kind)
    made = pc.cast(column, kind)
    if not types.is_floating(kind):
        return made
    if types.is_integer(source):
        _check_same(column, pc.cast(made, source, safe=False), made)
    elif pc.any(pc.and_not(pc.is_inf(made), pc.is_inf(column))).as_py():
        raise pa.ArrowInvalid(f"a value is beyond the range of {kind}")
    return made


def _to_decimal(column: pa.Array, kind: pa.DataType) -> pa.Array:
    source = column.type
    if pa.types.is_floating(source):
        _check_floats(column, kind)
    elif _whole_digits(source) > kind.precision - kind.scale:
        _check_range(column, kind)
    if not pa.types.is_decimal(source):
        column = _read(_text(column), kind)
    if min(kind.scale, column.type.scale) < 0 < max(kind.scale, column.type.scale):
        column = pc.cast(column, _WHOLE)  # because Arrow moves the point by 76 places at most
    return pc.cast(pc.cast(column, _wide(column.type, kind)), kind)


def _read(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the decimals of texts, in a type at least as wide as `kind`.

    Arrow reads no text for a negative scale, and reads small numbers wrongly for short decimals.
    """
    if kind.scale < 0:
        return pc.cast(texts, _WHOLE)
    return pc.cast(texts, kind if kind.bit_width >= 128 else pa.decimal128(38, kind.scale))


def _wide(source: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """Return a type in which decimals get the scale of `kind`.

    Arrow shortens a decimal before it moves the point, and moves it in short ones with overflow.
    """
    if max(source.bit_width, kind.bit_width) > 128 or min(source.scale, kind.scale) < 0:
        return pa.decimal256(76, kind.scale)
    return pa.decimal128(38, kind.scale)


def _from_decimal(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast decimals to integers or floats."""
    source = column.type
    if source.scale < 0:
        # Arrow overflows in a cast of these to integers, and has no text for some.
        return _from_decimal(_to_decimal(column, _WHOLE), kind)
    if pa.types.is_floating(kind):
        made = pc.cast(pc.cast(column, pa.string()), kind)
        _check_same(column, cast_number(made, source), made)
        return made
    if source.bit_width < 128:
        # Arrow's bounds of int64 overflow in short decimals, so it would refuse every value.
        column = pc.cast(column, pa.decimal128(source.precision, source.scale))
    return pc.cast(column, kind)


def _text(column: pa.Array) -> pa.Array:
    """Return the shortest texts that name the numbers; Arrow writes all digits of a float16."""
    if not pa.types.is_float16(column.type):
        return pc.cast(column, pa.string())
    texts = column.to_numpy(zero_copy_only=False).astype(np.float16).astype(str)
    return pa.array(texts, pa.string(), mask=column.is_null().to_numpy(zero_copy_only=False))


def _whole_digits(kind: pa.DataType) -> int:
    """Return the maximum number of digits before the point of integers or decimals of a type."""
    if pa.types.is_decimal(kind):
        return int(kind.precision - kind.scale)
    return len(str(2 ** (kind.bit_width - pa.types.is_signed_integer(kind)) - 1))


def _check_range(column: pa.Array, kind: pa.DataType) -> None:
    """Raise ArrowInvalid for a number with more digits before the point than a decimal type has."""
    numbers, digits = column, kind.precision - kind.scale
    if pa.types.is_decimal(column.type):
        numbers = _unscaled(column)
        digits += column.type.scale
    bound = Decimal(1).scaleb(max(digits, 0))
    is_beyond = pc.greater_equal(numbers, pa.scalar(bound, _WHOLE).cast(numbers.type))
    if not pa.types.is_unsigned_integer(column.type):
        is_less = pc.less_equal(numbers, pa.scalar(-bound, _WHOLE).cast(numbers.type))
        is_beyond = pc.or_(is_beyond, is_less)
    _refuse(is_beyond, column, kind)


def _check_floats(column: pa.Array, kind: pa.DataType) -> None:
    """Raise ArrowInvalid for a float that is too large for a decimal type, or less than its unit.

    A float is less than the float nearest to a power of ten exactly if its shortest text is.
    """
    sizes = pc.abs(pc.cast(column, pa.float64()))
    least, greatest = (
        _float(f"1e{n}", column.type) for n in (-kind.scale, kind.precision - kind.scale)
    )
    is_small = pc.and_(pc.less(sizes, least), pc.not_equal(sizes, 0.0))
    _refuse(pc.or_(is_small, pc.greater_equal(sizes, greatest)), column, kind)


def _float(text: str, kind: pa.DataType) -> float:
    """Return a number as a type of floats has it; infinite if it is beyond the type's range."""
    with np.errstate(over="ignore"):
        return float(kind.to_pandas_dtype()(text))


def _refuse(bad: pa.BooleanArray, column: pa.Array, kind: pa.DataType) -> None:
    at = pc.index(bad, pa.scalar(value=True)).as_py()
    if at >= 0:
        raise pa.ArrowInvalid(f"{column[at].cast(pa.string())} is beyond the range of {kind}")


def _unscaled(column: pa.Array) -> pa.Array:
    """Return decimals without their point, because Arrow compares none with a negative scale."""
    kind = column.type
    return column.view(_DECIMALS[kind.bit_width](kind.precision, 0))


def _check_same(column: pa.Array, back: pa.Array, made: pa.Array) -> None:
    """Raise ArrowInvalid for a value that is another one after a cast there and back."""
    at = pc.index(pc.not_equal(column, back), pa.scalar(value=True)).as_py()
    if at >= 0:
        raise pa.ArrowInvalid(f"{column[at]} would be {made[at]}")
