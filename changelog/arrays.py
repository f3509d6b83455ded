"""Arrow columns of a few Python objects and of numbers, without pandas.

`pa.array` and `to_numpy` do the same. But their first calls import pandas if it is installed, which
takes up to half a second: longer than a small program or a command needs for everything else.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FEW = 1_000
"""Maximum number of objects that are converted without pandas; `pa.array` is faster for more."""


def of_items(items: Iterable[Any], dtype: pa.DataType) -> pa.Array:
    """Return Python objects as a column, like `pa.array`, whose errors it raises.

    >>> of_items(["a", None], pa.string()).to_pylist()
    ['a', None]
    """
    listed = items if isinstance(items, list) else list(items)
    if len(listed) <= FEW and "pandas" not in sys.modules and dtype.id in _BUFFERS:
        kind, buffers = _BUFFERS[dtype.id]
        if {*map(type, listed)} <= {kind, type(None)}:
            with suppress(OverflowError, UnicodeEncodeError):
                valid = None if None not in listed else _bits([i is not None for i in listed])
                return pa.Array.from_buffers(dtype, len(listed), [valid, *buffers(listed)])
    return pa.array(listed, dtype)


def of_numbers(numbers: npt.NDArray[Any]) -> pa.Array:
    """Return an array of numbers as a column that shares its memory.

    >>> of_numbers(np.array([1.5, 2.0])).to_pylist()
    [1.5, 2.0]
    """
    dtype = pa.from_numpy_dtype(numbers.dtype)
    buffer = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(dtype, len(numbers), [None, buffer])


def repeated(number: int, count: int, dtype: npt.DTypeLike = np.int64) -> pa.Array:
    """Return a column that has a number several times.

    >>> repeated(5, 2).to_pylist()
    [5, 5]
    """
    return of_numbers(np.full(count, number, dtype))


def unsliced(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column, copied if it has lists of a fixed size: Polars refuses slices of them.

    >>> lists = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))
    >>> unsliced(lists.slice(1)).offset
    0
    """
    if not pa.types.is_fixed_size_list(column.type):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([pa.concat_arrays([one]) for one in column.chunks], column.type)
    return pa.concat_arrays([column])


def as_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column without nulls as an array, without copying where possible.

    >>> int(as_numpy(pa.array([1, 5, 3])[1:]).max()), as_numpy(pa.array([True, False])).tolist()
    (5, [True, False])
    """
    if column.null_count or column.type.id not in _NUMPY:
        return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    dtype, data = _NUMPY[column.type.id], column.buffers()[1] or b""
    if dtype is not np.bool_:
        item = np.dtype(dtype).itemsize
        return np.frombuffer(data, dtype, len(column), item * column.offset)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return bits[column.offset :][: len(column)].astype(np.bool_)


def int64_range(start: int, end: int) -> pa.Int64Array:
    """Return the integers from `start` to `end` (exclusive) as a column.

    >>> int64_range(5, 8).to_pylist()
    [5, 6, 7]
    """
    return of_numbers(np.arange(start, end, dtype=np.int64))


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))


def _of_ints(items: Sequence[int | None]) -> list[pa.Buffer]:
    return [pa.py_buffer(array("q", [item or 0 for item in items]))]


def _of_floats(items: Sequence[float | None]) -> list[pa.Buffer]:
    return [pa.py_buffer(array("d", [item or 0.0 for item in items]))]


def _of_bools(items: Sequence[bool | None]) -> list[pa.Buffer]:
    return [_bits([bool(item) for item in items])]


def _of_bytes(items: Sequence[bytes | None]) -> list[pa.Buffer]:
    filled = [item or b"" for item in items]
    ends = array("i", accumulate(map(len, filled), initial=0))
    return [pa.py_buffer(ends), pa.py_buffer(b"".join(filled))]


def _of_texts(items: Sequence[str | None]) -> list[pa.Buffer]:
    return _of_bytes([None if item is None else item.encode() for item in items])


_BUFFERS: Mapping[int, tuple[type, Callable[[Sequence[Any]], list[pa.Buffer]]]] = {
    pa.int64().id: (int, _of_ints),
    pa.float64().id: (float, _of_floats),
    pa.bool_().id: (bool, _of_bools),
    pa.binary().id: (bytes, _of_bytes),
    pa.string().id: (str, _of_texts),
}
"""Type of the objects of a column, and the buffers that have their values, by the id of the Arrow
type: to hash the type itself takes longer than the conversion of a few objects."""

_NUMPY: Mapping[int, type[np.generic]] = {
    pa.bool_().id: np.bool_,
    pa.int8().id: np.int8,
    pa.int16().id: np.int16,
    pa.int32().id: np.int32,
    pa.int64().id: np.int64,
    pa.uint8().id: np.uint8,
    pa.uint16().id: np.uint16,
    pa.uint32().id: np.uint32,
    pa.uint64().id: np.uint64,
    pa.float32().id: np.float32,
    pa.float64().id: np.float64,
}
