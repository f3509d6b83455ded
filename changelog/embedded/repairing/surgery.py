"""Rewrite the damaged segments of one partition, and its manifest.

    1  write the readable frames of damaged segments to new files
    2  remove producer snapshots and aborted indexes: opening the log recreates them
    3  replace the manifest by one that lists the new files          (the repair takes effect)
    4  remove the old files

A crash before step 3 leaves new files that no manifest lists, a crash after it old ones. Opening
the log removes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from strandline.changelog.clock import Clock
from strandline.changelog.embedded.checking.scanned import (
    RecordGap,
    ScannedPartition,
    ScannedSegment,
)
from strandline.changelog.embedded.frame import FramePayload, encode_marker, frame_parts
from strandline.changelog.embedded.manifest import STILL_OPEN, SegmentEntry
from strandline.changelog.embedded.partition import RESERVED_OFFSETS
from strandline.changelog.embedded.repairing.plan import RepairPlan, remove
from strandline.changelog.embedded.scanning import CHUNK_BYTES
from strandline.changelog.embedded.segment import NO_INDEX_BYTES, Segment
from strandline.changelog.history import LOST, epoch_of, with_epoch
from strandline.changelog.layout import MANIFEST, SegmentName, segment_of
from strandline.changelog.records import ProducerIdentity
from strandline.changelog.storage import Storage


@dataclass(frozen=True)
class RepairMarker:
    """A transaction marker to be written in place of a lost one."""

    producer: ProducerIdentity
    """Producer id, and the epoch of the next transaction as in every marker."""
    commit: bool


@dataclass
class Surgery:
    """The repair of one partition."""

    scanned: ScannedPartition
    in_gaps: dict[RecordGap, list[RepairMarker]] = field(default_factory=dict)
    """Markers to be written into gaps that have frames after them."""
    at_end: list[RepairMarker] = field(default_factory=list)
    """Markers to be appended at the end."""
    records: list[FramePayload] = field(default_factory=list)
    """Batches to be appended at the end."""
    reach: int = 0
    """Minimum offset of new records: smaller ones may have been read and must not be reused."""

    @property
    def tail_is_lost(self) -> bool:
        """True if records may have been read at offsets after the last one found.

        Also true if markers or records must be appended, because that needs new offsets as well.
        """
        scanned = self.scanned
        open_gap = any(gap.until is None for gap in scanned.gaps)
        return open_gap or self.reach > scanned.next_offset or bool(self.at_end or self.records)

    @property
    def is_needed(self) -> bool:
        """True if segments or the manifest must be changed."""
        scanned = self.scanned
        wrong = any(one.wrong_entry for one in scanned.segments)
        return bool(scanned.rebuilt or scanned.gaps or wrong or self.tail_is_lost)

    @property
    def goes_on_at(self) -> int:
        """Base offset of the new active segment, if the tail is lost.

        It is larger than every offset mentioned anywhere, by a margin for lost records that are
        not mentioned: `RESERVED_OFFSETS` offsets, or one for each missing byte if that is more.
        """
        scanned = self.scanned
        headers = [header for gap in scanned.gaps for header in gap.headers]
        seen = [max(header.last_offset + 1, header.durable_end) for header in headers]
        highest = max([scanned.next_offset, self.reach, *seen])
        missing = sum(gap.missing_bytes for gap in scanned.gaps if gap.until is None)
        return highest + max(RESERVED_OFFSETS, missing)

    def add_to(self, plan: RepairPlan, clock: Clock) -> None:
        """Add the repair as one step to a plan."""
        scanned = self.scanned
        what = ", ".join(self._descriptions()) or "correct the manifest"
        plan.add(
            f"{scanned.topic_partition}: {what}",
            lambda storage, _: _Operation(self, storage, clock).run(),
            self._touched(),
        )

    def markers_of(self, one: ScannedSegment) -> list[tuple[int, RepairMarker]]:
        """Return the markers to be written into a segment, each with its offset."""
        return [
            (gap.first + index, marker)
            for gap in self.scanned.gaps
            if gap.file.endswith("/" + one.entry.name.log_file)
            for index, marker in enumerate(self.in_gaps.get(gap, ()))
        ]

    def is_rewritten(self, one: ScannedSegment) -> bool:
        """Return True if a segment's file must be replaced."""
        segment = one.segment
        whole = segment is not None and segment.size == one.file_size
        if one.closed:  # also if it was truncated between frames: its index points past the end
            whole = one.intact
        return not whole or bool(self.markers_of(one))

    def _descriptions(self) -> Iterator[str]:
        """Yield descriptions of the changes, in the imperative."""
        for one in self.scanned.segments:
            if self.is_rewritten(one):
                rest = bool(one.pieces or self.markers_of(one))
                name = one.entry.name.log_file
                yield f"rewrite {name}" if rest else f"remove {name} from the log"
        if self.scanned.rebuilt:
            yield "rebuild the manifest"
        if self.tail_is_lost:
            yield f"continue at offset {self.goes_on_at}"

    def _touched(self) -> list[str]:
        """Return the paths of the files that are changed or removed."""
        scanned = self.scanned
        changed = [one.entry.name for one in scanned.segments if self.is_rewritten(one)]
        names = [name for segment in changed for name in segment.files]
        return [f"{scanned.folder}/{name}" for name in [MANIFEST, *names, *scanned.state_files]]


