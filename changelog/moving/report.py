"""What a move says of what it has done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strandline.changelog.moving.reading import GroupOffsets
from strandline.changelog.moving.settings import LeftOut

Progress = Callable[[str, int, int], None]
"""Told what is being done, and of how many offsets how many are done."""


@dataclass(frozen=True)
class MovedPartition:
    """One partition of a topic that was moved."""

    partition: int
    records: int
    checksum: str
    """Of all of them in their order: time, key, value, headers."""
    end: int
    """Offset in the target behind the last one."""


@dataclass(frozen=True)
class MovedTopic:
    """A topic that was moved."""

    name: str
    partitions: Sequence[MovedPartition]
    compared: bool = True
    """False if the target has compacted it, or let records go, since it was moved."""
    left_out: LeftOut = field(default_factory=dict)

    @property
    def records(self) -> int:
        """In all partitions."""
        return sum(partition.records for partition in self.partitions)


@dataclass(frozen=True)
class MoveReport:
    """What there is in the target after a move."""

    topics: Sequence[MovedTopic]
    groups: GroupOffsets
    """What they have committed there."""
    copied: int
    """Records that this run has copied; the others were there already."""
    seconds: float
