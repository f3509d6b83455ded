"""State of a partition's producers: sequences, epochs, open transactions.

This is pure state without I/O. `check` decides; `appended` and `ended` record events. The rules are
those of Kafka's ProducerStateManager and ProducerAppendInfo (KIP-98, KIP-360, KIP-890):

- Sequences count records per producer id and partition, from 0, wrapping after 2**31 - 1.
- A batch equal to one of the last five is a duplicate, answered with its first offsets.
- A lower epoch is fenced; a higher one starts again at sequence 0.
- A marker carries the epoch of the *next* transaction, so late batches of the ended one are fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from strandline.changelog.errors import InvalidTxnState, OutOfOrderSequence, ProducerFenced
from strandline.changelog.records import Appended, ProducerIdentity

SEQUENCES = 1 << 31
"""Number of sequences; after the last one they start again at 0."""
REMEMBERED_BATCHES = 5
"""Number of batches kept per producer, to detect duplicates."""


class BatchMeta(msgspec.Struct, array_like=True, frozen=True):
    """Sequences and offsets of one batch of a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerEntry(msgspec.Struct, array_like=True):
    """State of one producer in one partition."""

    epoch: int
    batches: list[BatchMeta]
    """The last five batches, oldest first."""
    last_timestamp: int
    """Milliseconds since the epoch of the last append (`LogContext.steady_ms`), for expiry."""
    open_since: int = -1
    """First offset of the open transaction; -1 if there is none."""


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended in this partition."""

    producer_id: int
    first_offset: int
    marker_offset: int


def advance(sequence: int, count: int) -> int:
    """Return the sequence that is `count` records after `sequence`.

    >>> advance(2**31 - 1, 1)
    0
    """
    return (sequence + count) % SEQUENCES


class ProducerStates:
    """State of the producers of one partition."""

    def __init__(self, entries: Mapping[int, ProducerEntry] | None = None) -> None:
        self.entries: dict[int, ProducerEntry] = dict(entries or {})
        self._open: dict[int, int] = {
            producer: entry.open_since
            for producer, entry in self.entries.items()
            if entry.open_since >= 0
        }
        """First offset of each open transaction, by producer id."""

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the earliest open transaction; None if there is none."""
        return min(self._open.values()) if self._open else None

    @property
    def open_producers(self) -> list[int]:
        """Producer ids with an open transaction."""
        return list(self._open)

    def open_since(self, producer_id: int) -> int:
        """Return the first offset of the producer's open transaction; -1 if it has none."""
        return self._open.get(producer_id, -1)

    def epoch(self, producer_id: int) -> int:
        """Return the highest epoch seen of a producer; -1 if the producer is unknown."""
        entry = self.entries.get(producer_id)
        return entry.epoch if entry else -1

    def next_sequence(self, producer: ProducerIdentity) -> int:
        """Return the sequence that the producer's next batch must begin with."""
        entry = self.entries.get(producer.producer_id)
        if entry is None or entry.epoch != producer.epoch or not entry.batches:
            return 0
        return advance(entry.batches[-1].last_sequence, 1)

    def check(
        self,
        producer: ProducerIdentity,
        base_sequence: int,
        count: int,
        transactional: bool,
        where: str,
    ) -> Appended | None:
        """Return None if the batch may be appended, or its offsets if it is a duplicate.

        Raises ProducerFenced, OutOfOrderSequence, InvalidTxnState.
        """
        entry = self.entries.get(producer.producer_id)
        if entry is None:
            return None
        if producer.epoch < entry.epoch:
            raise ProducerFenced(
                f"{where}: producer {producer.producer_id} has epoch {entry.epoch} by now, "
                f"got epoch {producer.epoch}; another instance took over, or its transaction ended"
            )
        if producer.epoch > entry.epoch or not entry.batches:
            self._check_start(producer, base_sequence, where)
            return None
        last_sequence = advance(base_sequence, count - 1)
        for batch in entry.batches:
            if (batch.base_sequence, batch.last_sequence) == (base_sequence, last_sequence):
                return Appended(batch.base_offset, batch.last_offset, duplicate=True)
        expected = advance(entry.batches[-1].last_sequence, 1)
        if base_sequence != expected:
            raise OutOfOrderSequence(
                f"{where}: producer {producer.producer_id} (epoch {producer.epoch}) must continue at "
                f"sequence {expected}, got {base_sequence} to {last_sequence}"
            )
        if entry.open_since >= 0 and not transactional:
            raise InvalidTxnState(
                f"{where}: producer {producer.producer_id} has a transaction open; a plain append "
                f"must wait for its end, or use another producer"
            )
        return None

    @staticmethod
    def _check_start(producer: ProducerIdentity, base_sequence: int, where: str) -> None:
        if base_sequence != 0:
            raise OutOfOrderSequence(
                f"{where}: producer {producer.producer_id} begins epoch {producer.epoch} at "
                f"sequence 0, got {base_sequence}"
            )

    def appended(
        self,
        producer: ProducerIdentity,
        batch: BatchMeta,
        *,
        transactional: bool,
        timestamp: int,
    ) -> None:
        """Record a batch that was appended to the log."""
        producer_id, epoch = producer
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(epoch, [], timestamp)
        if epoch > entry.epoch:
            entry.epoch = epoch
            entry.batches = []
        entry.batches.append(batch)
        del entry.batches[:-REMEMBERED_BATCHES]
        entry.last_timestamp = timestamp
        if transactional and entry.open_since < 0:
            entry.open_since = self._open[producer_id] = batch.base_offset

    def ended(
        self, producer: ProducerIdentity, marker_offset: int, timestamp: int
    ) -> EndedTransaction | None:
        """Record a marker. Return the ended transaction, or None if it has no records here."""
        producer_id, epoch = producer
        first = self._open.pop(producer_id, -1)
        self.entries[producer_id] = ProducerEntry(epoch, [], timestamp)
        return EndedTransaction(producer_id, first, marker_offset) if first >= 0 else None

    def move_times(self, latest: int) -> None:
        """Move the times of last use so that the latest of them is `latest` (ms).

        Times that another process has recorded differ from those of this one by the time for which
        the log was closed, and by whatever the wall clock was set in between.
        """
        shift = latest - max(
            (each.last_timestamp for each in self.entries.values()), default=latest
        )
        for entry in self.entries.values():
            entry.last_timestamp += shift

    def expire(self, older_than: int) -> None:
        """Forget producers idle since `older_than` (ms), except those with an open transaction."""
        idle = [
            producer
            for producer, entry in self.entries.items()
            if entry.last_timestamp < older_than and entry.open_since < 0
        ]
        for producer in idle:
            del self.entries[producer]
