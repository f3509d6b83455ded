"""One segment of a partition: a file of frames, and a sparse index of offsets and timestamps."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from strandline.changelog.embedded import document
from strandline.changelog.embedded.format import (
    HEADER_SIZE,
    FrameHeader,
    FrameKind,
    unpack_header,
)
from strandline.changelog.embedded.frame import payload_bytes, walk
from strandline.changelog.embedded.manifest import NO_HORIZON, SegmentEntry
from strandline.changelog.errors import REPAIR, CorruptLog
from strandline.changelog.ipc import unpacked_bytes
from strandline.changelog.layout import SegmentName, place_of
from strandline.changelog.storage import File, Storage

INDEX_KIND = "index"
PIECE_READ_BYTES = 4 << 20
"""Number of bytes of a piece that are read at a time, so that a reader that stops at its limit has
not read the rest. A larger frame is read whole."""
_ARROW = int(FrameKind.ARROW)
_NO_TIME = -1


class LocatedFrame(NamedTuple):
    """A frame found in a segment: `data[position : position + header.length]`."""

    header: FrameHeader
    data: memoryview
    position: int
    """Position of the frame in `data`."""
    where: str
    """File and byte position, for error messages."""
    place: int = 0
    """CRC of the partition's name, which is part of the frame's checksum."""

    @property
    def payload(self) -> memoryview:
        """The payload, its checksum verified. Raises CorruptLog."""
        return payload_bytes(self.data, self.position, self.header, self.where, self.place)

    @property
    def memory_bytes(self) -> int:
        """Number of bytes that the decoded frame takes, as far as the frame claims them.

        Limits of reads count these bytes, because a compressed frame of a few kilobytes can have
        records of a gigabyte. Nothing is decoded, and no checksum is verified.
        """
        header = self.header
        if header.kind != _ARROW:
            return header.length
        start = self.position + header.payload_start
        return header.length + unpacked_bytes(self.data[start : start + header.payload_size])


NO_INDEX_BYTES = 1 << 62
"""Bytes between index entries of a file without any: the next opening of the log makes its index."""


class SegmentPiece(NamedTuple):
    """Consecutive whole frames in a segment's file, which are read together."""

    path: str
    base_offset: int
    """Lower bound of the offsets in the piece."""
    start: int
    """Position of its first byte in the file."""
    end: int
    """Position of its end (exclusive) in the file."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end - self.start

    def frames(self, storage: Storage) -> Iterator[LocatedFrame]:
        """Read the frames of the piece. Raises FileNotFoundError, StorageFailed, CorruptLog."""
        with contextlib.closing(storage.open(self.path)) as file:
            yield from _frames(file, self.path, self.start, self.end, PIECE_READ_BYTES)


class SparseIndex:
    """Base offset, file position, and largest earlier timestamp, for some of the frames."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times_before = array("q")

    def add(self, offset: int, position: int, time_before: int) -> None:
        """Add a frame.

        Readers search `offsets` without a lock, so it is extended last: an entry found there is
        complete.
        """
        self.positions.append(position)
        self.times_before.append(time_before)
        self.offsets.append(offset)

    def position_of(self, offset: int) -> int:
        """Return the file position at which a scan for `offset` must start."""
        index = bisect_right(self.offsets, offset) - 1
        return self.positions[index] if index >= 0 else 0

    def estimate(self, offset: int, end_offset: int, size: int) -> int:
        """Return about where `offset` is in the file.

        Between two indexed frames the bytes are taken to be spread evenly over the offsets.

        Args:
            offset: Offset in the segment.
            end_offset: End (exclusive) of the segment's offsets.
            size: Size of the segment in bytes.
        """
        known = len(self.offsets)
        index = bisect_right(self.offsets, offset, hi=known) - 1
        if index < 0:
            return 0
        first, start = self.offsets[index], self.positions[index]
        following = index + 1 < known
        last = self.offsets[index + 1] if following else end_offset
        stop = self.positions[index + 1] if following else size
        return int(start + (stop - start) * (offset - first) / max(1, last - first))

    def offset_of_time(self, timestamp: int) -> int:
        """Return the offset from which to search for the first record of at least `timestamp`."""
        index = bisect_left(self.times_before, timestamp, hi=len(self.offsets)) - 1
        return self.offsets[index] if index >= 0 else 0

    def cut(self, start: int, size: int) -> tuple[int, int] | None:
        """Return position and base offset of the frame at which a read of about `size` bytes ends.

        It is the last indexed frame within `size` bytes from `start`, else the next indexed one.
        None if there is no such frame.
        """
        known = len(self.offsets)
        index = bisect_right(self.positions, start + size, hi=known) - 1
        if index < 0 or self.positions[index] <= start:
            index += 1
        return (self.positions[index], self.offsets[index]) if index < known else None

    def check_within(self, entry: SegmentEntry, where: str) -> None:
        """Raise CorruptLog if the index visibly belongs to another segment than `entry`.

        Index files of format version 1 do not name their segment.
        """
        if not self.offsets:
            return
        offsets = entry.base_offset <= self.offsets[0] <= self.offsets[-1] < entry.end_offset
        positions = self.positions[0] == 0 and self.positions[-1] < entry.size
        if not (offsets and positions):
            raise CorruptLog(
                f"{where}: an index of offsets {self.offsets[0]} to {self.offsets[-1]}, in the place "
                f"of one of {entry.base_offset} to {entry.end_offset}; {REPAIR}"
            )

    def dump(self) -> bytes:
        return b"".join(a.tobytes() for a in (self.offsets, self.positions, self.times_before))

    @classmethod
    def load(cls, body: bytes, where: str) -> SparseIndex:
        if len(body) % 24:
            raise CorruptLog(f"{where}: an index has 24 bytes an entry, got {len(body)} bytes")
        index, third = cls(), len(body) // 3
        for number, column in enumerate((index.offsets, index.positions, index.times_before)):
            column.frombytes(body[number * third : (number + 1) * third])
        return index


