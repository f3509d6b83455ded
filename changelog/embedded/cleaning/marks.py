"""The last records of all keys by a bit for each record, for more keys than fit into memory.

Records are numbered: first those of the clean section, as they come (many of its offsets are missing), then the
offsets of the dirty section.
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
"""That a frame of the clean section takes beside its records."""

Numbers = npt.NDArray[np.int64]


class Marks:
    """A bit for each of `count` numbers.

    >>> marks = Marks(20)
    >>> marks.set(np.array([3, 17, 8], np.uint32))
    >>> marks.within(3, 17).tolist(), marks.of(np.array([8, 9])).tolist()
    ([3, 8], [True, False])
    """

    def __init__(self, count: int) -> None:
        self._bits = np.zeros(-(-count // 8), np.uint8)

    def set(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Mark numbers that differ and are not marked yet."""
        bits = np.left_shift(np.uint8(1), (numbers & np.uint32(7)).astype(np.uint8))
        np.add.at(self._bits, numbers >> np.uint32(3), bits)  # which is faster than bitwise_or.at

    def within(self, first: int, behind: int) -> Numbers:
        """The marked numbers in [`first`, `behind`), ascending."""
        start = first // 8
        bits = np.unpackbits(self._bits[start : -(-behind // 8)], bitorder="little")
        return np.flatnonzero(bits[first - 8 * start : behind - 8 * start]) + first

    def of(self, numbers: Numbers) -> Choice:
        """Which numbers are marked."""
        bits = self._bits[numbers >> 3] >> (numbers & 7).astype(np.uint8)
        marked: Choice = (bits & 1).astype(np.bool_)
        return marked


class CleanNumbers:
    """The numbers of the records of a log's clean section, frame by frame."""

    def __init__(self) -> None:
        self._base_offsets = array("q")
        self._firsts = array("q")
        self.count = 0
        """Of records."""

    def add(self, header: FrameHeader) -> None:
        """The records of the next frame get their numbers."""
        self._base_offsets.append(header.base_offset)
        self._firsts.append(self.count)
        self.count += header.record_count

    @property
    def bits(self) -> int:
        """That are needed for them."""
        return self.count + FRAME_BITS * len(self._firsts)

    def first(self, base_offset: int) -> int:
        """Of the frame with that base offset."""
        return self._firsts[bisect_right(self._base_offsets, base_offset) - 1]


class MarkedLatest:
    """Which records are the last of their keys; the dirty section is [`base`, `end`)."""

    use = 1.0

    def __init__(self, clean: CleanNumbers, base: int, end: int) -> None:
        self._clean = clean
        self._base = base
        self._shift = clean.count - base
        self._last = end + self._shift - 1
        self._marks = Marks(end + self._shift)
        self.keys = 0
        """How many there are in the dirty section."""

    def add(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Note the last records of some keys."""
        self._marks.set(numbers)
        self.keys += int(np.count_nonzero(numbers >= self._clean.count))

    def within(self, first: int, behind: int) -> Offsets:
        """The offsets of such records in [`first`, `behind`), a stretch of the dirty section."""
        return self._marks.within(first + self._shift, behind + self._shift) - self._shift

    def outlast(self, keys: pa.BinaryArray, offsets: Offsets, base_offset: int) -> Choice:
        """Which records of a frame have no later one with their key; of no interest behind the end."""
        numbers = np.minimum(offsets + self._shift, self._last)
        clean = int(np.searchsorted(offsets, self._base))
        if clean:
            numbers[:clean] = self._clean.first(base_offset) + np.arange(clean)
        return self._marks.of(numbers)
