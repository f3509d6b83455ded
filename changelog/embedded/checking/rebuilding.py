"""Manifests and the catalog, made up from the rest of the folder where they are lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from strandline.changelog.config import TopicConfig
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.manifest import STILL_OPEN, Manifest, SegmentEntry
from strandline.changelog.embedded.names import (
    SYSTEM_TOPICS,
    TOPICS,
    SegmentName,
    partition_folder,
    segment_of,
    snapshot_offset,
    topic_folder,
)
from strandline.changelog.embedded.partition import RESERVATION
from strandline.changelog.embedded.scanning import WholeFrame, scan
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.embedded.topic import TopicMeta
from strandline.changelog.errors import CorruptLog, FutureFormat, StrandlineError
from strandline.changelog.history import FIRST, REBUILT, Epochs, HistoryEpoch
from strandline.changelog.schema import decode_schemas
from strandline.changelog.storage import Storage

MADE_UP_CONFIG = {"retention.ms": "-1"}
"""Of a topic whose settings are lost: nothing of it may be deleted before somebody sets them."""


def rebuilt_manifest(
    storage: Storage, meta: TopicMeta, number: int, active_size: int = 0
) -> Manifest:
    """A manifest from the segment files of a partition: of those that overlap, the fullest.

    It lists missing segments too, as far as anything in the folder, or `active_size`, the bytes
    of the last one when the log was closed, says that they were there. Times of creation are 0,
    which is before everything. Raises FutureFormat.
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
    spans.sort()
    return Manifest(
        topic=meta.name,
        topic_id=meta.topic_id,
        partition=number,
        log_start=spans[0].name.base_offset if spans else 0,
        reserved_end=end + RESERVATION,
        next_generation=next_generation,
        epochs=epochs,
        segments=[one.entry(last=one is spans[-1]) for one in spans],
        # Nobody knows what was cleaned away: all but what concerns the active segment.
        superseding_end=spans[-1].name.base_offset if spans else 0,
        purged_end=spans[-1].name.base_offset if spans else 0,
    )


@dataclass
class RebuiltCatalog:
    """The topics that the folders of a log show."""

    metas: list[TopicMeta] = field(default_factory=list)
    made_up: list[TopicMeta] = field(default_factory=list)
    """Those of them whose settings and schemas are lost."""
    left: dict[str, str] = field(default_factory=dict)
    """Folders that cannot be a topic again, and why not."""


def rebuilt_catalog(storage: Storage) -> RebuiltCatalog:
    """The catalog from the copies of its entries; where one is lost, from the manifests.

    Raises FutureFormat.
    """
    rebuilt = RebuiltCatalog()
    for topic_id in storage.list_dir(TOPICS):
        meta = _copy(storage, topic_id)
        if meta is None:
            meta = _made_up(storage, topic_id)
            if meta is not None:
                rebuilt.made_up.append(meta)
        if meta is None:
            rebuilt.left[topic_folder(topic_id)] = "neither its copy nor a manifest can be read"
        else:
            _take(storage, rebuilt, meta)
    return rebuilt


def partition_numbers(storage: Storage, topic_id: str) -> list[int]:
    """The partitions that have a folder."""
    names = storage.list_dir(topic_folder(topic_id))
    return sorted(int(name) for name in names if name.isdecimal())


@dataclass
class _Found:
    """A segment file, and what its whole frames say."""

    segment: Segment
    closed: bool
    """Whether it has what a closed segment has beside it. One that a pass of the cleaner left unfinished has not."""
    frames: int = 0
    first_of_epoch: list[FrameHeader] = field(default_factory=list)


