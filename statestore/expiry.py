"""Removal of expired values.

Readers never see an expired value. A sweeper removes it by a deletion in a later commit: each
commit checks the next keys in their order, and starts over after the last one. So the work is
bounded, needs no index of times, and keeps up with the values that are put.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from strandline.statestore.changelogged import Changelogged
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.values import ValueCodec

KEYS_PER_COMMIT = 1_000
"""Minimum number of keys that a commit checks."""


class Sweeper:
    """Cycles through the committed keys of a store and finds the expired ones."""

    def __init__(self, committed: Changelogged, values: ValueCodec) -> None:
        self._committed = committed
        self._values = values
        self._next = FIRST_KEY

    def expired(self, changes: int) -> Iterator[bytes]:
        """Yield the expired ones of the next keys: at least twice as many as the commit changes."""
        limit = max(KEYS_PER_COMMIT, 2 * changes)
        looked = 0
        scan = self._committed.scan((), self._next, None, reverse=False)
        for key, data in islice(scan, limit):
            looked += 1
            self._next = key + b"\x00"
            if self._values.expired(data):
                yield key
        if looked < limit:
            self._next = FIRST_KEY
