"""Keys of a store in memory, each with a slot, and columns with a value for each slot.

A batch looks its keys up at once (`statestore.name_index`), and reads or writes the columns at
their slots. Slots without uncommitted changes are a cache: those that were not used for the longest
time are freed, many at once, so that each costs a constant time on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.statestore.name_index import NameIndex, Names, SlotArray
from strandline.statestore.scalar_columns import Block, no_objects
from strandline.statestore.value_columns import block_bytes

States = npt.NDArray[np.uint8]

UNKNOWN, ABSENT, PRESENT = range(3)
"""States of a slot: its committed value was not read, there is no value, there is one."""

SLOT_BYTES = 100
"""Approximate bytes of a slot in all arrays, besides its encoded key, its row and its objects."""
MIN_SLOTS = 64


class SlotRows(NamedTuple):
    """Copy of the states and values of distinct slots."""

    slots: SlotArray
    states: States
    rows: Block


class SlotTable:
    """Slots of keys. A slot has a name (the encoded key), a state, and a row of a block."""

    def __init__(self, dtypes: Sequence[npt.DTypeLike], limit_bytes: int) -> None:
        self._dtypes = [np.dtype(dtype) for dtype in dtypes]
        self._cleared = [None if dtype == np.object_ else 0 for dtype in self._dtypes]
        self._has_objects = any(dtype == np.object_ for dtype in self._dtypes)
        self._slot_bytes = SLOT_BYTES + sum(dtype.itemsize for dtype in self._dtypes)
        self._limit = limit_bytes
        self.additions = 0
        """Number of slots taken so far."""
        self.num_dirty = 0
        """Number of slots with uncommitted changes."""
        self._tick = 0
        self._free: SlotArray = np.empty(0, np.int64)
        self._start_over()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of all slots."""
        return self._slot_bytes * len(self._index) + self._index.nbytes + self._object_bytes

    # Look-ups ---------------------------------------------------------------------------

    def find(self, names: pa.Array) -> SlotArray:
        """Return the slots of keys; -1 for a key that has none."""
        found = Names.of(names)
        return self._index.find(found, found.hashes())

    def find_or_add(self, names: pa.Array) -> SlotArray:
        """Return the slots of distinct keys. New ones are of the state UNKNOWN."""
        wanted = Names.of(names)
        hashes = wanted.hashes()
        found = self._index.find(wanted, hashes)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            found[missing] = slots = self._allocate(len(missing))
            self._index.add(wanted.take(missing), hashes[missing], slots)
        self._tick += 1
        self._used[found] = self._tick
        return found

    def find_one(self, name: bytes) -> int:
        """Return the slot of a key that is looked up alone, or -1."""
        slot = self._single.get(name, -1)
        if slot < 0:
            slot = int(self.find(of_items([name], pa.binary()))[0])
            if slot >= 0:
                self._single[name] = slot
        if slot >= 0:
            self._used[slot] = self._tick
        return slot

    def names(self, slots: SlotArray) -> pa.Array:
        """Return the encoded keys of slots."""
        return self._index.names(slots)

    # Rows -------------------------------------------------------------------------------

    def states(self, slots: SlotArray) -> States:
        """Return a copy of the states of slots."""
        taken: States = self._states[slots]
        return taken

    def rows(self, slots: SlotArray) -> Block:
        """Return a copy of the values of slots."""
        return tuple(column.take(slots) for column in self._columns)

    def read(self, slots: SlotArray) -> SlotRows:
        """Return a copy of the states and values of slots."""
        return SlotRows(slots, self.states(slots), self.rows(slots))

    def assign(self, slots: SlotArray, states: States | int, rows: Block | None) -> None:
        """Set the states of distinct slots, and their values; None clears the values."""
        self._states[slots] = states
        if self._has_objects:
            self._object_bytes -= _total_bytes(self.rows(slots))
            self._object_bytes += 0 if rows is None else _total_bytes(rows)
        for column, values in zip(self._columns, rows or self._cleared, strict=True):
            column[slots] = values

    # Uncommitted changes ----------------------------------------------------------------

    def is_dirty(self, slots: SlotArray) -> npt.NDArray[np.bool_]:
        """Return True for each slot with uncommitted changes."""
        taken: npt.NDArray[np.bool_] = self._dirty[slots]
        return taken

    def set_dirty(self, slots: SlotArray) -> None:
        """Keep clean slots, because they are changed now."""
        self._dirty[slots] = True
        self.num_dirty += len(slots)

    def set_clean(self, slots: SlotArray) -> None:
        """Allow dirty slots to be freed again."""
        self._dirty[slots] = False
        self.num_dirty -= len(slots)

    # Memory -----------------------------------------------------------------------------

    def limit(self, nbytes: int) -> None:
        """Change the limit of clean slots."""
        self._limit = nbytes

    @property
    def is_full(self) -> bool:
        """True if clean slots use more than the limit, so that `evict` is to be called."""
        return self._clean_bytes() > self._limit

    def evict(self) -> None:
        """Free the clean slots that were not used for the longest time, to half of the limit."""
        clean = np.flatnonzero(self._taken[: self._end] & ~self._dirty[: self._end])
        surplus = self._clean_bytes() - self._limit // 2
        count = min(len(clean), -(-surplus * len(clean) // max(1, self._clean_bytes())))
        if 0 < count < len(clean):
            clean = clean[np.argpartition(self._used[clean], count)[:count]]
        self.free(clean if count > 0 else clean[:0])
        if not self.num_dirty and 4 * len(self) < len(self._states) > MIN_SLOTS:
            self._compact()

    def free(self, slots: SlotArray) -> None:
        """Forget distinct slots without uncommitted changes."""
        self._index.remove(slots)
        self.assign(slots, UNKNOWN, None)
        self._taken[slots] = False
        self.is_complete = False
        self._free = np.concatenate([self._free, slots])
        self._single.clear()

    def clear(self) -> None:
        """Forget all slots. There must be no uncommitted changes."""
        self._start_over()

    def _clean_bytes(self) -> int:
        clean = len(self._index) - self.num_dirty
        return self.nbytes * clean // max(1, len(self._index))

    def _start_over(self) -> None:
        self._index = NameIndex()
        self.is_complete = False
        """True if all keys that have a committed value have a slot with it."""
        self._single: dict[bytes, int] = {}
        """Slots of keys that were looked up alone, which is faster the next time."""
        self._free = np.empty(0, np.int64)
        self._end = 0
        self._object_bytes = 0
        self._states: States = np.empty(0, np.uint8)
        self._used: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._taken: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._dirty: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._columns: list[npt.NDArray[Any]] = [np.empty(0, dtype) for dtype in self._dtypes]

    def _allocate(self, count: int) -> SlotArray:
        """Return free slots."""
        reused = self._free[len(self._free) - min(count, len(self._free)) :]
        self._free = self._free[: len(self._free) - len(reused)]
        end = self._end + count - len(reused)
        if end > len(self._states):
            self._grow(max(MIN_SLOTS, 2 * len(self._states), end))
        slots = np.concatenate([reused, np.arange(self._end, end)])
        self._end = end
        self._states[slots] = UNKNOWN
        self._taken[slots] = True
        self.additions += count
        return slots

    def _grow(self, size: int) -> None:
        for name, column in self._arrays():
            setattr(self, name, _resized(column, size))
        self._columns = [_resized(column, size) for column in self._columns]

    def _compact(self) -> None:
        """Renumber the slots, so that the arrays shrink. There must be no dirty slots."""
        kept = np.flatnonzero(self._taken[: self._end])
        names = Names.of(self._index.names(kept))
        for name, column in self._arrays():
            setattr(self, name, column[kept])
        self._columns = [column[kept] for column in self._columns]
        self._index = NameIndex()
        self._index.add(names, names.hashes(), np.arange(len(kept)))
        self._single.clear()
        self._free = self._free[:0]
        self._end = len(kept)

    def _arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        for name in ("_states", "_used", "_taken", "_dirty"):
            yield name, getattr(self, name)


def _total_bytes(rows: Block) -> int:
    return int(block_bytes(rows).sum())


def _resized(column: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    larger = np.zeros(size, column.dtype) if column.dtype != np.object_ else no_objects(size)
    larger[: len(column)] = column
    return larger
