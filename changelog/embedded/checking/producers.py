"""The rules for producers in one partition: sequences, epochs, and each transaction ended once.

What may rightly differ from a history without a flaw: a producer that was idle for a day is
forgotten, and whatever it sends then is taken; frames are missing where offsets are; what
was cleaned does not say any more who wrote it. None of these is a finding.
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
from strandline.changelog.embedded.producer_state import ProducerEntry, ProducerStates, advance
from strandline.changelog.embedded.recovery import replay
from strandline.changelog.embedded.segment import LocatedFrame
from strandline.changelog.records import ProducerIdentity, TopicPartition


class SegmentAges:
    """Between which times an offset was written: its segment was made before, the next one after."""

    def __init__(self, entries: Sequence[SegmentEntry], now_ms: int) -> None:
        self._bases = [entry.base_offset for entry in entries]
        self._made = [entry.created_ms for entry in entries]
        self._now_ms = now_ms

    def may_be_forgotten(self, last: int, by: int) -> bool:
        """Whether a producer whose last frame is at `last` may be forgotten when `by` is written."""
        earliest = self._made[max(0, bisect_right(self._bases, last) - 1)]
        after = bisect_right(self._bases, by)
        latest = self._made[after] if after < len(self._made) else self._now_ms
        return latest - earliest > PRODUCER_ID_EXPIRATION_MS


@dataclass
class ProducerRules:
    """Follows the frames of a partition and says where they break a rule."""

    partition: TopicPartition
    folder: str
    ages: SegmentAges
    report: CheckReport
    producers: ProducerStates = field(default_factory=ProducerStates)
    aborted: AbortedTransactions = field(default_factory=AbortedTransactions)
    last_markers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    lost_ends: list[LostMarker] = field(default_factory=list)
    last_seen: dict[int, int] = field(default_factory=dict)
    """By producer id: the last offset of its last frame."""
    _suspects: dict[int, list[RecordGap]] = field(default_factory=dict)
    """By producer id: the gaps since the last frame of its open transaction."""
    whole_from: int = 0
    """Below it some offsets are in no frame, or in one that was cleaned."""

    @property
    def has_holes(self) -> bool:
        """Whether something is missing between frames."""
        return self.whole_from > 0

    def skipped(self, first: int, until: int) -> None:
        """The offsets from `first` up to `until` are in no frame."""
        if until > first:
            self.whole_from = until

    def gap(self, gap: RecordGap) -> None:
        """Frames were lost here."""
        for producer_id in self.producers.open_producers:
            self._suspects.setdefault(producer_id, []).append(gap)

    def frame(self, frame: LocatedFrame) -> None:
        """The next frame."""
        header = frame.header
        if header.attributes & Attributes.CLEANED or header.kind == FrameKind.EMPTY:
            self.whole_from = header.last_offset + 1
        if header.producer_id < 0:
            return
        self._check_end_was_seen(header)
        entry = self.producers.entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            self._break(header, f"has epoch {header.producer_epoch} after epoch {entry.epoch}")
        elif entry is not None and not header.control:
            self._check_sequence(header, entry)
        replay(frame, self.producers, self.aborted, 0)
        if header.control:
            payload = frame.payload
            committed = unpack_marker(payload, frame.where).type != 0
            if self.last_markers.get(header.producer_id, (-1, False))[0] >= header.producer_epoch:
                self._break(header, "has ended its transaction already")
            self.last_markers[header.producer_id] = (header.producer_epoch, committed)
        self.last_seen[header.producer_id] = header.last_offset

    def finish(self) -> None:
        """There are no more frames."""
        for producer_id, gaps in self._suspects.items():
            epoch = self.producers.epoch(producer_id)
            first = self.producers.open_since(producer_id)
            self.lost_ends.append(LostMarker(producer_id, epoch, first, gaps, certain=False))

    def _check_end_was_seen(self, header: FrameHeader) -> None:
        """A frame of a later transaction tells that the open one has ended."""
        producer_id = header.producer_id
        gaps = self._suspects.pop(producer_id, [])
        first, epoch = self.producers.open_since(producer_id), self.producers.epoch(producer_id)
        if first < 0 or header.producer_epoch - header.control <= epoch:
            return
        self.lost_ends.append(LostMarker(producer_id, epoch, first, gaps, certain=True))
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
        # Its outcome is not known; what follows is another transaction in any case.
        self.producers.ended(ProducerIdentity(producer_id, epoch + 1), header.base_offset, 0)

    def _check_sequence(self, header: FrameHeader, entry: ProducerEntry) -> None:
        follows = entry.epoch == header.producer_epoch and bool(entry.batches)
        expected = advance(entry.batches[-1].last_sequence, 1) if follows else 0
        if header.base_sequence != expected:
            self._break(
                header,
                f"goes on at sequence {header.base_sequence}, expected {expected}: records are "
                f"missing or there twice",
            )

    def _break(self, header: FrameHeader, what: str) -> None:
        last = self.last_seen[header.producer_id]
        if self.whole_from > last + 1 or self.ages.may_be_forgotten(last, header.base_offset):
            return
        self.report.add(
            Severity.DAMAGE,
            "producer",
            self.folder,
            f"producer {header.producer_id}, epoch {header.producer_epoch}, {what}",
            partition=self.partition,
            offsets=(header.base_offset, header.last_offset + 1),
            way_out="`strandline repair` cannot tell what is right and leaves it",
        )
