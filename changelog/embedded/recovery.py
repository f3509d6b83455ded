"""Opening a partition: its files are compared with the manifest and made consistent.

1. Files that the manifest does not list are removed.
2. Closed segments are taken over from the manifest. Lost or torn indexes are rebuilt.
3. Producer state is restored from the latest valid snapshot and a replay of the frames after it.
4. The active segment is walked and every checksum verified. The bytes after the last whole frame
   are cut off. If a later frame proves that the damaged place was durable once, the log refuses to
   open instead, so that no acknowledged record is lost silently. (Every frame carries the durable
   end at its time.)
5. All records found are made durable before any reader sees them. After an unclean stop they are
   also written once more, in place: after a failed fsync the system may return bytes from its cache
   that are not on the disk, and consider them written. Frames that were known durable are not
   rewritten.
6. After an unclean stop the log continues at the reserved end if readers may have seen offsets up
   to there. Then a new leader epoch begins at once. Otherwise the first append begins it
   (Partition._begin_epoch_by_append). Markers of committed transactions are written again in the
   epoch before, because readers may have seen them there before they were lost. A new copy of a log
   has had no readers, so its markers are in an epoch of its own.
"""

from __future__ import annotations

import contextlib

from strandline.changelog.config import TopicConfig
from strandline.changelog.embedded import misplaced
from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.format import unpack_marker
from strandline.changelog.embedded.manifest import Manifest, SegmentEntry
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.scanning import (
    CHUNK_BYTES,
    BrokenFrame,
    durable_end_behind,
    scan,
)
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.embedded.side_files import load_aborted, load_producers, save_producers
from strandline.changelog.errors import REPAIR, CorruptLog, FutureFormat, cause
from strandline.changelog.layout import MANIFEST, segment_of, snapshot_offset
from strandline.changelog.producer_state import BatchMeta, ProducerStates, advance
from strandline.changelog.records import ProducerIdentity
from strandline.changelog.storage import Storage


def open_partition(
    context: LogContext,
    folder: str,
    config: TopicConfig,
    fresh: Manifest,
    closed_size: int | None,
) -> Partition:
    """Open the partition in `folder` and make it ready for appends.

    `fresh` is the manifest of a partition that was never written to. `closed_size` is the number of
    bytes of the active segment after an orderly close, None after an unclean stop. Raises
    CorruptLog, FutureFormat.
    """
    if closed_size is None and context.storage.exists(folder):
        # A kill may have left file names that are not durable. They are synced before anything
        # depends on them.
        context.storage.sync_dir(folder)
    try:
        manifest = Manifest.load(context.storage, folder)
        _check_place(folder, manifest, fresh)
    except FileNotFoundError:
        _check_never_written(context, folder, closed_size)
        manifest = fresh
    partition = Partition(context, folder, manifest, config)
    _remove_strays(partition)
    partition.segments = tuple(_open_segment(partition, entry) for entry in manifest.segments)
    if partition.segments:
        _recover_tail(partition, closed_size)
        _recover_state(partition)
        if closed_size is None:
            partition.segments[-1].file.sync()
            _skip_reserved_offsets(partition)
    partition.log_end = max(partition.log_end, partition.log_start)
    partition.synced_end = partition.high_watermark = partition.log_end
    return partition


def _check_place(folder: str, found: Manifest, fresh: Manifest) -> None:
    """Raise CorruptLog if the manifest belongs to another partition."""
    if (found.topic_id, found.partition) != (fresh.topic_id, fresh.partition):
        raise CorruptLog(
            f"{folder}/{MANIFEST} is of partition {found.partition} of topic {found.topic!r}, id "
            f"{found.topic_id}; {REPAIR}"
        )


def _check_never_written(context: LogContext, folder: str, closed_size: int | None) -> None:
    """Raise CorruptLog if the manifest is missing and the folder holds records.

    A crash before the first manifest leaves at most one empty segment.
    """
    if closed_size:
        raise CorruptLog(
            f"{folder}/{MANIFEST} is missing though the log was closed with {closed_size} bytes of "
            f"records there; {REPAIR}"
        )
    if holds_records(context.storage, folder):
        raise CorruptLog(f"{folder}/{MANIFEST} is missing though there are records; {REPAIR}")


def holds_records(storage: Storage, folder: str) -> bool:
    """Return True if a partition's folder holds records, or files that only follow records."""
    for name in storage.list_dir(folder):
        if segment_of(name) is not None:
            with contextlib.closing(storage.open(f"{folder}/{name}")) as file:
                if file.size() or not name.endswith(".log"):
                    return True
        elif snapshot_offset(name) is not None:
            return True
    return False


def _remove_strays(partition: Partition) -> None:
    """Remove temporary files, and files of segments that the manifest does not list."""
    listed = {entry.name for entry in partition.manifest.segments}
    storage = partition.context.storage
    for name in storage.list_dir(partition.folder):
        segment = segment_of(name)
        if name.endswith(".tmp") or (segment is not None and segment not in listed):
            storage.unlink(f"{partition.folder}/{name}")


def _open_segment(partition: Partition, entry: SegmentEntry) -> Segment:
    active = entry is partition.manifest.segments[-1]
    storage = partition.context.storage
    try:
        segment = Segment.open(
            storage, partition.folder, entry.name, entry.created_ms, writable=active
        )
    except FileNotFoundError:
        raise CorruptLog(
            f"{partition.folder}/{entry.name.log_file} is in the manifest and not in the folder; "
            f"{REPAIR}"
        ) from None
    if not active:
        segment.load(entry, partition.config.index_interval_bytes)
        segment.release_file()
    return segment


