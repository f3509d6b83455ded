"""The last offset of every key in a range of offsets, in bounded memory (Kafka's SkimpyOffsetMap).

A key is represented by 128 bits of hash: two 64-bit XXH3 with random seeds. An entry takes 20 bytes
whatever the key's length. The probability that any two of n keys collide is below n² / 2¹²⁸: 10⁻²⁰
for a billion keys. Kafka uses 128 bits too (MD5).

The map sorts columns instead of hashing into a table, because sorting costs the same per key for
ten keys and for a hundred million. A batch of entries is sorted by hash and distributed to parts by
the first bits of the hash. A part that is full is sorted again, and only the last entry of each key
is kept. The sort runs on one column of integers: the hash, with its last bits replaced by the
entry's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets = npt.NDArray[np.int64]
Choice = npt.NDArray[np.bool_]
_Hashes = npt.NDArray[np.uint64]
_Relative = npt.NDArray[np.uint32]
_Order = npt.NDArray[np.int64]
_T = TypeVar("_T", np.uint64, np.uint32)

OVERHEAD_BYTES = 48 << 20
"""Bytes of the cleaner's memory kept for buffers, and for what allocators do not return."""
ENTRY_BYTES = 24
"""Bytes of an entry: two hashes and an offset, and an offset in `LatestOffsets`."""
LOAD_FACTOR = 0.9
"""Part of a map's entries for distinct keys; the rest holds repeated keys until the next sort."""
PIECE_KEYS = 1 << 16
"""Number of keys handled at once: the intermediate columns fit into the processor's cache."""
MAX_PARTS = 512
"""Maximum number of parts."""
PART_ENTRIES = 1 << 15
"""Entries of a part below the maximum number of parts: a part fits into the processor's cache."""
INITIAL_PART_ENTRIES = 1 << 12
"""Initial entries of a part."""
MAX_OFFSETS = (1 << 32) - 1
"""Number of offsets from the base on that fit into 32 bits."""
ABSENT = -1
"""Offset of a key that is not in the map."""


class HashedKeys(NamedTuple):
    """Hashes of keys and a number for each: three columns of the same length."""

    first: _Hashes
    second: _Hashes
    numbers: _Relative


class KeyHashes:
    """Hashes keys to 128 bits with a `seed` of 128 bits.

    `pause` is called about every millisecond of work.
    """

    def __init__(self, seed: int, pause: Callable[[], None]) -> None:
        self._seeds = (seed & 0xFFFF_FFFF_FFFF_FFFF, seed >> 64 & 0xFFFF_FFFF_FFFF_FFFF)
        self.pause = pause

    def of(self, keys: pa.BinaryArray) -> tuple[_Hashes, _Hashes]:
        """Return both hashes of each key."""
        import polars as pl  # takes 0.15 s, which an owner that cleans nothing does not spend

        column = pl.Series(pl.from_arrow(keys))
        first, second = (column.hash(seed).to_numpy() for seed in self._seeds)
        self.pause()
        return first, second


