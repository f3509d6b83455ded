"""The last offset of every key of a stretch of a log, in bounded memory (Kafka's SkimpyOffsetMap).

A key is known by 128 bits of hash: two XXH3 of 64 bits, whose seeds nobody knows in advance. So an
entry takes 20 bytes whatever the key, and that two of n keys are taken for one has a probability below
n² / 2¹²⁸: 10⁻²⁰ for a billion. Kafka takes 128 bits too, of MD5.

Not a hash table, but sorting on columns, which costs the same for ten keys and for a hundred million: a
piece of entries is sorted by hash and dealt out to parts, by the first bits. A part that has doubled is
sorted again, and of entries with the same key the last one stays. What is sorted is one column of integers:
of each the hash, with the entry's number in the place of the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Offsets = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]
_Relative = npt.NDArray[np.uint32]
_Order = npt.NDArray[np.int64]
_T = TypeVar("_T", np.uint64, np.uint32)

OVERHEAD = 48 << 20
"""Bytes, of the memory given, for what is read and written at a time, and what allocators keep."""
ENTRY_BYTES = 24
"""Two hashes and an offset, and an offset in `Latest`."""
LOAD = 0.9
"""Of the room, what keys may take; the rest is for repetitions, until the next sorting."""
PIECE = 1 << 16
"""Keys handled at once: what is computed for them stays in the processor's cache."""
MOST_PARTS = 512
PART = 1 << 15
"""Entries of a part, if there are not too many parts. They too stay in the cache."""
FIRST_SPACE = 1 << 12
"""Entries of a part, to begin with."""
SPAN = (1 << 32) - 1
"""So many offsets from the base on can be told apart."""
ABSENT = -1


class KeyHashes:
    """128 bits for a key, by a `seed` of as many. `pause` is called about every millisecond of work."""

    def __init__(self, seed: int, pause: Callable[[], None]) -> None:
        self._seeds = (seed & 0xFFFF_FFFF_FFFF_FFFF, seed >> 64 & 0xFFFF_FFFF_FFFF_FFFF)
        self.pause = pause

    def of(self, keys: pa.BinaryArray) -> tuple[_Hashes, _Hashes]:
        """Both hashes of each key."""
        column = pl.Series(pl.from_arrow(keys))
        first, second = (column.hash(seed).to_numpy() for seed in self._seeds)
        self.pause()
        return first, second


