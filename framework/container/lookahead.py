"""Look-ahead: the values of the next records' keys are read in bulk, before their handlers ask.

A store whose keys are those of the records misses its cache once for each record when it has many
more keys than the cache holds. Reading a thousand keys in one call costs about half of a thousand
calls. Whether handlers look up the record's key is not declared, so it is observed: look-ahead
begins when look-ups miss the cache, and ends when it does not reduce the misses, or reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.framework.decoding import Chunk
from strandline.statestore.store import AnyStore

PORTION_RECORDS = 1_024
"""Number of records between two reviews, and maximum number looked ahead at."""
FIRST_PORTION_RECORDS = 32
"""Number of records first looked ahead at, while the size of their values is unknown."""
PORTION_BYTES = 4 << 20
"""Bytes of cache entries above which the portions become smaller."""
CACHE_SHARE = 1 / 4
"""Maximum part of the cache for a portion: what is read must still be there when it is used."""
MISS_SHARE = 1 / 8
"""Misses per record from which look-ahead begins."""
READ_SHARE = 1 / 16
"""Keys read ahead per record below which look-ahead ends, because the cache has them anyway."""
MAX_PAUSE_PORTIONS = 1_024
"""Maximum number of portions without another attempt, after attempts that did not help."""


class LookAhead:
    """Look-ahead of one task instance in all of its stores."""

    def __init__(self, stores: Sequence[AnyStore]) -> None:
        self._stores = [StoreLookAhead(store) for store in stores]
        self._chunk: Chunk | None = None
        self._begin = self._end = 0
        """Indices in the chunk of the records looked ahead at."""

    def limit(self, chunk: Chunk, stop: int) -> int:
        """Return the index, at most `stop`, before which records of `chunk` are to be handled now.

        Reads the values of the next records of the chunk, unless they were read by an earlier call.
        """
        if chunk is not self._chunk or not self._begin <= chunk.at < self._end:
            self._advance(chunk)
        return min(stop, self._end)

    def _advance(self, chunk: Chunk) -> None:
        handled = self._end - self._begin
        for one in self._stores:
            one.review(handled)
        size = min((one.portion for one in self._stores), default=PORTION_RECORDS)
        self._chunk, self._begin = chunk, chunk.at
        self._end = min(len(chunk.records), chunk.at + size)
        for one in self._stores:
            if one.is_on:
                one.read([record.key for record in chunk.records[self._begin : self._end]])


class StoreLookAhead:
    """Look-ahead in one store: decides from the misses of the last portion whether it is on."""

    def __init__(self, store: AnyStore) -> None:
        self._store = store
        self.is_on = False
        self.portion = PORTION_RECORDS
        """Number of records of the next portion."""
        self._misses = store.lookups.single_reads
        self._miss_share = 0.0
        """Misses per record of the portion that began the look-ahead."""
        self._read = 0
        """Number of keys read ahead for the last portion."""
        self._pause = 0
        """Number of portions before the next attempt."""
        self._next_pause = 1
        self._room = min(PORTION_BYTES, CACHE_SHARE * store.spec.limits.cache_bytes)

    def read(self, keys: list[object]) -> None:
        """Read the values of keys that are not in the cache."""
        self._read, nbytes = self._store.prefetch(keys)
        if nbytes > self._room:
            self.portion = max(1, self.portion // 2)
        elif 2 * nbytes < self._room:
            self.portion = min(PORTION_RECORDS, 2 * self.portion)

    def review(self, records: int) -> None:
        """Decide about the next portion, after one of `records` records."""
        before, self._misses = self._misses, self._store.lookups.single_reads
        missed = self._misses - before
        if not self.is_on:
            self._begin(missed, records)
        elif 2 * missed > self._miss_share * records:
            self._end()
            self._pause = self._next_pause
            self._next_pause = min(MAX_PAUSE_PORTIONS, 2 * self._next_pause)
        elif self._read < READ_SHARE * records:
            self._end()
        else:
            self._next_pause = 1

    def _begin(self, missed: int, records: int) -> None:
        if self._pause:
            self._pause -= 1
        elif records and missed > MISS_SHARE * records:
            self.is_on, self.portion = True, FIRST_PORTION_RECORDS
            self._miss_share = missed / records

    def _end(self) -> None:
        self.is_on, self.portion = False, PORTION_RECORDS
