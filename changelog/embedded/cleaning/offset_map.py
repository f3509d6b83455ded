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
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Offsets = npt.NDArray[np.int64]
Choice = npt.NDArray[np.bool_]
_Hashes = npt.NDArray[np.uint64]
_Relative = npt.NDArray[np.uint32]
_Order = npt.NDArray[np.int64]
_T = TypeVar("_T", np.uint64, np.uint32)

OVERHEAD = 48 << 20
"""Bytes, of the memory given, for what is read and written at a time, and what allocators keep."""
ENTRY_BYTES = 24
"""Two hashes and an offset, and an offset in `LatestOffsets`."""
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


class HashedKeys(NamedTuple):
    """Keys by their hash, and a number of each: columns of the same length."""

    first: _Hashes
    second: _Hashes
    numbers: _Relative


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
        entries = max(1, room(memory) // ENTRY_BYTES)
        part_bits = min(MOST_PARTS, max(1, entries // PART)).bit_length() - 1
        self._parts = range(1 << part_bits)
        self._bounds = np.arange(1, len(self._parts), dtype=np.uint64) << np.uint64(64 - part_bits)
        self._most_space = entries // len(self._parts)
        self._space = min(FIRST_SPACE, self._most_space)
        """Entries of a part."""
        self._full = max(1, int(self._most_space * LOAD))
        self.span = SPAN
        """So many offsets from the base on are taken in."""
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
        most, done = int(np.searchsorted(relative, self.span)), 0
        while done < most:
            count = min(most - done, PIECE)
            piece = relative[done : done + count].astype(np.uint32)
            taken = self._put(*self._hashes.of(keys.slice(done, count)), piece)
            done += taken
            if taken < count:
                break
        return done

    def latest(self) -> LatestOffsets:
        """The last records of all keys; this map is of no use any more."""
        entries = self.drain()
        use = min(1.0, len(entries.first) / self.capacity)
        return LatestOffsets(self._hashes, self._base, entries, use)

    def drain(self) -> HashedKeys:
        """Each key once, with its last offset less the base, by hash, ascending.

        The map is empty then; what it takes in next is written over the entries.
        """
        end = 0
        for part in self._parts:
            self._sort(part)
            length, self._lengths[part] = self._lengths[part], 0
            here = slice(part * self._space, part * self._space + length)
            there = slice(end, end + length)
            self._first[there] = self._first[here]
            self._second[there] = self._second[here]
            self._offsets[there] = self._offsets[here]
            end += length
        return HashedKeys(self._first[:end], self._second[:end], self._offsets[:end])

    def _put(self, first: _Hashes, second: _Hashes, offsets: _Relative) -> int:
        """Take in a piece, as far as there is room; how many entries were taken."""
        last = last_ones(HashedKeys(first, second, offsets))
        cuts = [0, *np.searchsorted(last.first, self._bounds).tolist(), len(last.first)]
        end = self._fitting(last.numbers, cuts)
        if end is not None:  # a key's last entry may be among those that are left out
            fits = int(np.searchsorted(offsets, end))
            return self._put(first[:fits], second[:fits], offsets[:fits]) if fits else 0
        for part, start, end in self._dealt(cuts):
            at = part * self._space + self._lengths[part]
            to = slice(at, at + end - start)
            self._first[to] = last.first[start:end]
            self._second[to] = last.second[start:end]
            self._offsets[to] = last.numbers[start:end]
            self._lengths[part] += end - start
        self._hashes.pause()
        return len(first)

    def _fitting(self, offsets: _Relative, cuts: list[int]) -> int | None:
        """From which offset on a piece has no room; None: all of it has. Makes room."""
        first = None
        for part, start, end in self._dealt(cuts):
            count = end - start
            if self._lengths[part] + count > self._space:
                self._sort(part)
                while self._space < self._most_space and (
                    2 * self._lengths[part] > self._space or count > self._room(part)
                ):
                    self._grow()
                if count > self._room(part):
                    left_out = int(np.sort(offsets[start:end])[self._room(part)])
                    first = left_out if first is None else min(first, left_out)
        return first

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
        last = last_ones(HashedKeys(self._first[here], self._second[here], self._offsets[here]))
        there = slice(at, at + len(last.first))
        self._first[there], self._second[there], self._offsets[there] = last
        self._lengths[part] = len(last.first)
        self._hashes.pause()


class LatestOffsets:
    """The last offset of every key. `entries` are by hash, ascending, each key once."""

    def __init__(self, hashes: KeyHashes, base: int, entries: HashedKeys, use: float) -> None:
        self._hashes = hashes
        self._base = base
        self._first, self._second, self._offsets = entries
        self._ascending = np.sort(self._offsets)
        bits = max(1, len(self._first).bit_length() - 3)
        self._shift = np.uint64(64 - bits)
        self._starts = np.empty(1 << bits, np.int32)
        """Where the hashes begin that have the same first bits, a few for each."""
        for at in range(0, 1 << bits, PIECE):
            bounds = np.arange(at, min(at + PIECE, 1 << bits), dtype=np.uint64) << self._shift
            self._starts[at : at + PIECE] = np.searchsorted(self._first, bounds)
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

    def outlast(self, keys: pa.BinaryArray, offsets: Offsets, base_offset: int) -> Choice:
        """Which records of a frame have no later one with their key."""
        return self.of(keys) <= offsets

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


def room(memory: int) -> int:
    """Bytes that are for keys, of the memory given."""
    return max(memory // 2, memory - OVERHEAD)


def last_ones(entries: HashedKeys) -> HashedKeys:
    """Of each key the last entry, by hash, ascending."""
    first, second, numbers = entries
    order = _ascending(first)
    sorted_first, sorted_second = first.take(order), second.take(order)
    last = np.ones(len(first), np.bool_)
    np.not_equal(sorted_first[1:], sorted_first[:-1], out=last[:-1])
    in_order = not (sorted_first[1:] < sorted_first[:-1]).any()
    if in_order and last.all():
        return HashedKeys(sorted_first, sorted_second, numbers.take(order))
    other = sorted_second[1:] != sorted_second[:-1]
    if not in_order or (other > last[:-1]).any():  # different keys, first hashes too near
        _put_in_order(order, first, second)
        sorted_first, sorted_second = first.take(order), second.take(order)
        last[:-1] = sorted_first[1:] != sorted_first[:-1]
        last[:-1] |= sorted_second[1:] != sorted_second[:-1]
    chosen = np.flatnonzero(last)
    return HashedKeys(
        sorted_first.take(chosen), sorted_second.take(chosen), numbers.take(order.take(chosen))
    )


def _put_in_order(order: _Order, first: _Hashes, second: _Hashes) -> None:
    """Sort those entries by both hashes whose first ones differ in the last bits at most."""
    sorted_first = first.take(order)
    near = np.flatnonzero(sorted_first[1:] ^ sorted_first[:-1] <= _low_bits(len(first)))
    places = np.union1d(near, near + 1)
    some = order[places]
    order[places] = some[np.lexsort((second[some], first[some]))]


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
