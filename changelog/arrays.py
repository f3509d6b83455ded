"""Arrow columns of small lists, and their numbers, by way of buffers.

`pa.array` and `to_numpy` do the same, the former faster for long lists. But their first calls
import pandas if it is installed, which takes half a second; opening a log must not wait for that.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def int64s(items: Sequence[int]) -> pa.Int64Array:
    """Return integers as a column. Raises OverflowError beyond 64 bits, TypeError for a null.

    >>> int64s([1, -2]).to_pylist()
    [1, -2]
    """
    return pa.Array.from_buffers(pa.int64(), len(items), [None, pa.py_buffer(array("q", items))])


def as_int64s(column: pa.Int64Array) -> npt.NDArray[np.int64]:
    """Return the numbers of a column without nulls, as a view.

    >>> int(as_int64s(int64s([1, 5, 3])[1:]).max())
    5
    """
    return np.frombuffer(column.buffers()[1] or b"", np.int64, len(column), 8 * column.offset)


def int64_range(start: int, end: int) -> pa.Int64Array:
    """Return the integers from `start` to `end` (exclusive) as a column.

    >>> int64_range(5, 8).to_pylist()
    [5, 6, 7]
    """
    numbers = np.arange(start, end, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def binaries(items: Sequence[bytes | None]) -> pa.BinaryArray:
    """Return bytes and nulls as a column. Raises OverflowError beyond 2 GiB, TypeError for text.

    >>> binaries([b"a", None, b""]).to_pylist()
    [b'a', None, b'']
    """
    valid = None
    if None in items:
        bits = np.packbits([item is not None for item in items], bitorder="little")
        valid = pa.py_buffer(bits)
    filled = [item or b"" for item in items]
    ends = array("i", accumulate(map(len, filled), initial=0))
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(filled))]
    return pa.Array.from_buffers(pa.binary(), len(items), buffers)
