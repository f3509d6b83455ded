"""Records of a partition that were fetched, and are handed to Faust as its agents have room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strandline.changelog.broker import Broker
from strandline.changelog.records import ConsumerRecord, Fetched, TopicPartition


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
        )
        for tp, fetched in found
    }
