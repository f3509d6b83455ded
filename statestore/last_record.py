"""The record before a store's position, for logs that do not list their epochs (Kafka).

Kafka reports the leader epoch of each record and the current one of the partition, but not the
offsets at which epochs began. So the last record left before the position is read again. The log
has another history than the store if that record has another leader epoch than the position, or if
the store has another value for its key. The store has applied everything before its position, so it
must have the value of that record.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.changelog.broker import Broker
from strandline.changelog.history import UNKNOWN_EPOCH
from strandline.changelog.records import Batch, PartitionOffsets, TopicPartition
from strandline.statestore.changelogged import Changelogged
from strandline.statestore.engine import StorePosition

DISTANCES = (1, 64)
"""Numbers of offsets before the position to search for a record. Some may be markers."""
MAX_FETCHES = 8
"""Maximum number of fetches for one distance."""


class LastRecord(NamedTuple):
    """The last record before a position that is left in the log."""

    offset: int
    leader_epoch: int
    is_held: bool = True
    """True if the store has the record's value for its key."""

    def divergence(self, position: StorePosition) -> str:
        """Return why a store at `position` is of another history; empty if it may be of this one.

        Positions without an incarnation were written by older versions. They contain the leader
        epoch of the partition, which may be newer than that of the record.
        """
        known = position.leader_epoch
        if known != UNKNOWN_EPOCH:
            differs = (
                self.leader_epoch != known if position.incarnation else self.leader_epoch > known
            )
            if differs:
                return (
                    f"before offset {position.offset} the log was rewritten in epoch "
                    f"{self.leader_epoch}"
                )
        if not self.is_held:
            return f"it does not have the record at offset {self.offset} of the log"
        return ""


def last_record(
    state: Changelogged, broker: Broker, partition: TopicPartition, log: PartitionOffsets
) -> LastRecord | None:
    """Return the last record before a store's position if its history is checked by that alone.

    None if the log lists its epochs, if the position is outside the log, or if no record is found.
    """
    found = state.position
    if found is None or log.epochs or not log.log_start < found.offset <= log.high_watermark:
        return None
    for distance in DISTANCES:
        start = max(log.log_start, found.offset - distance)
        batch = _last_batch(broker, partition, start, found.offset)
        if batch is not None:
            key = batch.columns.column("key")[-1].as_py()
            value = batch.columns.column("value")[-1].as_py()
            held = key is not None and state.read([key]) == [value]
            return LastRecord(batch.last_offset, batch.leader_epoch, held)
    return None


def _last_batch(broker: Broker, partition: TopicPartition, start: int, end: int) -> Batch | None:
    """Return the last batch of committed records in [`start`, `end`); None if there is none."""
    last: Batch | None = None
    for _ in range(MAX_FETCHES):
        fetched = broker.fetch({partition: start}, max_bytes=1 << 20, timeout=0.0)[partition]
        clipped = (batch.clip(start, end) for batch in fetched.batches)
        last = next((batch for batch in reversed(list(clipped)) if len(batch)), last)
        if not start < fetched.next_offset < end:
            break
        start = fetched.next_offset
    return last
