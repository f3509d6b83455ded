"""Avro's decimals: the unscaled ints as two's complement, big-endian, a column at a time."""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np
import pyarrow as pa

from strandline.changelog.errors import InvalidRecord
from strandline.framework.formats.binary import binary, bounds_of, flat

WIDTH = 16
"""Bytes of a decimal in Arrow."""
MAX_DIGITS = 38
"""Maximum number of digits of a decimal in Arrow."""
_EXACT = Context(prec=MAX_DIGITS)


def to_bytes(column: pa.Decimal128Array, size: int = 0) -> pa.BinaryArray:
    """Return decimals without nulls as bytes: as few as possible, as Java's BigInteger, or `size`.

    Raises InvalidRecord if a value needs more than `size` bytes.

    >>> to_bytes(pa.array(["1.27", "1.28", "-1.28"]).cast(pa.decimal128(5, 2))).to_pylist()
    [b'\\x7f', b'\\x00\\x80', b'\\x80']
    """
    if not len(column):
        return pa.array([], pa.binary())
    raw = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, WIDTH)
    rows = raw[column.offset : column.offset + len(column), ::-1]
    sign = np.where(rows[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    leading = (rows == sign).cumprod(axis=1).sum(axis=1)
    first = rows[np.arange(len(rows)), np.minimum(leading, WIDTH - 1)]
    # The first bit is the sign, so it may need a byte of its own. So do 0 and -1.
    lengths = WIDTH - leading + ((leading == WIDTH) | ((first ^ sign[:, 0]) & 0x80 != 0))
    if not size:
        return binary(bounds_of(lengths), rows[_last(lengths)])
    if (lengths > size).any():
        raise InvalidRecord(f"a decimal needs more than the {size} bytes of its Avro fixed")
    padded = np.hstack([np.repeat(sign, max(0, size - WIDTH), axis=1), rows[:, -size:]])
    return binary(np.arange(len(rows) + 1) * size, np.ascontiguousarray(padded).reshape(-1))


def from_bytes(column: pa.BinaryArray, kind: pa.Decimal128Type) -> pa.Decimal128Array:
    """Return what `to_bytes` was given. Raise InvalidRecord for a value with more digits.

    >>> from_bytes(pa.array([b"\\x00\\x80"]), pa.decimal128(5, 2)).to_pylist()
    [Decimal('1.28')]
    """
    data, bounds = flat(column)
    lengths = np.diff(bounds)
    try:
        if lengths.max(initial=0) > WIDTH:
            wide = [_decimal(each, kind.scale) for each in column.to_pylist()]
            return pa.array(wide, kind)
        rows = np.zeros((len(lengths), WIDTH), np.uint8)
        filled = lengths > 0
        rows[filled] = np.where(data[bounds[:-1][filled]] & 0x80, 0xFF, 0)[:, None]
        rows[_last(lengths)] = data
        buffer = pa.py_buffer(np.ascontiguousarray(rows[:, ::-1]))
        found = pa.Array.from_buffers(
            pa.decimal128(MAX_DIGITS, kind.scale), len(rows), [None, buffer], null_count=0
        )
        found.validate(full=True)
        return found.cast(kind)
    except pa.ArrowException as error:
        raise InvalidRecord(f"an Avro decimal does not fit {kind}: {error}") from error


def _last(
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return the places of the last bytes of each row."""
    return np.arange(WIDTH) >= (WIDTH - lengths)[:, None]


def _decimal(data: bytes, scale: int) -> Decimal:
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)


def default_text(value: Decimal) -> str:
    """Return a default for a schema: the bytes as text of code points 0 to 255."""
    column = pa.array([value])
    return str(to_bytes(column)[0].as_py().decode("latin-1"))
