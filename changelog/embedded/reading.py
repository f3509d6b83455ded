"""Reads of a partition from an offset or a timestamp, under an isolation level.

A view (view.py) is taken under the partition's lock. It lists the files and positions to be read,
for about as many bytes as were asked for. The files are then read without a lock. If retention
deletes a file in between, a new view is taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TypeVar

from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.segment import SegmentPiece
from strandline.changelog.embedded.view import RecordView
from strandline.changelog.errors import REPAIR, CorruptLog, OffsetOutOfRange
from strandline.changelog.history import epochs_within
from strandline.changelog.records import Fetched, Isolation

SEARCH_BYTES = 64 << 10
"""Number of bytes read at a time in search of a timestamp."""

T = TypeVar("T")


def view(partition: Partition, offset: int, *, max_bytes: int, isolation: Isolation) -> RecordView:
    """Return a view of the records from `offset` on, of about `max_bytes`.

    Raises OffsetOutOfRange, and UnknownTopic if the topic was deleted.
    """
    with partition.lock:
        if partition.gate.retired:
            partition.gate.check()
        ends = partition.offsets()
        if not ends.log_start <= offset <= max(partition.log_end, ends.log_start):
            raise OffsetOutOfRange(
                f"{partition.topic_partition} has offsets {ends.log_start} to "
                f"{ends.high_watermark}, got {offset}; seek to the beginning or the end"
            )
        pieces, limit = _pieces(partition, offset, ends.visible_end(isolation), max_bytes)
        return RecordView(
            partition.topic_partition,
            offset,
            limit,
            pieces,
            partition.aborted.among(offset, limit) if isolation == "read_committed" else None,
            partition.schemas,
            ends.log_start,
            ends.high_watermark,
            ends.last_stable_offset,
            epochs_within(ends.epochs, offset, limit),
            ends.topic_id,
        )


def fetch(partition: Partition, offset: int, *, max_bytes: int, isolation: Isolation) -> Fetched:
    """Read records from `offset` on: at least one batch if there is any, then up to `max_bytes`.

    Raises OffsetOutOfRange, UnknownTopic, CorruptLog.
    """
    storage = partition.context.storage
    fetched: Fetched | None = None
    while True:
        seen, later = _read(
            partition,
            partial(view, partition, offset, max_bytes=max_bytes, isolation=isolation),
            lambda seen: seen.fetch(storage, max_bytes),
        )
        fetched = fetched.joined(later) if fetched else later
        if fetched.batches or not seen.pieces:
            return fetched
        offset = seen.limit  # there were only markers and aborted records


def offset_for_time(partition: Partition, timestamp: int, *, isolation: Isolation) -> int | None:
    """Return the offset of the first record of at least that timestamp (ms), or None."""
    storage = partition.context.storage
    offset = 0
    while True:
        seen, found = _read(
            partition,
            partial(_view_from_time, partition, offset, timestamp, isolation),
            lambda seen: seen.offset_for_time(storage, timestamp),
        )
        if found is not None or not seen.pieces:
            return found
        offset = seen.limit


def _view_from_time(
    partition: Partition, offset: int, timestamp: int, isolation: Isolation
) -> RecordView:
    """Return a view from the first offset, at `offset` or later, that can have the timestamp."""
    with partition.lock:
        start = partition.log_end
        for segment in partition.segments:
            if segment.max_timestamp >= timestamp and segment.end_offset > offset:
                start = segment.index.offset_of_time(timestamp)
                break
        start = max(start, offset, partition.log_start)
        return view(partition, start, max_bytes=SEARCH_BYTES, isolation=isolation)


def _read(
    partition: Partition, take: Callable[[], RecordView], read: Callable[[RecordView], T]
) -> tuple[RecordView, T]:
    """Take a view and read by it. Repeat both if a file of the view was deleted in between."""
    while True:
        segments = partition.segments
        seen = take()
        try:
            return seen, read(seen)
        except FileNotFoundError as error:
            if partition.segments is segments and not partition.gate.retired:
                raise CorruptLog(
                    f"{partition.folder}: a segment is gone ({error}); {REPAIR}"
                ) from error


def _pieces(
    partition: Partition, offset: int, end: int, max_bytes: int
) -> tuple[tuple[SegmentPiece, ...], int]:
    """Return the pieces that hold offsets [`offset`, `end`), and the end of the offsets in them.

    If they have more than about `max_bytes`, only the first ones are returned.
    """
    if offset >= end:
        return (), end
    pieces: list[SegmentPiece] = []
    size = 0
    first = bisect_right(partition.segments, offset, key=attrgetter("base_offset")) - 1
    for segment in partition.segments[max(0, first) :]:
        for piece in segment.pieces(segment.index.position_of(offset), max_bytes):
            if piece.base_offset >= end:
                return tuple(pieces), end
            if pieces and size + piece.size > max_bytes:
                return tuple(pieces), piece.base_offset
            pieces.append(piece)
            size += piece.size
    return tuple(pieces), end