class OffsetMap:
    """Takes in keys with their offsets, from `base` on, in at most `memory` bytes.

    `seed` has 128 bits. `pause` is called about every millisecond of work.

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
        entries = max(1, max(memory // 2, memory - OVERHEAD) // ENTRY_BYTES)
        self._part_bits = min(MOST_PARTS, max(1, entries // PART)).bit_length() - 1
        self._parts = range(1 << self._part_bits)
        self._bounds = np.arange(1, len(self._parts), dtype=np.uint64) << np.uint64(
            64 - self._part_bits
        )
        self._most_space = entries // len(self._parts)
        self._space = min(FIRST_SPACE, self._most_space)
        """Entries of a part."""
        self._full = max(1, int(self._most_space * LOAD))
        self._hashes = KeyHashes(seed, pause)
        self._base = base
        self._first: _Hashes = np.empty(len(self._parts) * self._space, np.uint64)
        self._second: _Hashes = np.empty(len(self._parts) * self._space, np.uint64)
        self._offsets: _Relative = np.empty(len(self._parts) * self._space, np.uint32)
        self._lengths = [0] * len(self._parts)

    @property
    def capacity(self) -> int:
        """So many keys fit, or a few less: hashes do not fill all parts alike."""
        return self._full * len(self._parts)

    def put(self, keys: pa.BinaryArray, offsets: Offsets) -> int:
        """Take in records, offsets ascending, as far as there is room; how many were taken."""
        relative = offsets - self._base
        most, done = int(np.searchsorted(relative, SPAN)), 0
        while done < most:
            count = min(most - done, PIECE)
            piece = relative[done : done + count].astype(np.uint32)
            taken = self._put(*self._hashes.of(keys.slice(done, count)), piece)
            done += taken
            if taken < count:
                break
        return done

    def latest(self) -> Latest:
        """The last records of all keys; this map is of no use any more."""
        end = 0
        for part in self._parts:
            self._sort(part)
            length = self._lengths[part]
            here = slice(part * self._space, part * self._space + length)
            there = slice(end, end + length)
            self._first[there] = self._first[here]
            self._second[there] = self._second[here]
            self._offsets[there] = self._offsets[here]
            end += length
        first, second, offsets = self._first[:end], self._second[:end], self._offsets[:end]
        use = min(1.0, end / self.capacity)
        return Latest(self._hashes, self._base, first, second, offsets, use)

    def _put(self, first: _Hashes, second: _Hashes, offsets: _Relative) -> int:
        """Take in a piece, as far as there is room; how many entries were taken."""
        order = _ascending(first)
        sorted_first, sorted_second = first.take(order), second.take(order)
        last = np.flatnonzero(~_repeated(sorted_first, sorted_second))
        sorted_first, sorted_second = sorted_first.take(last), sorted_second.take(last)
        order = order.take(last)
        cuts = [0, *np.searchsorted(sorted_first, self._bounds).tolist(), len(order)]
        fits = self._fitting(len(first), order, cuts)
        if fits < len(first):  # a key's last entry may be among those that are left out
            return self._put(first[:fits], second[:fits], offsets[:fits]) if fits else 0
        sorted_offsets = offsets.take(order)
        for part, start, end in self._dealt(cuts):
            at = part * self._space + self._lengths[part]
            to = slice(at, at + end - start)
            self._first[to] = sorted_first[start:end]
            self._second[to] = sorted_second[start:end]
            self._offsets[to] = sorted_offsets[start:end]
            self._lengths[part] += end - start
        self._hashes.pause()
        return fits

    def _fitting(self, fits: int, order: _Order, cuts: list[int]) -> int:
        """So many of a piece's entries can be taken; `order` has their numbers. Makes room."""
        for part, start, end in self._dealt(cuts):
            count = end - start
            if self._lengths[part] + count > self._space:
                self._sort(part)
                while self._space < self._most_space and (
                    2 * self._lengths[part] > self._space or count > self._room(part)
                ):
                    self._grow()
                if count > self._room(part):
                    fits = min(fits, int(np.sort(order[start:end])[self._room(part)]))
        return fits

    def _room(self, part: int) -> int:
        """So many entries have room in a part that is sorted."""
        length = self._lengths[part]
        # Beyond, it would be sorted for a few entries again and again.
        return self._space - length if length < self._full else 0

    def _grow(self) -> None:
        """Twice as much space for each part, a column at a time, or all were there twice."""
        before, self._space = self._space, min(2 * self._space, self._most_space)
        self._first = self._moved(self._first, before)
        self._second = self._moved(self._second, before)
        self._offsets = self._moved(self._offsets, before)

    def _moved(self, column: npt.NDArray[_T], before: int) -> npt.NDArray[_T]:
        larger = np.empty(len(self._parts) * self._space, column.dtype)
        for part, length in enumerate(self._lengths):
            at = part * self._space
            larger[at : at + length] = column[part * before : part * before + length]
        return larger

    def _dealt(self, cuts: list[int]) -> Iterator[tuple[int, int, int]]:
        """Which part gets which stretch of a piece: part, start, end."""
        for part in self._parts:
            if cuts[part] < cuts[part + 1]:
                yield part, cuts[part], cuts[part + 1]

    def _sort(self, part: int) -> None:
        """Sort a part by hash, and leave the last entry of each key."""
        at = part * self._space
        here = slice(at, at + self._lengths[part])
        first, second, offsets = self._first[here], self._second[here], self._offsets[here]
        order = _ascending(first)
        sorted_first, sorted_second = first.take(order), second.take(order)
        repeated = _repeated(sorted_first, sorted_second)
        if _mixed(sorted_first, repeated):
            order = np.lexsort((second, first))
            sorted_first, sorted_second = first.take(order), second.take(order)
            repeated = _repeated(sorted_first, sorted_second)
        last = np.flatnonzero(~repeated)
        count = len(last)
        offsets[:count] = offsets.take(order.take(last))
        first[:count] = sorted_first.take(last)
        second[:count] = sorted_second.take(last)
        self._lengths[part] = count
        self._hashes.pause()


