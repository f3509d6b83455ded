"""The check of one partition: its manifest, its files, and every frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from strandline.changelog.clock import Clock
from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.checking.producers import ProducerRules, SegmentAges
from strandline.changelog.embedded.checking.rebuilding import rebuilt_manifest
from strandline.changelog.embedded.checking.scanned import (
    RecordGap,
    ScannedPartition,
    ScannedSegment,
)
from strandline.changelog.embedded.checking.side_files import (
    IndexCheck,
    LostSideFile,
    SideFile,
    StateFiles,
    load_index,
)
from strandline.changelog.embedded.checking.walking import schema_is_missing, validator_of, walk
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.manifest import STILL_OPEN, Manifest
from strandline.changelog.embedded.recovery import holds_records
from strandline.changelog.embedded.scanning import NO_LIMIT, WholeFrame
from strandline.changelog.embedded.segment import NO_INDEX_BYTES, Segment, SparseIndex
from strandline.changelog.embedded.topic import TopicMeta, lost_topics
from strandline.changelog.errors import CorruptLog, FutureFormat, cause
from strandline.changelog.history import LOST, REBUILT, Epochs, epoch_of, is_cut_short
from strandline.changelog.layout import MANIFEST, segment_of, snapshot_offset
from strandline.changelog.schema import ValueSchemas
from strandline.changelog.storage import Storage

OnBytes = Callable[[int], None]
"""Called with the number of bytes just read."""


@dataclass(frozen=True)
class CheckContext:
    """Objects shared by the checks of all partitions."""

    storage: Storage
    clock: Clock
    report: CheckReport
    on_bytes: OnBytes
    closed: dict[str, int] | None
    """Bytes of each active segment by partition folder; None without a clean shutdown."""


def check_partition(
    context: CheckContext, meta: TopicMeta, number: int, schemas: ValueSchemas
) -> ScannedPartition:
    """Read and verify a partition completely. Raises FutureFormat, StorageFailed."""
    scanned = ScannedPartition(meta, number, schemas, _fresh(meta, number))
    scanned.closed = context.closed is not None
    context.report.partitions += 1
    names = context.storage.list_dir(scanned.folder)
    scanned.manifest = _manifest(context, scanned)
    scanned.state_files = [name for name in names if name.endswith((".producers", ".aborted"))]
    _note_strays(context, scanned, names)
    _FrameCheck(context, scanned, names).run()
    return scanned


# The manifest --------------------------------------------------------------------------


def _fresh(meta: TopicMeta, number: int) -> Manifest:
    return Manifest(topic=meta.name, topic_id=meta.topic_id, partition=number)


def _manifest(context: CheckContext, scanned: ScannedPartition) -> Manifest:
    """Load the manifest of a partition, or rebuild it from the segment files."""
    active_size = _least_active_size(context, scanned)
    try:
        manifest = Manifest.load(context.storage, scanned.folder)
        problem = _inconsistency(manifest, scanned)
        if problem is None:
            return manifest
    except FileNotFoundError:
        if not active_size and not holds_records(context.storage, scanned.folder):
            return scanned.manifest
        problem = "is missing though there are records"
    except FutureFormat:
        raise
    except CorruptLog as error:
        problem = f"cannot be read: {cause(error)}"
    scanned.rebuilt = True
    context.report.add(
        Severity.REPAIRABLE,
        "manifest",
        f"{scanned.folder}/{MANIFEST}",
        problem,
        partition=scanned.topic_partition,
        way_out="run `strandline repair`, which rebuilds it from the segment files; deleted records "
        "may reappear",
    )
    return rebuilt_manifest(context.storage, scanned.meta, scanned.number, active_size)


def _least_active_size(context: CheckContext, scanned: ScannedPartition) -> int:
    """Return the number of bytes that the active segment had at least.

    Without a clean shutdown a missing folder of a topic counts as one with records in each
    partition, because no crash leaves a topic without a folder.
    """
    if context.closed is not None:
        return context.closed.get(scanned.folder, 0)
    return 1 if lost_topics(context.storage, [scanned.meta]) else 0


def _inconsistency(manifest: Manifest, scanned: ScannedPartition) -> str | None:
    """Describe a contradiction within a manifest, or with its folder; None if there is none."""
    place = (scanned.meta.name, scanned.meta.topic_id, scanned.number)
    if (manifest.topic, manifest.topic_id, manifest.partition) != place:
        return (
            f"belongs to partition {manifest.partition} of topic {manifest.topic!r}, id "
            f"{manifest.topic_id}, but is in the folder of {place}"
        )
    return _epochs_inconsistency(manifest) or _segments_inconsistency(manifest)


def _epochs_inconsistency(manifest: Manifest) -> str | None:
    """Describe a contradiction within the leader epochs; None if there is none."""
    epochs = manifest.epochs
    if any(
        earlier.number >= later.number or earlier.start >= later.start
        for earlier, later in pairwise(epochs)
    ):
        return f"has leader epochs that do not ascend: {_listed(epochs)}"
    named = [one.incarnation for one in epochs if one.incarnation not in ("", REBUILT, LOST)]
    if len(set(named)) < len(named):
        return f"has two leader epochs of one incarnation: {_listed(epochs)}"
    if any(earlier.incarnation and not later.incarnation for earlier, later in pairwise(epochs)):
        return f"has a leader epoch without an incarnation after one with it: {_listed(epochs)}"
    first = manifest.segments[0].base_offset if manifest.segments else manifest.log_start
    if epochs[0].start > first and not is_cut_short(epochs):
        return f"has no leader epoch for its first offset: {_listed(epochs)}"
    return None


def _listed(epochs: Epochs) -> list[tuple[int, int, str]]:
    return [(epoch.number, epoch.start, epoch.incarnation) for epoch in epochs]


def _segments_inconsistency(manifest: Manifest) -> str | None:
    """Describe a contradiction within the list of segments; None if there is none."""
    entries = manifest.segments
    generations = [entry.generation for entry in entries]
    if (
        len(set(generations)) < len(entries)
        or max(generations, default=0) >= manifest.next_generation
    ):
        return f"has generations {generations}, next {manifest.next_generation}"
    for entry, following in pairwise(entries):
        if not entry.base_offset <= entry.end_offset <= following.base_offset or entry.size < 0:
            return f"has segments that overlap or are out of order: {entry}, {following}"
    if entries and entries[-1].size != STILL_OPEN:
        return f"has no active segment: {entries[-1]}"
    if entries and manifest.log_start < entries[0].base_offset:
        return (
            f"begins at offset {manifest.log_start}, its first segment at {entries[0].base_offset}"
        )
    return None


def _note_strays(context: CheckContext, scanned: ScannedPartition, names: list[str]) -> None:
    """Report temporary files and segments that the manifest does not list."""
    listed = {entry.name for entry in scanned.manifest.segments}
    for name in names:
        segment = segment_of(name)
        if name.endswith(".tmp") or (segment is not None and segment not in listed):
            context.report.add(
                Severity.NOTE,
                "stray",
                f"{scanned.folder}/{name}",
                "is not in the manifest: a crash interrupted its creation or removal",
                partition=scanned.topic_partition,
            )


# Frames --------------------------------------------------------------------------------


class _FrameCheck:
    """Checks all segments of a partition and reports problems."""

    def __init__(self, context: CheckContext, scanned: ScannedPartition, names: list[str]) -> None:
        self._context = context
        self._scanned = scanned
        self._snapshots = {snapshot_offset(name) for name in names}
        entries = scanned.manifest.segments
        ages = SegmentAges(entries, context.clock.now_ms())
        self._end = entries[0].base_offset if entries else 0
        """Offset after the last one met."""
        self._durable_end = 0
        """Largest durable end in a frame so far."""
        self._rules = ProducerRules(scanned.topic_partition, scanned.folder, ages, context.report)
        self._states = StateFiles(
            context.storage, scanned.folder, scanned.manifest, self._end, self._rules, ages
        )
        self._validate = validator_of(scanned.topic_partition, scanned.schemas)

    def run(self) -> None:
        scanned, rules = self._scanned, self._rules
        entries = scanned.manifest.segments
        limits = [*(entry.base_offset for entry in entries[1:]), NO_LIMIT]
        for entry, limit in zip(entries, limits, strict=False):
            one = ScannedSegment(entry, limit)
            scanned.segments.append(one)
            self._context.report.segments += 1
            self._rules.skipped(self._end, entry.base_offset)
            self._check_snapshot(one)
            self._check_segment(one)
        rules.finish()
        scanned.producers, scanned.aborted = rules.producers, rules.aborted
        scanned.last_markers, scanned.lost_markers = rules.last_markers, rules.lost_markers
        first = scanned.manifest.segments[0].base_offset if scanned.segments else 0
        scanned.contiguous = first == 0 and not rules.has_holes

    def _check_segment(self, one: ScannedSegment) -> None:
        """Check the file and the side files of a segment."""
        storage, folder, entry = self._context.storage, self._scanned.folder, one.entry
        closed = self._context.closed
        active_size = 0 if closed is None else closed.get(folder, 0)
        one.expected_size = entry.size if one.closed else active_size
        try:
            segment = Segment.open(storage, folder, entry.name, entry.created_ms, writable=False)
        except FileNotFoundError:
            until = entry.end_offset if one.closed else None
            path = f"{folder}/{entry.name.log_file}"
            gap = RecordGap(path, max(self._end, entry.base_offset), until, "the file is missing")
            gap.missing_bytes = one.expected_size
            self._add_gap(gap)
            return
        one.segment, one.file_size = segment, segment.file.size()
        index = self._index_of(one)
        for found in walk(one, segment, max(self._end, entry.base_offset), self._validate):
            if isinstance(found, RecordGap):
                self._add_gap(found)
            else:
                index.frame(found.position, found.frame.header, segment.max_timestamp)
                self._read_frame(one, segment, found)
        self._check_size(one, segment)
        if one.closed:
            self._check_entry(one, segment)
            self._check_closed(one, index)
        segment.release_file()

    def _read_frame(self, one: ScannedSegment, segment: Segment, found: WholeFrame) -> None:
        """Check a readable frame and update the state after it."""
        header, report = found.frame.header, self._context.report
        if header.base_offset > self._end:
            self._rules.skipped(self._end, header.base_offset)
        self._check_header(segment.path, header)
        self._rules.frame(found.frame)
        segment.noted(header, NO_INDEX_BYTES)
        self._end = header.last_offset + 1
        self._durable_end = max(self._durable_end, header.durable_end)
        report.frames += 1
        report.records += 0 if header.control else header.record_count
        report.bytes += header.length
        self._context.on_bytes(header.length)

    def _check_header(self, path: str, header: FrameHeader) -> None:
        """Check leader epoch, durable end and schema id of a frame."""
        manifest, schemas = self._scanned.manifest, self._scanned.schemas
        offsets = (header.base_offset, header.last_offset + 1)
        listed = manifest.epochs[0].start <= header.base_offset
        epoch = epoch_of(manifest.epochs, header.base_offset).number
        if header.leader_epoch != epoch and listed and not self._scanned.rebuilt:
            what = (
                f"has leader epoch {header.leader_epoch} at offset {offsets[0]}, the manifest has "
                f"{epoch} there"
            )
            self._add(Severity.DAMAGE, "leader epoch", path, what, offsets, _NOT_REPAIRABLE)
        if not self._durable_end <= header.durable_end <= header.base_offset:
            what = (
                f"has durable end {header.durable_end} at offset {header.base_offset}, after "
                f"durable end {self._durable_end}"
            )
            self._add(Severity.DAMAGE, "durable end", path, what, offsets, _NOT_REPAIRABLE)
        if schema_is_missing(header, schemas):
            what = (
                f"has schema id {header.schema_id} at offset {offsets[0]}, the topic has "
                f"{schemas.latest_id}: its records cannot be decoded"
            )
            way_out = (
                "restore the catalog that has this schema; `strandline repair` does not change it"
            )
            self._add(Severity.DAMAGE, "schema", path, what, offsets, way_out)

    def _add_gap(self, gap: RecordGap) -> None:
        """Report a gap in which records were lost."""
        self._scanned.gaps.append(gap)
        self._rules.gap(gap)
        end = "the end of the log" if gap.until is None else f"offset {gap.until - 1}"
        deleted = gap.until is not None and gap.until <= self._scanned.manifest.log_start
        self._add(
            Severity.REPAIRABLE if deleted else Severity.DAMAGE,
            "records",
            gap.file,
            f"nothing can be read from offset {gap.first} to {end} ({gap.reason})",
            gap.offsets,
        )
        if gap.until is not None:
            self._rules.skipped(gap.first, gap.until)
            self._end = max(self._end, gap.until)

    # Sizes and side files of segments -------------------------------------------------

    def _check_size(self, one: ScannedSegment, segment: Segment) -> None:
        """Report a file that is too large, or a torn tail."""
        known = one.closed or self._context.closed is not None
        if known and one.file_size > one.expected_size:
            one.wrong_entry = one.closed
            what = f"had {one.expected_size} bytes when it was closed, and has {one.file_size} now"
            self._add(Severity.REPAIRABLE, "size", segment.path, what)
        elif one.debris_at is not None:
            self._add(
                Severity.NOTE,
                "torn tail",
                segment.path,
                f"no whole frame follows from byte {one.debris_at} on: a crash interrupted a "
                f"write that had not been acknowledged",
            )

    def _check_entry(self, one: ScannedSegment, segment: Segment) -> None:
        """Compare the manifest's end offset and timestamp of a segment with its frames."""
        entry = one.entry
        found = (segment.end_offset, segment.max_timestamp)
        if found != (entry.end_offset, entry.max_timestamp):
            one.wrong_entry = True
            if one.intact:
                what = (
                    f"ends at offset {found[0]}, largest timestamp {found[1]}; the manifest says "
                    f"{entry.end_offset}, {entry.max_timestamp}"
                )
                self._add(Severity.REPAIRABLE, "figures", segment.path, what)

    def _index_of(self, one: ScannedSegment) -> IndexCheck:
        """Return the comparison with a segment's index; an empty one if there is no index."""
        if not one.closed:
            return IndexCheck(SparseIndex())
        folder = self._scanned.folder
        try:
            return IndexCheck(load_index(self._context.storage, folder, one.entry.name))
        except LostSideFile as lost:
            self._add(Severity.NOTE, "index", f"{folder}/{one.entry.name.index_file}", str(lost))
            return IndexCheck(SparseIndex())

    def _check_closed(self, one: ScannedSegment, index: IndexCheck) -> None:
        """Check the index and the aborted index of a closed segment."""
        index.finish()
        entry, folder = one.entry, self._scanned.folder
        if index.problem is not None and one.intact:
            self._add_bad_side_file("index", f"{folder}/{entry.name.index_file}", index.problem)
        file = self._states.aborted_of(entry.name, entry.base_offset, entry.end_offset)
        self._check_side_file("aborted index", file)

    def _check_snapshot(self, one: ScannedSegment) -> None:
        """Check the producer snapshot at the base offset of a segment."""
        base = one.entry.base_offset
        # A missing snapshot is reported for the active segment only: older ones are deleted. The
        # first segment needs none.
        if base in self._snapshots or (not one.closed and len(self._scanned.segments) > 1):
            self._check_side_file("producer snapshot", self._states.snapshot_at(base))

    def _check_side_file(self, kind: str, file: SideFile) -> None:
        """Report a side file that is missing, unreadable or wrong."""
        try:
            problem = file.check()
        except FileNotFoundError:
            self._add(Severity.NOTE, kind, file.path, "is missing")
        except FutureFormat:
            raise
        except CorruptLog as error:
            self._add_bad_side_file(kind, file.path, f"cannot be read: {cause(error)}")
        else:
            # With gaps in the frames the file may be right and the replayed state incomplete.
            if problem is not None and not self._scanned.gaps:
                self._add_bad_side_file(kind, file.path, problem)

    def _add_bad_side_file(self, kind: str, path: str, problem: str) -> None:
        """Report a wrong side file, which repair removes."""
        self._scanned.bad_side_files.append(path)
        self._add(Severity.REPAIRABLE, kind, path, problem)

    def _add(
        self,
        severity: Severity,
        kind: str,
        file: str,
        what: str,
        offsets: tuple[int, int] | None = None,
        way_out: str = "",
    ) -> None:
        self._context.report.add(
            severity,
            kind,
            file,
            what,
            partition=self._scanned.topic_partition,
            offsets=offsets,
            way_out=way_out,
        )


_NOT_REPAIRABLE = "`strandline repair` cannot decide what is right and does not change it"
