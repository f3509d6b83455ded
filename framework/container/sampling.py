"""For which records the look-ups in stores are counted.

Counting a look-up costs as much as one of a key that is at hand, so a few of them stand for all:
those of the first records of a slice, and at most those of one record in `RARITY`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from strandline.statestore.store import AnyStore

RARITY = 128
LONGEST = 64
"""Records of a sample at most: they are the first of a slice, and slices come many a second."""


class Sampling:
    """Of one task on one partition."""

    def __init__(self, stores: Sequence[AnyStore]) -> None:
        self._stores = stores
        self._until = RARITY if stores else float("inf")
        """So many records come first."""

    def size(self, limit: int) -> int:
        """How many records are to be handled within `counted` next, `limit` at most; mostly none."""
        return min(limit, LONGEST) if not self._until else 0

    def counted(self) -> ExitStack:
        """The block in which look-ups are counted."""
        block = ExitStack()
        for store in self._stores:
            block.enter_context(store.sampled())
        return block

    def handled(self, sampled: int, records: int) -> None:
        """So many `records` were handled, of which so many in a sample."""
        if sampled:
            self._until = RARITY * sampled
        self._until = max(0, self._until - records)
