"""Rebuild lost manifests and a lost catalog from the other files of the folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from strandline.changelog.config import TopicConfig
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.manifest import STILL_OPEN, Manifest, SegmentEntry
from strandline.changelog.embedded.partition import RESERVED_OFFSETS
from strandline.changelog.embedded.scanning import WholeFrame, scan
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.embedded.topic import TopicMeta
from strandline.changelog.errors import CorruptLog, FutureFormat, StrandlineError
from strandline.changelog.history import REBUILT, Epochs, HistoryEpoch
from strandline.changelog.layout import (
    SYSTEM_TOPICS,
    TOPICS,
    SegmentName,
    partition_folder,
    segment_of,
    snapshot_offset,
    topic_folder,
)
from strandline.changelog.schema import decode_schemas
from strandline.changelog.storage import Storage

FALLBACK_CONFIG = {"retention.ms": "-1"}
"""Settings of a topic whose own are lost: keep all records until an operator sets retention."""


def rebuilt_manifest(
    storage: Storage, meta: TopicMeta, number: int, active_size: int = 0
) -> Manifest:
    """Rebuild the manifest of a partition from its segment files.

    Of overlapping segments the most complete is listed. Missing segments are listed too if side
    files or `active_size` show that they existed. Creation times are 0, earlier than any other.
    Raises FutureFormat.

    Args:
        storage: The log folder.
        meta: The topic of the partition.
        number: The number of the partition.
        active_size: Least bytes of the active segment: those recorded by a clean shutdown, or 1 if
            it must have existed; 0 if unknown.
    """
    folder = partition_folder(meta.topic_id, number)
    files = storage.list_dir(folder)
    names = sorted({name for name in map(segment_of, files) if name})
    found = [_found(storage, folder, name, files) for name in names if name.log_file in files]
    kept = _without_overlaps(found)
    epochs = _epochs(header for one in kept for header in one.first_of_epoch)
    end = kept[-1].segment.end_offset if kept else 0
    next_generation = max((name.generation for name in names), default=0) + 1
    spans = [_Span(one.segment.name, one.segment.end_offset, one) for one in kept]
    spans += _missing(spans, names)
    if _active_is_missing(spans, files, active_size):
        spans.append(_Span(SegmentName(_next_base(spans, files), next_generation), STILL_OPEN))
        next_generation += 1
    spans = _with_unreadable_ends(sorted(spans))
    return Manifest(
        topic=meta.name,
        topic_id=meta.topic_id,
        partition=number,
        log_start=spans[0].name.base_offset if spans else 0,
        reserved_end=end + RESERVED_OFFSETS,
        next_generation=next_generation,
        epochs=epochs,
        segments=[one.entry(last=one is spans[-1]) for one in spans],
        # The lost manifest said what cleaning has removed. Assume the most: everything up to the
        # active segment, which is never cleaned.
        superseding_end=spans[-1].name.base_offset if spans else 0,
        purged_end=spans[-1].name.base_offset if spans else 0,
    )


@dataclass
class RebuiltCatalog:
    """A catalog rebuilt from the folders of a log."""

    metas: list[TopicMeta] = field(default_factory=list)
    """All topics of the rebuilt catalog."""
    without_settings: list[TopicMeta] = field(default_factory=list)
    """Topics among them whose settings and schemas are lost."""
    unrestorable: dict[str, str] = field(default_factory=dict)
    """Reason for each topic folder that cannot be restored, by path."""


def rebuilt_catalog(storage: Storage) -> RebuiltCatalog:
    """Rebuild the catalog from the copies of its entries, or from manifests where a copy is lost.

    Raises FutureFormat.
    """
    rebuilt = RebuiltCatalog()
    for topic_id in storage.list_dir(TOPICS):
        meta = _copy(storage, topic_id)
        if meta is None:
            meta = _from_manifest(storage, topic_id)
            if meta is not None:
                rebuilt.without_settings.append(meta)
        if meta is None:
            rebuilt.unrestorable[topic_folder(topic_id)] = (
                "neither its copy nor a manifest can be read"
            )
        else:
            _add_topic(storage, rebuilt, meta)
    return rebuilt


def partition_numbers(storage: Storage, topic_id: str) -> list[int]:
    """Return the numbers of the partitions of a topic that have a folder."""
    names = storage.list_dir(topic_folder(topic_id))
    return sorted(int(name) for name in names if name.isdecimal())


@dataclass
class _Found:
    """A segment file and its readable frames."""

    segment: Segment
    closed: bool
    """True if it has the side files of a closed segment.

    The new segment of an interrupted cleaner pass has none.
    """
    frames: int = 0
    """Number of readable frames."""
    broken: bool = False
    """True if a part of the file is no readable frame."""
    first_of_epoch: list[FrameHeader] = field(default_factory=list)
    """Header of the first frame of each leader epoch."""


class _Span(NamedTuple):
    """A segment that was in the log, and the largest range of offsets it may have had."""

    name: SegmentName
    end: int
    """End offset (exclusive)."""
    found: _Found | None = None
    """The segment file; None if it is missing."""

    def covers(self, base: int) -> bool:
        """Return True if a segment with base offset `base` would overlap."""
        return self.name.base_offset <= base < max(self.end, self.name.base_offset + 1)

    def entry(self, *, last: bool) -> SegmentEntry:
        """Return the manifest entry of the segment; `last` for the active one."""
        segment = self.found.segment if self.found is not None else None
        return SegmentEntry(
            base_offset=self.name.base_offset,
            generation=self.name.generation,
            created_ms=0,
            size=STILL_OPEN if last else segment.file.size() if segment else 0,
            end_offset=STILL_OPEN if last else self.end,
            max_timestamp=STILL_OPEN if last else segment.max_timestamp if segment else 0,
        )


def _missing(spans: Sequence[_Span], names: Sequence[SegmentName]) -> list[_Span]:
    """Return the segments of which only side files are left.

    An interrupted deletion by retention leaves side files, too.
    """
    bases = {name.base_offset: name for name in names}
    for one in spans:
        bases = {base: name for base, name in bases.items() if not one.covers(base)}
    known = sorted([*bases, *(one.name.base_offset for one in spans)])
    following = dict(pairwise([*known, STILL_OPEN]))
    return [_Span(name, following[base]) for base, name in bases.items()]


def _with_unreadable_ends(spans: Sequence[_Span]) -> list[_Span]:
    """Return ascending spans in which a segment with unreadable frames reaches to the next segment.

    Its last frames may be among the unreadable ones, and their records must be named as lost.
    """
    ends = [span.name.base_offset for span in spans[1:]]
    closed = [
        span._replace(end=max(span.end, end)) if span.found and span.found.broken else span
        for span, end in zip(spans, ends, strict=False)
    ]
    return [*closed, *spans[-1:]]


def _active_is_missing(spans: Sequence[_Span], files: Sequence[str], active_size: int) -> bool:
    """Return True if a segment existed after the last one that was found.

    A roll writes the side files of the segment it closes, and a producer snapshot as of the base
    offset of the next one. Either one shows that there was a next segment.
    """
    last = max(spans, default=None)
    if last is None:
        return active_size > 0 or bool(_snapshots(files, 0))
    if last.found is None:
        return False
    closed = {last.name.index_file, last.name.aborted_file} & set(files)
    return bool(closed or _snapshots(files, max(last.end, last.name.base_offset + 1)))


def _next_base(spans: Sequence[_Span], files: Sequence[str]) -> int:
    """Return the base offset of the segment after these, as far as it is known."""
    end = max((one.end for one in spans), default=0)
    return max(_snapshots(files, end), default=end)


def _snapshots(files: Sequence[str], start: int) -> list[int]:
    """Return the offsets of the producer snapshots from `start` on."""
    return [o for o in map(snapshot_offset, files) if o is not None and o >= start]


def _found(storage: Storage, folder: str, name: SegmentName, files: Sequence[str]) -> _Found:
    """Scan a segment file."""
    segment = Segment.open(storage, folder, name, 0, writable=False)
    found = _Found(segment, name.aborted_file in files)
    for one in scan(segment, segment.file.size()):
        if isinstance(one, WholeFrame):
            header = one.frame.header
            segment.noted(header, 1 << 62)
            found.frames += 1
            epochs = found.first_of_epoch
            if not epochs or epochs[-1].leader_epoch < header.leader_epoch:
                epochs.append(header)
        else:
            found.broken = True
    segment.release_file()
    return found


def _without_overlaps(found: list[_Found]) -> list[_Found]:
    """Return segments without overlaps, ascending; closed and more complete ones are preferred."""
    kept: list[_Found] = []
    for one in sorted(found, key=lambda one: (one.segment.base_offset, *_fullness(one))):
        while kept and (
            kept[-1].segment.base_offset == one.segment.base_offset  # sorted: this one has more
            or (one.closed and not kept[-1].closed and _overlap(kept[-1], one))
        ):
            kept.pop()
        if not kept or kept[-1].segment.end_offset <= one.segment.base_offset:
            kept.append(one)
    return kept


def _fullness(found: _Found) -> tuple[bool, int, int, int]:
    """Return the rank of a segment among those with the same base offset."""
    segment = found.segment
    return found.closed, segment.end_offset, found.frames, segment.name.generation


def _overlap(earlier: _Found, later: _Found) -> bool:
    return earlier.segment.end_offset > later.segment.base_offset


def _epochs(headers: Iterator[FrameHeader]) -> Epochs:
    """Return the leader epochs in frames; their incarnations were in the lost manifest only.

    Without a readable frame the first epoch is a rebuilt one too. Otherwise positions of that epoch
    would be those of another history, and no repair would ever make them valid.
    """
    epochs: list[HistoryEpoch] = []
    for header in headers:
        if not epochs or epochs[-1].number < header.leader_epoch:
            epochs.append(HistoryEpoch(header.leader_epoch, header.base_offset, REBUILT))
    return tuple(epochs) or (HistoryEpoch(0, 0, REBUILT),)


def _copy(storage: Storage, topic_id: str) -> TopicMeta | None:
    """Return a topic's copy of its catalog entry; None if it is unusable."""
    try:
        meta = TopicMeta.load_copy(storage, topic_id)
        TopicConfig.parse(meta.config)
        decode_schemas(meta.schemas, meta.name)
    except FutureFormat:
        raise
    except (FileNotFoundError, StrandlineError):
        return None
    return meta if meta.topic_id == topic_id else None


