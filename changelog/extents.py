"""Extents: positions and sizes of the stored records of a partition.

A reader that divides a partition among several tasks, or limits a read by bytes, must know how many
bytes lie between two offsets. Extents are read from the segments' indexes, without the records.
"""

from __future__ import annotations

from typing import NamedTuple


class OffsetSpan(NamedTuple):
    """Offsets of one partition."""

    start: int
    end: int
    """End (exclusive)."""


class Extent(NamedTuple):
    """Records that are stored together."""

    offset: int
    """Lower bound of the offsets of the records; the next extent's offset is their end."""
    size: int
    """Number of bytes that they take in the log; compressed if they are compressed."""
