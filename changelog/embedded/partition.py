"""One partition: an append-only list of segments, and the offsets up to which readers see it.

A partition has four ends, from low to high:

    log_start ≤ last stable offset ≤ high watermark ≤ log_end

- `log_end` is the end (exclusive) of all appended records.
- The high watermark is the end of what a read_uncommitted reader sees. With durability "fsync" the
  records below it are durable. Only a commit marker may be visible before its fsync.
- The last stable offset is the end of what a read_committed reader sees: the high watermark, or the
  first offset of the earliest open transaction if that is lower.

Every acknowledged plain append is below the high watermark. With durability "fsync" it is
acknowledged after the fsync that covers it.

An append that fails with DiskFull or TooManyFiles is undone and may be retried. After any other
failure of a write or an fsync the partition rejects all appends until it is reopened.

`lock` guards the end of the log. fsyncs run outside it, except in a roll. They run one at a time,
and each covers everything that was appended before it began. Readers take a snapshot of the segment
tuple and need no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from strandline.changelog.config import TopicConfig
from strandline.changelog.embedded import side_files
from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.embedded.frame import FramePayload, encode_marker, frame_parts
from strandline.changelog.embedded.manifest import Manifest, SegmentEntry
from strandline.changelog.embedded.metrics import AppendCounters
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.embedded.write_gate import WriteGate
from strandline.changelog.errors import (
    NO_EFFECT_ERRORS,
    StorageFailed,
)
from strandline.changelog.history import HistoryEpoch, epoch_of, with_epoch
from strandline.changelog.layout import SegmentName
from strandline.changelog.producer_state import (
    BatchMeta,
    EndedTransaction,
    ProducerStates,
    advance,
)
from strandline.changelog.records import (
    Appended,
    PartitionOffsets,
    ProducerIdentity,
    TopicPartition,
)
from strandline.changelog.schema import ValueSchemas
from strandline.changelog.storage import File

MAX_SEGMENT_FRAMES = 10_000
"""Maximum number of frames in a segment.

Recovery walks the active segment frame by frame, so this bounds recovery time when frames are
small."""
RESERVED_OFFSETS = 1 << 20
"""Number of offsets reserved at a time in the manifest, used with durability "os" only.

