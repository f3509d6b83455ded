"""The rules for producers in one partition: sequences, epochs, and one end for each transaction.

Three deviations are normal and not reported. A producer that was idle for a day is forgotten, and
may continue with any sequence. Cleaning and retention remove frames, which leaves gaps in the
offsets. Cleaned frames no longer have their producer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline.changelog.embedded.aborted import AbortedTransactions
from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.checking.scanned import LostMarker, RecordGap
from strandline.changelog.embedded.format import Attributes, FrameHeader, FrameKind, unpack_marker
from strandline.changelog.embedded.maintenance import PRODUCER_ID_EXPIRATION_MS
from strandline.changelog.embedded.manifest import SegmentEntry
from strandline.changelog.embedded.recovery import replay
from strandline.changelog.embedded.segment import LocatedFrame
from strandline.changelog.producer_state import ProducerEntry, ProducerStates, advance
from strandline.changelog.records import ProducerIdentity, TopicPartition


class SegmentAges:
    """Bounds of the time at which an offset was written.

    The bounds are the creation times of its segment and of the next one.
    """

    def __init__(self, entries: Sequence[SegmentEntry], now_ms: int) -> None:
        self._bases = [entry.base_offset for entry in entries]
        self._created_ms = [entry.created_ms for entry in entries]
        self._now_ms = now_ms

    def may_be_forgotten(self, last: int, by: int) -> bool:
        """Return True if a producer last seen at `last` may have expired before offset `by`."""
        earliest = self._created_ms[max(0, bisect_right(self._bases, last) - 1)]
        after = bisect_right(self._bases, by)
        latest = self._created_ms[after] if after < len(self._created_ms) else self._now_ms
        return latest - earliest > PRODUCER_ID_EXPIRATION_MS


@dataclass
class ProducerRules:
    """Replays the frames of a partition and reports each broken rule."""

    partition: TopicPartition
    folder: str
    ages: SegmentAges
    report: CheckReport
    producers: ProducerStates = field(default_factory=ProducerStates)
    """Producer states after the frames so far."""
    aborted: AbortedTransactions = field(default_factory=AbortedTransactions)
    """Aborted transactions in the frames so far."""
    last_markers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Epoch of the last marker of each producer id, and True if it commits."""
    lost_markers: list[LostMarker] = field(default_factory=list)
    """Transactions whose marker is lost."""
    last_offsets: dict[int, int] = field(default_factory=dict)
    """Last offset of the last frame of each producer id."""
    _gaps_since_start: dict[int, list[RecordGap]] = field(default_factory=dict)
    """Gaps since the last frame of an open transaction, by producer id; one may hold its marker."""
    complete_from: int = 0
    """Offset after the last one that is in no frame, or in a cleaned frame."""

    @property
    def has_holes(self) -> bool:
        """True if offsets are missing between frames, or frames were cleaned."""
        return self.complete_from > 0

    def skipped(self, first: int, until: int) -> None:
        """Note that the offsets from `first` to `until` (exclusive) are in no frame."""
        if until > first:
            self.complete_from = until

    def gap(self, gap: RecordGap) -> None:
        """Note a gap in which frames were lost."""
        for producer_id in self.producers.open_producers:
            self._gaps_since_start.setdefault(producer_id, []).append(gap)

    def frame(self, frame: LocatedFrame) -> None:
        """Check the next frame."""
        header = frame.header
        if header.attributes & Attributes.CLEANED or header.kind == FrameKind.EMPTY:
            self.complete_from = header.last_offset + 1
        if header.producer_id < 0:
            return
        self._check_previous_ended(header)
        entry = self.producers.entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            self._report(header, f"has epoch {header.producer_epoch} after epoch {entry.epoch}")
        elif entry is not None and not header.control:
            self._check_sequence(header, entry)
        replay(frame, self.producers, self.aborted, 0)
        if header.control:
            payload = frame.payload
            committed = unpack_marker(payload, frame.where).type != 0
            if self.last_markers.get(header.producer_id, (-1, False))[0] >= header.producer_epoch:
                self._report(header, "has ended its transaction already")
            self.last_markers[header.producer_id] = (header.producer_epoch, committed)
        self.last_offsets[header.producer_id] = header.last_offset

    def finish(self) -> None:
        """Finish after the last frame: a gap may hold the marker of a transaction still open."""
        for producer_id, gaps in self._gaps_since_start.items():
            epoch = self.producers.epoch(producer_id)
            first = self.producers.open_since(producer_id)
            self.lost_markers.append(LostMarker(producer_id, epoch, first, gaps, certain=False))

    def _check_previous_ended(self, header: FrameHeader) -> None:
        """Report an open transaction if the frame is of a later one: its marker must be lost."""
        producer_id = header.producer_id
        gaps = self._gaps_since_start.pop(producer_id, [])
        first, epoch = self.producers.open_since(producer_id), self.producers.epoch(producer_id)
        if first < 0 or header.producer_epoch - header.control <= epoch:
            return
        self.lost_markers.append(LostMarker(producer_id, epoch, first, gaps, certain=True))
        if not gaps:
            self.report.add(
                Severity.DAMAGE,
                "transaction",
                self.folder,
                f"the transaction of producer {producer_id}, epoch {epoch}, that begins at offset "
                f"{first} has no end before the next one at offset {header.base_offset}",
                partition=self.partition,
                offsets=(first, header.base_offset),
            )
        # The outcome is unknown. Any end will do here, because the next frame starts a transaction.
        self.producers.ended(ProducerIdentity(producer_id, epoch + 1), header.base_offset, 0)

    def _check_sequence(self, header: FrameHeader, entry: ProducerEntry) -> None:
        """Check that a frame's sequence follows the producer's last one."""
        follows = entry.epoch == header.producer_epoch and bool(entry.batches)
        expected = advance(entry.batches[-1].last_sequence, 1) if follows else 0
        if header.base_sequence != expected:
            self._report(
                header,
                f"continues at sequence {header.base_sequence}, expected {expected}: records are "
                f"missing or duplicated",
            )

    def _report(self, header: FrameHeader, what: str) -> None:
        """Report a broken rule, unless missing frames or an expired producer may explain it."""
        last = self.last_offsets[header.producer_id]
        if self.complete_from > last + 1 or self.ages.may_be_forgotten(last, header.base_offset):
            return
        self.report.add(
            Severity.DAMAGE,
            "producer",
            self.folder,
            f"producer {header.producer_id}, epoch {header.producer_epoch}, {what}",
            partition=self.partition,
            offsets=(header.base_offset, header.last_offset + 1),
            way_out="`strandline repair` cannot decide what is right and does not change it",
        )
