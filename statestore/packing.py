"""Encoding of many ints as a column of MessagePack values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa


def pack_ints(items: Sequence[int]) -> pa.Array:
    """Return each int as MessagePack.

    The ints are packed as one array, which is then cut by the size of each. Raises OverflowError
    for an int beyond 64 bits, signed.

    >>> pack_ints([1, -1, 200, 70_000]).to_pylist()
    [b'\\x01', b'\\xff', b'\\xcc\\xc8', b'\\xce\\x00\\x01\\x11p']
    """
    numbers = np.array(items, np.int64)
    packed = _pack(items)
    header = 1 if len(items) < 16 else 3 if len(items) < 65_536 else 5
    ends = np.zeros(len(items) + 1, np.int32)
    np.cumsum(_SIZES[np.searchsorted(_BOUNDS, numbers, "right")], out=ends[1:])
    body = pa.py_buffer(memoryview(packed)[header:])
    return pa.Array.from_buffers(pa.binary(), len(items), [None, pa.py_buffer(ends), body])


_pack = msgspec.msgpack.Encoder().encode

# Lower bounds of the ranges of ints whose MessagePack has as many bytes as _SIZES says: int64,
# int32, int16, int8, one byte, uint8, uint16, uint32, uint64.
_BOUNDS = np.array([-(2**31), -(2**15), -(2**7), -(2**5), 2**7, 2**8, 2**16, 2**32], dtype=np.int64)
_SIZES = np.array([9, 5, 3, 2, 1, 2, 3, 5, 9], dtype=np.int32)
