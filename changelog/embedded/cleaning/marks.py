"""The last records of all keys as a bitmap over records, for more keys than fit into memory.

Every record has a number. The records of the clean section are counted, because many of its offsets
are missing. The numbers of the dirty section follow, one for each offset.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.embedded.cleaning.offset_map import Choice, Offsets
from strandline.changelog.embedded.format import FrameHeader

FRAME_BITS = 128
"""Bits that `CleanNumbers` takes for each frame: its base offset and its first number."""

Numbers = npt.NDArray[np.int64]


class Marks:
    """A bitmap over the numbers from 0 to `count` (exclusive).

    >>> marks = Marks(20)
    >>> marks.set(np.array([3, 17, 8], np.uint32))
    >>> marks.within(3, 17).tolist(), marks.of(np.array([8, 9])).tolist()
    ([3, 8], [True, False])
    """

    def __init__(self, count: int) -> None:
        self._bits = np.zeros(-(-count // 8), np.uint8)

    def set(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Mark distinct numbers that are not marked yet."""
        bits = np.left_shift(np.uint8(1), (numbers & np.uint32(7)).astype(np.uint8))
        # add.at is faster than bitwise_or.at, and sets the same bits as no number is marked twice.
        np.add.at(self._bits, numbers >> np.uint32(3), bits)

    def within(self, first: int, end: int) -> Numbers:
        """Return the marked numbers in [`first`, `end`), ascending."""
        start = first // 8
        bits = np.unpackbits(self._bits[start : -(-end // 8)], bitorder="little")
        return np.flatnonzero(bits[first - 8 * start : end - 8 * start]) + first

    def of(self, numbers: Numbers) -> Choice:
        """Return for each number whether it is marked."""
        bits = self._bits[numbers >> 3] >> (numbers & 7).astype(np.uint8)
        marked: Choice = (bits & 1).astype(np.bool_)
        return marked


class CleanNumbers:
    """The numbers of the records in the clean section, by frame."""

    def __init__(self) -> None:
        self._base_offsets = array("q")
        self._firsts = array("q")
        self.count = 0
        """Number of records."""

    def add(self, header: FrameHeader) -> None:
        """Number the records of the next frame."""
        self._base_offsets.append(header.base_offset)
        self._firsts.append(self.count)
        self.count += header.record_count

    @property
    def bits(self) -> int:
        """Number of bits needed for the frames added so far."""
        return self.count + FRAME_BITS * len(self._firsts)

    def first(self, base_offset: int) -> int:
        """Return the number of the first record of the frame with this base offset."""
        return self._firsts[bisect_right(self._base_offsets, base_offset) - 1]


class MarkedLatest:
    """The last records of all keys as a bitmap; the dirty section is [`base`, `end`)."""

    use = 1.0
    """Used part of the offset map: it was full at least once."""

    def __init__(self, clean: CleanNumbers, base: int, end: int) -> None:
        self._clean = clean
        self._base = base
        self._shift = clean.count - base
        self._last = end + self._shift - 1
        self._marks = Marks(end + self._shift)
        self.keys = 0
        """Number of keys with a record in the dirty section."""

    def add(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Mark the last records of some keys."""
        self._marks.set(numbers)
        self.keys += int(np.count_nonzero(numbers >= self._clean.count))

    def within(self, first: int, end: int) -> Offsets:
        """Return the offsets of last records in [`first`, `end`), a range of the dirty section."""
        return self._marks.within(first + self._shift, end + self._shift) - self._shift

    def not_superseded(self, keys: pa.BinaryArray, offsets: Offsets, base_offset: int) -> Choice:
        """Return for each record of a frame whether it is the last of its key.

        The answer for records at or after the end of the dirty section is meaningless.
        """
        numbers = np.minimum(offsets + self._shift, self._last)
        clean = int(np.searchsorted(offsets, self._base))
        if clean:
            numbers[:clean] = self._clean.first(base_offset) + np.arange(clean)
        return self._marks.of(numbers)
