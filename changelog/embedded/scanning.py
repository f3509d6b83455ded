"""A walk over a segment that damage does not end: whole frames, and the places where none is.

Behind a damaged place it goes on where the next frame is: where the header says, if the header
is good and only its payload is not; else at the next multiple of 64 with a whole frame that
can follow. A record may hold what looks like a frame, so a header alone is not enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandline.changelog.embedded.format import (
    ALIGNMENT,
    HEADER_SIZE,
    MAGIC,
    FrameHeader,
    unpack_header,
)
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.errors import REPAIR, CorruptLog, FutureFormat

CHUNK = 4 << 20
"""Bytes read at a time; a larger frame is read whole."""
NO_LIMIT = 1 << 63

Bounds = tuple[int, int]
"""The offsets that the next frame may have, the end excluded."""


class WholeFrame(NamedTuple):
    """A frame whose checksums are right and whose offsets follow."""

    position: int
    """In the file."""
    frame: LocatedFrame

    @property
    def end(self) -> int:
        """Position behind it."""
        return self.position + self.frame.header.length

    @property
    def content(self) -> memoryview:
        """Its bytes, header and payload."""
        at = self.frame.position
        return self.frame.data[at : at + self.frame.header.length]


class BrokenFrame(NamedTuple):
    """A position at which there is no whole frame."""

    position: int
    reason: CorruptLog
    header: FrameHeader | None = None
    """The header, if that much of it can be read."""


def scan(
    segment: Segment, end: int, position: int = 0, limit: int = NO_LIMIT
) -> Iterator[WholeFrame | BrokenFrame]:
    """What is in the first `end` bytes of a segment's file, whole frames in ascending order.

    `position` is where a frame begins. From offset `limit` on, frames belong to another segment.
    Raises FutureFormat.
    """
    end = min(end, segment.file.size())
    bounds = segment.base_offset, limit
    data, start = memoryview(b""), position
    while position < end:
        found = _found_at(segment, data, start, position, end, bounds)
        if isinstance(found, int):
            data, start = memoryview(segment.file.read(position, max(found, CHUNK))), position
            continue
        yield found
        if isinstance(found, WholeFrame):
            position, bounds = found.end, (found.frame.header.last_offset + 1, limit)
        else:
            position = _next_position(segment, found, end, bounds)


def durable_end_behind(segment: Segment, position: int) -> int:
    """The largest offset that a frame behind `position` calls durable; 0 if there is none."""
    headers = _headers(segment, position + ALIGNMENT, segment.file.size())
    return max((header.durable_end for _, header in headers), default=0)


def _found_at(
    segment: Segment, data: memoryview, start: int, position: int, end: int, bounds: Bounds
) -> WholeFrame | BrokenFrame | int:
    """What is at `position`, or how many bytes must be read to tell; `data` is from `start`."""
    at, left = position - start, end - position
    if len(data) - at < min(HEADER_SIZE, left):
        return HEADER_SIZE
    where = f"{segment.path} at byte {position}"
    header: FrameHeader | None = None
    try:
        header = unpack_header(data if left >= HEADER_SIZE else data[: at + left], at, where)
        if header.length > left:
            return BrokenFrame(
                position, CorruptLog(f"{where}: the frame is cut off; {REPAIR}"), header
            )
        if header.length > len(data) - at:
            return header.length
        frame = LocatedFrame(header, data, at, where, segment.place)
        _ = frame.payload
        _check_follows(header, bounds, where)
    except FutureFormat:
        raise
    except CorruptLog as error:
        return BrokenFrame(position, error, header)
    return WholeFrame(position, frame)


def _check_follows(header: FrameHeader, bounds: Bounds, where: str) -> None:
    first, limit = bounds
    if not first <= header.base_offset <= header.last_offset:
        raise CorruptLog(
            f"{where}: offsets {header.base_offset} to {header.last_offset} after offset "
            f"{first - 1}; {REPAIR}"
        )
    if header.last_offset >= limit:
        raise CorruptLog(
            f"{where}: offsets {header.base_offset} to {header.last_offset}, in a segment that ends "
            f"before offset {limit}; {REPAIR}"
        )


def _next_position(segment: Segment, broken: BrokenFrame, end: int, bounds: Bounds) -> int:
    """Where to go on; `end` if there is nothing more."""
    if broken.header is not None:
        return min(end, broken.position + broken.header.length)
    for position, header in _headers(segment, broken.position + ALIGNMENT, end):
        if position + header.length <= end:
            data = memoryview(segment.file.read(position, header.length))
            if isinstance(_found_at(segment, data, position, position, end, bounds), WholeFrame):
                return position
    return end


def _headers(segment: Segment, position: int, end: int) -> Iterator[tuple[int, FrameHeader]]:
    """Every good header at a multiple of 64 from `position` on, whatever lies in between."""
    while position < end:
        data = bytes(segment.file.read(position, min(CHUNK, end - position) + HEADER_SIZE))
        at = data.find(MAGIC)
        while 0 <= at < CHUNK:
            if (position + at) % ALIGNMENT == 0:
                header = _header(data, at, segment.path)
                if header is not None:
                    yield position + at, header
            at = data.find(MAGIC, at + 1)
        position += CHUNK


def _header(data: bytes, at: int, path: str) -> FrameHeader | None:
    try:
        return unpack_header(data, at, path)
    except CorruptLog:
        return None
