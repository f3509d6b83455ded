"""The pace and the result of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from strandline.changelog.embedded.cleaning.survivors import RemovalTally
from strandline.changelog.embedded.segment import Segment


class PassPace(Protocol):
    """Called with the bytes that a pass reads and writes, and with 0 about every millisecond.

    It may wait to slow the pass down, and raise to end it.
    """

    def __call__(self, nbytes: int) -> None: ...


class SegmentLeft(Exception):
    """Retention, or a deletion of records, has removed a segment that the pass was to read."""


@dataclass
class PassResult:
    """The result of a pass; during the pass, its progress."""

    to_do: int = 0
    """Estimate of the bytes to read and write."""
    start: int = 0
    """First dirty offset before the pass."""
    end: int = 0
    """First dirty offset after the pass."""
    whole: bool = True
    """True if the pass reached the first uncleanable offset.

    False if memory ended it earlier, or a segment left the log meanwhile."""
    map_use: float = 0.0
    """Used part of the offset map, 0 to 1."""
    spilled_bytes: int = 0
    """Bytes of keys written to a file because the offset map was full."""
    bytes_before: int = 0
    """Bytes of the segments that were rewritten."""
    bytes_after: int = 0
    """Bytes of the segments that replaced them."""
    segments_before: int = 0
    """Number of segments that were rewritten."""
    segments_after: int = 0
    """Number of segments that replaced them."""
    left_alone: int = 0
    """Number of segments skipped because every record is retained."""
    tally: RemovalTally = field(default_factory=RemovalTally)
    """Numbers of records read and removed."""
    replaced: list[Segment] = field(default_factory=list)
    """Segments that left the log; their files still exist and must be deleted."""
