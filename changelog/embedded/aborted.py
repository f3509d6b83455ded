"""Index of the aborted transactions of a partition (Kafka's TransactionIndex)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from operator import attrgetter

from strandline.changelog.producer_state import EndedTransaction


class AbortedTransactions:
    """The aborted transactions of one partition.

    The transactions of one producer do not overlap. A batch is therefore aborted exactly if it lies
    between the first offset and the marker of one of its producer's aborted transactions.

    >>> aborted = AbortedTransactions()
    >>> aborted.add(EndedTransaction(producer_id=7, first_offset=10, marker_offset=20))
    >>> aborted.covers(7, 15), aborted.covers(7, 21), aborted.covers(8, 15)
    (True, False, False)
    """

    def __init__(self, transactions: Iterable[EndedTransaction] = ()) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        self._by_marker: list[EndedTransaction] = []
        self._min_first_offsets: list[int] = []
        """Smallest first offset in each block of `_by_marker`."""
        for transaction in sorted(transactions, key=_marker_offset):
            self.add(transaction)

    def __iter__(self) -> Iterator[EndedTransaction]:
        return iter(self._by_marker)

    def __bool__(self) -> bool:
        return bool(self._by_marker)

    def add(self, transaction: EndedTransaction) -> None:
        """Add an aborted transaction; adding it twice is harmless.

        If its marker is the last one of all, the cost does not depend on the number of
        transactions.
        """
        at = bisect_left(self._by_marker, transaction.marker_offset, key=_marker_offset)
        end = bisect_right(self._by_marker, transaction.marker_offset, at, key=_marker_offset)
        if transaction in self._by_marker[at:end]:
            return
        self._by_marker.insert(end, transaction)
        self._note_first(end)
        span = (transaction.first_offset, transaction.marker_offset)
        insort(self._by_producer.setdefault(transaction.producer_id, []), span)

    def covers(self, producer_id: int, base_offset: int) -> bool:
        """Return True if the producer's batch at `base_offset` was aborted."""
        return self.marker_of(producer_id, base_offset) is not None

    def marker_of(self, producer_id: int, base_offset: int) -> int | None:
        """Return the offset of the marker that aborted the batch, or None if it was not aborted.

        The batch is the one of `producer_id` at `base_offset`.
        """
        spans = self._by_producer.get(producer_id)
        if not spans:
            return None
        index = bisect_right(spans, (base_offset, _FOREVER)) - 1
        if index < 0 or base_offset >= spans[index][1]:
            return None
        return spans[index][1]

    def ending_in(self, start: int, end: int) -> list[EndedTransaction]:
        """Return the transactions whose marker lies in [`start`, `end`)."""
        first = bisect_left(self._by_marker, start, key=_marker_offset)
        return self._by_marker[first : bisect_left(self._by_marker, end, key=_marker_offset)]

    def since(self, log_start: int) -> AbortedTransactions:
        """Return a copy with the transactions whose marker is at `log_start` or later.

        A copy is made because readers may still be using this object.
        """
        return AbortedTransactions(self.ending_in(log_start, _FOREVER))

    def among(self, start: int, end: int) -> AbortedTransactions:
        """Return the transactions that a batch with offsets in [`start`, `end`) can belong to."""
        ended = self.ending_in(start, end)
        return AbortedTransactions([*ended, *self._spanning(end, max(start, end))])

    def _spanning(self, offset: int, marker: int) -> Iterator[EndedTransaction]:
        """Iterate over transactions that begin before `offset` and end at `marker` or later.

        A block whose smallest first offset is not before `offset` is skipped as a whole.
        """
        at = bisect_left(self._by_marker, marker, key=_marker_offset)
        for block in range(at // BLOCK_TRANSACTIONS, len(self._min_first_offsets)):
            if self._min_first_offsets[block] < offset:
                for one in self._by_marker[
                    max(at, block * BLOCK_TRANSACTIONS) : (block + 1) * BLOCK_TRANSACTIONS
                ]:
                    if one.first_offset < offset:
                        yield one

    def _note_first(self, at: int) -> None:
        """Update `_min_first_offsets` after an insertion at index `at` of `_by_marker`."""
        block = at // BLOCK_TRANSACTIONS
        if at == len(self._by_marker) - 1 and block < len(self._min_first_offsets):
            first = self._by_marker[at].first_offset
            self._min_first_offsets[block] = min(self._min_first_offsets[block], first)
            return
        del self._min_first_offsets[block:]  # the transactions after it have moved
        for begin in range(block * BLOCK_TRANSACTIONS, len(self._by_marker), BLOCK_TRANSACTIONS):
            stretch = self._by_marker[begin : begin + BLOCK_TRANSACTIONS]
            self._min_first_offsets.append(min(one.first_offset for one in stretch))


BLOCK_TRANSACTIONS = 256
"""Number of transactions in a block."""
_FOREVER = 1 << 62
_marker_offset = attrgetter("marker_offset")
