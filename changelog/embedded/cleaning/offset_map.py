"""The last offset of every key of a stretch of a log, in bounded memory (Kafka's SkimpyOffsetMap).

A key is known by 128 bits of hash: two XXH3 of 64 bits, whose seeds nobody knows in advance. So an
entry takes 20 bytes whatever the key, and that two of n keys are taken for one has a probability below
n² / 2¹²⁸: 10⁻²⁰ for a billion. Kafka takes 128 bits too, of MD5.

An open-addressing table on columns: each step is one operation of numpy on a whole piece of keys, which
goes on with those of them that have not found their slot. It begins small and grows fourfold, since
a table that fits the processor's cache is several times as fast.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Offsets = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]

OVERHEAD = 48 << 20
"""Bytes, of the memory given, for what is read and written at a time, and what allocators keep."""
SLOT_BYTES = 28
"""Two hashes, an offset, and its share of `Latest`."""
LOAD = 0.85
"""Of the slots, those that may be taken: above, look-ups get long."""
FIRST_SLOTS = 1 << 16
GROWTH = 4
PIECE = 1 << 16
"""Keys handled at once: what is computed for them stays in the processor's cache."""
SPAN = (1 << 32) - 1
"""So many offsets from the base on can be told apart."""
ABSENT = -1
_NONE = SPAN
_HALF = np.uint64(32)


class Latest:
    """The offsets of the last records of all keys, ascending."""

    def __init__(self, base: int, relative: npt.NDArray[np.uint32]) -> None:
        self._base = base
        self._relative = relative

    def within(self, first: int, behind: int) -> Offsets:
        """Those in [`first`, `behind`)."""
        bounds = np.clip((first - self._base, behind - self._base), 0, SPAN).astype(np.uint32)
        start, end = np.searchsorted(self._relative, bounds)
        return self._relative[start:end] + np.int64(self._base)


class OffsetMap:
    """Keys to offsets, from `base` on.

    `memory` bytes bound it. `seed` has 128 bits. `pause` is called about every millisecond of work.

    >>> keys = pa.array([b"a", b"b", b"a"])
    >>> known = OffsetMap(1 << 20, base=10, seed=7)
    >>> known.put(keys, np.arange(10, 13))
    3
    >>> known.get(pa.array([b"a", b"b", b"c"])).tolist()
    [12, 11, -1]
    >>> known.latest().within(10, 12).tolist()
    [11]
    """

    def __init__(
        self, memory: int, *, base: int, seed: int, pause: Callable[[], None] = lambda: None
    ) -> None:
        self._pause = pause
        room = max(memory // 2, memory - OVERHEAD)
        self._most_slots = max(2, room // SLOT_BYTES)
        self.capacity = _room(self._most_slots)
        """So many keys fit."""
        self.keys = 0
        self._base = base
        self._seeds = (seed & 0xFFFF_FFFF_FFFF_FFFF, seed >> 64 & 0xFFFF_FFFF_FFFF_FFFF)
        self._allocate(min(FIRST_SLOTS, self._most_slots))

    def _allocate(self, slots: int) -> None:
        self._slots = slots
        self._first = np.zeros(slots, np.uint64)
        self._second = np.zeros(slots, np.uint64)
        self._offsets = np.full(slots, _NONE, np.uint32)

    @property
    def use(self) -> float:
        """The part of its room that is taken, 0 to 1."""
        return self.keys / self.capacity

    def put(self, keys: pa.BinaryArray, offsets: Offsets) -> int:
        """Take in records, offsets ascending, as far as there is room; how many were taken."""
        relative = offsets - self._base
        most, done = int(np.searchsorted(relative, SPAN)), 0
        while done < most:
            # Each of them may be a key not met before.
            count = min(most - done, self.capacity - self.keys, PIECE)
            if count <= 0:
                break
            while self.keys + count > _room(self._slots):
                self._grow()
            piece = relative[done : done + count].astype(np.uint32)
            self._put(*self._hashed(keys.slice(done, count)), piece)
            done += count
        return done

    def get(self, keys: pa.BinaryArray) -> Offsets:
        """The last offset of each key; ABSENT for one that is not there."""
        pieces = [
            self._get(*self._hashed(keys.slice(at, PIECE))) for at in range(0, len(keys), PIECE)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def latest(self) -> Latest:
        """The last records of all keys."""
        found = self._offsets[self._first != 0]
        found.sort()
        return Latest(self._base, found)

    def _put(self, first: _Hashes, second: _Hashes, offsets: npt.NDArray[np.uint32]) -> None:
        slots = self._slots_of(first)
        while len(slots):
            there = self._first.take(slots)
            free = np.flatnonzero(there == 0)
            if len(free):
                # Of several that want one slot the last gets it; the others look again.
                wanted, claims = slots[free], np.arange(len(free), dtype=np.uint32)
                self._first[wanted] = first[free]
                self._second[wanted] = second[free]
                self._offsets[wanted] = claims
                there[free] = self._first.take(wanted)
                self.keys += int(np.count_nonzero(self._offsets.take(wanted) == claims))
            mine = there == first
            mine &= self._second.take(slots) == second
            found = np.flatnonzero(mine)
            self._offsets[slots[found]] = offsets[found]
            self._pause()
            rest = np.flatnonzero(~mine)
            first, second, offsets = first[rest], second[rest], offsets[rest]
            slots = self._next(slots[rest])

    def _grow(self) -> None:
        taken = np.flatnonzero(self._first)
        first, second, offsets = self._first[taken], self._second[taken], self._offsets[taken]
        del self._first, self._second, self._offsets, taken  # or both are there at once
        self._allocate(min(self._slots * GROWTH, self._most_slots))
        self.keys = 0
        for at in range(0, len(first), PIECE):
            piece = slice(at, at + PIECE)
            self._put(first[piece], second[piece], offsets[piece])

    def _get(self, first: _Hashes, second: _Hashes) -> Offsets:
        answer = np.full(len(first), ABSENT, np.int64)
        slots, asked = self._slots_of(first), np.arange(len(first))
        while len(slots):
            there = self._first.take(slots)
            mine = there == first
            mine &= self._second.take(slots) == second
            found = np.flatnonzero(mine)
            answer[asked[found]] = self._offsets.take(slots[found]) + np.int64(self._base)
            self._pause()
            rest = np.flatnonzero((there != 0) & ~mine)
            first, second, asked = first[rest], second[rest], asked[rest]
            slots = self._next(slots[rest])
        return answer

    def _hashed(self, keys: pa.BinaryArray) -> tuple[_Hashes, _Hashes]:
        column = pl.Series(pl.from_arrow(keys))
        one, other = (column.hash(seed).to_numpy() for seed in self._seeds)
        self._pause()
        return one | np.uint64(1), other  # 0 is a free slot

    def _slots_of(self, hashes: _Hashes) -> npt.NDArray[np.int64]:
        scaled: _Hashes = (hashes >> _HALF) * np.uint64(self._slots)
        return (scaled >> _HALF).view(np.int64)

    def _next(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        following = slots + 1
        following[following == self._slots] = 0
        return following


def _room(slots: int) -> int:
    """So many keys may be in a table."""
    return max(1, int(slots * LOAD))
