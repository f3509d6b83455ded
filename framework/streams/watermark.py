"""Watermarks: the event time up to which a partition, and all inputs, are complete.

The watermark of a partition is its greatest timestamp so far less the delay for records that are
out of order. It advances record by record, also within a batch, so which records are late does not
depend on where batches are cut.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

NO_WATERMARK = -(1 << 62)
"""Watermark before the first record, in ms: before all times, and far from the end of 64 bits."""

Times = np.ndarray[Any, np.dtype[np.int64]]


def running(times: Times, before: int, delay: int) -> Times:
    """Return the watermark of a partition before each of its records.

    Args:
        times: Timestamps of the records in ms since the epoch, in the order of their offsets.
        before: Watermark before the first of them; NO_WATERMARK if there was no record.
        delay: Milliseconds by which records may be out of order without being late.

    Returns:
        The watermark in ms before each record. It never goes back.

    >>> running(np.array([10, 30, 20, 40]), NO_WATERMARK, 5)[1:].tolist()
    [5, 25, 25]
    """
    if not len(times):
        return times.astype(np.int64)
    marks = np.empty(len(times), dtype=np.int64)
    marks[0] = before
    marks[1:] = np.maximum(times[:-1], NO_WATERMARK + delay) - delay
    found: Times = np.maximum.accumulate(marks)
    return found


def advanced(times: Times, before: int, delay: int) -> int:
    """Return the watermark after records, with the arguments of `running`.

    >>> advanced(np.array([10, 30, 20]), NO_WATERMARK, 5)
    25
    """
    if not len(times):
        return before
    return max(before, max(int(times.max()), NO_WATERMARK + delay) - delay)


class SourceWatermarks:
    """Watermark of several sources: the least of those that are not idle. It never goes back.

    A source without a record holds the watermark back, unless it is idle. While all are idle it is
    the greatest of them, as in Flink. A source that is active again may lag: its records may
    then be late.

    >>> marks = SourceWatermarks(["north", "south"])
    >>> marks.advance("north", 50), marks.advance("south", 30), marks.set_idle("south", idle=True)
    (-4611686018427387904, 30, 50)
    """

    def __init__(self, sources: Iterable[Hashable]) -> None:
        self._marks: dict[Hashable, int] = dict.fromkeys(sources, NO_WATERMARK)
        self._idle: set[Hashable] = set()
        self._value = NO_WATERMARK

    @property
    def value(self) -> int:
        """Watermark in ms since the epoch; NO_WATERMARK if it is not known yet."""
        return self._value

    def of(self, source: Hashable) -> int:
        """Return the watermark of one source."""
        return self._marks[source]

    def advance(self, source: Hashable, watermark: int) -> int:
        """Set the watermark of a source, unless it is later already; return the common one.

        A source that advances is not idle any more.
        """
        self._marks[source] = max(self._marks[source], watermark)
        return self.set_idle(source, idle=False)

    def set_idle(self, *sources: Hashable, idle: bool) -> int:
        """Set whether sources are idle, so that they hold nothing back; return the watermark."""
        (self._idle.update if idle else self._idle.difference_update)(sources)
        return self._reach()

    def raise_to(self, watermark: int, sources: Iterable[Hashable]) -> int:
        """Raise sources to a watermark; idle ones stay idle. Return the common watermark."""
        for source in sources:
            self._marks[source] = max(self._marks[source], watermark)
        return self._reach()

    def _reach(self) -> int:
        active = [mark for source, mark in self._marks.items() if source not in self._idle]
        reached = min(active) if active else max(self._marks.values(), default=self._value)
        self._value = max(self._value, reached)
        return self._value

    def state(self) -> tuple[int, Mapping[Hashable, int]]:
        """Return the watermark and those of the sources, to be written with a commit."""
        return self._value, dict(self._marks)

    def restored(self, value: int, marks: Mapping[Hashable, int]) -> None:
        """Set watermarks as they were committed. Sources that are not in `marks` are kept."""
        self._value = value
        self._marks |= marks