class _Operation:
    """The execution of a repair."""

    def __init__(self, surgery: Surgery, storage: Storage, clock: Clock) -> None:
        self._surgery = surgery
        self._scanned = surgery.scanned
        self._folder = surgery.scanned.folder
        self._storage = storage
        self._now = clock.now_ms()
        self._incarnation = clock.new_id()
        self._manifest = msgspec.structs.replace(surgery.scanned.manifest)
        self._durable_end = 0

    def run(self) -> None:
        storage, surgery = self._storage, self._surgery
        storage.make_dir(self._folder)
        entries = [entry for one in self._scanned.segments for entry in self._entries(one)]
        if surgery.tail_is_lost or not entries:
            entries = self._with_new_active(entries)
        # Before the manifest lists the new files, because their names must be durable by then.
        storage.sync_dir(self._folder)
        remove(storage, [f"{self._folder}/{name}" for name in self._scanned.state_files])
        manifest = self._manifest
        manifest.log_start = max(manifest.log_start, entries[0].base_offset)
        manifest.segments = entries
        manifest.save(storage, self._folder)
        self._remove_old(entries)

    def _entries(self, one: ScannedSegment) -> list[SegmentEntry]:
        """Return the new manifest entry of a segment; none if nothing of it can be read."""
        surgery, last = self._surgery, one is self._scanned.segments[-1]
        created = one.entry.created_ms or self._now
        if not surgery.is_rewritten(one):
            assert one.segment is not None
            segment = one.segment
            self._durable_end = max(self._durable_end, segment.end_offset)
            return [self._entry(segment, one.entry.generation, created, last=last)]
        markers = surgery.markers_of(one)
        if not one.pieces and not markers and not last:
            return []
        segment = self._new_segment(one.entry.base_offset, created)
        self._copy(one, segment, markers)
        return [self._finished(segment, created, last=last)]

    def _copy(
        self, one: ScannedSegment, target: Segment, markers: Sequence[tuple[int, RepairMarker]]
    ) -> None:
        """Copy the readable frames of a segment, and write the markers between them."""
        pending = list(markers)
        for start, end in one.pieces:
            assert one.segment is not None
            for frame in one.segment.frames(start, CHUNK_BYTES, end=end):
                header = frame.header
                while pending and pending[0][0] < header.base_offset:
                    self._write_marker(target, *pending.pop(0))
                data = frame.data[frame.position : frame.position + header.length]
                target.append(header, [data], NO_INDEX_BYTES)
                self._durable_end = header.durable_end
        for offset, marker in pending:
            self._write_marker(target, offset, marker)

    def _write_marker(self, target: Segment, offset: int, marker: RepairMarker) -> None:
        timestamp = max(0, target.max_timestamp)
        payload = encode_marker(commit=marker.commit, coordinator_epoch=0, timestamp=timestamp)
        self._write(target, payload, offset, marker.producer)

    def _write(
        self, target: Segment, payload: FramePayload, offset: int, producer: ProducerIdentity | None
    ) -> None:
        epochs = self._manifest.epochs
        header, parts = frame_parts(
            payload,
            base_offset=offset,
            producer_id=producer.producer_id if producer else -1,
            producer_epoch=producer.epoch if producer else -1,
            transactional=producer is not None,
            leader_epoch=epoch_of(epochs, offset).number,
            durable_end=min(self._durable_end, offset),
            place=target.place,
        )
        target.append(header, parts, NO_INDEX_BYTES)

    def _with_new_active(self, entries: list[SegmentEntry]) -> list[SegmentEntry]:
        """Create a new active segment in a new leader epoch, with the markers and records."""
        surgery, manifest = self._surgery, self._manifest
        base, end = surgery.goes_on_at, self._scanned.end
        lost = with_epoch(manifest.epochs, end, LOST, 0)
        manifest.epochs = with_epoch(lost, base, self._incarnation, 0)
        if entries and entries[-1].size == STILL_OPEN:
            entries = [*entries[:-1], *self._closed(entries[-1])]
        active = self._new_segment(base, self._now)
        for index, marker in enumerate(surgery.at_end):
            self._write_marker(active, base + index, marker)
        for payload in surgery.records:
            self._write(active, payload, active.end_offset, None)
        return [*entries, self._finished(active, self._now, last=True)]

    def _closed(self, entry: SegmentEntry) -> list[SegmentEntry]:
        """Return the entry of the formerly active segment, now closed; none if it is empty."""
        name, folder = entry.name, self._folder
        segment = Segment.open(self._storage, folder, name, entry.created_ms, writable=False)
        for frame in segment.frames(0, CHUNK_BYTES, end=segment.file.size()):
            segment.noted(frame.header, NO_INDEX_BYTES)
        if segment.size == 0:
            return []
        return [self._entry(segment, entry.generation, entry.created_ms, last=False)]

    def _new_segment(self, base: int, created: int) -> Segment:
        name = SegmentName(base, self._manifest.next_generation)
        self._manifest.next_generation += 1
        for file in name.files:  # left by a repair that crashed
            self._storage.unlink(f"{self._folder}/{file}")
        return Segment.create(self._storage, self._folder, name, created)

    def _finished(self, segment: Segment, created: int, *, last: bool) -> SegmentEntry:
        segment.file.sync()
        return self._entry(segment, segment.name.generation, created, last=last)

    @staticmethod
    def _entry(segment: Segment, generation: int, created: int, *, last: bool) -> SegmentEntry:
        return SegmentEntry(
            base_offset=segment.base_offset,
            generation=generation,
            created_ms=created,
            size=STILL_OPEN if last else segment.size,
            end_offset=STILL_OPEN if last else segment.end_offset,
            max_timestamp=STILL_OPEN if last else segment.max_timestamp,
        )

    def _remove_old(self, entries: Iterable[SegmentEntry]) -> None:
        listed = {entry.name for entry in entries}
        names = self._storage.list_dir(self._folder)
        old = [name for name in names if segment_of(name) is not None]
        unlisted = [name for name in old if segment_of(name) not in listed]
        remove(self._storage, [f"{self._folder}/{name}" for name in unlisted])
