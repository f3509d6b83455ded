"""Reading of a topic's records, up to its current end or as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from strandline.changelog.broker import Broker
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.history import Epochs, follows
from strandline.changelog.records import Batch, Isolation, PartitionOffsets, TopicPartition
from strandline.changelog.scan import REPLACED, scan

POLL_S = 0.5
"""Seconds that one request waits for new records; `follow` is called between requests."""


def partitions_of(
    broker: Broker, topic: str, chosen: Collection[int] | None = None
) -> list[TopicPartition]:
    """Return all partitions of a topic, or the chosen ones.

    Raises UnknownTopic, UnknownPartition.
    """
    numbers = sorted(set(chosen)) if chosen else range(broker.topic(topic).partitions)
    return [TopicPartition(topic, number) for number in numbers]


def end_of(offsets: PartitionOffsets, isolation: Isolation) -> int:
    """Return the end (exclusive) of the records that a reader of this isolation level sees."""
    if isolation == "read_committed":
        return offsets.last_stable_offset
    return offsets.high_watermark


def read(
    broker: Broker,
    positions: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = "read_committed",
    follow: Callable[[], object] | None = None,
) -> Iterator[Batch]:
    """Yield batches from `positions` to the current ends, or until `follow()` returns a true value.

    Raises OffsetOutOfRange.
    """
    at = dict(positions)
    if follow is None:
        ends = {tp: end_of(now, isolation) for tp, now in broker.offsets(list(at)).items()}
        for fetched in scan(broker, at, ends, isolation=isolation):
            for one in fetched.values():
                yield from one.batches
        return
    epochs: dict[TopicPartition, Epochs] = {}
    while at and not follow():
        for tp, one in broker.fetch(at, isolation=isolation, timeout=POLL_S).items():
            if not follows(epochs.get(tp, ()), at[tp], one.epochs):
                raise OffsetOutOfRange(f"{tp}: offset {at[tp]} {REPLACED}; start again")
            at[tp], epochs[tp] = one.next_offset, one.epochs
            yield from one.batches
