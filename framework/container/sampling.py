"""Sampling of the records whose store look-ups are counted.

Counting a look-up costs as much as looking up a cached key. So only a sample is counted: the first
records of some slices, in total at most one record in `SAMPLING_RATIO`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from strandline.statestore.store import AnyStore

SAMPLING_RATIO = 128
"""Number of records of which one is sampled."""
MAX_SAMPLE_RECORDS = 64
"""Maximum number of records in a sample. Samples can be small because slices are frequent."""


class Sampling:
    """Sampling of the records of one task instance."""

    def __init__(self, stores: Sequence[AnyStore]) -> None:
        self._stores = stores
        self._until = SAMPLING_RATIO if stores else float("inf")
        """Number of records to handle before the next sample."""

    def size(self, limit: int) -> int:
        """Return how many of the next `limit` records are to be handled in `counted`; mostly 0."""
        return min(limit, MAX_SAMPLE_RECORDS) if not self._until else 0

    def counted(self) -> ExitStack:
        """Return a context manager in whose block look-ups are counted."""
        block = ExitStack()
        for store in self._stores:
            block.enter_context(store.sampled())
        return block

    def handled(self, sampled: int, records: int) -> None:
        """Note that `records` records were handled, `sampled` of them in a sample."""
        if sampled:
            self._until = SAMPLING_RATIO * sampled
        self._until = max(0, self._until - records)
