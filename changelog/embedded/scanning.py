"""A scan of a segment file that continues after damage: whole frames, and damaged places.

After a damaged place the scan continues at the next frame. If the header is valid and only the
payload is damaged, the header says where that is. Otherwise it is the next multiple of 64 with a
whole frame whose offsets follow. A record may contain bytes that look like a frame, so a valid
header alone is not enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandline.changelog.embedded.format import (
    ALIGNMENT_BYTES,
    HEADER_SIZE,
    MAGIC,
    FrameHeader,
    unpack_header,
)
from strandline.changelog.embedded.segment import LocatedFrame, Segment
from strandline.changelog.errors import REPAIR, CorruptLog, FutureFormat

CHUNK_BYTES = 4 << 20
"""Number of bytes read at a time. A larger frame is read whole."""
NO_LIMIT = 1 << 63
"""Offset above all others, for a segment without a successor."""

Bounds = tuple[int, int]
"""Offsets that the next frame may have: the first one, and the end (exclusive)."""


class WholeFrame(NamedTuple):
    """A frame with valid checksums whose offsets follow those before it."""

    position: int
    """Position in the file."""
    frame: LocatedFrame

    @property
    def end(self) -> int:
        """Position of its end (exclusive) in the file."""
        return self.position + self.frame.header.length

    @property
    def content(self) -> memoryview:
        """Bytes of the frame, header and payload."""
        at = self.frame.position
        return self.frame.data[at : at + self.frame.header.length]


class BrokenFrame(NamedTuple):
    """A position without a whole frame."""

    position: int
    reason: CorruptLog
    header: FrameHeader | None = None
    """The frame's header, if it is valid."""


def scan(
    segment: Segment, end: int, position: int = 0, limit: int = NO_LIMIT
) -> Iterator[WholeFrame | BrokenFrame]:
    """Scan the first `end` bytes of a segment's file, in ascending order of positions.

    `position` is the start of a frame. Frames with offsets from `limit` on belong to another
    segment, and count as damage. Raises FutureFormat.
    """
    end = min(end, segment.file.size())
    bounds = segment.base_offset, limit
    data, start = memoryview(b""), position
    while position < end:
        found = _found_at(segment, data, start, position, end, bounds)
        if isinstance(found, int):
            data, start = memoryview(segment.file.read(position, max(found, CHUNK_BYTES))), position
            continue
        yield found
        if isinstance(found, WholeFrame):
            position, bounds = found.end, (found.frame.header.last_offset + 1, limit)
        else:
            position = _next_position(segment, found, end, bounds)


def durable_end_behind(segment: Segment, position: int) -> int:
    """Return the largest durable end in the frame headers after `position`; 0 if there is none."""
    headers = _headers(segment, position + ALIGNMENT_BYTES, segment.file.size())
    return max((header.durable_end for _, header in headers), default=0)


def _found_at(
    segment: Segment, data: memoryview, start: int, position: int, end: int, bounds: Bounds
) -> WholeFrame | BrokenFrame | int:
    """Return the frame at `position`, or the number of bytes to read from there to decide.

    `data` are the file's bytes from position `start` on.
    """
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
        _ = frame.payload  # verifies the checksum
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
    """Return the position at which the scan continues; `end` if there is no further frame."""
    if broken.header is not None:
        return min(end, broken.position + broken.header.length)
    for position, header in _headers(segment, broken.position + ALIGNMENT_BYTES, end):
        if position + header.length <= end:
            data = memoryview(segment.file.read(position, header.length))
            if isinstance(_found_at(segment, data, position, position, end, bounds), WholeFrame):
                return position
    return end


def _headers(segment: Segment, position: int, end: int) -> Iterator[tuple[int, FrameHeader]]:
    """Iterate over the valid headers at multiples of 64 from `position` on."""
    while position < end:
        data = bytes(segment.file.read(position, min(CHUNK_BYTES, end - position) + HEADER_SIZE))
        at = data.find(MAGIC)
        while 0 <= at < CHUNK_BYTES:
            if (position + at) % ALIGNMENT_BYTES == 0:
                header = _header(data, at, segment.path)
                if header is not None:
                    yield position + at, header
            at = data.find(MAGIC, at + 1)
        position += CHUNK_BYTES


def _header(data: bytes, at: int, path: str) -> FrameHeader | None:
    try:
        return unpack_header(data, at, path)
    except CorruptLog:
        return None
