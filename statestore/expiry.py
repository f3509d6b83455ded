"""Removal of expired values.

Readers never see an expired value. A sweeper removes it by a deletion in a later commit.

The keys are divided into zones of about a thousand consecutive keys, in memory. Of each zone the
sweeper knows the earliest time at which one of its values can expire: the earliest expiry found at
the last visit, but at most one time to live later, because values put since then expire after that.
A commit visits the zones that are due, and nothing else. A zone is visited at most `VISITS_PER_TTL`
times in one time to live, so a value that expires soon after a visit stays for a quarter of it.
After a start nothing is known, and the next commits visit all zones once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Generator, Iterator
from itertools import islice

from strandline.statestore.changelogged import Changelogged
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.values import ValueCodec

KEYS_PER_COMMIT = 1_000
"""Number of keys that a commit may check, or twice as many as it changes, if that is more."""
ZONE_KEYS = 1_000
"""Number of keys from which a zone is divided. Zones of less than a quarter are merged."""
VISITS_PER_TTL = 4
"""Maximum number of visits of a zone in one time to live."""


class Sweeper:
    """Finds the expired keys of a store."""

    def __init__(self, committed: Changelogged, values: ValueCodec, ttl_ms: int) -> None:
        self._committed = committed
        self._values = values
        self._ttl_ms = ttl_ms
        self._now_ms = 0
        """Time of the last look at the wall clock."""
        self.start_over()

    def start_over(self) -> None:
        """Forget what is known about zones, because values came from elsewhere: all are due."""
        self._starts = [FIRST_KEY]
        """First keys of the zones, sorted. A zone ends where the next one starts."""
        self._due_ms = {FIRST_KEY: 0}
        """Time from which each zone, named by its first key, is visited."""
        self._queue = [(0, FIRST_KEY)]
        """Heap of times and zones. An entry with another time than `_due_ms` is outdated."""

    def expired(self, changes: int) -> Iterator[bytes]:
        """Yield expired keys of zones that are due, for a commit that changes `changes` keys.

        Checks at least twice as many keys as the commit changes, as far as they are due, so that
        removal keeps up with the values that are put.
        """
        left = max(KEYS_PER_COMMIT, 2 * changes)
        while left > 0 and (start := self._next_due()) is not None:
            left -= yield from self._visit(start)

    def _next_due(self) -> bytes | None:
        """Remove the zone that is due first from the queue and return it; None if none is due."""
        before, self._now_ms = self._now_ms, self._values.now()
        if self._now_ms < before:
            # The clock was set back, so that values put now expire before their zones are due.
            self.start_over()
        while self._queue and self._queue[0][0] <= self._now_ms:
            due, start = heapq.heappop(self._queue)
            if self._due_ms.get(start) == due:
                return start
        return None

    def _visit(self, start: bytes) -> Generator[bytes, None, int]:
        """Yield the expired keys among the first ones of a zone. Return the number checked."""
        now, end = self._values.now(), self._end_of(start)
        earliest, checked, live, last = now + self._ttl_ms, 0, 0, start
        scan = self._committed.scan(start, end, reverse=False)
        for last, data in islice(scan, ZONE_KEYS):
            checked += 1
            expires = self._values.expires(data)
            if expires is not None and expires <= now:
                earliest = now  # until a visit finds that the removal was committed
                yield last
            else:
                live += 1
                earliest = earliest if expires is None else min(earliest, expires)
        if checked == ZONE_KEYS:
            self._divide(last + b"\x00", now)
        self._set_due(start, max(earliest, now + max(1, self._ttl_ms // VISITS_PER_TTL)))
        if checked < ZONE_KEYS and live < ZONE_KEYS // 4:
            self._merge(start)
        return checked

    def _end_of(self, start: bytes) -> bytes | None:
        following = bisect_right(self._starts, start)
        return self._starts[following] if following < len(self._starts) else None

    def _divide(self, middle: bytes, due: int) -> None:
        """Let a zone begin at `middle`, which is due at once."""
        at = bisect_right(self._starts, middle)
        if self._starts[at - 1] != middle:
            self._starts.insert(at, middle)
            self._set_due(middle, due)

    def _merge(self, start: bytes) -> None:
        """Make a zone a part of the one before it."""
        at = bisect_right(self._starts, start) - 1
        if at > 0:
            before = self._starts[at - 1]
            del self._starts[at]
            self._set_due(before, min(self._due_ms[before], self._due_ms.pop(start)))

    def _set_due(self, start: bytes, due: int) -> None:
        self._due_ms[start] = due
        heapq.heappush(self._queue, (due, start))
