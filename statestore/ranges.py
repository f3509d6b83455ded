"""Ranges of keys that were deleted in one operation.

They stand for the deletions of all keys in them, so that neither a scan nor a checkpoint has to
pass each of these keys. The changelog contains a deletion for each key nevertheless, because
compaction, other programs and Kafka's brokers know nothing of ranges (docs/decisions).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol, TypeVar

Item_co = TypeVar("Item_co", covariant=True)

Interval = tuple[bytes, bytes | None]
"""Encoded keys from the first element to the second (exclusive); None is no limit."""


RANGE_MIN_KEYS = 64
"""Number of keys from which their deletion is kept as a range; fewer are deleted one by one.

Each range slows down RocksDB's look-ups a little until it is compacted.
"""


class Scan(Protocol[Item_co]):
    """Function that returns the items of [lower, upper) in the order of their keys."""

    def __call__(
        self, lower: bytes, upper: bytes | None, /, *, reverse: bool
    ) -> Iterator[Item_co]: ...


class DeletedRanges:
    """Immutable set of keys: sorted, disjoint intervals."""

    __slots__ = ("_lowers", "_uppers")

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._lowers: list[bytes] = []
        self._uppers: list[bytes | None] = []
        for lower, upper in sorted(intervals, key=lambda interval: interval[0]):
            if upper is not None and upper <= lower:
                continue
            if self._lowers and _reaches(self._uppers[-1], lower):
                self._uppers[-1] = _later(self._uppers[-1], upper)
            else:
                self._lowers.append(lower)
                self._uppers.append(upper)

    def __len__(self) -> int:
        return len(self._lowers)

    def __iter__(self) -> Iterator[Interval]:
        return zip(self._lowers, self._uppers, strict=True)

    def __or__(self, other: DeletedRanges) -> DeletedRanges:
        if not other:
            return self
        return DeletedRanges(chain(self, other)) if self else other

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self._lowers, key) - 1
        if place < 0:
            return False
        upper = self._uppers[place]
        return upper is None or key < upper

    def within(self, lower: bytes, upper: bytes | None) -> DeletedRanges:
        """Return the ranges that reach into [lower, upper).

        >>> list(DeletedRanges([(b"b", b"d"), (b"f", None)]).within(b"c", b"e"))
        [(b'b', b'd')]
        """
        first = bisect_right(self._lowers, lower)
        if first and _reaches(self._uppers[first - 1], lower + b"\x00"):
            first -= 1
        end = len(self) if upper is None else bisect_left(self._lowers, upper)
        if first == 0 and end == len(self):
            return self
        found = DeletedRanges()
        found._lowers, found._uppers = self._lowers[first:end], self._uppers[first:end]
        return found

    def gaps(self, lower: bytes, upper: bytes | None) -> list[Interval]:
        """Return the parts of [lower, upper) that no range covers, in ascending order.

        >>> DeletedRanges([(b"b", b"d"), (b"f", None)]).gaps(b"a", b"z")
        [(b'a', b'b'), (b'd', b'f')]
        """
        found: list[Interval] = []
        first = max(0, bisect_right(self._lowers, lower) - 1)
        last = len(self) if upper is None else bisect_left(self._lowers, upper)
        for place in range(first, last):
            if self._lowers[place] > lower:
                found.append((lower, self._lowers[place]))
            end = self._uppers[place]
            if end is None:
                return found
            lower = max(lower, end)
        if upper is None or lower < upper:
            found.append((lower, upper))
        return found

    def scan_outside(
        self, scan: Scan[Item_co], lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> Iterator[Item_co]:
        """Return the items of [lower, upper) that no range covers, as of this call.

        Args:
            scan: Returns the items of an interval, as of its call.
            lower: First key.
            upper: End (exclusive); None for no limit.
            reverse: True to begin with the last item.
        """
        if not self:
            return scan(lower, upper, reverse=reverse)
        gaps = self.gaps(lower, upper)
        parts = [scan(*gap, reverse=reverse) for gap in (reversed(gaps) if reverse else gaps)]
        return chain.from_iterable(parts)


NO_RANGES = DeletedRanges()
"""Without any range."""


def are_many(num_keys: int) -> bool:
    """Return True if the deletion of so many keys is kept as a range."""
    return num_keys >= RANGE_MIN_KEYS


def _reaches(upper: bytes | None, key: bytes) -> bool:
    return upper is None or upper >= key


def _later(one: bytes | None, other: bytes | None) -> bytes | None:
    return None if one is None or other is None else max(one, other)