class OffsetMap:
    """The last offset of every key put into it, in at most `memory` bytes.

    `base` is the smallest offset. `seed` has 128 bits. `pause` is called about every millisecond of
    work.

    >>> keys = pa.array([b"a", b"b", b"a"])
    >>> known = OffsetMap(1 << 20, base=10, seed=7)
    >>> known.put(keys, np.arange(10, 13))
    3
    >>> latest = known.latest()
    >>> latest.of(pa.array([b"a", b"b", b"c"])).tolist()
    [12, 11, -1]
    >>> latest.within(10, 12).tolist()
    [11]
    """

    def __init__(
        self, memory: int, *, base: int, seed: int, pause: Callable[[], None] = lambda: None
    ) -> None:
        entries = max(1, key_memory(memory) // ENTRY_BYTES)
        part_bits = min(MAX_PARTS, max(1, entries // PART_ENTRIES)).bit_length() - 1
        self._parts = range(1 << part_bits)
        self._bounds = np.arange(1, len(self._parts), dtype=np.uint64) << np.uint64(64 - part_bits)
        self._max_space = entries // len(self._parts)
        self._space = min(INITIAL_PART_ENTRIES, self._max_space)
        """Allocated entries of a part."""
        self._full = max(1, int(self._max_space * LOAD_FACTOR))
        self.span = MAX_OFFSETS
        """Number of offsets from the base on that the map accepts."""
        self._hashes = KeyHashes(seed, pause)
        self._base = base
        self._first: _Hashes = np.empty(len(self._parts) * self._space, np.uint64)
        self._second: _Hashes = np.empty(len(self._parts) * self._space, np.uint64)
        self._offsets: _Relative = np.empty(len(self._parts) * self._space, np.uint32)
        self._lengths = [0] * len(self._parts)

    @property
    def capacity(self) -> int:
        """Number of keys that fit; slightly fewer do, because hashes fill the parts unevenly."""
        return self._full * len(self._parts)

    def put(self, keys: pa.BinaryArray, offsets: Offsets) -> int:
        """Put keys with ascending offsets until the map is full; return how many were put."""
        relative = offsets - self._base
        limit, done = int(np.searchsorted(relative, self.span)), 0
        while done < limit:
            count = min(limit - done, PIECE_KEYS)
            piece = relative[done : done + count].astype(np.uint32)
            taken = self._put(*self._hashes.of(keys.slice(done, count)), piece)
            done += taken
            if taken < count:
                break
        return done

    def latest(self) -> LatestOffsets:
        """Return the last offsets of all keys; the map must not be used afterwards."""
        entries = self.drain()
        use = min(1.0, len(entries.first) / self.capacity)
        return LatestOffsets(self._hashes, self._base, entries, use)

    def drain(self) -> HashedKeys:
        """Return each key once with its last offset minus the base, sorted by hash; empty the map.

        The result shares memory with the map: the next `put` overwrites it.
        """
        end = 0
        for part in self._parts:
            self._sort(part)
            length, self._lengths[part] = self._lengths[part], 0
            source = slice(part * self._space, part * self._space + length)
            target = slice(end, end + length)
            self._first[target] = self._first[source]
            self._second[target] = self._second[source]
            self._offsets[target] = self._offsets[source]
            end += length
        return HashedKeys(self._first[:end], self._second[:end], self._offsets[:end])

    def _put(self, first: _Hashes, second: _Hashes, offsets: _Relative) -> int:
        """Put one piece until the map is full; return how many entries were put."""
        last = last_entries(HashedKeys(first, second, offsets))
        cuts = [0, *np.searchsorted(last.first, self._bounds).tolist(), len(last.first)]
        end = self._make_room(last.numbers, cuts)
        if end is not None:  # again: the last entry of a key may be among those without room
            fits = int(np.searchsorted(offsets, end))
            return self._put(first[:fits], second[:fits], offsets[:fits]) if fits else 0
        for part, start, end in self._slices(cuts):
            at = part * self._space + self._lengths[part]
            to = slice(at, at + end - start)
            self._first[to] = last.first[start:end]
            self._second[to] = last.second[start:end]
            self._offsets[to] = last.numbers[start:end]
            self._lengths[part] += end - start
        self._hashes.pause()
        return len(first)

    def _make_room(self, offsets: _Relative, cuts: list[int]) -> int | None:
        """Make room for a piece; return the first offset that does not fit, or None."""
        first = None
        for part, start, end in self._slices(cuts):
            count = end - start
            if self._lengths[part] + count > self._space:
                self._sort(part)
                while self._space < self._max_space and (
                    2 * self._lengths[part] > self._space or count > self._room(part)
                ):
                    self._grow()
                if count > self._room(part):
                    first_left_out = int(np.sort(offsets[start:end])[self._room(part)])
                    first = first_left_out if first is None else min(first, first_left_out)
        return first

    def _room(self, part: int) -> int:
        """Return the number of entries that fit into a sorted part."""
        length = self._lengths[part]
        # A part above LOAD_FACTOR counts as full, because it would be sorted again for every few entries.
        return self._space - length if length < self._full else 0

    def _grow(self) -> None:
        """Double the space of every part, one column at a time to limit the peak memory."""
        before, self._space = self._space, min(2 * self._space, self._max_space)
        self._first = self._resized(self._first, before)
        self._second = self._resized(self._second, before)
        self._offsets = self._resized(self._offsets, before)

    def _resized(self, column: npt.NDArray[_T], before: int) -> npt.NDArray[_T]:
        larger = np.empty(len(self._parts) * self._space, column.dtype)
        for part, length in enumerate(self._lengths):
            at = part * self._space
            larger[at : at + length] = column[part * before : part * before + length]
        return larger

    def _slices(self, cuts: list[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (part, start, end): the slice of a sorted piece that belongs to each part."""
        for part in self._parts:
            if cuts[part] < cuts[part + 1]:
                yield part, cuts[part], cuts[part + 1]

    def _sort(self, part: int) -> None:
        """Sort a part by hash and keep only the last entry of each key."""
        at = part * self._space
        source = slice(at, at + self._lengths[part])
        last = last_entries(
            HashedKeys(self._first[source], self._second[source], self._offsets[source])
        )
        target = slice(at, at + len(last.first))
        self._first[target], self._second[target], self._offsets[target] = last
        self._lengths[part] = len(last.first)
        self._hashes.pause()


class LatestOffsets:
    """The last offset of every key, for look-ups; `entries` has each key once, sorted by hash."""

    def __init__(self, hashes: KeyHashes, base: int, entries: HashedKeys, use: float) -> None:
        self._hashes = hashes
        self._base = base
        self._first, self._second, self._offsets = entries
        self._ascending = np.sort(self._offsets)
        bits = max(1, len(self._first).bit_length() - 3)
        self._shift = np.uint64(64 - bits)
        self._starts = np.empty(1 << bits, np.int32)
        """Index of the first entry for each value of the first bits: four to eight entries each."""
        for at in range(0, 1 << bits, PIECE_KEYS):
            bounds = np.arange(at, min(at + PIECE_KEYS, 1 << bits), dtype=np.uint64) << self._shift
            self._starts[at : at + PIECE_KEYS] = np.searchsorted(self._first, bounds)
        self.use = use
        """Used part of the map, 0 to 1."""

    @property
    def keys(self) -> int:
        """Number of keys."""
        return len(self._offsets)

    def within(self, first: int, end: int) -> Offsets:
        """Return the last offsets in [`first`, `end`), ascending."""
        bounds = np.clip((first - self._base, end - self._base), 0, MAX_OFFSETS).astype(np.uint32)
        start, stop = np.searchsorted(self._ascending, bounds)
        return self._ascending[start:stop] + np.int64(self._base)

    def not_superseded(self, keys: pa.BinaryArray, offsets: Offsets, base_offset: int) -> Choice:
        """Return for each record of a frame whether no later record has its key."""
        return self.of(keys) <= offsets

    def of(self, keys: pa.BinaryArray) -> Offsets:
        """Return the last offset of each key; ABSENT for a key that is not in the map."""
        answer = np.full(len(keys), ABSENT, np.int64)
        for at in range(0, len(keys) if self.keys else 0, PIECE_KEYS):
            first, second = self._hashes.of(keys.slice(at, PIECE_KEYS))
            order = _ascending(first)  # close hashes together, for the processor's cache
            self._look_up(first.take(order), second.take(order), order + at, answer)
        return answer

    def _look_up(self, first: _Hashes, second: _Hashes, indices: _Order, answer: Offsets) -> None:
        """Look up keys by both hashes; write their offsets into `answer` at `indices`."""
        starts = self._starts.take((first >> self._shift).view(np.int64))
        places = np.minimum(starts, self.keys - 1)
        while len(places):
            candidates = self._first.take(places)
            near = np.flatnonzero(candidates == first)
            matches = near[self._second.take(places[near]) == second[near]]
            answer[indices[matches]] = self._offsets.take(places[matches]) + np.int64(self._base)
            rest = np.flatnonzero((candidates <= first) & (places < self.keys - 1))
            places = places.take(rest) + 1
            first, second, indices = first.take(rest), second.take(rest), indices.take(rest)
        self._hashes.pause()


def key_memory(memory: int) -> int:
    """Return the bytes for keys in `memory` bytes; the rest is for buffers."""
    return max(memory // 2, memory - OVERHEAD_BYTES)


def last_entries(entries: HashedKeys) -> HashedKeys:
    """Return each key's last entry (the last one in input order), sorted by hash."""
    first, second, numbers = entries
    order = _ascending(first)
    sorted_first, sorted_second = first.take(order), second.take(order)
    last = np.ones(len(first), np.bool_)
    np.not_equal(sorted_first[1:], sorted_first[:-1], out=last[:-1])
    in_order = not (sorted_first[1:] < sorted_first[:-1]).any()
    if in_order and last.all():
        return HashedKeys(sorted_first, sorted_second, numbers.take(order))
    other = sorted_second[1:] != sorted_second[:-1]
    if not in_order or (other > last[:-1]).any():  # different keys with (almost) equal first hashes
        _put_in_order(order, first, second)
        sorted_first, sorted_second = first.take(order), second.take(order)
        last[:-1] = sorted_first[1:] != sorted_first[:-1]
        last[:-1] |= sorted_second[1:] != sorted_second[:-1]
    chosen = np.flatnonzero(last)
    return HashedKeys(
        sorted_first.take(chosen), sorted_second.take(chosen), numbers.take(order.take(chosen))
    )


def _put_in_order(order: _Order, first: _Hashes, second: _Hashes) -> None:
    """Sort entries whose first hashes differ in the last bits at most by both hashes."""
    sorted_first = first.take(order)
    near = np.flatnonzero(sorted_first[1:] ^ sorted_first[:-1] <= _low_bits(len(first)))
    places = np.union1d(near, near + 1)
    some = order[places]
    order[places] = some[np.lexsort((second[some], first[some]))]


def _ascending(hashes: _Hashes) -> _Order:
    """Return the indices that sort the hashes without their last bits, stably."""
    low = _low_bits(len(hashes))
    numbered = hashes & ~low
    numbered |= np.arange(len(hashes), dtype=np.uint64)
    numbered.sort()
    numbered &= low
    return numbered.view(np.int64)


def _low_bits(count: int) -> np.uint64:
    """Return the mask of the last bits of a hash that hold the numbers of `count` entries."""
    return np.uint64((1 << count.bit_length()) - 1)
