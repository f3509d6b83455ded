"""What a pass is told to wait by, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from strandline.changelog.embedded.cleaning.survivors import RemovalTally
from strandline.changelog.embedded.segment import Segment


class PassPace(Protocol):
    """Is told of the bytes that a pass reads and writes, 0 between steps of about a millisecond.

    It may wait, and raise to end the pass.
    """

    def __call__(self, nbytes: int) -> None: ...


@dataclass
class PassResult:
    """What a pass did."""

    to_do: int = 0
    """About how many bytes it reads and writes."""
    start: int = 0
    """First dirty offset before it."""
    end: int = 0
    """First dirty offset after it."""
    whole: bool = True
    """Whether it got to the end of what could be cleaned: there was room to know all keys."""
    map_use: float = 0.0
    """The part of the map's room that was taken, 0 to 1."""
    spilled_bytes: int = 0
    """Of the file of keys that the map had no room for."""
    bytes_before: int = 0
    """Of the segments that were rewritten."""
    bytes_after: int = 0
    segments_before: int = 0
    segments_after: int = 0
    left_alone: int = 0
    """Segments in which everything stays."""
    tally: RemovalTally = field(default_factory=RemovalTally)
    replaced: list[Segment] = field(default_factory=list)
    """Out of the log; their files are still there."""
