"""The bytes of a frame: one batch of records in a segment file (docs/format.md).

A frame is a header of 104 bytes and a payload, padded to a multiple of 64 bytes. Frames follow one
another from byte 0 of a segment. Integers are little-endian. The header has a CRC of its own, so a
scan can walk a segment and trust the headers without reading payloads.

This module does no I/O.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import crc32c

from strandline.changelog.errors import REPAIR, CorruptLog, FutureFormat

MAGIC = b"SLF1"
VERSION = 2
"""Version of the frames that are written. Version 1 did not name a frame's partition."""
ALIGNMENT_BYTES = 64
"""Bytes; the length of a frame is a multiple of this."""
MAX_FRAME_BYTES = 1 << 30
"""Maximum length of a frame in bytes. A header with a longer length is damaged."""


class FrameKind(IntEnum):
    """Encoding of the records in a payload."""

    EMPTY = 0
    """No records: a header kept for the producer state it carries."""
    ROWS = 1
    """MessagePack [timestamps, keys, values, headers]: batches of fewer than 32 records."""
    ARROW = 2
    """One Arrow IPC record-batch message; its body begins at a multiple of 64."""
    CONTROL = 3
    """A transaction marker: see `TransactionMarker`."""


class Attributes:
    """Bits of a frame's attributes; plain ints, because an operator of an enum takes up to 3 µs."""

    TRANSACTIONAL = 1
    HEADERS = 2
    """The payload has a column `headers`."""
    OFFSETS = 4
    """The payload has a column `offset`, because records between its records were compacted
    away."""
    LOG_APPEND_TIME = 8
    CLEANED = 16
    """The cleaner has rewritten the records. Their producer and transaction are no longer known."""

    @classmethod
    def names(cls, attributes: int) -> list[str]:
        """Return the names of the bits that are set.

        >>> Attributes.names(Attributes.HEADERS | Attributes.CLEANED)
        ['HEADERS', 'CLEANED']
        """
        bits = {name: bit for name, bit in vars(cls).items() if name.isupper()}
        return [name for name, bit in bits.items() if attributes & bit]


class FrameHeader(NamedTuple):
    """The header of a frame, one field per line, in the order on disk."""

    # magic         4s   "SLF1"
    # header_crc    u32  CRC-32C of the header's bytes 8 … 103
    payload_crc: int  # u32  CRC-32C of the bytes 104 … length-1, XOR the place (see `placed`)
    length: int  # u32  of the whole frame, a multiple of 64
    version: int  # u8   2; 1 in frames of earlier versions
    kind: int  # u8   see FrameKind
    attributes: int  # u16  see Attributes
    record_count: int  # u32  records in the payload
    base_offset: int  # i64  offset of the first record when it was written
    last_offset: int  # i64  offset of the last record when it was written
    base_timestamp: int  # i64  ms, of the first record
    max_timestamp: int  # i64  ms, the largest
    delete_horizon: int  # i64  ms after which tombstones or marker may be removed; -1 not set
    producer_id: int  # i64  -1 none
    producer_epoch: int  # i32  -1 none
    base_sequence: int  # i32  -1 none
    leader_epoch: int  # u32  raised by the first append after each opening
    schema_id: int  # u32  schema of a typed topic's values; 0 for untyped bytes
    durable_end: int  # i64  end (exclusive) of the records known durable when it was written
    payload_start: int  # u32  from the frame's first byte
    payload_size: int  # u32  without padding

    @property
    def transactional(self) -> bool:
        return self.attributes & Attributes.TRANSACTIONAL != 0

    @property
    def control(self) -> bool:
        return self.kind == FrameKind.CONTROL


class TransactionMarker(NamedTuple):
    """The payload of a control frame: the end of a producer's transaction in this partition."""

    version: int  # i16  0
    type: int  # i16  0 abort, 1 commit (Kafka's ControlRecordType)
    coordinator_epoch: int  # i32


_HEADER = struct.Struct("<4sIIIBBHIqqqqqqiiIIqII")
_BODY = struct.Struct("<IIBBHIqqqqqqiiIIqII")
_MARKER = struct.Struct("<hhi")
HEADER_SIZE = _HEADER.size
"""Bytes of a frame header."""
_PROTECTED_BYTES = 8  # bytes of magic and header_crc, which header_crc does not cover


def pack_header(header: FrameHeader) -> bytes:
    """Return the bytes of a header, its checksum included."""
    body = _BODY.pack(*header)
    return b"".join((MAGIC, crc32c.crc32c(body).to_bytes(4, "little"), body))


def unpack_header(data: bytes | bytearray | memoryview, position: int, where: str) -> FrameHeader:
    """Read the header at `position` of `data`, and check it.

    `where` names file and position in error messages. Raises CorruptLog, or FutureFormat for a
    version that this module does not know.
    """
    if len(data) - position < HEADER_SIZE:
        left = len(data) - position
        raise CorruptLog(f"{where}: {left} bytes where a frame header has {HEADER_SIZE}; {REPAIR}")
    magic, crc, *fields = _HEADER.unpack_from(data, position)
    if magic != MAGIC:
        raise CorruptLog(f"{where}: a frame begins with {MAGIC!r}, got {magic!r}; {REPAIR}")
    if crc32c.crc32c(bytes(data[position + _PROTECTED_BYTES : position + HEADER_SIZE])) != crc:
        raise CorruptLog(f"{where}: the frame header's checksum does not match; {REPAIR}")
    header = FrameHeader(*fields)
    if header.version > VERSION:
        raise FutureFormat(
            f"{where}: frame version {header.version}, this Strandline reads up to {VERSION}; upgrade"
        )
    _check_lengths(header, where)
    return header


def placed(header: FrameHeader, place: int) -> FrameHeader:
    """Return the header of the same frame in the present version, which names its partition.

    `place` is the CRC-32C of the partition's name (`names.place_of`). It is XORed with the
    payload's CRC, so a frame in the file of another partition fails its checksum. The payload's own
    CRC can be computed before the partition is known.
    """
    if header.version == VERSION:
        return header
    return header._replace(version=VERSION, payload_crc=header.payload_crc ^ place)


def _check_lengths(header: FrameHeader, where: str) -> None:
    inside = HEADER_SIZE <= header.payload_start <= header.length - header.payload_size
    if not inside or header.length % ALIGNMENT_BYTES or header.length > MAX_FRAME_BYTES:
        raise CorruptLog(f"{where}: impossible lengths in the frame header ({header}); {REPAIR}")


def padded(size: int) -> int:
    """Return `size` rounded up to a multiple of 64 bytes.

    >>> padded(1), padded(64), padded(65)
    (64, 64, 128)
    """
    return (size + ALIGNMENT_BYTES - 1) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def pack_marker(commit: bool, coordinator_epoch: int) -> bytes:
    """Return the payload of a control frame."""
    return _MARKER.pack(0, int(commit), coordinator_epoch)


def unpack_marker(payload: bytes | memoryview, where: str) -> TransactionMarker:
    """Read the payload of a control frame. Raises CorruptLog."""
    if len(payload) != _MARKER.size:
        raise CorruptLog(
            f"{where}: a marker has {_MARKER.size} bytes, got {len(payload)}; {REPAIR}"
        )
    return TransactionMarker(*_MARKER.unpack(payload))
