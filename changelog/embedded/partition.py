"""One partition: an append-only list of segments, and what readers may see of it.

Four offsets, from low to high:

    log_start ≤ last stable offset ≤ high watermark ≤ log_end

Appended data lies below `log_end`; what is durable lies below the high watermark and is what
read_uncommitted sees; the last stable offset is the high watermark or the first offset of the
earliest open transaction, whichever is lower. Every acknowledged plain append is below the
high watermark (mode "fsync": after the fsync it shares with its neighbours).

An append that finds no room is taken back, and may be tried again. After any other failure, of
a write, an fsync or the process itself, the partition takes nothing more until it is reopened.

One lock guards the end of the log; fsyncs run outside it, one at a time, and each covers
all that was appended before it began. Readers take a snapshot of the segments and need no lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
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
from strandline.changelog.embedded.names import SegmentName
from strandline.changelog.embedded.producer_state import (
    BatchMeta,
    EndedTransaction,
    ProducerStates,
    advance,
)
from strandline.changelog.embedded.segment import Segment
from strandline.changelog.errors import (
    UNDONE,
    OwnerUnavailable,
    PartitionPoisoned,
    StorageFailed,
    StrandlineError,
    UnknownTopic,
)
from strandline.changelog.history import HistoryEpoch, epoch_of, with_epoch
from strandline.changelog.records import (
    Appended,
    PartitionOffsets,
    ProducerIdentity,
    TopicPartition,
)
from strandline.changelog.schema import ValueSchemas
from strandline.changelog.storage import File

MAX_SEGMENT_FRAMES = 10_000
"""Of a segment. After a kill the last one of a partition is walked frame by frame, and small ones
are many to the megabyte: without a bound taking over would last the longer the longer it went well."""
RESERVATION = 1 << 20
"""Offsets reserved at a time in the manifest, where an acknowledgement does not wait for fsync."""


class Partition:
    """The log of one topic partition. Its folder is made by the first append."""

    def __init__(
        self,
        environment: LogContext,
        folder: str,
        manifest: Manifest,
        config: TopicConfig,
    ) -> None:
        self.environment = environment
        self.folder = folder
        self.manifest = manifest
        self.config = config
        self.topic_partition = TopicPartition(manifest.topic, manifest.partition)
        self.topic_id = manifest.topic_id
        self.segments: tuple[Segment, ...] = ()
        self.written = AppendCounters()
        self.producers = ProducerStates()
        self.aborted = AbortedTransactions()
        self.log_end = 0
        self.high_watermark = 0
        self.synced_end = 0
        self.committed_end = 0
        """Behind the last thing that counts whatever becomes of the transactions that are open: a plain
        batch, or the marker of a commit. 0 after opening, when none is."""
        self.lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self.epoch_begun = False
        """Whether this opening of the log has begun an epoch here: before its first append."""
        self.schemas = ValueSchemas()
        """Of the topic's values, kept up to date by the topic."""
        self._manifest_in_doubt = False
        """Whether saving it has failed: the name may be the new one's, and not durable."""
        self.cleaning = threading.Lock()
        """Held by who rewrites segments, and by who removes the partition's folder."""
        self._refused: StrandlineError | None = None
        """Why nothing can be written: a failure, a deletion, the log's end."""

    # What is there --------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        return self.manifest.log_start

    @property
    def last_stable_offset(self) -> int:
        """Below it, every transaction has ended."""
        first_open = self.producers.first_open_offset
        if first_open is None:
            return self.high_watermark
        return max(self.log_start, min(self.high_watermark, first_open))

    @property
    def retired(self) -> bool:
        """Whether the topic was deleted."""
        return isinstance(self._refused, UnknownTopic)

    @property
    def usable(self) -> bool:
        """Whether it can be written, if there is room."""
        return self._refused is None

    @property
    def is_known(self) -> bool:
        """Whether what is on the disk is known: nothing has failed that was to change it."""
        return not (self._manifest_in_doubt or isinstance(self._refused, StorageFailed))

    def offsets(self) -> PartitionOffsets:
        """The ends, and the leader epochs."""
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
        """Write a batch at the end; it is not durable, nor visible, before `sync`.

        Raises what ProducerStates.check does, DiskFull, TooManyFiles, PartitionPoisoned: nothing
        is written then. After another StorageFailed that is not known.
        """
        with self.lock:
            self.check_usable()
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
            with self._atomic_or_poisoned():
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
        """Write a transaction's end, with the producer's *next* epoch. Raises what `append` does.

        `recovery` is for the recovery of a committed transaction: its marker may have been seen and
        lost, so it is written once more in the epoch that it was in.

        Returns its offset, and whether it is visible already. A commit marker may be seen before its fsync,
        since a durable Prepare stands behind it and recovery writes it again; so it is, if
        nothing else is waiting for one.
        """
        now = self.environment.clock.now_ms()
        payload = encode_marker(commit=commit, coordinator_epoch=0, timestamp=now)
        with self.lock:
            self.check_usable()
            nothing_waits = self.high_watermark == self.log_end
            opened = self.producers.open_since(producer.producer_id)
            with self._atomic_or_poisoned():
                header = self._write(payload, producer, -1, transactional=True, recovery=recovery)
                if not commit and opened >= 0:
                    # Before the marker can be seen, or a reader takes the data for committed.
                    ended = EndedTransaction(producer.producer_id, opened, header.base_offset)
                    self.aborted.add(ended)
                self.producers.ended(producer, header.base_offset, self.environment.steady_ms())
                if commit:
                    self.committed_end = self.log_end
                    if nothing_waits:
                        self.high_watermark = self.log_end
                self._publish_unsynced()
            visible = self.high_watermark == self.log_end
        self.environment.notifier.notify()
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
        except UNDONE:
            segment.undo_append()
            raise
        self.log_end = header.last_offset + 1
        return header

    @contextlib.contextmanager
    def _atomic_or_poisoned(self) -> Iterator[None]:
        """What changes the end of the log is done whole, or undone, or the log ends here."""
        try:
            yield
        except UNDONE:
            raise
        except StorageFailed as error:
            self.poison(error)
            raise
        except BaseException as error:  # memory, an interrupt: between two steps, who knows which
            self.poison(StorageFailed(f"a write was cut short: {type(error).__name__}: {error}"))
            raise

    def _note_producer(self, header: FrameHeader) -> None:
        if header.producer_id < 0:
            return
        last = advance(header.base_sequence, header.record_count - 1)
        self.producers.appended(
            ProducerIdentity(header.producer_id, header.producer_epoch),
            BatchMeta(header.base_sequence, last, header.base_offset, header.last_offset),
            transactional=header.transactional,
            timestamp=self.environment.steady_ms(),
        )

    def _publish_unsynced(self) -> None:
        if self.environment.durability == "os":
            self.high_watermark = self.log_end
            self.environment.notifier.notify()

    # Durability -----------------------------------------------------------------------

    def sync(self) -> None:
        """Return when all that was appended before the call is durable, and visible.

        Callers share fsyncs: who waits for another's finds, as a rule, that it covered both.
        """
        wanted = self.log_end
        with self._sync_lock:
            self.check_usable()
            if self.synced_end >= wanted:
                return
            with self.lock:
                covered, file = self.log_end, self.segments[-1].file
            self._sync_file(file)  # earlier segments were synced when they were closed
            with self.lock:
                self._check_not_poisoned()
                self._publish(covered)

    def _sync_file(self, file: File) -> None:
        try:
            with self.environment.counters.fsyncs.timed():
                file.sync()
        except StorageFailed as error:
            self.poison(error)
            raise

    def _publish(self, durable_end: int) -> None:
        self.synced_end = max(self.synced_end, durable_end)
        self.high_watermark = max(self.high_watermark, self.synced_end)
        self.environment.notifier.notify()

    def poison(self, error: StorageFailed) -> None:
        """A write or fsync failed: what is on disk is not known until recovery looks."""
        self._refused = self._refused or error

    def check_usable(self) -> None:
        """Raises PartitionPoisoned after a failed write or fsync, UnknownTopic after deletion."""
        self._check_not_poisoned()
        if self._refused is not None:
            raise self._refused

    def _check_not_poisoned(self) -> None:
        # Asked after an fsync too: the system tells only one of several at once that it failed.
        if isinstance(self._refused, StorageFailed):
            raise PartitionPoisoned(
                f"{self.topic_partition} cannot be written since an earlier failure "
                f"({self._refused}); reopen the log once the cause is gone"
            )

    # Segments -------------------------------------------------------------------------

    def _segment_for(self, payload: FramePayload) -> Segment:
        if not self.segments:
            self.environment.storage.make_dir(self.folder)
            self.roll()
        elif self._is_full(self.segments[-1], payload):
            self.roll()
        if self.environment.durability == "os":
            self._reserve(self.log_end + payload.record_count)
        return self.segments[-1]

    def _is_full(self, active: Segment, payload: FramePayload) -> bool:
        if active.size == 0:
            return False
        too_large = (
            active.size + payload.frame_size > self.config.segment_bytes
            or active.frames_noted >= MAX_SEGMENT_FRAMES
        )
        age = payload.max_timestamp - active.first_timestamp
        oldest = self.config.segment_ms
        if self.config.compact:
            oldest = min(oldest, self.config.max_compaction_lag_ms)
        return too_large or age > oldest

    def roll(self, start: int | None = None) -> None:
        """Close the active segment and begin another, at `start` or the log's end.

        Data, index and producer snapshot of the closed one are on disk before the manifest
        names its successor, so only the active segment ever needs a scan. The lock is held.
        If there is no room, the next attempt writes all of these files anew.
        """
        self.check_usable()
        with self._atomic_or_poisoned():
            self._roll(self.log_end if start is None else start)

    def _roll(self, start: int) -> None:
        storage, now = self.environment.storage, self.environment.clock.now_ms()
        entries = list(self.manifest.segments)
        if self.segments:
            entries[-1] = self._close_active(start)
        name = SegmentName(start, self.manifest.next_generation)
        segment = Segment.create(storage, self.folder, name, now)
        storage.sync_dir(self.folder)  # or the manifest could name a file that a power cut takes
        entries.append(SegmentEntry(base_offset=start, generation=name.generation, created_ms=now))
        self._check_not_poisoned()
        self._change_manifest(segments=entries, next_generation=name.generation + 1)
        self._publish(self.log_end)
        if self.segments:
            self.segments[-1].let_go()
        self.segments = (*self.segments, segment)
        self.log_end = start

    def _close_active(self, next_base: int) -> SegmentEntry:
        active = self.segments[-1]
        self._sync_file(active.file)
        active.save_index()
        self.save_aborted(active)
        storage, producers = self.environment.storage, self.producers.entries
        side_files.save_producers(
            storage, self.folder, next_base, producers, before=active.base_offset
        )
        return active.entry()

    def _reserve(self, end: int) -> None:
        if end > self.manifest.reserved_end:
            self._change_manifest(reserved_end=end + RESERVATION)

    def begin_epoch(self, start: int) -> None:
        """Begin a leader epoch of this opening of the log at offset `start`, durably."""
        epochs, oldest = self.manifest.epochs, self.segments[0].base_offset
        new = with_epoch(epochs, start, self.environment.incarnation, oldest)
        self._change_manifest(epochs=new)
        self.epoch_begun = True

    def _begin_epoch_by_append(self) -> None:
        """Begin an epoch before the first append since the opening: durable before its records."""
        if self.segments:
            self.begin_epoch(self.log_end)
        else:  # There is no manifest yet. The first segment is about to be created and saves it.
            first = HistoryEpoch(0, self.log_end, self.environment.incarnation)
            self.manifest = msgspec.structs.replace(self.manifest, epochs=(first,))
            self.epoch_begun = True

    def drop_segments(self, count: int, log_start: int) -> list[Segment]:
        """Take the first `count` segments out of the log, durably; their files are still there."""
        with self.lock:
            self._change_manifest(
                segments=self.manifest.segments[count:],
                log_start=max(self.log_start, log_start),
            )
            dropped, self.segments = self.segments[:count], self.segments[count:]
            self.aborted = self.aborted.since(self.log_start)
        self.environment.notifier.notify()
        return list(dropped)

    def new_segment_name(self, base_offset: int) -> SegmentName:
        """For a segment that is to take the place of others; its number is given to nobody else."""
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
        """Put `new`, closed and durable, in the place of `old`, durably, which stay on the disk.

        False if `old` are not all in the log any more: then nothing is changed. What is only in `old`
        was superseded by records below `superseding_end`, or is a tombstone below `purged_end`.
        """
        with self.lock:
            self.check_usable()
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
        self.environment.notifier.notify()
        return True

    def note_cleaned(self, end: int) -> None:
        """Below `end` no key has two records, nor is there anything that was aborted, durably."""
        with self.lock:
            self.check_usable()
            self._change_manifest(clean_end=end)
            self.aborted = self.aborted.since(end)

    def _change_manifest(self, **changes: Any) -> None:
        """Save the manifest with changes; memory follows only once they are durable."""
        manifest = msgspec.structs.replace(self.manifest, **changes)
        self._manifest_in_doubt = True
        manifest.save(self.environment.storage, self.folder)
        self._manifest_in_doubt = False
        self.manifest = manifest

    def save_aborted(self, segment: Segment, since: int = 0) -> None:
        """Write the aborted index of a segment that is closed, without what ended before `since`."""
        start = max(segment.base_offset, since)
        ended = self.aborted.ending_in(start, max(start, segment.end_offset))
        side_files.save_aborted(self.environment.storage, self.folder, segment.name, ended)

    def retire(self) -> None:
        """The topic was deleted: nothing more is written."""
        with self.lock:
            self._refused = UnknownTopic(f"topic {self.topic_partition.topic!r} was deleted")
        self.environment.notifier.notify()

    def shut(self) -> None:
        """The log is being closed: nothing more is written, whoever is about to."""
        with self.lock:
            self._refused = self._refused or OwnerUnavailable(
                "the log is closed; open it again with changelog.open"
            )
