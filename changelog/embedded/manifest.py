"""The manifest of a partition: which segments are its log. What it does not list does not exist."""

from __future__ import annotations

from typing import Annotated

import msgspec

from strandline.changelog.embedded import document
from strandline.changelog.embedded.names import MANIFEST, SegmentName
from strandline.changelog.history import FIRST, HistoryEpoch
from strandline.changelog.storage import Storage

KIND = "manifest"
STILL_OPEN = -1
NO_HORIZON = -1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""An offset, or a number of things."""
Figure = Annotated[int, msgspec.Meta(ge=STILL_OPEN, le=2**63 - 1)]


class SegmentEntry(msgspec.Struct, kw_only=True):
    """One segment. The last one listed is active: its figures are STILL_OPEN."""

    base_offset: Count
    generation: Count
    created_ms: int
    size: Figure = STILL_OPEN
    end_offset: Figure = STILL_OPEN
    max_timestamp: int = STILL_OPEN
    delete_horizon: int = NO_HORIZON
    """The earliest of its frames' (ms since 1970): before then there is no tombstone or marker to remove."""

    @property
    def name(self) -> SegmentName:
        return SegmentName(self.base_offset, self.generation)


class Manifest(msgspec.Struct, kw_only=True):
    """The durable facts of one partition."""

    topic: str
    topic_id: str
    partition: Count
    log_start: Count = 0
    reserved_end: Count = 0
    """No offset below this is given again after an unclean start (durability "os")."""
    next_generation: Count = 1
    """Number of the next segment; numbers are never used twice."""
    epochs: Annotated[tuple[HistoryEpoch, ...], msgspec.Meta(min_length=1)] = FIRST
    """Which opening of the log wrote which offsets, ascending. Version 1 had no incarnations."""
    segments: list[SegmentEntry] = msgspec.field(default_factory=list)
    clean_end: Count = 0
    """Below it no key has two records: how far cleaning has come (Kafka's cleaner-offset-checkpoint)."""
    superseding_end: Count = 0
    """Because of no record from here on another one is gone; saved with the segments from which it is gone.

    Above `clean_end` while a pass is under way, or after it was cut short."""
    purged_end: Count = 0
    """Below it tombstones may have been removed: `PartitionOffsets.must_start_over`. Saved likewise."""

    @property
    def leader_epoch(self) -> int:
        return self.epochs[-1].number

    def save(self, storage: Storage, folder: str) -> None:
        """Replace the manifest in `folder`, durably."""
        document.save(storage, f"{folder}/{MANIFEST}", KIND, self)

    @staticmethod
    def load(storage: Storage, folder: str) -> Manifest:
        """Read the manifest in `folder`. Raises FileNotFoundError, CorruptLog, FutureFormat."""
        return document.load(storage, f"{folder}/{MANIFEST}", KIND, Manifest)
