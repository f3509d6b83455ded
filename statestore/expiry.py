"""Removal of values whose time to live is over.

A reader never sees an expired value; this removes it, by a deletion in the next commit. Each
commit looks at the next few keys in their order, round and round: the work is bounded, needs
no index of times, and keeps up with what is put.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from strandline.statestore.changelogged import Changelogged
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.values import ValueCodec

KEYS_PER_COMMIT = 1_000


class Sweeper:
    """Goes round the committed keys of a store and finds the expired ones."""

    def __init__(self, committed: Changelogged, values: ValueCodec) -> None:
        self._committed = committed
        self._values = values
        self._next = FIRST_KEY

    def expired(self, changes: int) -> Iterator[bytes]:
        """Expired keys among the next few; twice as many as this commit `changes` at least."""
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
