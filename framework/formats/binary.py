"""Columns of bytes as NumPy arrays: one run of bytes, and the bounds of each value in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def flat(data: pa.Array) -> tuple[Bytes, Ints]:
    """Return the bytes of a binary column without nulls, joined, and the bounds of its values."""
    if len(data) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    bounds = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    buffer = data.buffers()[2]
    whole = np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
    return whole[bounds[0] : bounds[-1]], (bounds - bounds[0]).astype(np.int64)


def bounds_of(sizes: Ints) -> Ints:
    """Return the bounds of adjacent parts of these sizes: each begin, and the end (exclusive)."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def ranges(begin: Ints, lengths: Ints) -> Ints:
    """Return all places of several ranges, joined: `lengths` places from each `begin`."""
    bounds = bounds_of(lengths)
    return np.repeat(begin - bounds[:-1], lengths) + np.arange(bounds[-1])


def binary(bounds: Ints, data: Bytes) -> pa.Array:
    """Return the column with these bounds and bytes; the inverse of `flat`."""
    offsets = pa.py_buffer(bounds.astype(np.int32))
    return pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)], null_count=0
    )
