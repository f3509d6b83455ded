"""The result of a move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strandline.changelog.moving.reading import GroupOffsets
from strandline.changelog.moving.settings import LeftOut

Progress = Callable[[str, int, int], None]
"""Called with the current step, the offsets done, and the total offsets."""


@dataclass(frozen=True)
class MovedPartition:
    """One partition of a moved topic."""

    partition: int
    """Number of the partition."""
    records: int
    """Number of copied records."""
    checksum: str
    """Checksum of all copied records in order: timestamp, key, value, headers."""
    end: int
    """Offset in the target after the last copied record."""


@dataclass(frozen=True)
class MovedTopic:
    """A moved topic."""

    name: str
    partitions: Sequence[MovedPartition]
    compared: bool = True
    """False if compaction or retention has removed records in the target since the move."""
    left_out: LeftOut = field(default_factory=dict)
    """Reason for each setting that the target does not accept."""

    @property
    def records(self) -> int:
        """Number of copied records in all partitions."""
        return sum(partition.records for partition in self.partitions)


@dataclass(frozen=True)
class MoveReport:
    """The result of a move."""

    topics: Sequence[MovedTopic]
    groups: GroupOffsets
    """Committed offsets in the target."""
    copied: int
    """Number of records copied by this run; earlier runs copied the rest."""
    seconds: float
    """Duration of this run."""
