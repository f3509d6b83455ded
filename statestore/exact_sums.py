"""Sums of int64 columns per key, without wrapping around."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
SAFE_SUM = 1 << 62
"""Bound of a sum that cannot overflow on the way."""


class SumOverflow(ArithmeticError):
    """Raised for a sum `total` beyond int64. `code` is the index of its key."""

    def __init__(self, code: int, total: int) -> None:
        super().__init__(f"the sum {total} has more than 64 bits")
        self.code = code


def added(old: Ints, codes: Ints, by: Ints | int) -> Ints:
    """Return `old` with the numbers of all rows added.

    Args:
        old: Number of each key.
        codes: Index in `old` of each row's key.
        by: Number of each row; one number for all rows.

    Raises:
        SumOverflow: A result does not fit in 64 bits.

    >>> added(np.array([10, 20]), np.array([1, 0, 1]), 2).tolist()
    [12, 24]
    """
    if not _is_safe(len(codes), by):
        return _added_exactly(old, codes, by)
    if isinstance(by, int):
        sums = np.bincount(codes, minlength=len(old)) * by
    else:
        sums = np.zeros(len(old), np.int64)
        np.add.at(sums, codes, by)
    new: Ints = old + sums
    # A sum of two numbers has wrapped around if its sign differs from the signs of both.
    wrapped = np.flatnonzero(((old ^ new) & (sums ^ new)) < 0)
    if len(wrapped):
        code = int(wrapped[0])
        raise SumOverflow(code, int(old[code]) + int(sums[code]))
    return new


def _is_safe(rows: int, by: Ints | int) -> bool:
    if isinstance(by, int):
        return rows * abs(by) < SAFE_SUM
    return not rows or rows * max(abs(int(by.min())), abs(int(by.max()))) < SAFE_SUM


def _added_exactly(old: Ints, codes: Ints, by: Ints | int) -> Ints:
    """Return the sums, made with Python's ints."""
    totals: npt.NDArray[Any] = old.astype(np.object_)
    np.add.at(totals, codes, by if isinstance(by, int) else by.astype(np.object_))
    for code, total in enumerate(totals.tolist()):
        if not INT64_MIN <= total <= INT64_MAX:
            raise SumOverflow(code, total)
    return totals.astype(np.int64)
