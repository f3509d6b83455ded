"""Records of a partition that were fetched for Faust's agents, and the histories of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from strandline.changelog.broker import Broker
from strandline.changelog.errors import OffsetOutOfRange
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
    >>> some = FetchedRecords(rows, 3, Fetched([], 9, 0, 9, 9))
    >>> [row.offset for row in some.take(1)], some.position
    ([4], 6)
    >>> [row.offset for row in some.take(5)], some.position, bool(some)
    ([6], 9, False)
    """

    records: list[ConsumerRecord]
    position: int
    """Position of a reader that has everything taken so far."""
    source: Fetched
    """The fetch, without its batches."""
    taken: int = 0
    """Number of records that were handed on."""

    def __bool__(self) -> bool:
        return self.taken < len(self.records)

    def take(self, most: int) -> list[ConsumerRecord]:
        """Return the next records, at most `most`."""
        found = self.records[self.taken : self.taken + most]
        self.taken += len(found)
        self.position = self.records[self.taken].offset if self else self.source.next_offset
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
            replace(fetched, batches=[]),
        )
        for tp, fetched in found
    }


class ReadHistories:
    """Histories of the partitions that a consumer reads. Readable from any thread."""

    def __init__(self) -> None:
        self._read: dict[TopicPartition, Fetched] = {}
        """Everything read without a seek, as of one fetch without its batches."""

    def note(self, tp: TopicPartition, position: int, fetched: Fetched) -> None:
        """Note the result of a fetch at `position`.

        Raises OffsetOutOfRange if it does not continue the last fetch, which ended there.
        """
        before = self._read.get(tp)
        if before is None or before.next_offset != position:
            self._read[tp] = fetched
            return
        if not before.is_continued_by(fetched):
            raise _replaced(tp, position)
        self._read[tp] = before.joined(fetched)

    def check_topic(self, tp: TopicPartition, position: int, topic_id: str) -> None:
        """Raise OffsetOutOfRange if the topic that was read to `position` had another id."""
        read = self._read.get(tp)
        if read is not None and "" not in (read.topic_id, topic_id) and read.topic_id != topic_id:
            raise _replaced(tp, position)

    def named(self, tp: TopicPartition, offset: int) -> CommittedOffset:
        """Return an offset of a partition with the history that it belongs to."""
        read = self._read.get(tp)
        if read is None:
            return named_offset(offset, "", ())
        return named_offset(offset, read.topic_id, read.epochs)


def _replaced(tp: TopicPartition, position: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"{tp}: offset {position} {REPLACED}. Start the worker again: it reads a new topic as one "
        "without committed offsets"
    )
