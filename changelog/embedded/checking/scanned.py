"""What a scan of one partition has brought to light: for further checks, and for repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.batches import batch_of
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.manifest import STILL_OPEN, Manifest, SegmentEntry
from strandline.changelog.embedded.names import partition_folder
from strandline.changelog.embedded.producer_state import ProducerStates
from strandline.changelog.embedded.scanning import CHUNK, NO_LIMIT, BrokenFrame
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.embedded.topic import TopicMeta
from strandline.changelog.records import Batch, PartitionOffsets, TopicPartition
from strandline.changelog.schema import ValueSchemas

IsLive = Callable[[int, int], bool]
"""Whether opening the log completes the transaction of a producer id and epoch."""


@dataclass(eq=False)
class RecordGap:
    """A place in which records were and cannot be read."""

    file: str
    first: int
    """No record before this offset is lost here."""
    until: int | None
    """Nor one from this offset on; None: it reaches to the end of the log, wherever that was."""
    reason: str
    headers: list[FrameHeader] = field(default_factory=list)
    """Of those frames in it whose header can still be read."""
    missing_bytes: int = 0
    """How many bytes of records are known to be gone or unreadable."""

    @property
    def offsets(self) -> tuple[int, int]:
        """The offsets that it may have held, as far as they are known."""
        return self.first, self.first if self.until is None else self.until

    def add(self, broken: BrokenFrame) -> None:
        """Another place of it where no frame can be read."""
        if broken.header is not None:
            self.headers.append(broken.header)
            self.missing_bytes += broken.header.length

    def closed_by(self, until: int | None) -> RecordGap:
        """The gap, now that it is known how far it reaches."""
        self.until = until
        return self


@dataclass(eq=False)
class LostMarker:
    """A transaction whose marker is not where it must have been."""

    producer_id: int
    epoch: int
    first_offset: int
    gaps: list[RecordGap]
    """Where the marker may have been; empty if there is no damage to explain it."""
    certain: bool
    """Whether it must have ended; else it may just be open at the end of the log."""


@dataclass(eq=False)
class ScannedSegment:
    """A segment that the manifest lists."""

    entry: SegmentEntry
    limit: int = NO_LIMIT
    """Offset at which the next segment begins."""
    expected_size: int = 0
    """Bytes that it must have had at the least."""
    file_size: int = 0
    segment: Segment | None = None
    """With the figures and the index of what was found; None if the file is missing."""
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """File positions from where to where there are frames that can be read."""
    debris_at: int | None = None
    """From where on the file holds nothing that was ever durable."""
    bad_figures: bool = False
    """Whether the manifest says otherwise than what was found."""

    @property
    def closed(self) -> bool:
        """Whether another segment follows it."""
        return self.entry.size != STILL_OPEN

    @property
    def intact(self) -> bool:
        """Whether the file holds whole frames up to its end, as many bytes as it had."""
        known = max(self.expected_size, self.file_size)
        return self.segment is not None and self.segment.size == known

    def add_piece(self, start: int, end: int) -> None:
        """There is a frame that can be read."""
        if self.pieces and self.pieces[-1][1] == start:
            start = self.pieces.pop()[0]
        self.pieces.append((start, end))


@dataclass(eq=False)
class ScannedPartition:
    """A partition of a topic in the catalog."""

    meta: TopicMeta
    number: int
    schemas: ValueSchemas
    manifest: Manifest
    closed: bool = False
    """Whether the log was closed in order, so that opening it trusts what it finds."""
    rebuilt: bool = False
    """Whether the manifest had to be made up from the files."""
    segments: list[ScannedSegment] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=ProducerStates)
    aborted: AbortedTransactions = field(default_factory=AbortedTransactions)
    last_markers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """By producer id: the epoch and the outcome that the last marker says."""
    gaps: list[RecordGap] = field(default_factory=list)
    lost_ends: list[LostMarker] = field(default_factory=list)
    bad_side_files: list[str] = field(default_factory=list)
    """Paths of those that must go."""
    state_files: list[str] = field(default_factory=list)
    """Names of all producer snapshots and aborted indexes."""
    contiguous: bool = True
    """Whether every offset from 0 to the end is in a frame."""

    @property
    def folder(self) -> str:
        return partition_folder(self.meta.topic_id, self.number)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.meta.name, self.number)

    @property
    def end(self) -> int:
        """One past the last offset found."""
        found = [s.segment.end_offset for s in self.segments if s.segment is not None]
        last = [self.segments[-1].entry.base_offset] if self.segments else []
        return max(found + last, default=0)

    @property
    def next_offset(self) -> int:
        """The offset at which the log goes on when it is opened, as far as its files say."""
        return self.end if self.closed else max(self.end, self.manifest.reserved_end)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction has ended."""
        first_open = self.producers.first_open_offset
        return self.end if first_open is None else min(self.end, first_open)

    def offsets(self) -> PartitionOffsets:
        """The ends of the partition, and its history, as its files say them."""
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
        """Every whole frame that can be decoded, in order."""
        for scanned in self.segments:
            if scanned.segment is not None:
                for start, end in scanned.pieces:
                    yield from scanned.segment.frames(start, CHUNK, end=end)

    def committed(self, end: int | None = None) -> Iterator[Batch]:
        """What a reader of committed records would get, up to `end`. Raises CorruptLog."""
        limit = self.last_stable_offset if end is None else min(end, self.last_stable_offset)
        return self._batches(limit, self._shows)

    def committed_when_opened(self, end: int, is_live: IsLive) -> Iterator[Batch]:
        """The same once the log has been opened, which commits what `is_live` of what is open, and aborts the rest.

        Raises CorruptLog.
        """

        def shows(header: FrameHeader) -> bool:
            open_since = self.producers.open_since(header.producer_id)
            is_open = header.transactional and 0 <= open_since <= header.base_offset
            shown = not is_open or is_live(header.producer_id, header.producer_epoch)
            return shown and self._shows(header)

        return self._batches(end, shows)

    def _batches(self, limit: int, shows: Callable[[FrameHeader], bool]) -> Iterator[Batch]:
        for frame in self.frames():
            header = frame.header
            if header.base_offset >= limit:
                return
            if header.last_offset >= self.manifest.log_start and shows(header):
                yield batch_of(frame, self.topic_partition, self.schemas)

    def _shows(self, header: FrameHeader) -> bool:
        if header.control or header.record_count == 0:
            return False
        return not (
            header.transactional and self.aborted.covers(header.producer_id, header.base_offset)
        )