class _Span(NamedTuple):
    """A segment that was in the log, and the offsets it held at the most."""

    name: SegmentName
    end: int
    found: _Found | None = None
    """None: its file is missing."""

    def covers(self, base: int) -> bool:
        """Whether another segment with that base would hold the same offsets."""
        return self.name.base_offset <= base < max(self.end, self.name.base_offset + 1)

    def entry(self, *, last: bool) -> SegmentEntry:
        segment = self.found.segment if self.found is not None else None
        return SegmentEntry(
            base_offset=self.name.base_offset,
            generation=self.name.generation,
            created_ms=0,
            size=STILL_OPEN if last else segment.file.size() if segment else 0,
            end_offset=STILL_OPEN if last else self.end,
            max_timestamp=STILL_OPEN if last else segment.max_timestamp if segment else 0,
        )


def _missing(there: Sequence[_Span], names: Sequence[SegmentName]) -> list[_Span]:
    """Segments of which only side files are left; retention, cut short, leaves such too."""
    bases = {name.base_offset: name for name in names}
    for one in there:
        bases = {base: name for base, name in bases.items() if not one.covers(base)}
    known = sorted([*bases, *(one.name.base_offset for one in there)])
    following = dict(pairwise([*known, STILL_OPEN]))
    return [_Span(name, following[base]) for base, name in bases.items()]


def _active_is_missing(there: Sequence[_Span], files: Sequence[str], active_size: int) -> bool:
    """Whether the last segment had been closed, or was there and has left nothing.

    A roll writes the side files of the segment it closes, and a snapshot as of the next one's base.
    """
    last = max(there, default=None)
    if last is None:
        return active_size > 0 or bool(_snapshots(files, 0))
    if last.found is None:
        return False
    closed = {last.name.index_file, last.name.aborted_file} & set(files)
    return bool(closed or _snapshots(files, max(last.end, last.name.base_offset + 1)))


def _next_base(there: Sequence[_Span], files: Sequence[str]) -> int:
    """Where the segment behind these began, as far as that is known."""
    end = max((one.end for one in there), default=0)
    return max(_snapshots(files, end), default=end)


def _snapshots(files: Sequence[str], start: int) -> list[int]:
    """The offsets from `start` on as of which there is a snapshot."""
    return [o for o in map(snapshot_offset, files) if o is not None and o >= start]


def _found(storage: Storage, folder: str, name: SegmentName, files: Sequence[str]) -> _Found:
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
    segment.let_go()
    return found


def _without_overlaps(found: list[_Found]) -> list[_Found]:
    """By ascending offsets; of two that hold the same offsets the one that was closed, or reaches further."""
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
    segment = found.segment
    return found.closed, segment.end_offset, found.frames, segment.name.generation


def _overlap(before: _Found, behind: _Found) -> bool:
    return before.segment.end_offset > behind.segment.base_offset


def _epochs(headers: Iterator[FrameHeader]) -> Epochs:
    """The epochs that frames name. Which incarnation wrote each was in the lost manifest only."""
    epochs: list[HistoryEpoch] = []
    for header in headers:
        if not epochs or epochs[-1].number < header.leader_epoch:
            epochs.append(HistoryEpoch(header.leader_epoch, header.base_offset, REBUILT))
    return tuple(epochs) or FIRST


def _copy(storage: Storage, topic_id: str) -> TopicMeta | None:
    try:
        meta = TopicMeta.load_copy(storage, topic_id)
        TopicConfig.parse(meta.config)
        decode_schemas(meta.schemas, meta.name)
    except FutureFormat:
        raise
    except (FileNotFoundError, StrandlineError):
        return None
    return meta if meta.topic_id == topic_id else None


def _made_up(storage: Storage, topic_id: str) -> TopicMeta | None:
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
            config={"cleanup.policy": "compact"} if internal else dict(MADE_UP_CONFIG),
            internal=internal,
        )
    return None


def _take(storage: Storage, rebuilt: RebuiltCatalog, meta: TopicMeta) -> None:
    """Add a topic; of two with the same name the one whose files are larger stays."""
    for other in rebuilt.metas:
        if other.name == meta.name:
            loser = min(other, meta, key=lambda one: _size(storage, one.topic_id))
            why = f"another folder holds a topic {meta.name!r} too, and more of it"
            rebuilt.left[topic_folder(loser.topic_id)] = why
            if loser is meta:
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
