"""Records of a partition that were fetched for Faust's agents, and the histories of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from strandline.changelog.broker import Broker
from strandline.changelog.errors import OffsetOutOfRange
from strandline.changelog.history import Epochs, follows, joined_epochs
from strandline.changelog.records import (
    CommittedOffset,
    ConsumerRecord,
    Fetched,
    TopicPartition,
    named_offset,
)
from strandline.changelog.scan import REPLACED


@dataclass
class FetchedRecords:
    """Records of one partition that were fetched, but not handed on yet.

    >>> rows = [ConsumerRecord("t", 0, offset, 0, None, b"") for offset in (4, 6)]
    >>> some = FetchedRecords(rows, position=3, next_offset=9)
    >>> [row.offset for row in some.take(1)], some.position
    ([4], 6)
    >>> [row.offset for row in some.take(5)], some.position, bool(some)
    ([6], 9, False)
    """

    records: list[ConsumerRecord]
    position: int
    """Position of a reader that has everything taken so far."""
    next_offset: int
    """Position of a reader that has all records."""
    last_stable_offset: int = 0
    """Last stable offset of the partition when they were fetched."""
    taken: int = 0
    """Number of records that were handed on."""
    epochs: Epochs = ()
    """Epochs that name the positions of the fetch; empty if the log lists none."""
    topic_id: str = ""
    """Id of the topic; empty if the log does not tell it."""

    def __bool__(self) -> bool:
        return self.taken < len(self.records)

    def take(self, most: int) -> list[ConsumerRecord]:
        """Return the next records, at most `most`."""
        found = self.records[self.taken : self.taken + most]
        self.taken += len(found)
        self.position = self.records[self.taken].offset if self else self.next_offset
        return found


def fetch_records(
    broker: Broker, positions: Mapping[TopicPartition, int], **limits: Any
) -> dict[TopicPartition, FetchedRecords]:
    """Return the next records of each partition; partitions without any may be left out.

    Runs on the thread of fetches, so that the event loop does not wait for the conversion.

    Args:
        broker: The log.
        positions: Offset to read next, by partition.
        limits: `max_bytes` and `timeout` (seconds) of the fetch.
    """
    found: Iterable[tuple[TopicPartition, Fetched]] = broker.fetch(positions, **limits).items()
    return {
        tp: FetchedRecords(
            [record for batch in fetched.batches for record in batch.records()],
            positions[tp],
            fetched.next_offset,
            fetched.last_stable_offset,
            epochs=fetched.epochs,
            topic_id=fetched.topic_id,
        )
        for tp, fetched in found
    }


class ReadHistories:
    """Histories of the partitions that a consumer reads. Readable from any thread."""

    def __init__(self) -> None:
        self._read: dict[TopicPartition, FetchedRecords] = {}
        """Last fetch, without its records, and with the epochs of what was read before it."""

    def note(self, tp: TopicPartition, position: int, fetched: FetchedRecords) -> None:
        """Note the result of a fetch at `position`.

        Raises OffsetOutOfRange if it does not continue the last fetch, which ended there.
        """
        last = self._read.get(tp, _NOTHING)
        goes_on = last.next_offset == position
        is_same = "" in (last.topic_id, fetched.topic_id) or last.topic_id == fetched.topic_id
        if goes_on and not (is_same and follows(last.epochs, position, fetched.epochs)):
            raise OffsetOutOfRange(
                f"{tp}: offset {position} {REPLACED}. Start the worker again: it reads a new topic "
                "as one without committed offsets"
            )
        epochs = joined_epochs(last.epochs if goes_on else (), fetched.epochs)
        self._read[tp] = replace(fetched, records=[], taken=0, epochs=epochs)

    def named(self, tp: TopicPartition, offset: int) -> CommittedOffset:
        """Return an offset of a partition with the history that it belongs to."""
        last = self._read.get(tp, _NOTHING)
        return named_offset(offset, "", last.epochs)


_NOTHING = FetchedRecords([], -1, -1)
