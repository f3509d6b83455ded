"""How many records an instance handles in one go.

A slice is as many as took about 50 ms lately, so that the clock is read rarely. One that takes much
longer, since handlers have become slow, is cut short (`slice_guard.py`), so that commits are punctual
whether a handler takes a microsecond or a second. Of many partitions each has a shorter one. It is
not shorter than that, as a partition's state does not stay in the processor's cache while others
are handled.
"""

from __future__ import annotations

SLICE_SECONDS = 0.05
ROUND_SECONDS = 0.2
"""All slices of a cycle together."""
ROUND_AT_MOST_S = 1.0
"""No further slice begins after so many seconds of a cycle: handlers have become slow."""
SLICE_RECORDS = 32_768
SLICE_FIRST = 256


def slice_seconds(ready: int, in_turn: int) -> float:
    """How long each slice should take, if `in_turn` of the instances do not run at once.

    >>> slice_seconds(1, 1), slice_seconds(100, 100), slice_seconds(5, 0)
    (0.05, 0.002, 0.01)
    """
    return min(SLICE_SECONDS * max(in_turn, 1), ROUND_SECONDS) / ready


def shares(count: int, size: int, left: int | None) -> list[int]:
    """How many records each of `count` instances may handle, `left` together at most."""
    if left is None:
        return [size] * count
    shares = []
    for _ in range(count):
        shares.append(min(size, max(left, 0)))
        left -= shares[-1]
    return shares