There an append is acknowledged without an fsync. After a power cut the log continues at the
reserved end, so an offset that a reader has seen is not assigned again."""


class Partition:
    """The log of one topic partition. The first append creates its folder."""

    def __init__(
        self,
        context: LogContext,
        folder: str,
        manifest: Manifest,
        config: TopicConfig,
    ) -> None:
        self.context = context
        self.folder = folder
        self.manifest = manifest
        self.config = config
        self.topic_partition = TopicPartition(manifest.topic, manifest.partition)
        self.topic_id = manifest.topic_id
        self.segments: tuple[Segment, ...] = ()
        self.written = AppendCounters()
        """Counters for metrics."""
        self.producers = ProducerStates()
        self.aborted = AbortedTransactions()
        self.log_end = 0
        self.high_watermark = 0
        self.synced_end = 0
        """End (exclusive) of the records known to be durable."""
        self.committed_end = 0
        """End (exclusive) of the last plain batch or commit marker; 0 after opening.

        It does not depend on the outcome of the transactions that are still open."""
        self.lock = threading.RLock()
        """Guards the end of the log, the manifest, the segment tuple and the producer state."""
        self._sync_lock = threading.Lock()
        """Serializes fsyncs. It is taken before `lock`, never while `lock` is held."""
        self.epoch_begun = False
        """True after this opening of the log has begun its leader epoch in the partition."""
        self.schemas = ValueSchemas()
        """Schemas of the topic's values. The topic keeps them up to date."""
        self._manifest_in_doubt = False
        """True if saving the manifest has failed.

        The file name may then refer to the new manifest without being durable."""
        self.cleaning = threading.Lock()
        """Lock held while segments are rewritten, and while the partition's folder is removed."""
        self.gate = WriteGate(self.topic_partition)
        """Rejects appends after a failure, a deletion of the topic, or a close of the log."""

    # State ---------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """Offset of the first record that is kept."""
        return self.manifest.log_start

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction has ended."""
        first_open = self.producers.first_open_offset
        if first_open is None:
            return self.high_watermark
        return max(self.log_start, min(self.high_watermark, first_open))

    @property
    def is_known(self) -> bool:
        """True if no write, fsync or save of the manifest has failed since the opening.

        Otherwise the content of the disk is unknown.
        """
        return not (self._manifest_in_doubt or self.gate.poisoned)

    def offsets(self) -> PartitionOffsets:
        """Return the partition's ends and leader epochs, all as of one moment."""
        with self.lock:
            return PartitionOffsets(
                self.log_start,
                self.high_watermark,
                self.last_stable_offset,
                self.topic_id,
                self.manifest.leader_epoch,
                self.manifest.epochs,
                self.manifest.purged_end,
                self.manifest.clean_end,
                self.manifest.superseding_end,
                self.committed_end,
            )

    # Appending ------------------------------------------------------------------------

    def append(
        self,
        payload: FramePayload,
        producer: ProducerIdentity | None = None,
        base_sequence: int = -1,
        *,
        transactional: bool = False,
    ) -> Appended:
        """Write a batch at the end. It is neither durable nor visible before `sync`.

        A batch that is a duplicate is not written again; its first offsets are returned.

        Nothing is written if this raises an error of ProducerStates.check, DiskFull, TooManyFiles
        or PartitionPoisoned. After another StorageFailed the outcome is unknown.
        """
        with self.lock:
            self.gate.check()
            if producer is not None:
                known = self.producers.check(
                    producer,
                    base_sequence,
                    payload.record_count,
                    transactional,
                    str(self.topic_partition),
                )
                if known is not None:
                    epoch = epoch_of(self.manifest.epochs, known.base_offset)
                    return known._replace(leader_epoch=epoch.number, incarnation=epoch.incarnation)
            with self.gate.atomic_or_poisoned():
                header = self._write(payload, producer, base_sequence, transactional=transactional)
                self._note_producer(header)
                self.written.add(header)
                if not transactional:
                    self.committed_end = self.log_end
                self._publish_unsynced()
        return Appended(
            header.base_offset,
            header.last_offset,
            leader_epoch=header.leader_epoch,
            incarnation=self.manifest.epochs[-1].incarnation,
        )

    def append_marker(
        self, producer: ProducerIdentity, *, commit: bool, recovery: bool = False
    ) -> tuple[int, bool]:
        """Write a transaction's commit or abort marker. Raises what `append` does.

        `producer` carries the producer's *next* epoch, so late batches of the ended transaction are
        fenced.

        `recovery` is True when a committed transaction is completed after opening, unless the log
        is a new copy. Readers may have seen its marker before a crash lost it, so the marker is
        written again in the same leader epoch.

        Return the marker's offset, and True if it is visible already. A commit marker may be
        visible before its fsync, because the Prepare is durable and recovery would write the marker
        again at the same offset. It is visible at once only if all earlier records are durable,
        because the high watermark must not pass records that are not.
        """
        now = self.context.clock.now_ms()
        payload = encode_marker(commit=commit, coordinator_epoch=0, timestamp=now)
        with self.lock:
            self.gate.check()
            nothing_waits = self.high_watermark == self.log_end
            opened = self.producers.open_since(producer.producer_id)
            with self.gate.atomic_or_poisoned():
                header = self._write(payload, producer, -1, transactional=True, recovery=recovery)
                if not commit and opened >= 0:
                    # Before the marker is visible, because a reader that sees the marker without
                    # this entry would take the aborted records for committed ones.
                    ended = EndedTransaction(producer.producer_id, opened, header.base_offset)
                    self.aborted.add(ended)
                self.producers.ended(producer, header.base_offset, self.context.steady_ms())
                if commit:
                    self.committed_end = self.log_end
                    if nothing_waits:
                        self.high_watermark = self.log_end
                self._publish_unsynced()
            visible = self.high_watermark == self.log_end
        self.context.notifier.notify()
        return header.base_offset, visible

    def _write(
        self,
        payload: FramePayload,
        producer: ProducerIdentity | None,
        base_sequence: int,
        *,
        transactional: bool,
        recovery: bool = False,
    ) -> FrameHeader:
        """Append one frame to the active segment, after a roll if that is full."""
        if not (self.epoch_begun or recovery):
            self._begin_epoch_by_append()
        segment = self._segment_for(payload)
        header, parts = frame_parts(
            payload,
            base_offset=self.log_end,
            producer_id=producer.producer_id if producer else -1,
            producer_epoch=producer.epoch if producer else -1,
            base_sequence=base_sequence,
            transactional=transactional,
            leader_epoch=self.manifest.leader_epoch,
            durable_end=self.synced_end,
            place=segment.place,
        )
        try:
            segment.append(header, parts, self.config.index_interval_bytes)
        except NO_EFFECT_ERRORS:
            segment.undo_append()
            raise
        self.log_end = header.last_offset + 1
        return header

    def _note_producer(self, header: FrameHeader) -> None:
        if header.producer_id < 0:
            return
        last = advance(header.base_sequence, header.record_count - 1)
        self.producers.appended(
            ProducerIdentity(header.producer_id, header.producer_epoch),
            BatchMeta(header.base_sequence, last, header.base_offset, header.last_offset),
            transactional=header.transactional,
            timestamp=self.context.steady_ms(),
        )

    def _publish_unsynced(self) -> None:
        """Make appended records visible at once, with durability "os" only."""
        if self.context.durability == "os":
            self.high_watermark = self.log_end
            self.context.notifier.notify()

    # Durability -----------------------------------------------------------------------

    def sync(self) -> None:
        """Return when everything appended before the call is durable and visible.

        Concurrent callers share fsyncs: a caller that waited for another one's fsync usually finds
        that it covered its own records too.
        """
        wanted = self.log_end
        with self._sync_lock:
            self.gate.check()
            if self.synced_end >= wanted:
                return
            # Under the lock, because a roll between the two reads would pair the end with the
            # wrong file. The fsync itself runs without it, so that appends go on meanwhile.
            with self.lock:
                covered, file = self.log_end, self.segments[-1].file
            self._sync_file(file)  # earlier segments were synced when they were closed
            with self.lock:
                self.gate.check_not_poisoned()  # a write may have failed during the fsync
                self._publish(covered)

    def _sync_file(self, file: File) -> None:
        try:
            with self.context.counters.fsyncs.timed():
                file.sync()
        except StorageFailed as error:
            self.gate.poison(error)
            raise

    def _publish(self, durable_end: int) -> None:
        self.synced_end = max(self.synced_end, durable_end)
        self.high_watermark = max(self.high_watermark, self.synced_end)
        self.context.notifier.notify()

    # Segments -------------------------------------------------------------------------

    def _segment_for(self, payload: FramePayload) -> Segment:
        """Return the active segment with room for the payload; create or roll it if needed."""
        if not self.segments:
            self.context.storage.make_dir(self.folder)
            self.roll()
        elif _is_full(self.segments[-1], payload, self.config):
            self.roll()
        if self.context.durability == "os":
            self._reserve(self.log_end + payload.record_count)
        return self.segments[-1]

    def roll(self, start: int | None = None) -> None:
        """Close the active segment and create another one, at `start` or the log's end.

        The caller holds the lock. The records and the producer snapshot of the closed segment are
        durable before the manifest lists its successor, so only the active segment ever needs a
        full walk. If there is no room, the next attempt rewrites all of these files.
        """
        self.gate.check()
        with self.gate.atomic_or_poisoned():
            self._roll(self.log_end if start is None else start)

    def _roll(self, start: int) -> None:
        storage, now = self.context.storage, self.context.clock.now_ms()
        entries = list(self.manifest.segments)
        if self.segments:
            entries[-1] = self._close_active(start)
        name = SegmentName(start, self.manifest.next_generation)
        segment = Segment.create(storage, self.folder, name, now)
        # Before the manifest lists the segment, because a power cut could remove the new file's
        # name and leave a manifest that lists a missing file.
        storage.sync_dir(self.folder)
        entries.append(SegmentEntry(base_offset=start, generation=name.generation, created_ms=now))
        self.gate.check_not_poisoned()
        self._change_manifest(segments=entries, next_generation=name.generation + 1)
        self._publish(self.log_end)
        if self.segments:
            self.segments[-1].release_file()
        self.segments = (*self.segments, segment)
        self.log_end = start

    def _close_active(self, next_base: int) -> SegmentEntry:
        active = self.segments[-1]
        self._sync_file(active.file)
        active.save_index()
        self.save_aborted(active)
        storage, producers = self.context.storage, self.producers.entries
        side_files.save_producers(
            storage, self.folder, next_base, producers, before=active.base_offset
        )
        return active.entry()

    def _reserve(self, end: int) -> None:
        if end > self.manifest.reserved_end:
            self._change_manifest(reserved_end=end + RESERVED_OFFSETS)

    def begin_epoch(self, start: int, *, reserve: bool = False) -> None:
        """Begin a leader epoch with a new incarnation at offset `start`, durably.

        With `reserve`, and durability "os", offsets are reserved by the same write of the manifest,
        because an append follows.
        """
        epochs, oldest = self.manifest.epochs, self.segments[0].base_offset
        new = with_epoch(epochs, start, self.context.clock.new_id(), oldest)
        reserves = reserve and self.context.durability == "os"
        reserved_end = start + RESERVED_OFFSETS if reserves else 0
        self._change_manifest(
            epochs=new, reserved_end=max(reserved_end, self.manifest.reserved_end)
        )
        self.epoch_begun = True

    def _begin_epoch_by_append(self) -> None:
        """Begin a leader epoch before the first append since the opening.

        The epoch is durable before its records are.
        """
        if self.segments:
            self.begin_epoch(self.log_end, reserve=True)
        else:  # there is no manifest yet; the roll that creates the first segment saves it
            first = HistoryEpoch(0, self.log_end, self.context.clock.new_id())
            self.manifest = msgspec.structs.replace(self.manifest, epochs=(first,))
            self.epoch_begun = True

    def drop_segments(self, count: int, log_start: int) -> list[Segment]:
        """Remove the first `count` segments from the manifest, durably, and return them.

        Their files remain until the caller deletes them.
        """
        with self.lock:
            self._change_manifest(
                segments=self.manifest.segments[count:],
                log_start=max(self.log_start, log_start),
            )
            dropped, self.segments = self.segments[:count], self.segments[count:]
            self.aborted = self.aborted.since(self.log_start)
        self.context.notifier.notify()
        return list(dropped)

    def new_segment_name(self, base_offset: int) -> SegmentName:
        """Return the name for a segment that is to replace others. Its number is used once."""
        with self.lock:
            generation = self.manifest.next_generation
            self.manifest = msgspec.structs.replace(self.manifest, next_generation=generation + 1)
        return SegmentName(base_offset, generation)

    def replace_segments(
        self,
        old: Sequence[Segment],
        new: Sequence[Segment],
        *,
        superseding_end: int,
        purged_end: int,
    ) -> bool:
        """Replace the segments `old` by `new` in the manifest, durably. The files of `old` remain.

        `new` must be closed and durable. Return False, and change nothing, if some of `old` have
        left the log meanwhile.

        A record that is only in `old` was superseded by a record below `superseding_end`, or is a
        tombstone below `purged_end`.
        """
        with self.lock:
            self.gate.check()
            at = next((i for i, one in enumerate(self.segments) if one is old[0]), 0)
            after = at + len(old)
            if self.segments[at:after] != tuple(old):
                return False
            entries = list(self.manifest.segments)
            entries[at:after] = [segment.entry() for segment in new]
            self._change_manifest(
                segments=entries,
                superseding_end=max(self.manifest.superseding_end, superseding_end),
                purged_end=max(self.manifest.purged_end, purged_end),
            )
            self.segments = (*self.segments[:at], *new, *self.segments[after:])
        self.context.notifier.notify()
        return True

    def note_cleaned(self, end: int) -> None:
        """Save, durably, that the log is clean below `end`.

        Below it no key has two records, and there are no records of aborted transactions.
        """
        with self.lock:
            self.gate.check()
            self._change_manifest(clean_end=end)
            self.aborted = self.aborted.since(end)

    def _change_manifest(self, **changes: Any) -> None:
        """Save the manifest with `changes`; memory follows only once they are durable."""
        manifest = msgspec.structs.replace(self.manifest, **changes)
        self._manifest_in_doubt = True
        manifest.save(self.context.storage, self.folder)
        self._manifest_in_doubt = False
        self.manifest = manifest

    def save_aborted(self, segment: Segment, since: int = 0) -> None:
        """Write the aborted-transaction index of a closed segment.

        Transactions whose marker is before offset `since` are left out.
        """
        start = max(segment.base_offset, since)
        ended = self.aborted.ending_in(start, max(start, segment.end_offset))
        side_files.save_aborted(self.context.storage, self.folder, segment.name, ended)

    def retire(self) -> None:
        """Reject all appends from now on, because the topic was deleted."""
        with self.lock:
            self.gate.retire()
        self.context.notifier.notify()

    def shut(self) -> None:
        """Reject all appends from now on, because the log is being closed."""
        with self.lock:
            self.gate.shut()


def _is_full(active: Segment, payload: FramePayload, config: TopicConfig) -> bool:
    """Return True if the active segment must be closed before the payload is appended."""
    if active.size == 0:
        return False
    too_large = (
        active.size + payload.frame_size > config.segment_bytes
        or active.frames_noted >= MAX_SEGMENT_FRAMES
    )
    age = payload.max_timestamp - active.first_timestamp
    oldest = config.segment_ms
    if config.compact:
        oldest = min(oldest, config.max_compaction_lag_ms)
    return too_large or age > oldest
