"""Sorted runs of keys in a file, merged range by range, for more keys than fit into memory.

A run is the content of a full offset map: each key once, sorted by hash, as three columns one after
another (both hashes, the number). Hashes are evenly distributed whatever the keys, hence a range of
hashes, read from all runs, can be as small as needed, and has all entries of its keys.

Only one pass uses the file, and it is worthless after a crash: it is not fsynced, and the next
opening of the log removes it by its name. A wrong number would remove a live record. The sums
of everything written and read are therefore compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strandline.changelog.embedded.cleaning.offset_map import PIECE_KEYS, HashedKeys
from strandline.changelog.embedded.cleaning.passes import PassPace
from strandline.changelog.errors import StorageFailed
from strandline.changelog.storage import Storage

RANGE_ENTRIES = 1 << 17
"""Number of entries merged at once: they fit into the processor's cache."""

_DTYPES = (np.dtype(np.uint64), np.dtype(np.uint64), np.dtype(np.uint32))
_ENTRY_BYTES = sum(dtype.itemsize for dtype in _DTYPES)
_SUM_MASK = (1 << 64) - 1


class _Run(NamedTuple):
    position: int
    """Byte in the file at which the run begins."""
    length: int
    """Number of entries."""
    lowest: int
    """Smallest number in the run."""
    cuts: npt.NDArray[np.uint32]
    """Index of the first entry of each range of hashes, then the number of entries."""


class SortedRuns:
    """Sorted runs in a new file at `path`, with at most `max_entries` entries in total.

    A range has about RANGE_ENTRIES entries, or `in_memory` if that is smaller. `pace` is called
    with the bytes written and read. Methods raise StorageFailed; after DiskFull the runs are
    unusable.
    """

    def __init__(
        self, storage: Storage, path: str, *, max_entries: int, in_memory: int, pace: PassPace
    ) -> None:
        self._storage = storage
        self._path = path
        self._pace = pace
        self._range = max(1, min(RANGE_ENTRIES, in_memory))
        self._bits = (max_entries // self._range).bit_length()
        self._runs: list[_Run] = []
        self._sums = {"written": 0, "read": 0}
        self._highest = 0
        storage.unlink(path)  # left by a pass that could not remove it
        self._file = storage.create(path)

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._file.size()

    def add(self, entries: HashedKeys, shift: int) -> int:
        """Write a run and return its size in bytes.

        Entries have each key once, sorted by hash. `shift` is added to their numbers. The ranges of
        numbers of two runs must not overlap, because they decide which entry of a key is the last.
        """
        first, _, numbers = entries
        if len(numbers) == 0:
            return 0
        position = self._file.size()
        for column in entries:
            for at in range(0, len(column), PIECE_KEYS):
                piece = column[at : at + PIECE_KEYS]
                if column is numbers:
                    piece = piece + np.uint32(shift)
                self._file.append(piece.data.cast("B"))
                self._add_to_sum("written", piece)
                self._pace(piece.nbytes)
        bounds = np.arange(1, 1 << self._bits, dtype=np.uint64) << np.uint64(64 - self._bits)
        cuts = np.concatenate(([0], np.searchsorted(first, bounds), [len(first)]))
        lowest = int(numbers.min()) + shift
        self._highest = max(self._highest, int(numbers.max()) + shift)
        self._runs.append(_Run(position, len(first), lowest, cuts.astype(np.uint32)))
        return self._file.size() - position

    def ranges(self) -> Iterator[HashedKeys]:
        """Yield all entries, one range of hashes at a time, runs with larger numbers later."""
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
        """Remove the file; may be called repeatedly."""
        self._file.close()
        with contextlib.suppress(StorageFailed):  # the next pass removes it, or the next opening
            self._storage.unlink(self._path)

    def _read(self, run: _Run, begin: int, end: int) -> list[npt.NDArray[Any]]:
        """Read the columns of a run between two of its cuts."""
        first, stop = int(run.cuts[begin]), int(run.cuts[end])
        columns, position = [], run.position
        for dtype in _DTYPES:
            size = (stop - first) * dtype.itemsize
            data = self._file.read(position + first * dtype.itemsize, size) if size else b""
            if len(data) != size:
                raise self._damaged()
            columns.append(np.frombuffer(data, dtype))
            self._add_to_sum("read", columns[-1])
            position += run.length * dtype.itemsize
        return columns

    def _add_to_sum(self, done: str, piece: npt.NDArray[Any]) -> None:
        self._sums[done] = self._sums[done] + int(piece.sum(dtype=np.uint64)) & _SUM_MASK

    def _damaged(self) -> StorageFailed:
        return StorageFailed(
            f"{self._path} was read back differently from what was just written: {self.bytes} bytes "
            "of keys, used by one pass of the cleaner only; nothing in the log has changed. Check "
            "the disk"
        )
