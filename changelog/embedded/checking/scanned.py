"""The results of a scan of one partition, for further checks and for repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.batches import batch_of
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.manifest import STILL_OPEN, Manifest, SegmentEntry
from strandline.changelog.embedded.scanning import CHUNK_BYTES, NO_LIMIT, BrokenFrame
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.embedded.topic import TopicMeta
from strandline.changelog.layout import partition_folder
from strandline.changelog.producer_state import ProducerStates
from strandline.changelog.records import Batch, PartitionOffsets, TopicPartition
from strandline.changelog.schema import ValueSchemas

IsLive = Callable[[int, int], bool]
"""Returns True if opening the log completes the transaction of a producer id and epoch."""


@dataclass(eq=False)
class RecordGap:
    """A range of offsets whose records cannot be read."""

    file: str
    first: int
    """First offset that may be lost."""
    until: int | None
    """End (exclusive); None if the gap reaches the end of the log, which is then unknown."""
    reason: str
    headers: list[FrameHeader] = field(default_factory=list)
    """Headers of the frames in the gap that can still be read."""
    missing_bytes: int = 0
    """Bytes of records known to be missing or unreadable."""

    @property
    def offsets(self) -> tuple[int, int]:
        """First offset and end (exclusive); both are the first if the end is unknown."""
        return self.first, self.first if self.until is None else self.until

    def add(self, broken: BrokenFrame) -> None:
        """Add a broken frame to the gap."""
        if broken.header is not None:
            self.headers.append(broken.header)
            self.missing_bytes += broken.header.length

    def closed_by(self, until: int | None) -> RecordGap:
        """Set the end of the gap and return the gap."""
        self.until = until
        return self


@dataclass(eq=False)
class LostMarker:
    """A transaction whose marker is missing or may be missing."""

    producer_id: int
    epoch: int
    first_offset: int
    """First offset of the transaction."""
    gaps: list[RecordGap]
    """Gaps in which the marker may have been; empty if no damage explains its loss."""
    certain: bool
    """True if the transaction certainly ended; else it may be open at the end of the log."""


@dataclass(eq=False)
class ScannedSegment:
    """A segment that the manifest lists."""

    entry: SegmentEntry
    limit: int = NO_LIMIT
    """Offset at which the next segment begins."""
    expected_size: int = 0
    """Minimum size of the file in bytes."""
    file_size: int = 0
    """Actual size of the file in bytes."""
    segment: Segment | None = None
    """The segment, with end offset and index as found; None if the file is missing."""
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of bytes (start, end exclusive) with readable frames."""
    debris_at: int | None = None
    """Byte at which the torn tail begins: nothing after it was ever durable. None without one."""
    wrong_entry: bool = False
    """True if the manifest's size, end offset or timestamp of the segment is wrong."""

    @property
    def closed(self) -> bool:
        """True if another segment follows."""
        return self.entry.size != STILL_OPEN

    @property
    def intact(self) -> bool:
        """True if the file has its expected size and contains whole frames only."""
        known = max(self.expected_size, self.file_size)
        return self.segment is not None and self.segment.size == known

    def add_piece(self, start: int, end: int) -> None:
        """Add the bytes of a readable frame."""
        if self.pieces and self.pieces[-1][1] == start:
            start = self.pieces.pop()[0]
        self.pieces.append((start, end))


@dataclass(eq=False)
class ScannedPartition:
    """The result of the scan of a partition."""

    meta: TopicMeta
    number: int
    schemas: ValueSchemas
    manifest: Manifest
    closed: bool = False
    """True if the log was closed cleanly: opening it then relies on the recorded sizes."""
    rebuilt: bool = False
    """True if the manifest was rebuilt from the segment files."""
    segments: list[ScannedSegment] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=ProducerStates)
    aborted: AbortedTransactions = field(default_factory=AbortedTransactions)
    last_markers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Epoch of the last marker of each producer id, and True if it commits."""
    gaps: list[RecordGap] = field(default_factory=list)
    """Ranges of offsets whose records cannot be read."""
    lost_markers: list[LostMarker] = field(default_factory=list)
    """Transactions whose marker is lost."""
    bad_side_files: list[str] = field(default_factory=list)
    """Paths of wrong side files, which must be removed."""
    state_files: list[str] = field(default_factory=list)
    """Names of all producer snapshots and aborted indexes."""
    contiguous: bool = True
    """True if every offset from 0 to the end is in a frame that was not cleaned."""

    @property
    def folder(self) -> str:
        """Path of the partition's folder in the log folder."""
        return partition_folder(self.meta.topic_id, self.number)

    @property
    def topic_partition(self) -> TopicPartition:
        """Name of the topic and number of the partition."""
        return TopicPartition(self.meta.name, self.number)

    @property
    def end(self) -> int:
        """Offset after the last one found."""
        found = [s.segment.end_offset for s in self.segments if s.segment is not None]
        last = [self.segments[-1].entry.base_offset] if self.segments else []
        return max(found + last, default=0)

    @property
    def next_offset(self) -> int:
        """Offset of the next append after the log is opened, according to its files."""
        return self.end if self.closed else max(self.end, self.manifest.reserved_end)

    @property
    def last_stable_offset(self) -> int:
        """Offset before which every transaction has ended."""
        first_open = self.producers.first_open_offset
        return self.end if first_open is None else min(self.end, first_open)

    def offsets(self) -> PartitionOffsets:
        """Return the partition's offsets and history according to its files."""
        manifest, end = self.manifest, self.next_offset
        return PartitionOffsets(
            manifest.log_start,
            end,
            min(end, self.last_stable_offset),
            manifest.topic_id,
            manifest.leader_epoch,
            manifest.epochs,
            manifest.purged_end,
            manifest.clean_end,
            manifest.superseding_end,
        )

    def frames(self) -> Iterator[LocatedFrame]:
        """Yield every readable frame, in order."""
        for scanned in self.segments:
            if scanned.segment is not None:
                for start, end in scanned.pieces:
                    yield from scanned.segment.frames(start, CHUNK_BYTES, end=end)

    def committed(self, end: int | None = None) -> Iterator[Batch]:
        """Yield the committed batches before `end`, by default all. Raises CorruptLog."""
        limit = self.last_stable_offset if end is None else min(end, self.last_stable_offset)
        return self._batches(limit, self._is_visible)

    def committed_when_opened(self, end: int, is_live: IsLive) -> Iterator[Batch]:
        """Yield the batches before `end` that will be committed once the log is opened.

        Opening commits the open transactions for which `is_live` returns True, and aborts all other
        ones. Raises CorruptLog.
        """

        def is_visible(header: FrameHeader) -> bool:
            open_since = self.producers.open_since(header.producer_id)
            is_open = header.transactional and 0 <= open_since <= header.base_offset
            shown = not is_open or is_live(header.producer_id, header.producer_epoch)
            return shown and self._is_visible(header)

        return self._batches(end, is_visible)

    def _batches(self, limit: int, is_visible: Callable[[FrameHeader], bool]) -> Iterator[Batch]:
        for frame in self.frames():
            header = frame.header
            if header.base_offset >= limit:
                return
            if header.last_offset >= self.manifest.log_start and is_visible(header):
                yield batch_of(frame, self.topic_partition, self.schemas)

    def _is_visible(self, header: FrameHeader) -> bool:
        """Return True if a frame has records and is not aborted."""
        if header.control or header.record_count == 0:
            return False
        return not (
            header.transactional and self.aborted.covers(header.producer_id, header.base_offset)
        )
