"""Sizes of slices: the number of records that an instance handles before another one runs.

A slice has as many records as recently took about 50 ms, so that the clock is read rarely. If it
takes much longer, because handlers have become slower, it is cut short (`slice_guard.py`). Commits
are therefore punctual whether a handler takes a microsecond or a second.

With many partitions each slice is shorter, so that all of them get a turn within ROUND_SECONDS.
Slices are not shorter than necessary, because a partition's state leaves the CPU's cache while
other partitions are handled.
"""

from __future__ import annotations

SLICE_SECONDS = 0.05
"""Target duration of a slice in seconds."""
ROUND_SECONDS = 0.2
"""Target duration in seconds of all slices of a cycle."""
MAX_ROUND_S = 1.0
"""Seconds of a cycle after which no further slice begins, because handlers have become slow."""
MAX_SLICE_RECORDS = 32_768
"""Maximum number of records in a slice."""
FIRST_SLICE_RECORDS = 256
"""Number of records in the first slice."""


def slice_seconds(ready: int) -> float:
    """Return the target duration in seconds of the slice of each of `ready` instances.

    >>> slice_seconds(1), slice_seconds(100)
    (0.05, 0.002)
    """
    return min(SLICE_SECONDS, ROUND_SECONDS / ready)