class Segment:
    """Frames from `base_offset` on.

    The last segment of a partition is active and is appended to; the others are closed.
    """

    def __init__(
        self, storage: Storage, folder: str, name: SegmentName, file: File, created_ms: int
    ) -> None:
        self._storage = storage
        self._folder = folder
        self.name = name
        self.path = f"{folder}/{name.log_file}"
        """Path of the file of frames."""
        self.place = place_of(self.path)
        """CRC of the partition's name, which is part of the frames' checksums."""
        self._file: File | None = file
        self.created_ms = created_ms
        self.base_offset = name.base_offset
        self.end_offset = name.base_offset
        """End (exclusive) of the offsets in the segment."""
        self.size = 0
        """Number of bytes of whole frames."""
        self.frames_noted = 0
        """Number of frames passed to `noted` since the segment was opened."""
        self.first_timestamp = _NO_TIME
        self.max_timestamp = _NO_TIME
        self.delete_horizon = NO_HORIZON
        """Earliest delete horizon of its frames."""
        self.index = SparseIndex()
        self._indexed_up_to = -(1 << 62)
        """File position of the last indexed frame."""

    @classmethod
    def create(cls, storage: Storage, folder: str, name: SegmentName, now_ms: int) -> Segment:
        """Create an empty segment. It is durable once its folder is synced."""
        storage.unlink(f"{folder}/{name.log_file}")  # left by an attempt that found no room
        return cls(storage, folder, name, storage.create(f"{folder}/{name.log_file}"), now_ms)

    @classmethod
    def open(
        cls, storage: Storage, folder: str, name: SegmentName, created_ms: int, *, writable: bool
    ) -> Segment:
        """Open an existing segment. The caller must then call `load`, or `noted` for each frame."""
        file = storage.open(f"{folder}/{name.log_file}", writable=writable)
        return cls(storage, folder, name, file, created_ms)

    @property
    def storage(self) -> Storage:
        """The log's storage."""
        return self._storage

    @property
    def file(self) -> File:
        """The file of frames. For a closed segment it is opened by each access."""
        file = self._file
        return file if file is not None else self._storage.open(self.path)

    def undo_append(self) -> None:
        """Remove, durably, the bytes that a failed append left after the end."""
        self.file.truncate(self.size)
        # A power cut could otherwise restore the old length, and with it the stale bytes after
        # the frames that are appended next.
        self.file.sync()

    def release_file(self) -> None:
        """Release the file of a closed segment. Its descriptor is closed with its last reader."""
        self._file = None

    def append(self, header: FrameHeader, parts: list[Any], index_interval: int) -> None:
        """Write a frame at the end."""
        self.file.append(*parts)
        self.noted(header, index_interval)

    def noted(self, header: FrameHeader, index_interval: int) -> None:
        """Update sizes, timestamps and index for a frame that was added at the end of the file."""
        if self.size - self._indexed_up_to >= index_interval:
            self.index.add(header.base_offset, self.size, self.max_timestamp)
            self._indexed_up_to = self.size
        if self.first_timestamp == _NO_TIME:
            self.first_timestamp = header.base_timestamp
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        if header.delete_horizon != NO_HORIZON:
            known = self.delete_horizon
            earliest = (
                header.delete_horizon if known == NO_HORIZON else min(known, header.delete_horizon)
            )
            self.delete_horizon = earliest
        self.size += header.length
        self.frames_noted += 1
        self.end_offset = header.last_offset + 1

    def pieces(self, start: int, size: int) -> Iterator[SegmentPiece]:
        """Split the frames from file position `start` on into pieces of about `size` bytes."""
        base, end = self.base_offset, self.size
        while start < end:
            cut = self.index.cut(start, size) if end - start > size else None
            stop, following = cut if cut is not None and cut[0] < end else (end, base)
            yield SegmentPiece(self.path, base, start, stop)
            start, base = stop, following

    def frames(
        self, position: int, chunk_bytes: int, *, end: int | None = None
    ) -> Iterator[LocatedFrame]:
        """Read the frames in file positions [`position`, `end`), in chunks of `chunk_bytes`.

        A frame that is larger than a chunk is read whole.
        """
        end = self.size if end is None else end
        return _frames(self.file, self.path, position, end, chunk_bytes)

    def headers(self) -> Iterator[FrameHeader]:
        """Read the headers of all frames without their payloads. Raises CorruptLog."""
        file, position = self.file, 0
        while position < self.size:
            where = f"{self.path} at byte {position}"
            header = unpack_header(file.read(position, HEADER_SIZE), 0, where)
            yield header
            position += header.length

    def save_index(self) -> None:
        """Write the index file of the segment, which is now closed.

        It is not fsynced, because a torn index file is rebuilt when it is loaded.
        """
        path = f"{self._folder}/{self.name.index_file}"
        self._storage.unlink(path)
        file = self._storage.create(path)
        with contextlib.closing(file):
            file.append(document.pack(INDEX_KIND, self.index.dump(), path))

    def has_expired(self, now_ms: int) -> bool:
        """Return True if tombstones or markers in the segment may be removed now."""
        return NO_HORIZON < self.delete_horizon <= now_ms

    def started_ms(self) -> int:
        """Return the timestamp (ms) of the first record. It is read from the file at most once."""
        if self.first_timestamp == _NO_TIME and self.size:
            first = self.file.read(0, HEADER_SIZE)
            self.first_timestamp = unpack_header(first, 0, self.path).base_timestamp
        return self.first_timestamp

    def load(self, entry: SegmentEntry, interval: int) -> None:
        """Load the figures of a closed segment from the manifest, and its index from its file.

        A missing or damaged index is rebuilt from the frames. Raises CorruptLog.
        """
        size = entry.size
        if self.file.size() != size:
            raise CorruptLog(
                f"{self.path}: closed with {size} bytes, found {self.file.size()}; {REPAIR}"
            )
        self._check_first(entry)
        path = f"{self._folder}/{self.name.index_file}"
        try:
            self.index = SparseIndex.load(document.read(self._storage, path, INDEX_KIND), path)
            self.index.check_within(entry, path)
            self.size, self.end_offset = size, entry.end_offset
            self.max_timestamp, self.delete_horizon = entry.max_timestamp, entry.delete_horizon
        except (FileNotFoundError, CorruptLog):
            self._rebuild(size, interval)
            self.save_index()

    def _check_first(self, entry: SegmentEntry) -> None:
        """Raise CorruptLog if the file begins with offsets of another segment of the partition."""
        if not entry.size:
            return
        try:
            first = unpack_header(self.file.read(0, HEADER_SIZE), 0, self.path)
        except CorruptLog:
            return  # damage to the records is reported by the read that meets it
        if not entry.base_offset <= first.base_offset < entry.end_offset:
            raise CorruptLog(
                f"{self.path}: begins at offset {first.base_offset}, in the place of offsets "
                f"{entry.base_offset} to {entry.end_offset - 1}: it is another segment's file; {REPAIR}"
            )
        self.first_timestamp = first.base_timestamp

    def _rebuild(self, size: int, interval: int) -> None:
        self.size, self.index = 0, SparseIndex()
        for frame in self.frames(0, 1 << 20, end=size):
            self.noted(frame.header, interval)

    def entry(self) -> SegmentEntry:
        """Return the manifest's entry for this segment, once it is closed."""
        return SegmentEntry(
            base_offset=self.base_offset,
            generation=self.name.generation,
            created_ms=self.created_ms,
            size=self.size,
            end_offset=self.end_offset,
            max_timestamp=self.max_timestamp,
            delete_horizon=self.delete_horizon,
        )

    def remove(self) -> None:
        """Delete the segment's files. A reader that has one open can read it to its end."""
        for name in self.name.files:
            self._storage.unlink(f"{self._folder}/{name}")


