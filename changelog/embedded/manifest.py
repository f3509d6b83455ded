"""The manifest of a partition: the list of the segments that make up its log.

A segment that the manifest does not list is not part of the log.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from strandline.changelog.embedded import document
from strandline.changelog.history import FIRST, HistoryEpoch
from strandline.changelog.layout import MANIFEST, SegmentName
from strandline.changelog.storage import Storage

KIND = "manifest"
STILL_OPEN = -1
"""Placeholder for the figures of the active segment, which are not final."""
NO_HORIZON = -1
"""Delete horizon of a segment without tombstones or markers to remove."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""An offset, or a number of things; at least 0."""
Figure = Annotated[int, msgspec.Meta(ge=STILL_OPEN, le=2**63 - 1)]
"""A number that is STILL_OPEN for the active segment."""


class SegmentEntry(msgspec.Struct, kw_only=True):
    """One segment. The last one listed is the active one; its figures are STILL_OPEN."""

    base_offset: Count
    generation: Count
    created_ms: int
    size: Figure = STILL_OPEN
    end_offset: Figure = STILL_OPEN
    max_timestamp: int = STILL_OPEN
    delete_horizon: int = NO_HORIZON
    """Earliest delete horizon of the segment's frames, in milliseconds since the epoch.

    Before this time the segment has no tombstone or marker to remove."""

    @property
    def name(self) -> SegmentName:
        return SegmentName(self.base_offset, self.generation)


class Manifest(msgspec.Struct, kw_only=True):
    """The durable facts about one partition."""

    topic: str
    topic_id: str
    partition: Count
    log_start: Count = 0
    reserved_end: Count = 0
    """End (exclusive) of the reserved offsets, with durability "os".

    After an unclean stop no offset below it is assigned again."""
    next_generation: Count = 1
    """Number of the next segment. A number is never used twice."""
    epochs: Annotated[tuple[HistoryEpoch, ...], msgspec.Meta(min_length=1)] = FIRST
    """Epochs, ascending: which opening of the log wrote which offsets.

    Version 1 had no incarnations."""
    segments: list[SegmentEntry] = msgspec.field(default_factory=list)
    clean_end: Count = 0
    """Offset below which no key has two records (Kafka's cleaner-offset-checkpoint)."""
    superseding_end: Count = 0
    """End (exclusive) of the records that have superseded removed ones.

    It is saved together with the segments that lack the removed records. It is higher than
    `clean_end` during a cleaning pass, and after an interrupted one."""
    purged_end: Count = 0
    """Offset below which tombstones may have been removed: see `PartitionOffsets.must_start_over`.

    It is saved together with the segments that lack the tombstones."""

    @property
    def leader_epoch(self) -> int:
        """Number of the latest leader epoch."""
        return self.epochs[-1].number

    def save(self, storage: Storage, folder: str) -> None:
        """Replace the manifest in `folder`, durably."""
        document.save(storage, f"{folder}/{MANIFEST}", KIND, self)

    @staticmethod
    def load(storage: Storage, folder: str) -> Manifest:
        """Read the manifest in `folder`. Raises FileNotFoundError, CorruptLog, FutureFormat."""
        return document.load(storage, f"{folder}/{MANIFEST}", KIND, Manifest)
