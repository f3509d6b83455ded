"""Which offset in the source became which in the target.

Offsets of a copy are others: what compaction or aborted transactions have left out in the source is
not there in the target, and the markers of the copy's own transactions take some there. Between such
gaps they run beside each other, so runs of them are enough: (first in the source, first in the target,
how many).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.errors import CorruptLog

Offsets = npt.NDArray[np.int64]
_CODEC = "zstd"


class RecordRuns(NamedTuple):
    """Of some records of one partition, in their order."""

    source: Offsets
    target: Offsets
    length: Offsets

    @classmethod
    def of(cls, source: Offsets, target: Offsets) -> RecordRuns:
        """From the two offsets of each record, of which there are some.

        >>> runs = RecordRuns.of(np.array([3, 4, 7, 8]), np.array([0, 1, 2, 9]))
        >>> [column.tolist() for column in runs]
        [[3, 7, 8], [0, 2, 9], [2, 1, 1]]
        """
        follows = (np.diff(source) == 1) & (np.diff(target) == 1)
        starts = np.append([0], np.flatnonzero(~follows) + 1)
        lengths = np.diff(np.append(starts, len(source)))
        return cls(source[starts], target[starts], lengths)

    def at(self, position: int) -> int | None:
        """Offset in the target of the first record from `position` of the source on; None behind all.

        >>> runs = RecordRuns.of(np.array([3, 4, 7, 8]), np.array([0, 1, 2, 9]))
        >>> [runs.at(position) for position in (0, 4, 5, 7, 8, 9)]
        [0, 1, 2, 2, 9, None]
        """
        index = int(np.searchsorted(self.source + self.length, position, side="right"))
        if index == len(self.source):
            return None
        return int(self.target[index] + max(0, position - self.source[index]))

    def encode(self) -> bytes:
        """As bytes: a few for regular runs, about one a run for irregular ones."""
        columns = np.stack(self).astype("<i8")
        raw = np.diff(columns, axis=1, prepend=0).tobytes()
        packed: bytes = pa.compress(raw, codec=_CODEC, asbytes=True)
        return len(raw).to_bytes(8, "little") + packed

    @classmethod
    def decode(cls, data: bytes) -> RecordRuns:
        """What `encode` made. Raises CorruptLog.

        >>> RecordRuns.decode(RecordRuns.of(np.array([3, 4, 9]), np.array([0, 1, 2])).encode()).at(5)
        2
        """
        size = int.from_bytes(data[:8], "little")
        try:
            raw = pa.decompress(data[8:], size, codec=_CODEC, asbytes=True)
            deltas = np.frombuffer(raw, "<i8").reshape(3, -1)
        except (OSError, ValueError) as error:
            raise CorruptLog(f"offsets of a copy cannot be decoded: {error}") from error
        return cls(*np.cumsum(deltas, axis=1))


def following(pieces: Sequence[tuple[int, int]]) -> Offsets:
    """The offsets of records that were written in pieces, each (first, last).

    >>> following([(4, 5), (9, 9)]).tolist()
    [4, 5, 9]
    """
    return np.concatenate([np.arange(first, last + 1) for first, last in pieces])
