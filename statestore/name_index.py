"""Index of byte strings, which finds the strings of a whole column at once.

It is a hash table with open addressing in arrays. A look-up of a column follows the probes of all
of its strings together, so that the processor fetches many places of memory at the same time; a
Python dict waits for one after another. No string is kept as a Python object.

Two strings are the same if all bytes are the same; equal hashes are not enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.statestore.cells import (
    WORD_BYTES,
    ByteArray,
    Sizes,
    Words,
    offsets_and_bytes,
    slices,
)

SlotArray = npt.NDArray[np.int64]

MIN_ENTRIES = 256
"""Least number of entries in the table, a power of 2."""


@dataclass(frozen=True, slots=True)
class Names:
    """Byte strings of a column, as places in an array that continues for a word after the last."""

    data: ByteArray
    starts: Sizes
    lengths: Sizes

    @classmethod
    def of(cls, column: pa.Array) -> Names:
        """Return the strings of a column of type binary without nulls."""
        offsets, body = offsets_and_bytes(column)
        first, last = int(offsets[0]), int(offsets[-1])
        data = np.zeros(last - first + WORD_BYTES, np.uint8)
        data[: last - first] = body[first:last]
        return cls(data, (offsets[:-1] - first).astype(np.int64), np.diff(offsets).astype(np.int64))

    def take(self, rows: SlotArray) -> Names:
        """Return some of the strings."""
        return Names(self.data, self.starts[rows], self.lengths[rows])

    def words(self, rows: SlotArray, at: int) -> Words:
        """Return bytes [at, at + 8) of some strings, with zeros after their ends."""
        every = np.ndarray((len(self.data) - WORD_BYTES + 1,), "<u8", self.data, 0, (1,))
        words: Words = every[self.starts[rows] + at]
        return words & _WITHIN[np.minimum(self.lengths[rows] - at, WORD_BYTES)]

    def hashes(self) -> Words:
        """Return the hash of each string."""
        found = (self.lengths.view(np.uint64) + _SEED) * _FACTOR
        rows = np.arange(len(self.lengths))
        at = 0
        while len(rows := rows[self.lengths[rows] > at]):
            found[rows] = _mixed(found[rows] ^ self.words(rows, at))
            at += WORD_BYTES
        # The highest bit stays free, which no entry of the table may have.
        return (found ^ (found >> np.uint64(29))) >> np.uint64(1)


class NameIndex:
    """Slots of byte strings.

    >>> index = NameIndex()
    >>> names = pa.array([b"LHR", b"JFK"])
    >>> hashes = Names.of(names).hashes()
    >>> index.find(Names.of(names), hashes).tolist()
    [-1, -1]
    >>> index.add(Names.of(names), hashes, np.array([5, 0]))
    >>> index.find(Names.of(names), hashes).tolist(), index.names(np.array([5])).to_pylist()
    ([5, 0], [b'LHR'])
    """

    def __init__(self) -> None:
        self._names = Names(
            np.zeros(WORD_BYTES, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
        )
        self._hashes: Words = np.empty(0, np.uint64)
        self._end = 0
        self._count = 0
        self._garbage = 0
        """Bytes of removed strings in the data."""
        self._entries: Words = np.zeros(MIN_ENTRIES, np.uint64)
        """High half of a hash, and slot + 1; 0 is free, `_REMOVED` was removed."""
        self._used = 0
        """Entries that are not free."""

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of all strings."""
        return self._end - self._garbage

    def find(self, names: Names, hashes: Words) -> SlotArray:
        """Return the slot of each string, or -1."""
        found = np.full(len(hashes), -1, np.int64)
        rows = np.arange(len(hashes))
        places = self._first_places(hashes)
        while len(rows):
            entries = self._entries[places]
            alike = np.flatnonzero((entries != 0) & ((entries ^ hashes[rows]) < _LOW_HALF))
            slots = (entries[alike] & _SLOT).view(np.int64) - 1
            same = self._are_same(slots, names, rows[alike])
            found[rows[alike[same]]] = slots[same]
            goes_on = entries != 0
            goes_on[alike[same]] = False
            rows, places = rows[goes_on], self._next(places[goes_on])
        return found

    def add(self, names: Names, hashes: Words, slots: SlotArray) -> None:
        """Add distinct strings that are not in the index, with slots that have none."""
        size, end = int(names.lengths.sum()), self._end
        self._reserve(size, int(slots.max()) + 1 if len(slots) else 0)
        ends = np.cumsum(names.lengths)
        self._names.data[end : end + size] = _body(names, size)
        self._names.starts[slots] = end + ends - names.lengths
        self._names.lengths[slots] = names.lengths
        self._hashes[slots] = hashes
        self._end += size
        self._count += len(slots)
        if 2 * (self._used + len(slots)) > len(self._entries):
            self._rebuild(slots)
        else:
            self._insert(slots)

    def remove(self, slots: SlotArray) -> None:
        """Remove the strings of distinct slots."""
        self._count -= len(slots)
        self._garbage += int(self._names.lengths[slots].sum())
        wanted = self._entry(slots)
        rows, places = np.arange(len(slots)), self._first_places(self._hashes[slots])
        while len(rows):
            is_found = self._entries[places] == wanted[rows]
            self._entries[places[is_found]] = _REMOVED
            rows, places = rows[~is_found], self._next(places[~is_found])
        if 2 * self._garbage > self._end:
            self._drop_garbage()

    def names(self, slots: SlotArray) -> pa.Array:
        """Return the strings of slots as a column."""
        starts, lengths = self._names.starts[slots], self._names.lengths[slots]
        return slices(self._names.data, starts, starts + lengths)

    def _are_same(self, slots: SlotArray, names: Names, rows: SlotArray) -> npt.NDArray[np.bool_]:
        same: npt.NDArray[np.bool_] = self._names.lengths[slots] == names.lengths[rows]
        at = 0
        longest = int(names.lengths[rows].max()) if len(rows) else 0
        while at < longest:
            left = np.flatnonzero(same & (names.lengths[rows] > at))
            differs = self._names.words(slots[left], at) != names.words(rows[left], at)
            same[left[differs]] = False
            at += WORD_BYTES
        return same

    def _insert(self, slots: SlotArray) -> None:
        """Add entries of slots. There must be enough free ones."""
        entries, places = self._entry(slots), self._first_places(self._hashes[slots])
        self._used += len(slots)
        while len(entries):
            is_free = self._entries[places] == 0
            self._entries[places[is_free]] = entries[is_free]
            # If several entries were for the same place, the one written last is in it.
            is_left = self._entries[places] != entries
            entries, places = entries[is_left], self._next(places[is_left])

    def _rebuild(self, added: SlotArray) -> None:
        """Rebuild the table, without removed entries, with the slots in it and those added."""
        slots = np.concatenate([self._slots(), added])
        size = max(MIN_ENTRIES, 1 << (3 * len(slots)).bit_length())
        self._entries = np.zeros(size, np.uint64)
        self._used = 0
        self._insert(slots)

    def _slots(self) -> SlotArray:
        """Return the slots in the table."""
        kept = self._entries[(self._entries != 0) & (self._entries != _REMOVED)]
        found: SlotArray = (kept & _SLOT).view(np.int64) - 1
        return found

    def _drop_garbage(self) -> None:
        """Copy the strings that are left to the beginning of new data."""
        slots = self._slots()
        kept = Names.of(self.names(slots))
        self._names.starts[slots] = kept.starts
        self._names = Names(kept.data, self._names.starts, self._names.lengths)
        self._end, self._garbage = len(kept.data) - WORD_BYTES, 0

    def _reserve(self, nbytes: int, slots: int) -> None:
        """Make room for more bytes, and for slots up to a number."""
        names = self._names
        data, starts, lengths = names.data, names.starts, names.lengths
        if self._end + nbytes + WORD_BYTES > len(data):
            data = np.zeros(2 * (self._end + nbytes) + WORD_BYTES, np.uint8)
            data[: self._end] = names.data[: self._end]
        if slots > len(starts):
            starts, lengths, self._hashes = (
                np.concatenate([each, np.zeros(max(slots, 2 * len(each)) - len(each), each.dtype)])
                for each in (starts, lengths, self._hashes)
            )
        self._names = Names(data, starts, lengths)

    def _entry(self, slots: SlotArray) -> Words:
        return (self._hashes[slots] & ~_SLOT) | (slots + 1).view(np.uint64)

    def _first_places(self, hashes: Words) -> SlotArray:
        return (hashes & np.uint64(len(self._entries) - 1)).view(np.int64)

    def _next(self, places: SlotArray) -> SlotArray:
        return (places + 1) & (len(self._entries) - 1)


def _body(names: Names, size: int) -> ByteArray:
    """Return the bytes of strings one after another."""
    starts, ends = names.starts, names.starts + names.lengths
    if not size or (int(ends[-1] - starts[0]) == size and (starts[1:] == ends[:-1]).all()):
        return names.data[starts[0] : starts[0] + size] if size else names.data[:0]
    return np.frombuffer(slices(names.data, starts, ends).buffers()[2], np.uint8)


def _mixed(words: Words) -> Words:
    words = words * _FACTOR
    return words ^ (words >> np.uint64(32))


# Python chooses the hashes of a process at random, so that no client can prepare keys that collide.
_SEED = np.uint64(hash("names") & ((1 << 64) - 1))
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LOW_HALF = np.uint64(1 << 32)
_SLOT = _LOW_HALF - np.uint64(1)
_REMOVED = ~np.uint64(0)
_WITHIN = np.array([(1 << 8 * size) - 1 for size in range(WORD_BYTES + 1)], np.uint64)
"""Bits of the first bytes of a word, by their number."""
