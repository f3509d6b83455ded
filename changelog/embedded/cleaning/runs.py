"""Keys that do not all fit into memory: sorted runs of them in a file, put together range by range.

A run is a map that was full: each of its keys once, by hash, in three columns one after another (both
hashes, the number). As a hash does not depend on what the keys are, a range of it, cut out of all runs,
is as small as one wishes, and all records of a key are in the same one.

The file is nobody's but the pass's that writes it, and worth nothing after a crash: it is not fsynced,
and has a name that the next opening removes. A number that came back wrong would cost a record, so
the sums of what was written and of what was read are compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strandline.changelog.embedded.cleaning.offset_map import PIECE, HashedKeys
from strandline.changelog.embedded.cleaning.passes import PassPace
from strandline.changelog.errors import StorageFailed
from strandline.changelog.storage import Storage

RANGE = 1 << 17
"""Entries put together at once: they stay in the processor's cache."""

_DTYPES = (np.dtype(np.uint64), np.dtype(np.uint64), np.dtype(np.uint32))
_ENTRY_BYTES = sum(dtype.itemsize for dtype in _DTYPES)
_SUM = (1 << 64) - 1


class _Run(NamedTuple):
    position: int
    """In the file."""
    length: int
    """Entries."""
    lowest: int
    """Of its numbers."""
    cuts: npt.NDArray[np.uint32]
    """How many entries come before each range of the hash, and before the end."""


class SortedRuns:
    """Runs of at most `most` entries together, in a new file at `path`.

    Ranges have about RANGE entries, or `in_memory` if these are fewer. `pace` is told of what is
    written and read. Raises StorageFailed; DiskFull leaves the runs of no use.
    """

    def __init__(
        self, storage: Storage, path: str, *, most: int, in_memory: int, pace: PassPace
    ) -> None:
        self._storage = storage
        self._path = path
        self._pace = pace
        self._range = max(1, min(RANGE, in_memory))
        self._bits = (most // self._range).bit_length()
        self._runs: list[_Run] = []
        self._sums = {"written": 0, "read": 0}
        self._highest = 0
        storage.unlink(path)  # of a pass that could not remove it
        self._file = storage.create(path)

    @property
    def bytes(self) -> int:
        """Written so far."""
        return self._file.size()

    def add(self, entries: HashedKeys, shift: int) -> int:
        """Write a run, each key once, by hash; `shift` is added to the numbers. How many bytes that are.

        The numbers of one run are all larger than those of another, or all smaller.
        """
        first, _, numbers = entries
        if len(numbers) == 0:
            return 0
        position = self._file.size()
        for column in entries:
            for at in range(0, len(column), PIECE):
                piece = column[at : at + PIECE]
                if column is numbers:
                    piece = piece + np.uint32(shift)
                self._file.append(piece.data.cast("B"))
                self._counted("written", piece)
                self._pace(piece.nbytes)
        bounds = np.arange(1, 1 << self._bits, dtype=np.uint64) << np.uint64(64 - self._bits)
        cuts = np.concatenate(([0], np.searchsorted(first, bounds), [len(first)]))
        lowest = int(numbers.min()) + shift
        self._highest = max(self._highest, int(numbers.max()) + shift)
        self._runs.append(_Run(position, len(first), lowest, cuts.astype(np.uint32)))
        return self._file.size() - position

    def ranges(self) -> Iterator[HashedKeys]:
        """All entries, range by range of the hash; in each run by run, those with larger numbers later."""
        runs = sorted(self._runs, key=attrgetter("lowest"))
        total = sum(run.length for run in runs)
        step = 1 << max(0, self._bits - (total // self._range).bit_length())
        for at in range(0, 1 << self._bits if runs else 0, step):
            columns = zip(*(self._read(run, at, at + step) for run in runs), strict=True)
            entries = HashedKeys(*map(np.concatenate, columns))
            if entries.numbers.max(initial=0) > self._highest:
                raise self._damaged()
            self._pace(len(entries.first) * _ENTRY_BYTES)
            yield entries
        if self._sums["written"] != self._sums["read"]:
            raise self._damaged()

    def close(self) -> None:
        """Remove the file; harmless when repeated."""
        self._file.close()
        with contextlib.suppress(StorageFailed):  # the next pass removes it, or the next opening
            self._storage.unlink(self._path)

    def _read(self, run: _Run, begin: int, behind: int) -> list[npt.NDArray[Any]]:
        """The columns of a stretch of a run, between two of its cuts."""
        first, end = int(run.cuts[begin]), int(run.cuts[behind])
        columns, position = [], run.position
        for dtype in _DTYPES:
            size = (end - first) * dtype.itemsize
            data = self._file.read(position + first * dtype.itemsize, size) if size else b""
            if len(data) != size:
                raise self._damaged()
            columns.append(np.frombuffer(data, dtype))
            self._counted("read", columns[-1])
            position += run.length * dtype.itemsize
        return columns

    def _counted(self, done: str, piece: npt.NDArray[Any]) -> None:
        self._sums[done] = self._sums[done] + int(piece.sum(dtype=np.uint64)) & _SUM

    def _damaged(self) -> StorageFailed:
        return StorageFailed(
            f"{self._path} came back other than it was written a moment ago: {self.bytes} bytes of "
            "keys, for a pass of the cleaner alone; nothing in the log has changed. Check the disk"
        )
