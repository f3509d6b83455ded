"""Decide which records of a frame a pass retains (Kafka's Cleaner.shouldRetainRecord).

A record is retained if it is past the end of the pass, or if it is the last of its key and either
has a value or is a tombstone whose delete horizon has not passed. Records without a key are
removed. Aborted records are removed once their abort marker is before the end of the pass too.

Records of committed transactions become plain records, because before the last stable offset this
makes no difference to readers, and the transaction's marker can be removed. The last frame of a
live producer keeps its header, so that the producer's sequence and epoch outlive its records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from strandline.changelog.arrays import as_numpy
from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.batches import columns_of
from strandline.changelog.embedded.cleaning.offset_map import Choice, Offsets
from strandline.changelog.embedded.format import Attributes, FrameHeader, FrameKind
from strandline.changelog.embedded.manifest import NO_HORIZON
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import LocatedFrame
from strandline.changelog.producer_state import ProducerEntry
from strandline.changelog.schema import ValueSchemas


class LastRecords(Protocol):
    """The last records of all keys before the end of a pass."""

    @property
    def keys(self) -> int:
        """Number of keys with a record in the dirty section."""
        ...

    @property
    def use(self) -> float:
        """Used part of the offset map, 0 to 1."""
        ...

    def within(self, first: int, end: int) -> Offsets:
        """Return the offsets of last records in [`first`, `end`), ascending.

        The range must lie in the dirty section.
        """
        ...

    def not_superseded(self, keys: pa.BinaryArray, offsets: Offsets, base_offset: int) -> Choice:
        """Return for each record of the frame at `base_offset` whether no later one has its key.

        The frame may begin in the clean section. The answer is meaningless for null keys, and for
        records at or after the end of the pass.
        """
        ...


@dataclass(slots=True)
class RemovalTally:
    """Numbers of records that a pass has read, retained and removed."""

    read: int = 0
    """Records read."""
    kept: int = 0
    """Records retained."""
    tombstones: int = 0
    """Tombstones removed after their delete horizon."""
    aborted: int = 0
    """Records of aborted transactions removed."""
    keyless: int = 0
    """Records without a key removed."""
    markers: int = 0
    """Transaction markers removed; not counted as records."""
    purged_end: int = 0
    """Offset after the last tombstone removed."""

    @property
    def superseded(self) -> int:
        """Records removed because a later record has their key."""
        return self.read - self.kept - self.tombstones - self.aborted - self.keyless


class FrameContent(NamedTuple):
    """The records of a frame."""

    columns: pa.RecordBatch
    """Columns timestamp, key, value[, headers]."""
    offsets: Offsets
    """Offset of each record."""
    dense: bool
    """True if no offset is missing between the records."""


class FrameFate(NamedTuple):
    """The decision about a frame: its new header and its retained records."""

    header: FrameHeader
    """New header; offsets, sizes and checksums are those of the old frame."""
    kept: Offsets | None = None
    """Indices of the retained records; None if all are retained."""
    separate: bool = False
    """True if the frame must not be merged with other frames.

    It is the last frame of a live producer, or reaches past the end of the pass.
    """
    content: FrameContent | None = None
    """The records of the frame, if they were decoded."""

    @property
    def removed(self) -> bool:
        """True if the whole frame is removed, including the header."""
        return self.kept is not None and not len(self.kept) and not self.separate

    def changes(self, before: FrameHeader) -> bool:
        """Return True if the frame's header or records change; `before` is the old header."""
        return self.kept is not None or self.header != before


_NOTHING: Offsets = np.empty(0, np.int64)


def content_of(frame: LocatedFrame, schemas: ValueSchemas) -> FrameContent:
    """Decode the records of a data frame. Raises CorruptLog."""
    columns, sparse = columns_of(frame, schemas)
    if sparse is not None:
        return FrameContent(columns, as_numpy(sparse), dense=False)
    header = frame.header
    offsets = np.arange(header.base_offset, header.last_offset + 1, dtype=np.int64)
    return FrameContent(columns, offsets, dense=True)


