"""Log of the changes of slots by the running transaction, for the changelog and for undoing them.

It is for columns what `statestore.dirty` is for objects: each change keeps the earlier states and
values of its slots, so that cutting the log back to a mark undoes what was changed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from strandline.statestore.layers import span
from strandline.statestore.name_index import SlotArray
from strandline.statestore.ranges import NO_RANGES, DeletedRanges
from strandline.statestore.scalar_columns import Block
from strandline.statestore.slots import UNKNOWN, SlotRows, SlotTable, States
from strandline.statestore.value_columns import block_bytes

CHANGED_SLOT_BYTES = 48
"""Approximate bytes of a changed slot in the log, besides its row."""
DIRTY_SLOT_BYTES = 150
"""Approximate bytes that a changed key and its value take in the batch of a commit."""


@dataclass(frozen=True, slots=True)
class SlotChange:
    """Change of distinct slots."""

    before: SlotRows
    """Slots, with the states and values that they had before."""
    fresh: SlotArray
    """Slots among them that had no uncommitted change before."""
    nbytes: int
    """Approximate bytes of memory that the change uses."""


class SlotChanges:
    """Changes since the last commit."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._log: list[SlotChange] = []
        self._ranges: list[tuple[int, bytes, bytes | None]] = []
        self._cuts = 0
        """Number of times that the log was cut back."""
        self._index: list[bytes] = []
        self._indexed = 0
        self._latest: SlotRows | None = None
        """Result of `latest`, which is returned again at the same moment."""
        self._latest_of = self.moment
        self.nbytes = 0
        """Approximate bytes of memory that the changes use."""
        self.ranges = NO_RANGES
        """Ranges in which only changed keys have a value."""

    def __len__(self) -> int:
        return len(self._log)

    def latest(self) -> SlotRows:
        """Return the changed slots as of now, in the order of their first changes.

        The same call returns them for the results of a commit and for its changelog.
        """
        if self._latest is None or self._latest_of != self.moment:
            fresh = [change.fresh for change in self._log]
            slots = np.concatenate(fresh) if fresh else np.empty(0, np.int64)
            self._latest, self._latest_of = self._table.read(slots), self.moment
        return self._latest

    def change(self, before: SlotRows, states: States | int, rows: Block | None) -> None:
        """Set the states and values of slots; see `SlotTable.assign`.

        Args:
            before: The slots, as the table has them now.
            states: New states.
            rows: New values.
        """
        table, slots = self._table, before.slots
        fresh = slots[~table.is_dirty(slots)]
        nbytes = CHANGED_SLOT_BYTES * len(slots) + DIRTY_SLOT_BYTES * len(fresh)
        nbytes += sum(array.nbytes for array in before.rows)
        nbytes += 0 if rows is None else int(block_bytes(rows).sum())
        self._log.append(SlotChange(before, fresh, nbytes))
        self.nbytes += nbytes
        table.set_dirty(fresh)
        table.assign(slots, states, rows)

    def add_range(self, lower: bytes, upper: bytes | None) -> None:
        """Note that no key of [lower, upper) has a value, as the last change has deleted them."""
        self._ranges.append((len(self._log), lower, upper))
        self.ranges |= DeletedRanges([(lower, upper)])

    @property
    def moment(self) -> tuple[int, int]:
        """State of the log, which is the same as long as nothing is changed."""
        return self._cuts, len(self._log)

    def note_empty(self, moment: tuple[int, int], lower: bytes, upper: bytes | None) -> None:
        """Note that no key of [lower, upper) had a value at `moment`, if that is still the same."""
        if moment == self.moment:
            self.add_range(lower, upper)

    def rollback(self, mark: int) -> None:
        """Undo the changes after the first `mark` ones."""
        self._cuts += 1
        undone = self._log[mark:]
        del self._log[mark:]
        for change in reversed(undone):
            self._table.assign(*change.before)
            self._table.set_clean(change.fresh)
            self.nbytes -= change.nbytes
        self._forget_unknown([change.fresh for change in undone])
        if undone:
            self._index, self._indexed = [], 0
        if self._ranges and self._ranges[-1][0] > mark:
            self._ranges = [each for each in self._ranges if each[0] <= mark]
            self.ranges = DeletedRanges((lower, upper) for _, lower, upper in self._ranges)

    def clear(self) -> None:
        """Clear the log after a commit; the changed slots are clean."""
        for change in self._log:
            self._table.set_clean(change.fresh)
        self._log.clear()
        self._latest = None
        self._cuts += 1
        self._ranges.clear()
        self._index, self._indexed = [], 0
        self.nbytes = 0
        self.ranges = NO_RANGES

    def names(self, lower: bytes, upper: bytes | None) -> list[bytes]:
        """Return the changed keys of [lower, upper), sorted."""
        if self._indexed < len(self._log):
            fresh = [change.fresh for change in self._log[self._indexed :]]
            self._index += self._table.names(np.concatenate(fresh)).to_pylist()
            # The list has sorted runs, which Python's sort merges in linear time.
            self._index.sort()
            self._indexed = len(self._log)
        places = span(self._index, lower, upper)
        return self._index[places.start : places.stop]

    def _forget_unknown(self, changed: Iterable[SlotArray]) -> None:
        """Free the slots that had no value in memory before they were changed."""
        for slots in changed:
            unknown = slots[self._table.states(slots) == UNKNOWN]
            if len(unknown):
                self._table.free(unknown)
