"""Columns of scalars and of objects, and conversions between Arrow, NumPy and Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import inspect

from strandline.changelog.client.casting import plain
from strandline.changelog.errors import CorruptLog, InvalidRecord
from strandline.statestore.cells import (
    Mask,
)
from strandline.statestore.packed_scalars import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    NULL,
    TEXT,
)
from strandline.statestore.serdes import type_name
from strandline.statestore.values import ValueCodec

Array = npt.NDArray[Any]


Block = tuple[Array, ...]


Column: TypeAlias = "pa.Array | list[Any]"
"""Arrow column, or objects of a type that has none."""


ARROW = {
    INT: pa.int64(),
    FLOAT: pa.float64(),
    BOOL: pa.bool_(),
    TEXT: pa.string(),
    BYTES: pa.binary(),
}
"""Arrow type of each kind of scalars."""


def object_array(items: Sequence[Any]) -> Array:
    """Return an array of Python objects."""
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array


def no_objects(count: int) -> Array:
    """Return an array of so many None."""
    return np.full(count, None, np.object_)


def decoded_objects(codec: ValueCodec, data: pa.Array) -> list[Any]:
    return list(map(codec.loads, data.to_pylist()))


def decoded_numbers(codec: ValueCodec, items: list[Any], dtype: npt.DTypeLike) -> Array:
    try:
        return np.array(items, dtype)
    except OverflowError as error:
        raise too_large(codec) from error


def too_large(codec: ValueCodec) -> CorruptLog:
    return CorruptLog(
        f"store {codec.store!r}: a stored value has an int of more than 64 bits, which columns "
        "cannot hold; use the store without columns"
    )


def as_column(codec: ValueCodec, values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return values from outside as one Arrow column without nulls. Raises InvalidRecord."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    values = plain(values)
    if values.null_count:
        raise null_refused(codec)
    return values


def objects(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python objects. Raises InvalidRecord for invalid text."""
    try:
        items: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise InvalidRecord(
            f"has text that is no UTF-8: {error}; give the column as bytes"
        ) from error
    return items


def cast_column(codec: ValueCodec, column: pa.Array, kind: int, what: str = "") -> pa.Array:
    found = kind_of_arrow(column.type)
    is_fit = found == kind or (found, kind) == (INT, FLOAT) or (found == NULL and bool(what))
    if not is_fit and (what or len(column)):
        raise refused_value(codec, f"{what}got a column of {column.type}; cast it to {ARROW[kind]}")
    try:
        made = column.cast(ARROW[kind])
        if kind == TEXT:
            made.validate(full=True)  # because text that is no UTF-8 could not be read
        return made
    except pa.ArrowInvalid as error:
        raise refused_value(codec, f"{what}{error}") from error


def kind_of_arrow(arrow: pa.DataType) -> int | None:
    types = pa.types
    tests: tuple[tuple[Callable[[pa.DataType], bool], int], ...] = (
        (types.is_null, NULL),
        (types.is_integer, INT),
        (types.is_floating, FLOAT),
        (types.is_boolean, BOOL),
        (types.is_string, TEXT),
        (types.is_large_string, TEXT),
        (types.is_string_view, TEXT),
        (types.is_binary, BYTES),
        (types.is_large_binary, BYTES),
        (types.is_binary_view, BYTES),
        (types.is_fixed_size_binary, BYTES),
    )
    return next((kind for test, kind in tests if test(arrow)), None)


def null_mask(valid: Mask) -> Mask | None:
    return None if valid.all() else ~valid


def refused_value(codec: ValueCodec, why: str) -> InvalidRecord:
    return InvalidRecord(
        f"store {codec.store!r}: values must be {type_name(codec.declared)}; {why}"
    )


def null_refused(codec: ValueCodec) -> InvalidRecord:
    return InvalidRecord(
        f"store {codec.store!r}: a value is null, which is no value; to remove keys use "
        "delete_batch(keys)"
    )


def unfit_values(codec: ValueCodec, error: Exception) -> InvalidRecord:
    return InvalidRecord(
        f"store {codec.store!r}: a value does not fit in a column ({error}); use a store without "
        "columns"
    )


DTYPES: dict[int, npt.DTypeLike] = {INT: np.int64, FLOAT: np.float64, BOOL: np.bool_}


KIND_OF_INFO: dict[type, int] = {
    inspect.NoneType: NULL,
    inspect.IntType: INT,
    inspect.FloatType: FLOAT,
    inspect.BoolType: BOOL,
    inspect.StrType: TEXT,
    inspect.BytesType: BYTES,
}
