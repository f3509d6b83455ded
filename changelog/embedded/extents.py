"""Positions of records in the segments of a partition, from the segments' indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import Segment, SegmentPiece
from strandline.changelog.extents import Extent, OffsetSpan
from strandline.changelog.records import TopicPartition

MIN_EXTENT_BYTES = 64 << 10
"""Minimum number of bytes of an extent."""
MAX_EXTENTS = 100_000
"""Approximate maximum number of extents of one answer, because a client may ask for any size."""

Find = Callable[[TopicPartition], Partition]


def extents_of(
    find: Find, spans: Mapping[TopicPartition, OffsetSpan], extent_bytes: int
) -> dict[TopicPartition, list[Extent]]:
    """Implement `Broker.extents`."""
    partitions = {tp: find(tp) for tp in spans}
    total = sum(segment.size for p in partitions.values() for segment in p.segments)
    size = max(MIN_EXTENT_BYTES, extent_bytes, total // MAX_EXTENTS)
    return {tp: _extents(partitions[tp], span, size) for tp, span in spans.items()}


def _extents(partition: Partition, span: OffsetSpan, size: int) -> list[Extent]:
    with partition.lock:
        return [
            Extent(max(span.start, piece.base_offset), _size_within(span, segment, piece))
            for segment, piece in pieces_between(partition, span.start, span.end, size)
        ]


def pieces_between(
    partition: Partition, start: int, end: int, piece_bytes: int
) -> Iterator[tuple[Segment, SegmentPiece]]:
    """Iterate over the pieces that hold offsets [`start`, `end`), each with its segment.

    The first piece may begin before `start`, and the last one may reach beyond `end`. The caller
    holds the partition's lock.
    """
    if start >= end:
        return
    for segment in partition.segments:
        if segment.end_offset > start:
            position = segment.index.position_of(start)
            for piece in segment.pieces(position, piece_bytes):
                if piece.base_offset >= end:
                    return
                yield segment, piece


def _size_within(span: OffsetSpan, segment: Segment, piece: SegmentPiece) -> int:
    """Return about how many bytes of a piece are within the offsets of `span`; at least 1."""
    index, end, size = segment.index, segment.end_offset, segment.size
    start, stop = piece.start, piece.end
    if span.start > piece.base_offset:
        start = max(start, index.estimate(span.start, end, size))
    if span.end < end:
        stop = min(stop, index.estimate(span.end, end, size))
    return max(1, stop - start)
