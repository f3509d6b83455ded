"""A plain model of a cleaned partition: a list of records and the fate of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from strandline.changelog.embedded.batches import batch_of
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.records import ConsumerRecord, Headers, PartitionOffsets

FOREVER = 1 << 62


@dataclass(eq=False)
class Fate:
    """Fate of a transaction, shared by its records. All plain records share a committed one."""

    state: str = "open"
    markers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Range of offsets of the marker, by partition. After an opening it is not known exactly."""


PLAIN = Fate("committed")


@dataclass(eq=False)
class Written:
    """A record and its fate."""

    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    headers: Headers
    fate: Fate
    batch_end: int
    """Last offset of the batch in which the record was written."""
    horizon: int = -1
    gone: bool = False

    @property
    def committed(self) -> bool:
        return self.fate.state == "committed"


@dataclass
class Follower:
    """A reader that builds state, and starts over only if the log's ends require it."""

    position: int = 0
    began: int = 0
    """Log start when the reader last started over."""
    settled_end: int = 0
    state: dict[bytes, Any] = field(default_factory=dict)

    def looks(self, ends: PartitionOffsets) -> None:
        """Look at the ends of the partition, as before each fetch, and start over if necessary."""
        told = ends.must_start_over(self.position, self.settled_end)
        if told or self.position < ends.log_start:
            self.position = self.began = ends.log_start
            self.settled_end = ends.settled_end
            self.state = {}

    def takes(self, record: ConsumerRecord) -> None:
        if record.key is not None and record.value is None:
            self.state.pop(record.key, None)
        elif record.key is not None:
            self.state[record.key] = record.value


class PartitionModel:
    """Model of one partition."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[Written] = []
        self.log_start = 0
        self.clean_end = 0
        self.purged_end = 0
        self.follower = Follower()

    # Readers ------------------------------------------------------------------------------

    @property
    def first_open(self) -> int:
        """First offset of the earliest open transaction."""
        return min((r.offset for r in self.records if r.fate.state == "open"), default=FOREVER)

    def committed(self) -> list[Written]:
        """Return the records for a read_committed reader from the log's start."""
        end = self.first_open
        return [r for r in self._there() if r.committed and r.offset < end]

    def uncommitted(self) -> tuple[list[Written], set[int]]:
        """Return the records for a read_uncommitted reader, and offsets that may be missing."""
        there = list(self._there())
        return there, {r.offset for r in there if self._aborted_below(r, self.clean_end) is None}

    def _there(self) -> Iterator[Written]:
        return (r for r in self.records if not r.gone and r.offset >= self.log_start)

    def folded(self, began: int, end: int) -> dict[bytes, Any]:
        """Return the state that a log without cleaning would give in [`began`, `end`)."""
        state = dict[bytes, Any]()
        for r in self.records:
            if began <= r.offset < end and r.committed and r.key is not None:
                state[r.key] = r.value
        return {key: value for key, value in state.items() if value is not None}

    # Passes -------------------------------------------------------------------------------

    def start(self, log_end: int) -> int:
        """First dirty offset."""
        return self.clean_end if self.log_start <= self.clean_end <= log_end else self.log_start

    def keys(self, start: int, end: int) -> dict[bytes, int]:
        """Return the last committed offset of each key in [start, end)."""
        return {
            r.key: r.offset
            for r in self._there()
            if start <= r.offset < end and r.committed and r.key is not None
        }

    def fates(self, start: int, end: int, now: int) -> dict[Written, str]:
        """Return the changes that a pass over [start, end) makes, by record."""
        latest, fates = self.keys(start, end), dict[Written, str]()
        for r in self._there():
            if r.offset >= end or r.fate.state == "open":
                continue
            if r.fate.state == "aborted":
                gone = self._aborted_below(r, end)
                if gone is not False:
                    fates[r] = "aborted" if gone else "perhaps"
            elif r.key is None:
                fates[r] = "keyless"
            elif latest.get(r.key, -1) > r.offset:
                fates[r] = "superseded"
            elif r.value is None and r.horizon == -1 and r.batch_end < end:
                fates[r] = "stamped"
            elif r.value is None and -1 < r.horizon <= now:
                fates[r] = "tombstone"
        return fates

    def clean(self, start: int, end: int, now: int, retention: int) -> Counter[str]:
        """Apply a pass. Return the number of changes by kind."""
        fates = self.fates(start, end, now)
        for r, fate in fates.items():
            if fate == "stamped":
                r.horizon = now + retention
            elif fate != "perhaps":
                r.gone = True
            if fate == "tombstone":
                self.purged_end = max(self.purged_end, r.offset + 1)
        self.clean_end = end
        return Counter(fates.values())

    def _aborted_below(self, r: Written, end: int) -> bool | None:
        """Return True if an aborted record's marker is below an offset; None if that is not
        known."""
        if r.fate.state != "aborted":
            return False
        low, high = r.fate.markers[self.number]
        return True if high < end else False if low >= end else None


@dataclass(frozen=True)
class OnDisk:
    """A record in a segment."""

    record: ConsumerRecord
    header: FrameHeader


def on_disk(partition: Partition) -> Iterator[OnDisk]:
    """Yield all records in the segments of a partition, visible or not."""
    for segment in partition.segments:
        for frame in segment.frames(0, 1 << 20):
            if not frame.header.control and frame.header.record_count:
                batch = batch_of(frame, partition.topic_partition, partition.schemas)
                for record in batch.records():
                    yield OnDisk(record, frame.header)
