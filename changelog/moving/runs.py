"""The mapping of source offsets to target offsets.

The offsets of a copy differ from the source's. Offsets missing in the source, because of compaction
and aborted transactions, are not missing in the target, and transaction markers of the copy take
offsets there. Between such gaps both ascend by one. The mapping is therefore stored as runs: first
offset in the source, first offset in the target, number of records.
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
    """The mapping of offsets for some records of one partition, in order."""

    source: Offsets
    """First source offset of each run."""
    target: Offsets
    """First target offset of each run."""
    length: Offsets
    """Number of records in each run."""

    @classmethod
    def of(cls, source: Offsets, target: Offsets) -> RecordRuns:
        """Return the runs for the source and target offsets of records, of at least one.

        >>> runs = RecordRuns.of(np.array([3, 4, 7, 8]), np.array([0, 1, 2, 9]))
        >>> [column.tolist() for column in runs]
        [[3, 7, 8], [0, 2, 9], [2, 1, 1]]
        """
        follows = (np.diff(source) == 1) & (np.diff(target) == 1)
        starts = np.append([0], np.flatnonzero(~follows) + 1)
        lengths = np.diff(np.append(starts, len(source)))
        return cls(source[starts], target[starts], lengths)

    def at(self, position: int) -> int | None:
        """Return the target offset of the first record at or after source offset `position`.

        None if all records are before it.

        >>> runs = RecordRuns.of(np.array([3, 4, 7, 8]), np.array([0, 1, 2, 9]))
        >>> [runs.at(position) for position in (0, 4, 5, 7, 8, 9)]
        [0, 1, 2, 2, 9, None]
        """
        index = int(np.searchsorted(self.source + self.length, position, side="right"))
        if index == len(self.source):
            return None
        return int(self.target[index] + max(0, position - self.source[index]))

    def encode(self) -> bytes:
        """Encode the runs: a few bytes if they are regular, else about one byte a run."""
        columns = np.stack(self).astype("<i8")
        raw = np.diff(columns, axis=1, prepend=0).tobytes()
        packed: bytes = pa.compress(raw, codec=_CODEC, asbytes=True)
        return len(raw).to_bytes(8, "little") + packed

    @classmethod
    def decode(cls, data: bytes) -> RecordRuns:
        """Decode the result of `encode`. Raises CorruptLog.

        >>> runs = RecordRuns.of(np.array([3, 4, 9]), np.array([0, 1, 2]))
        >>> RecordRuns.decode(runs.encode()).at(5)
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
    """Return the offsets of records written in pieces, each given as (first, last) offset.

    >>> following([(4, 5), (9, 9)]).tolist()
    [4, 5, 9]
    """
    return np.concatenate([np.arange(first, last + 1) for first, last in pieces])
