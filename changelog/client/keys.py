"""Encoding of keys as bytes. It is fixed, so that every producer sends a key to the same partition.

    str      UTF-8                                  Kafka's StringSerializer
    bytes    as they are                            ByteArraySerializer
    int      8 bytes, big-endian, two's complement  LongSerializer
    float    8 bytes, big-endian, IEEE 754          DoubleSerializer
    else     MessagePack; the entries of dicts and sets in a fixed order

Equal floats have the same bytes, because a record is placed by them: -0.0 is encoded as 0.0, also
within other keys, and every NaN alike (Java's doubleToLongBits). Java's DoubleSerializer keeps -0.0.

`encode_key` encodes one key, `encode_keys` an Arrow column.
"""

from __future__ import annotations

import contextlib
import math
import struct
from datetime import datetime
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import of_items
from strandline.changelog.errors import InvalidRecord

_double = struct.Struct(">d")
_pack = msgspec.msgpack.Encoder().encode
_PACKED_TYPES = (bytes, bytearray, memoryview, datetime)
"""Types that MessagePack has itself, beside those of JSON."""


def encode_key(key: object) -> bytes | None:
    """Return the bytes of a key; None (a record without a key) stays None. Raises InvalidRecord.

    >>> encode_key("a"), encode_key(1), encode_key(b"x"), encode_key(None)
    (b'a', b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01', b'x', None)
    >>> encode_key(-0.0) == encode_key(0.0)
    True
    """
    if key is None or type(key) is bytes:
        return key
    try:
        return _encoded(key)
    except (OverflowError, UnicodeEncodeError, TypeError) as error:
        raise InvalidRecord(
            f"a key of type {type(key).__name__} cannot be encoded ({error}): {key!r}; use str, "
            f"bytes, float, an int of 64 bits, or what MessagePack can hold"
        ) from error


def encode_keys(column: pa.Array) -> pa.BinaryArray:
    """Return the bytes of a column of keys; nulls stay null. Raises InvalidRecord.

    >>> encode_keys(pa.array(["a", None])).to_pylist()
    [b'a', None]
    """
    kind = column.type
    try:
        if is_text(kind) or is_bytes(kind) or pa.types.is_null(kind):
            return pc.cast(column, pa.binary())
        if pa.types.is_integer(kind):
            return _big_endian(pc.cast(column, pa.int64()), ">i8")
        if pa.types.is_floating(kind):
            return _big_endian(_same_floats(pc.cast(column, pa.float64())), ">f8")
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"keys of type {kind} cannot be encoded: {error}") from error
    return of_items([encode_key(key) for key in column.to_pylist()], pa.binary())


def is_text(kind: pa.DataType) -> bool:
    """Return True if an Arrow type is a string type."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return True if an Arrow type is a binary type."""
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _encoded(key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return key.to_bytes(8, "big", signed=True)
    key = canonical(key)
    return _double.pack(key) if isinstance(key, float) else _pack(key)


def canonical(key: Any) -> Any:
    """Return a key in the form that is encoded, in which equal keys are the same.

    Floats are made the same, and the entries of dicts and sets are put in an order, at every depth,
    if they can be compared. The fields of an object keep theirs.

    >>> canonical(("a", -0.0)), canonical({"b": 1, "a": 2}), canonical({8, 0, 16})
    (('a', 0.0), {'a': 2, 'b': 1}, [0, 8, 16])
    """
    if key is None or isinstance(key, (str, bytes, int)):
        return key
    if isinstance(key, float):
        return _same_float(key)
    if isinstance(key, (tuple, list)):
        items = map(canonical, key)
        return tuple(items) if isinstance(key, tuple) else list(items)
    orders: tuple[Literal["deterministic"] | None, ...] = ("deterministic", None)
    for order in orders:  # entries that cannot be compared have none
        with contextlib.suppress(TypeError):
            return _with_same_floats(
                msgspec.to_builtins(key, builtin_types=_PACKED_TYPES, order=order)
            )
    return key  # an Ext or Raw of msgspec has one form


def _with_same_floats(plain: Any) -> Any:
    if isinstance(plain, float):
        return _same_float(plain)
    if isinstance(plain, (tuple, list)):
        return type(plain)(map(_with_same_floats, plain))
    if isinstance(plain, dict):
        return {_with_same_floats(n): _with_same_floats(value) for n, value in plain.items()}
    return plain


def _same_float(number: float) -> float:
    return number + 0.0 if number == number else math.nan  # noqa: PLR0124 - only NaN is not itself


def _same_floats(column: pa.Array) -> pa.Array:
    """Return a float64 column with equal values made the same."""
    column = pc.add(column, 0.0)
    is_nan = pc.is_nan(column)
    return pc.if_else(is_nan, math.nan, column) if pc.any(is_nan).as_py() else column


def _big_endian(numbers: pa.Array, layout: str) -> pa.BinaryArray:
    """Encode numbers in eight bytes each, in the byte order of `layout`."""
    filled = pc.fill_null(numbers, 0) if numbers.null_count else numbers
    data = filled.to_numpy(zero_copy_only=False).astype(layout)
    offsets = np.arange(0, 8 * len(data) + 1, 8, dtype=np.int32)
    keys = pa.Array.from_buffers(
        pa.binary(), len(data), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    if not numbers.null_count:
        return keys
    return pc.if_else(numbers.is_valid(), keys, pa.scalar(None, pa.binary()))


def is_list(kind: pa.DataType) -> bool:
    """Return True for the types of lists, of any size."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