def _frames(
    file: File, path: str, position: int, end: int, chunk_bytes: int
) -> Iterator[LocatedFrame]:
    """Read the frames in [`position`, `end`) of a file, a chunk or a larger frame at a time."""
    size = chunk_bytes
    while position < end:
        wanted = min(size, end - position)
        data = memoryview(file.read(position, wanted))
        consumed = 0
        for frame in _located(data, path, position):
            yield frame
            consumed = frame.position + frame.header.length
        size = chunk_bytes if consumed else _size_of_first(data, path, position)
        if not consumed and (len(data) < wanted or size > end - position):
            raise _cut_off(path, position)
        position += consumed


def _size_of_first(data: memoryview, path: str, position: int) -> int:
    """Return the number of bytes to read for the frame that begins at `data`, which lacks its end."""
    if len(data) < HEADER_SIZE:
        return HEADER_SIZE
    return unpack_header(data, 0, f"{path} at byte {position}").length


def _located(data: memoryview, path: str, position: int) -> Iterator[LocatedFrame]:
    """Iterate over the whole frames in `data`, which was read at `position` of the file `path`."""
    place = place_of(path)
    for at, header in walk(data, f"{path} at byte {position}"):
        yield LocatedFrame(header, data, at, f"{path} at byte {position + at}", place)


def _cut_off(path: str, position: int) -> CorruptLog:
    return CorruptLog(f"{path}: the frame at byte {position} is cut off; {REPAIR}")