@dataclass
class Survivors:
    """Decides which records are retained; a snapshot of the partition when the pass began."""

    latest: LastRecords
    """Last records of the keys in [start, end)."""
    start: int
    """First dirty offset."""
    end: int
    """End of the pass (exclusive): later records are retained."""
    now_ms: int
    delete_retention_ms: int
    schemas: ValueSchemas
    aborted: AbortedTransactions
    producers: dict[int, ProducerEntry]
    """Producer states when the pass began."""
    tally: RemovalTally

    @classmethod
    def of(
        cls, partition: Partition, latest: LastRecords, start: int, end: int, now_ms: int
    ) -> Survivors:
        """Copy the state of a partition that the decisions depend on."""
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
        self.has_aborted_clean = any(one.first_offset < self.start for one in ended)
        """True if the clean section has aborted records whose abort marker is in this pass."""

    def fate_of(self, frame: LocatedFrame) -> FrameFate:
        """Decide what is retained of a frame. Raises CorruptLog."""
        header = frame.header
        if header.base_offset >= self.end:
            return FrameFate(header, separate=True)
        if header.control:
            return self._marker(header)
        if header.kind == FrameKind.EMPTY:
            return self._without_records(header)
        marker = self.aborted.marker_of(header.producer_id, header.base_offset)
        if header.transactional and marker is not None:
            return self._aborted(header, marker)
        self.tally.read += header.record_count
        if self.start <= header.base_offset and header.last_offset < self.end:
            latest = self.latest.within(header.base_offset, header.last_offset + 1)
            if not len(latest):  # not decoded: its checksum was verified when its keys were read
                return self._without_retained(header)
            content = content_of(frame, self.schemas)
            kept = (
                latest - header.base_offset
                if content.dense
                else np.searchsorted(content.offsets, latest)
            )
        else:
            content = content_of(frame, self.schemas)
            kept = self._not_superseded(header, content)
        return self._data(header, content, kept)

    def last_of_producer(self, header: FrameHeader) -> bool:
        """Return True if a frame is the last one of a live producer.

        Recovery restores the producer's epoch and sequence from it.
        """
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return False
        if header.control:
            return not entry.batches and entry.epoch == header.producer_epoch
        return bool(entry.batches) and entry.batches[-1].last_offset == header.last_offset

    def _marker(self, header: FrameHeader) -> FrameFate:
        if self.last_of_producer(header):
            return FrameFate(header, separate=True)
        self.tally.markers += 1
        return FrameFate(header, _NOTHING)

    def _without_records(self, header: FrameHeader) -> FrameFate:
        if self.last_of_producer(header):
            return FrameFate(header, separate=True)
        return FrameFate(header, _NOTHING)

    def _without_retained(self, header: FrameHeader) -> FrameFate:
        """Return the fate of a frame without retained records; it needs no delete horizon."""
        header = header._replace(delete_horizon=NO_HORIZON)
        return FrameFate(header, _NOTHING, separate=self.last_of_producer(header))

    def _aborted(self, header: FrameHeader, marker: int) -> FrameFate:
        if marker >= self.end:
            # Retained until its marker is in a pass, because the marker does not say where the
            # transaction began.
            return FrameFate(header, separate=True)
        self.tally.read += header.record_count
        self.tally.aborted += header.record_count
        return FrameFate(header, _NOTHING)

    def _not_superseded(self, header: FrameHeader, content: FrameContent) -> Offsets:
        """Return the indices of the records that are not superseded; they are looked up by key."""
        keys = content.columns.column(1)
        filled = keys.fill_null(b"") if keys.null_count else keys
        retained = self.latest.not_superseded(filled, content.offsets, header.base_offset)
        if keys.null_count:
            retained &= as_numpy(keys.is_valid())
        return np.flatnonzero(retained | (content.offsets >= self.end))

    def _data(self, header: FrameHeader, content: FrameContent, kept: Offsets) -> FrameFate:
        if content.columns.column(2).null_count:
            kept, horizon = self._tombstones(header, content, kept)
            header = header._replace(delete_horizon=horizon)
        reaches_past_end = header.last_offset >= self.end
        separate = reaches_past_end or self.last_of_producer(header)
        if header.transactional and not separate:
            header = as_plain(header)
        self.tally.kept += len(kept)
        everything = len(kept) == len(content.offsets)
        return FrameFate(header, None if everything else kept, separate, content)

    def _tombstones(
        self, header: FrameHeader, content: FrameContent, kept: Offsets
    ) -> tuple[Offsets, int]:
        """Return the indices retained after expired tombstones are removed, and the delete horizon.

        A tombstone gets its horizon in the first pass that retains it (KIP-534).
        """
        horizon = header.delete_horizon
        if header.last_offset >= self.end:  # older records of a key may still be in the log
            return kept, horizon
        tombstones = as_numpy(content.columns.column(2).is_null())[kept]
        if not tombstones.any():
            return kept, NO_HORIZON
        if horizon == NO_HORIZON:
            return kept, self.now_ms + self.delete_retention_ms
        if horizon > self.now_ms:
            return kept, horizon
        self.tally.tombstones += int(tombstones.sum())
        last = int(content.offsets[kept[tombstones][-1]])
        self.tally.purged_end = max(self.tally.purged_end, last + 1)
        return kept[~tombstones], NO_HORIZON


def as_plain(header: FrameHeader) -> FrameHeader:
    """Return the header of the same records without transaction and producer."""
    return header._replace(
        attributes=(header.attributes & ~Attributes.TRANSACTIONAL) | Attributes.CLEANED,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
