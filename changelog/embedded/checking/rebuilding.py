"""Manifests and the catalog, made up from the rest of the folder where they are lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from changelog.config import TopicConfig
from changelog.embedded.format import FrameHeader
from changelog.embedded.manifest import STILL_OPEN, Manifest, SegmentEntry
from changelog.embedded.names import (
    SYSTEM_TOPICS,
    TOPICS,
    SegmentName,
    partition_folder,
    segment_of,
    topic_folder,
)
from changelog.embedded.partition import RESERVATION
from changelog.embedded.scanning import Whole, scan
from changelog.embedded.segment import Segment
from changelog.embedded.topic import TopicMeta
from changelog.errors import CorruptLog, FutureFormat, StrandlineError
from changelog.schema import decode_schemas
from changelog.storage import Storage

MADE_UP_CONFIG = {"retention.ms": "-1"}
"""Of a topic whose settings are lost: nothing of it may be deleted before somebody sets them."""


def rebuilt_manifest(storage: Storage, meta: TopicMeta, number: int) -> Manifest:
    """A manifest from the segment files of a partition: of those that overlap, the fullest.

    Times of creation are 0, which is before everything. Raises FutureFormat.
    """
    folder = partition_folder(meta.topic_id, number)
    names = sorted({name for name in map(segment_of, storage.list_dir(folder)) if name})
    found = [_found(storage, folder, name) for name in names if _is_there(storage, folder, name)]
    kept = _without_overlaps(found)
    epochs = _epochs(header for one in kept for header in one.first_of_epoch)
    end = kept[-1].segment.end_offset if kept else 0
    return Manifest(
        topic=meta.name,
        topic_id=meta.topic_id,
        partition=number,
        log_start=kept[0].segment.base_offset if kept else 0,
        reserved_end=end + RESERVATION,
        next_generation=max((name.generation for name in names), default=0) + 1,
        epochs=[*epochs, (epochs[-1][0] + 1, end)] if end > epochs[-1][1] else epochs,
        segments=[one.entry(last=one is kept[-1]) for one in kept],
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
    frames: int = 0
    first_of_epoch: list[FrameHeader] = field(default_factory=list)

    def entry(self, *, last: bool) -> SegmentEntry:
        segment = self.segment
        return SegmentEntry(
            base_offset=segment.base_offset,
            generation=segment.name.generation,
            created_ms=0,
            size=STILL_OPEN if last else segment.file.size(),
            end_offset=STILL_OPEN if last else segment.end_offset,
            max_timestamp=STILL_OPEN if last else segment.max_timestamp,
        )


def _is_there(storage: Storage, folder: str, name: SegmentName) -> bool:
    return storage.exists(f"{folder}/{name.log_file}")


def _found(storage: Storage, folder: str, name: SegmentName) -> _Found:
    segment = Segment.open(storage, folder, name, 0, writable=False)
    found = _Found(segment)
    for one in scan(segment, segment.file.size()):
        if isinstance(one, Whole):
            header = one.frame.header
            segment.noted(header, 1 << 62)
            found.frames += 1
            epochs = found.first_of_epoch
            if not epochs or epochs[-1].leader_epoch < header.leader_epoch:
                epochs.append(header)
    segment.let_go()
    return found


def _without_overlaps(found: list[_Found]) -> list[_Found]:
    """By ascending offsets; of two that hold the same offsets the one that reaches further."""
    kept: list[_Found] = []
    for one in sorted(found, key=lambda one: (one.segment.base_offset, *_fullness(one))):
        while kept and kept[-1].segment.base_offset == one.segment.base_offset:
            kept.pop()  # sorted by fullness: this one has more
        if not kept or kept[-1].segment.end_offset <= one.segment.base_offset:
            kept.append(one)
    return kept


def _fullness(found: _Found) -> tuple[int, int, int]:
    return found.segment.end_offset, found.frames, found.segment.name.generation


def _epochs(headers: Iterator[FrameHeader]) -> list[tuple[int, int]]:
    epochs: list[tuple[int, int]] = []
    for header in headers:
        if not epochs or epochs[-1][0] < header.leader_epoch:
            epochs.append((header.leader_epoch, header.base_offset))
    return epochs or [(0, 0)]


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
