"""Opening a partition: what the files say is compared with what the manifest promises.

1. Files that the manifest does not list are removed.
2. Closed segments are taken over from the manifest; lost or torn indexes are rebuilt.
3. Producer state comes from the latest good snapshot, and a replay of the frames after it.
4. The active segment is walked, every checksum verified. Where the frames end, debris is cut
   off, unless a later frame proves that the damaged place was durable once: then the log
   refuses to open rather than lose it (every frame carries the durable end of its time).
5. What was found is made durable before anybody sees it. After an unclean stop it is written
   once more for that, in place: where an fsync has failed, the system may show bytes which
   the disk has not got, and call them written. What had been durable is safe meanwhile.
6. After an unclean stop the log goes on at the reserved end, if offsets up to there may have
   been seen. A new leader epoch begins: at once in that case, else by the first append
   (Partition._begin_epoch_by_append). Markers of committed transactions are written again in the
   epoch before, because they may have been seen there and lost.
"""

from __future__ import annotations

import contextlib

from strandline.changelog.config import TopicConfig
from strandline.changelog.embedded import misplaced
from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.format import unpack_marker
from strandline.changelog.embedded.manifest import Manifest, SegmentEntry
from strandline.changelog.embedded.names import MANIFEST, segment_of, snapshot_offset
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.producer_state import BatchMeta, ProducerStates, advance
from strandline.changelog.embedded.scanning import CHUNK, BrokenFrame, durable_end_behind, scan
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.embedded.side_files import load_aborted, load_producers, save_producers
from strandline.changelog.errors import REPAIR, CorruptLog, FutureFormat, cause
from strandline.changelog.records import ProducerIdentity
from strandline.changelog.storage import Storage


def open_partition(
    environment: LogContext,
    folder: str,
    config: TopicConfig,
    fresh: Manifest,
    closed_size: int | None,
) -> Partition:
    """The partition in `folder`, ready for appends.

    `fresh` is its manifest if nothing was ever written to it, `closed_size` how large its
    active segment was if the log was closed in order. Raises CorruptLog, FutureFormat.
    """
    if closed_size is None and environment.storage.exists(folder):
        # What is found may be a name that a kill left unsynced: nothing is built on it before.
        environment.storage.sync_dir(folder)
    try:
        manifest = Manifest.load(environment.storage, folder)
        _check_place(folder, manifest, fresh)
    except FileNotFoundError:
        _check_never_written(environment, folder, closed_size)
        manifest = fresh
    partition = Partition(environment, folder, manifest, config)
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
    if (found.topic_id, found.partition) != (fresh.topic_id, fresh.partition):
        raise CorruptLog(
            f"{folder}/{MANIFEST} is of partition {found.partition} of topic {found.topic!r}, id "
            f"{found.topic_id}; {REPAIR}"
        )


def _check_never_written(environment: LogContext, folder: str, closed_size: int | None) -> None:
    """Without a manifest there may be a first segment, empty: the crash came in between."""
    if closed_size:
        raise CorruptLog(
            f"{folder}/{MANIFEST} is missing though the log was closed with {closed_size} bytes of "
            f"records there; {REPAIR}"
        )
    if holds_records(environment.storage, folder):
        raise CorruptLog(f"{folder}/{MANIFEST} is missing though there are records; {REPAIR}")


def holds_records(storage: Storage, folder: str) -> bool:
    """Whether a partition's folder has more in it than a crash before the first manifest leaves."""
    for name in storage.list_dir(folder):
        if segment_of(name) is not None:
            with contextlib.closing(storage.open(f"{folder}/{name}")) as file:
                if file.size() or not name.endswith(".log"):
                    return True
        elif snapshot_offset(name) is not None:
            return True
    return False


def _remove_strays(partition: Partition) -> None:
    listed = {entry.name for entry in partition.manifest.segments}
    storage = partition.environment.storage
    for name in storage.list_dir(partition.folder):
        segment = segment_of(name)
        if name.endswith(".tmp") or (segment is not None and segment not in listed):
            storage.unlink(f"{partition.folder}/{name}")


def _open_segment(partition: Partition, entry: SegmentEntry) -> Segment:
    active = entry is partition.manifest.segments[-1]
    storage = partition.environment.storage
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
        segment.let_go()
    return segment


def _recover_tail(partition: Partition, closed_size: int | None) -> None:
    """Walk the active segment up to its last whole frame; cut off what follows.

    After an orderly end nothing may follow, nor be missing.
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
    """Raise if what cannot be read here are good frames of another partition: they are not cut off."""
    folder = misplaced.folder_of(segment, found)
    if folder is not None:
        raise CorruptLog(
            f"{segment.path}: the frame at byte {found.position} belongs to {folder}; put the files "
            f"back where they were if you can; {REPAIR}"
        )


def _check_never_durable(segment: Segment, position: int, failure: str | None) -> None:
    """Raise if a frame behind the damage says that what was here had been made durable."""
    durable_end = durable_end_behind(segment, position)
    if durable_end > segment.end_offset:
        raise CorruptLog(
            f"{segment.path}: damaged at byte {position} ({failure}), below the offset "
            f"{durable_end} that was durable; {REPAIR}"
        )


def _rewrite_unsynced(segment: Segment, durable_end: int) -> None:
    """Write the frames from offset `durable_end` on once more, as they are; closed segments were synced."""
    for found in scan(segment, segment.size, segment.index.position_of(durable_end)):
        if isinstance(found, BrokenFrame):  # a moment ago it was whole
            raise found.reason
        if found.frame.header.last_offset >= durable_end:
            segment.file.rewrite(found.position, found.content)


def _recover_state(partition: Partition) -> None:
    """Producers and aborted transactions: snapshots, then a replay of the frames after them.

    Side files of closed segments that were lost or bad are written anew on the way.
    """
    # Not the records' time: a backfill of old ones would be forgotten at once.
    now = partition.environment.clock.now_ms()
    storage, folder = partition.environment.storage, partition.folder
    start = _load_snapshots(partition)
    active = partition.segments[-1]
    for segment in partition.segments:
        if segment is active and segment.base_offset > start:
            producers = partition.producers.entries
            save_producers(storage, folder, segment.base_offset, producers, before=start)
        if segment.end_offset > start:
            for frame in segment.frames(segment.index.position_of(start), CHUNK):
                if frame.header.base_offset >= start:
                    replay(frame, partition.producers, partition.aborted, now)
        if segment is not active and segment.base_offset >= start:
            partition.save_aborted(segment)


def _load_snapshots(partition: Partition) -> int:
    """Load what is there; the offset from which frames must be replayed."""
    storage = partition.environment.storage
    for offset in _snapshot_offsets(partition):
        try:
            partition.producers = load_producers(storage, partition.folder, offset)
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
    """Offsets of the snapshots made by a roll, the latest first; only those begin a segment."""
    bases = {segment.base_offset for segment in partition.segments}
    names = partition.environment.storage.list_dir(partition.folder)
    offsets = (snapshot_offset(name) for name in names)
    return sorted((o for o in offsets if o is not None and o in bases), reverse=True)


def replay(
    frame: LocatedFrame, producers: ProducerStates, aborted: AbortedTransactions, now_ms: int
) -> None:
    """Note what a frame says of its producer. Raises CorruptLog for a damaged marker."""
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
    """Offsets up to the reserved end may have been seen and then lost."""
    if partition.manifest.reserved_end > partition.log_end:
        partition.begin_epoch(partition.log_end)
        partition.synced_end = partition.high_watermark = partition.log_end
        partition.roll(partition.manifest.reserved_end)
