"""Columns of bytes as NumPy sees them: one run of bytes, and where each value begins in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def flat(data: pa.Array) -> tuple[Bytes, Ints]:
    """The bytes of a binary column without nulls, one behind another, and where each begins and ends."""
    if len(data) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    bounds = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    buffer = data.buffers()[2]
    whole = np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
    return whole[bounds[0] : bounds[-1]], (bounds - bounds[0]).astype(np.int64)


def bounds_of(sizes: Ints) -> Ints:
    """Where things of these sizes begin, one behind another, and where the last one ends."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def ranges(begin: Ints, lengths: Ints) -> Ints:
    """All places from `begin` on, `lengths` of them, one range behind another."""
    bounds = bounds_of(lengths)
    return np.repeat(begin - bounds[:-1], lengths) + np.arange(bounds[-1])


def binary(bounds: Ints, data: Bytes) -> pa.Array:
    """The column of which `flat` says this."""
    offsets = pa.py_buffer(bounds.astype(np.int32))
    return pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)], null_count=0
    )
