"""One segment of a partition: a file of frames, with a sparse index of offsets and times."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from strandline.changelog.embedded import document
from strandline.changelog.embedded.format import HEADER_SIZE, FrameHeader, unpack_header
from strandline.changelog.embedded.frame import payload_bytes, walk
from strandline.changelog.embedded.manifest import NO_HORIZON, SegmentEntry
from strandline.changelog.embedded.names import SegmentName, place_of
from strandline.changelog.errors import REPAIR, CorruptLog
from strandline.changelog.storage import File, Storage

INDEX_KIND = "index"
_NO_TIME = -1


class LocatedFrame(NamedTuple):
    """A frame found in a segment: `data[position : position + header.length]`."""

    header: FrameHeader
    data: memoryview
    position: int
    """Within `data`."""
    where: str
    """File and byte, for messages."""
    place: int = 0
    """Of the file: the CRC of its partition's name, which is in the frame's checksum."""

    @property
    def payload(self) -> memoryview:
        """Its payload, the checksum verified. Raises CorruptLog."""
        return payload_bytes(self.data, self.position, self.header, self.where, self.place)


class SegmentPiece(NamedTuple):
    """Whole frames that follow one another in a segment's file, to be read at once."""

    path: str
    base_offset: int
    """No frame in it begins before this offset."""
    start: int
    """Position of its first byte in the file."""
    end: int
    """Position behind its last byte."""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    def frames(self, storage: Storage) -> Iterator[LocatedFrame]:
        """Its frames. Raises FileNotFoundError, StorageFailed, CorruptLog."""
        with contextlib.closing(storage.open(self.path)) as file:
            data = memoryview(file.read(self.start, self.size))
        seen = 0
        for frame in _located(data, self.path, self.start):
            yield frame
            seen = frame.position + frame.header.length
        if seen != self.size:
            raise _cut_off(self.path, self.start + seen)