class Latest:
    """The last offset of every key. Columns are by hash, ascending."""

    def __init__(
        self,
        hashes: KeyHashes,
        base: int,
        first: _Hashes,
        second: _Hashes,
        offsets: _Relative,
        use: float,
    ) -> None:
        self._hashes = hashes
        self._base = base
        self._first = first
        self._second = second
        self._offsets = offsets
        self._ascending = np.sort(offsets)
        bits = max(1, len(first).bit_length() - 3)
        self._shift = np.uint64(64 - bits)
        self._starts = np.empty(1 << bits, np.int32)
        """Where the hashes begin that have the same first bits, a few for each."""
        for at in range(0, 1 << bits, PIECE):
            bounds = np.arange(at, min(at + PIECE, 1 << bits), dtype=np.uint64) << self._shift
            self._starts[at : at + PIECE] = np.searchsorted(first, bounds)
        self.use = use
        """The part of the map's room that is taken, 0 to 1."""

    @property
    def keys(self) -> int:
        """How many there are."""
        return len(self._offsets)

    def within(self, first: int, behind: int) -> Offsets:
        """The offsets in [`first`, `behind`), ascending."""
        bounds = np.clip((first - self._base, behind - self._base), 0, SPAN).astype(np.uint32)
        start, end = np.searchsorted(self._ascending, bounds)
        return self._ascending[start:end] + np.int64(self._base)

    def of(self, keys: pa.BinaryArray) -> Offsets:
        """The last offset of each key; ABSENT for one that is not there."""
        answer = np.full(len(keys), ABSENT, np.int64)
        for at in range(0, len(keys) if self.keys else 0, PIECE):
            first, second = self._hashes.of(keys.slice(at, PIECE))
            order = _ascending(first)  # near ones are looked up together, in the cache
            self._look_up(first.take(order), second.take(order), order + at, answer)
        return answer

    def _look_up(self, first: _Hashes, second: _Hashes, asked: _Order, answer: Offsets) -> None:
        starts = self._starts.take((first >> self._shift).view(np.int64))
        places = np.minimum(starts, self.keys - 1)
        while len(places):
            there = self._first.take(places)
            near = np.flatnonzero(there == first)
            mine = near[self._second.take(places[near]) == second[near]]
            answer[asked[mine]] = self._offsets.take(places[mine]) + np.int64(self._base)
            rest = np.flatnonzero((there <= first) & (places < self.keys - 1))
            places = places.take(rest) + 1
            first, second, asked = first.take(rest), second.take(rest), asked.take(rest)
        self._hashes.pause()


def _ascending(hashes: _Hashes) -> _Order:
    """The order of hashes, but for their last bits; where these are all that differs, as they come."""
    low = _low_bits(len(hashes))
    numbered = hashes & ~low
    numbered |= np.arange(len(hashes), dtype=np.uint64)
    numbered.sort()
    numbered &= low
    return numbered.view(np.int64)


def _low_bits(count: int) -> np.uint64:
    """The bits of a hash that make room for the numbers of so many entries."""
    return np.uint64((1 << count.bit_length()) - 1)


def _repeated(first: _Hashes, second: _Hashes) -> npt.NDArray[np.bool_]:
    """Which entries have the key of the next one."""
    repeated = np.zeros(len(first), np.bool_)
    repeated[:-1] = (first[:-1] == first[1:]) & (second[:-1] == second[1:])
    return repeated


def _mixed(first: _Hashes, repeated: npt.NDArray[np.bool_]) -> bool:
    """Whether neighbours have different keys and hashes so near that they may not be in order."""
    near = first[1:] ^ first[:-1] <= _low_bits(len(first))
    return bool((near & ~repeated[:-1]).any())
