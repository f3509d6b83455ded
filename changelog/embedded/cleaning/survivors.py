"""Which records of a partition a pass leaves, frame by frame (Kafka's Cleaner.shouldRetainRecord).

A record stays if the pass has not looked so far, or if it is the last of its key and has a value, or is
a tombstone whose horizon has not passed. What was aborted goes, once all of its transaction lies
in the stretch that is cleaned; so do records without a key.

What committed transactions have written becomes plain records: below the last stable offset it makes
no difference to any reader, and the transaction's marker is not needed any more. Only what is the last
thing known of a producer stays what it is, so that its sequence and epoch outlive its records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.batches import columns_of
from strandline.changelog.embedded.cleaning.offset_map import Choice, Offsets
from strandline.changelog.embedded.format import Attributes, FrameHeader, FrameKind
from strandline.changelog.embedded.manifest import NO_HORIZON
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.producer_state import ProducerEntry
from strandline.changelog.embedded.segment import LocatedFrame
from strandline.changelog.schema import ValueSchemas


class LastRecords(Protocol):
    """Which records are the last of their keys, as far as a pass has looked."""

    @property
    def keys(self) -> int:
        """How many have a record in the dirty section."""
        ...

    @property
    def use(self) -> float:
        """The part of the room for keys that is taken, 0 to 1."""
        ...

    def within(self, first: int, behind: int) -> Offsets:
        """The offsets of such records in [`first`, `behind`), a stretch of the dirty section, ascending."""
        ...

    def outlast(self, keys: pa.BinaryArray, offsets: Offsets, base_offset: int) -> Choice:
        """Which records of the frame at `base_offset` no later one supersedes, by their keys and offsets.

        It may begin in the clean section. What it says of null keys and behind the end is of no interest.
        """
        ...


@dataclass(slots=True)
class RemovalTally:
    """What a pass has met and removed: records, but for the markers."""

    read: int = 0
    kept: int = 0
    tombstones: int = 0
    """Removed, their horizon having passed."""
    aborted: int = 0
    keyless: int = 0
    markers: int = 0
    purged_end: int = 0
    """One past the last tombstone removed."""

    @property
    def superseded(self) -> int:
        """Removed since a later record has their key."""
        return self.read - self.kept - self.tombstones - self.aborted - self.keyless


class FrameContent(NamedTuple):
    """The records of a frame."""

    columns: pa.RecordBatch
    """timestamp, key, value[, headers]."""
    offsets: Offsets
    dense: bool
    """Whether no offset is missing between them."""


class FrameFate(NamedTuple):
    """What becomes of a frame."""

    header: FrameHeader
    """As it is from now on; its offsets, sizes and checksums are as they were."""
    kept: Offsets | None = None
    """Indices of the records that stay; None: all of them."""
    stays_apart: bool = False
    """Whether it is not merged with others: the last thing known of its producer, or not cleaned yet."""
    content: FrameContent | None = None
    """Its records, if they were looked at."""

    @property
    def gone(self) -> bool:
        """Whether nothing of it stays, not even the header."""
        return self.kept is not None and not len(self.kept) and not self.stays_apart

    def changes(self, before: FrameHeader) -> bool:
        """Whether something of the frame is other than it was."""
        return self.kept is not None or self.header != before


_NOTHING: Offsets = np.empty(0, np.int64)


def content_of(frame: LocatedFrame, schemas: ValueSchemas) -> FrameContent:
    """The records of a data frame. Raises CorruptLog."""
    columns, sparse = columns_of(frame, schemas)
    if sparse is not None:
        return FrameContent(columns, sparse.to_numpy(), dense=False)
    header = frame.header
    offsets = np.arange(header.base_offset, header.last_offset + 1, dtype=np.int64)
    return FrameContent(columns, offsets, dense=True)


@dataclass
class Survivors:
    """What a pass knows."""

    latest: LastRecords
    """Of the keys in [start, end)."""
    start: int
    """First dirty offset."""
    end: int
    """How far the pass has looked."""
    now_ms: int
    delete_retention_ms: int
    schemas: ValueSchemas
    aborted: AbortedTransactions
    producers: dict[int, ProducerEntry]
    """As they were when the pass began."""
    tally: RemovalTally

    @classmethod
    def of(
        cls, partition: Partition, latest: LastRecords, start: int, end: int, now_ms: int
    ) -> Survivors:
        """What is known of a partition."""
        with partition.lock:
            return cls(
                latest,
                start,
                end,
                now_ms,
                partition.config.delete_retention_ms,
                partition.schemas,
                AbortedTransactions(partition.aborted),
                {
                    producer: ProducerEntry(entry.epoch, list(entry.batches), 0)
                    for producer, entry in partition.producers.entries.items()
                },
                RemovalTally(),
            )

    def __post_init__(self) -> None:
        ended = self.aborted.ending_in(self.start, self.end)
        self.reach_back = any(one.first_offset < self.start for one in ended)
        """Whether below `start` there is something whose abort marker is found only now."""

    def judge(self, frame: LocatedFrame) -> FrameFate:
        """What becomes of a frame. Raises CorruptLog."""
        header = frame.header
        if header.base_offset >= self.end:
            return FrameFate(header, stays_apart=True)
        if header.control:
            return self._marker(header)
        if header.kind == FrameKind.EMPTY:
            return self._without_records(header)
        marker = self.aborted.marker_of(header.producer_id, header.base_offset)
        if header.transactional and marker is not None:
            return self._aborted(header, marker)
        self.tally.read += header.record_count
        if self.start <= header.base_offset and header.last_offset < self.end:
            stay = self.latest.within(header.base_offset, header.last_offset + 1)
            if not len(stay):  # its checksum was compared when its keys were read
                return self._emptied(header)
            content = content_of(frame, self.schemas)
            kept = (
                stay - header.base_offset
                if content.dense
                else np.searchsorted(content.offsets, stay)
            )
        else:
            content = content_of(frame, self.schemas)
            kept = self._looked_up(header, content)
        return self._data(header, content, kept)

    def last_of_producer(self, header: FrameHeader) -> bool:
        """Whether a frame is the last thing known of a producer that is not forgotten."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return False
        if header.control:
            return not entry.batches and entry.epoch == header.producer_epoch
        return bool(entry.batches) and entry.batches[-1].last_offset == header.last_offset

    def _marker(self, header: FrameHeader) -> FrameFate:
        if self.last_of_producer(header):
            return FrameFate(header, stays_apart=True)
        self.tally.markers += 1
        return FrameFate(header, _NOTHING)

    def _without_records(self, header: FrameHeader) -> FrameFate:
        if self.last_of_producer(header):
            return FrameFate(header, stays_apart=True)
        return FrameFate(header, _NOTHING)

    def _emptied(self, header: FrameHeader) -> FrameFate:
        """A frame of which no record stays; nothing in it waits for a horizon any more."""
        header = header._replace(delete_horizon=NO_HORIZON)
        return FrameFate(header, _NOTHING, stays_apart=self.last_of_producer(header))

    def _aborted(self, header: FrameHeader, marker: int) -> FrameFate:
        if marker >= self.end:
            return FrameFate(header, stays_apart=True)  # its marker could not tell where it began
        self.tally.read += header.record_count
        self.tally.aborted += header.record_count
        return FrameFate(header, _NOTHING)

    def _looked_up(self, header: FrameHeader, content: FrameContent) -> Offsets:
        """The records that are not superseded."""
        keys = content.columns.column(1)
        named = keys.fill_null(b"") if keys.null_count else keys
        stays = self.latest.outlast(named, content.offsets, header.base_offset)
        if keys.null_count:
            stays &= keys.is_valid().to_numpy(zero_copy_only=False)
        return np.flatnonzero(stays | (content.offsets >= self.end))

    def _data(self, header: FrameHeader, content: FrameContent, kept: Offsets) -> FrameFate:
        if content.columns.column(2).null_count:
            kept, horizon = self._tombstones(header, content, kept)
            header = header._replace(delete_horizon=horizon)
        seen_in_part = header.last_offset >= self.end
        apart = seen_in_part or self.last_of_producer(header)
        if header.transactional and not apart:
            header = as_plain(header)
        self.tally.kept += len(kept)
        everything = len(kept) == len(content.offsets)
        return FrameFate(header, None if everything else kept, apart, content)

    def _tombstones(
        self, header: FrameHeader, content: FrameContent, kept: Offsets
    ) -> tuple[Offsets, int]:
        """What stays without the expired tombstones, and until when those that stay are there."""
        horizon = header.delete_horizon
        if header.last_offset >= self.end:  # of some, older records may be left
            return kept, horizon
        dead = content.columns.column(2).is_null().to_numpy(zero_copy_only=False)[kept]
        if not dead.any():
            return kept, NO_HORIZON
        if horizon == NO_HORIZON:
            return kept, self.now_ms + self.delete_retention_ms
        if horizon > self.now_ms:
            return kept, horizon
        self.tally.tombstones += int(dead.sum())
        last = int(content.offsets[kept[dead][-1]])
        self.tally.purged_end = max(self.tally.purged_end, last + 1)
        return kept[~dead], NO_HORIZON


def as_plain(header: FrameHeader) -> FrameHeader:
    """The header of the same records outside any transaction, and of no producer."""
    return header._replace(
        attributes=(header.attributes & ~Attributes.TRANSACTIONAL) | Attributes.CLEANED,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