def _recover_tail(partition: Partition, closed_size: int | None) -> None:
    """Walk the active segment up to its last whole frame, and cut off the rest.

    After an orderly close every byte must be there, and none may follow.
    """
    active = partition.segments[-1]
    interval = partition.config.index_interval_bytes
    end, failure, durable_end = active.file.size(), None, active.base_offset
    for found in scan(active, end):
        if isinstance(found, BrokenFrame):
            _check_belongs(active, found)
            failure = cause(found.reason)
            break
        active.noted(found.frame.header, interval)
        durable_end = max(durable_end, found.frame.header.durable_end)
    position = active.size
    if closed_size not in (None, position):
        raise CorruptLog(
            f"{active.path}: closed in order with {closed_size} bytes, of {end} now only "
            f"{position} are whole frames ({failure}); {REPAIR}"
        )
    if position < end:
        _check_never_durable(active, position, failure)
        active.file.truncate(position)
        active.file.sync()
    if closed_size is None:
        _rewrite_unsynced(active, durable_end)
    partition.log_end = active.end_offset


def _check_belongs(segment: Segment, found: BrokenFrame) -> None:
    """Raise CorruptLog if the unreadable frame is a good frame of another partition.

    It must not be cut off, because moving the files back restores it.
    """
    folder = misplaced.folder_of(segment, found)
    if folder is not None:
        raise CorruptLog(
            f"{segment.path}: the frame at byte {found.position} belongs to {folder}; put the files "
            f"back where they were if you can; {REPAIR}"
        )


def _check_never_durable(segment: Segment, position: int, failure: str | None) -> None:
    """Raise CorruptLog if a frame after the damage proves that the damaged bytes were durable."""
    durable_end = durable_end_behind(segment, position)
    if durable_end > segment.end_offset:
        raise CorruptLog(
            f"{segment.path}: damaged at byte {position} ({failure}), although the offsets "
            f"below {durable_end} were durable; {REPAIR}"
        )


def _rewrite_unsynced(segment: Segment, durable_end: int) -> None:
    """Write the frames from offset `durable_end` on once more, unchanged and in place.

    Closed segments need no rewrite, because they were synced when they were closed.
    """
    for found in scan(segment, segment.size, segment.index.position_of(durable_end)):
        if isinstance(found, BrokenFrame):  # it was whole in the walk just before
            raise found.reason
        if found.frame.header.last_offset >= durable_end:
            segment.file.rewrite(found.position, found.content)


def _recover_state(partition: Partition) -> None:
    """Restore producers and aborted transactions: load snapshots, then replay the later frames.

    Side files of closed segments that are missing or damaged are rewritten on the way.
    """
    # The time of the opening is used as each producer's last use. With the records' timestamps
    # the producer of a backfill of old records would expire at once.
    now = partition.context.clock.now_ms()
    storage, folder = partition.context.storage, partition.folder
    start = _load_snapshots(partition)
    active = partition.segments[-1]
    for segment in partition.segments:
        if segment is active and segment.base_offset > start:
            producers = partition.producers.entries
            save_producers(storage, folder, segment.base_offset, producers, before=start)
        if segment.end_offset > start:
            for frame in segment.frames(segment.index.position_of(start), CHUNK_BYTES):
                if frame.header.base_offset >= start:
                    replay(frame, partition.producers, partition.aborted, now)
        if segment is not active and segment.base_offset >= start:
            partition.save_aborted(segment)


def _load_snapshots(partition: Partition) -> int:
    """Load the latest valid side files. Return the offset from which frames must be replayed."""
    storage = partition.context.storage
    for offset in _snapshot_offsets(partition):
        try:
            partition.producers = load_producers(storage, partition.folder, offset)
            partition.producers.move_times(partition.context.clock.now_ms())
            for segment in partition.segments[:-1]:
                if segment.base_offset < offset:
                    for ended in load_aborted(
                        storage, partition.folder, segment.name, segment.end_offset
                    ):
                        partition.aborted.add(ended)
            return offset
        except FutureFormat:
            raise
        except (FileNotFoundError, CorruptLog):
            partition.producers, partition.aborted = ProducerStates(), AbortedTransactions()
    return partition.segments[0].base_offset


def _snapshot_offsets(partition: Partition) -> list[int]:
    """Return the offsets of usable producer snapshots, latest first.

    A roll takes a snapshot at the offset where a segment begins; snapshots elsewhere are ignored.
    """
    bases = {segment.base_offset for segment in partition.segments}
    names = partition.context.storage.list_dir(partition.folder)
    offsets = (snapshot_offset(name) for name in names)
    return sorted((o for o in offsets if o is not None and o in bases), reverse=True)


def replay(
    frame: LocatedFrame, producers: ProducerStates, aborted: AbortedTransactions, now_ms: int
) -> None:
    """Apply a frame to the producer state. Raises CorruptLog for a damaged marker."""
    header = frame.header
    if header.producer_id < 0:
        return
    producer = ProducerIdentity(header.producer_id, header.producer_epoch)
    if header.control:
        payload = frame.payload
        ended = producers.ended(producer, header.base_offset, now_ms)
        if ended is not None and unpack_marker(payload, frame.where).type == 0:
            aborted.add(ended)
        return
    count = header.last_offset - header.base_offset + 1
    last = advance(header.base_sequence, count - 1)
    producers.appended(
        producer,
        BatchMeta(header.base_sequence, last, header.base_offset, header.last_offset),
        transactional=header.transactional,
        timestamp=now_ms,
    )


def _skip_reserved_offsets(partition: Partition) -> None:
    """Continue after the reserved offsets.

    Readers may have seen records at these offsets that were lost in the unclean stop.
    """
    if partition.manifest.reserved_end > partition.log_end:
        partition.begin_epoch(partition.log_end)
        partition.synced_end = partition.high_watermark = partition.log_end
        partition.roll(partition.manifest.reserved_end)