class SparseIndex:
    """For some frames: base offset, file position, and the largest timestamp before them."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times_before = array("q")

    def add(self, offset: int, position: int, time_before: int) -> None:
        """Note a frame; readers may look at the same time, so what they search comes last."""
        self.positions.append(position)
        self.times_before.append(time_before)
        self.offsets.append(offset)

    def position_of(self, offset: int) -> int:
        """Where to start scanning for `offset`."""
        index = bisect_right(self.offsets, offset) - 1
        return self.positions[index] if index >= 0 else 0

    def offset_of_time(self, timestamp: int) -> int:
        """From which offset on to look for the first record of at least `timestamp`."""
        index = bisect_left(self.times_before, timestamp, hi=len(self.offsets)) - 1
        return self.offsets[index] if index >= 0 else 0

    def cut(self, start: int, size: int) -> tuple[int, int] | None:
        """A frame before which a reader of `size` bytes from `start` stops: position and base offset.

        It is the last one noted within these bytes, or the next one noted; None: there is none.
        """
        known = len(self.offsets)
        index = bisect_right(self.positions, start + size, hi=known) - 1
        if index < 0 or self.positions[index] <= start:
            index += 1
        return (self.positions[index], self.offsets[index]) if index < known else None

    def check_within(self, entry: SegmentEntry, where: str) -> None:
        """Raise CorruptLog if the index is visibly of another segment than `entry`.

        Indexes of format version 1 do not say what they belong to.
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
    """Frames from `base_offset` on. The last segment of a partition is active, others closed."""

    def __init__(
        self, storage: Storage, folder: str, name: SegmentName, file: File, created_ms: int
    ) -> None:
        self._storage = storage
        self._folder = folder
        self.name = name
        self.path = f"{folder}/{name.log_file}"
        """Of the file of frames."""
        self.place = place_of(self.path)
        """Of the partition; it is in the checksums of the frames."""
        self._file: File | None = file
        self.created_ms = created_ms
        self.base_offset = name.base_offset
        self.end_offset = name.base_offset
        """One past the last offset in it."""
        self.size = 0
        """Bytes of whole frames."""
        self.frames_noted = 0
        """How many `noted` was told of."""
        self.first_timestamp = _NO_TIME
        self.max_timestamp = _NO_TIME
        self.delete_horizon = NO_HORIZON
        """The earliest of its frames'."""
        self.index = SparseIndex()
        self._indexed_up_to = -(1 << 62)

    @classmethod
    def create(cls, storage: Storage, folder: str, name: SegmentName, now_ms: int) -> Segment:
        """A new, empty segment; durable once its folder is synced."""
        storage.unlink(f"{folder}/{name.log_file}")  # of an attempt that found no room
        return cls(storage, folder, name, storage.create(f"{folder}/{name.log_file}"), now_ms)

    @classmethod
    def open(
        cls, storage: Storage, folder: str, name: SegmentName, created_ms: int, *, writable: bool
    ) -> Segment:
        """An existing segment; `noted` or `load` tell it what it holds."""
        file = storage.open(f"{folder}/{name.log_file}", writable=writable)
        return cls(storage, folder, name, file, created_ms)

    @property
    def storage(self) -> Storage:
        """The log's files."""
        return self._storage

    @property
    def file(self) -> File:
        """The file of frames; a closed segment's is opened when it is read."""
        file = self._file
        return file if file is not None else self._storage.open(self.path)

    def undo_append(self) -> None:
        """Remove, durably, what an append that failed may have left behind the end."""
        self.file.truncate(self.size)
        self.file.sync()  # or a power cut could bring it back, behind what is appended next

    def let_go(self) -> None:
        """The segment is closed: its file is open only for those who are reading it."""
        self._file = None

    def append(self, header: FrameHeader, parts: list[Any], index_interval: int) -> None:
        """Write a frame at the end."""
        self.file.append(*parts)
        self.noted(header, index_interval)

    def noted(self, header: FrameHeader, index_interval: int) -> None:
        """Take into account a frame that is at the end of the file."""
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
        """All frames from file position `start` on, in pieces of about `size` bytes."""
        base, end = self.base_offset, self.size
        while start < end:
            cut = self.index.cut(start, size) if end - start > size else None
            stop, following = cut if cut is not None and cut[0] < end else (end, base)
            yield SegmentPiece(self.path, base, start, stop)
            start, base = stop, following

    def frames(
        self, position: int, chunk_bytes: int, *, end: int | None = None
    ) -> Iterator[LocatedFrame]:
        """The frames in file positions [`position`, `end`), read in chunks; a larger frame whole."""
        end = self.size if end is None else end
        file = self.file
        while position < end:
            data = memoryview(file.read(position, min(chunk_bytes, end - position)))
            consumed = 0
            for frame in _located(data, self.path, position):
                yield frame
                consumed = frame.position + frame.header.length
            if consumed == 0:
                if len(data) == 0 or len(data) >= end - position:
                    raise _cut_off(self.path, position)
                chunk_bytes = max(chunk_bytes * 2, 1 << 12)
            position += consumed

    def headers(self) -> Iterator[FrameHeader]:
        """The headers of all frames; payloads are not read. Raises CorruptLog."""
        file, position = self.file, 0
        while position < self.size:
            where = f"{self.path} at byte {position}"
            header = unpack_header(file.read(position, HEADER_SIZE), 0, where)
            yield header
            position += header.length

    def save_index(self) -> None:
        """Write the index file of a segment that is now closed; a torn one is rebuilt later."""
        path = f"{self._folder}/{self.name.index_file}"
        self._storage.unlink(path)
        file = self._storage.create(path)
        with contextlib.closing(file):
            file.append(document.pack(INDEX_KIND, self.index.dump(), path))

    def has_expired(self, now_ms: int) -> bool:
        """Whether tombstones in it may go by now."""
        return NO_HORIZON < self.delete_horizon <= now_ms

    def started_ms(self) -> int:
        """Timestamp of the first record; of a closed segment it is read from the file once."""
        if self.first_timestamp == _NO_TIME and self.size:
            first = self.file.read(0, HEADER_SIZE)
            self.first_timestamp = unpack_header(first, 0, self.path).base_timestamp
        return self.first_timestamp

    def load(self, entry: SegmentEntry, interval: int) -> None:
        """Take over a closed segment's figures from the manifest, and its index from its file."""
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
            return  # damage concerns those who read there
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
        """How the manifest lists it, once it is closed."""
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
        """Delete the segment's files. Who is reading them goes on: they close with the last one."""
        for name in self.name.files:
            self._storage.unlink(f"{self._folder}/{name}")


def _located(data: memoryview, path: str, position: int) -> Iterator[LocatedFrame]:
    """The whole frames in `data`, which was read from `position` of the file `path`."""
    place = place_of(path)
    for at, header in walk(data, f"{path} at byte {position}"):
        yield LocatedFrame(header, data, at, f"{path} at byte {position + at}", place)


def _cut_off(path: str, position: int) -> CorruptLog:
    return CorruptLog(f"{path}: the frame at byte {position} is cut off; {REPAIR}")