def _from_manifest(storage: Storage, topic_id: str) -> TopicMeta | None:
    """Return a catalog entry from a topic's first readable manifest; None if there is none."""
    numbers = partition_numbers(storage, topic_id)
    for number in numbers:
        try:
            manifest = Manifest.load(storage, partition_folder(topic_id, number))
        except FutureFormat:
            raise
        except (FileNotFoundError, CorruptLog):
            continue
        internal = manifest.topic in SYSTEM_TOPICS
        return TopicMeta(
            name=manifest.topic,
            topic_id=topic_id,
            partitions=max(numbers) + 1,
            config={"cleanup.policy": "compact"} if internal else dict(FALLBACK_CONFIG),
            internal=internal,
        )
    return None


def _add_topic(storage: Storage, rebuilt: RebuiltCatalog, meta: TopicMeta) -> None:
    """Add a topic; of two with the same name the one with more bytes is kept."""
    for other in rebuilt.metas:
        if other.name == meta.name:
            smaller = min(other, meta, key=lambda one: _size(storage, one.topic_id))
            reason = f"another folder has a larger topic with the same name {meta.name!r}"
            rebuilt.unrestorable[topic_folder(smaller.topic_id)] = reason
            if smaller is meta:
                return
            rebuilt.metas.remove(other)
            break
    rebuilt.metas.append(meta)


def _size(storage: Storage, topic_id: str) -> int:
    total = 0
    for number in partition_numbers(storage, topic_id):
        folder = partition_folder(topic_id, number)
        for name in storage.list_dir(folder):
            with closing(storage.open(f"{folder}/{name}")) as file:
                total += file.size()
    return total
