"""Encoding of column batches as frames, and decoding.

Encoding has two halves. `encode` encodes and checksums the columns, outside any lock. `frame_parts`
adds the header once the offsets are known. Decoding verifies the checksum before Arrow reads a
byte, because Arrow does not validate its input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import crc32c
import msgspec
import pyarrow as pa

from strandline.changelog.arrays import as_numpy, of_items
from strandline.changelog.arrow_messages import open_message
from strandline.changelog.decoding import unchecked_msgpack_decoder
from strandline.changelog.embedded.format import (
    HEADER_SIZE,
    VERSION,
    Attributes,
    FrameHeader,
    FrameKind,
    pack_header,
    pack_marker,
    padded,
    unpack_header,
)
from strandline.changelog.errors import (
    REPAIR,
    UNREADABLE,
    CorruptLog,
    InvalidRecord,
    RecordTooLarge,
    out_of_memory,
)
from strandline.changelog.ipc import check_unpacked_size, read_batch
from strandline.changelog.records import HEADERS_TYPE, columns_schema
from strandline.changelog.selection import selected

ARROW_MIN_RECORDS = 32
"""Minimum number of records in a batch that is stored as Arrow.

Smaller batches are stored as rows, because an Arrow message of one record takes 560 bytes."""
ROWS_MAX_BYTES = 64 << 10
"""Maximum size in bytes of the columns of a batch that is stored as rows.

Larger ones are stored as Arrow, because encoding rows copies each value twice, and rows are not
compressed."""

_ZEROS = bytes(64)
_PAIRS = columns_schema(pa.binary(), headers=False)
_NAMES = _PAIRS.names
_OFFSET = pa.field("offset", pa.int64(), nullable=False)


class FramePayload(NamedTuple):
    """Encoded records: a frame without its header."""

    kind: FrameKind
    attributes: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    schema_id: int
    parts: tuple[Any, ...]
    """Padding, message, padding: the bytes after the header."""
    start: int
    """Position of the message in the frame."""
    size: int
    """Number of bytes of the message."""
    crc: int
    """CRC-32C of all parts."""

    @property
    def frame_size(self) -> int:
        """Number of bytes of the frame, with its header."""
        return HEADER_SIZE + sum(len(part) for part in self.parts)


class _Rows(msgspec.Struct, array_like=True):
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]]] | None = None


_encode_rows = msgspec.msgpack.Encoder().encode
_decode_rows = unchecked_msgpack_decoder(_Rows).decode


def encode(
    columns: pa.RecordBatch,
    *,
    schema_id: int = 0,
    compression: str = "none",
    log_append_time: bool = False,
    offsets: pa.Int64Array | None = None,
) -> FramePayload:
    """Encode a batch of at least one record (schema: see changelog.records).

    `compression` is none, lz4 or zstd. `offsets` are the records' offsets if they are not
    consecutive. Raises InvalidRecord for other columns, RecordTooLarge.
    """
    attributes = check_columns(columns)
    if log_append_time:
        attributes |= Attributes.LOG_APPEND_TIME
    times = as_numpy(columns.column(0))
    if schema_id == 0 and offsets is None and _is_small(columns):
        kind, start = FrameKind.ROWS, HEADER_SIZE
        message: Any = _rows_message(columns)
    else:
        if offsets is not None:
            attributes |= Attributes.OFFSETS
            columns = columns.append_column(_OFFSET, offsets)
        kind, message = FrameKind.ARROW, _arrow_message(columns, compression)
        body = 8 + int.from_bytes(message[4:8], "little")
        start = padded(HEADER_SIZE + body) - body
    return _payload(
        kind,
        attributes,
        columns.num_rows,
        int(times[0]),
        int(times.max()),  # ten times faster than a compute kernel if they are few
        schema_id,
        message,
        start,
    )


def encode_pairs(pairs: Iterable[tuple[bytes, bytes | None]], timestamp: int) -> FramePayload:
    """Encode at least one key/value pair, all with the same timestamp in ms."""
    keys, values = map(list, zip(*pairs, strict=True))
    times = [timestamp] * len(keys)
    if len(keys) < ARROW_MIN_RECORDS and _bytes_of(keys) + _bytes_of(values) <= ROWS_MAX_BYTES:
        message = _encode_rows(_Rows(times, keys, values))
        return _payload(FrameKind.ROWS, 0, len(keys), timestamp, timestamp, 0, message, HEADER_SIZE)
    arrays = [of_items(times, pa.int64()), *(of_items(c, pa.binary()) for c in (keys, values))]
    return encode(pa.RecordBatch.from_arrays(arrays, schema=_PAIRS))


def _bytes_of(items: Iterable[bytes | None]) -> int:
    return sum(len(item) for item in items if item is not None)


def encode_marker(*, commit: bool, coordinator_epoch: int, timestamp: int) -> FramePayload:
    """Encode a transaction marker, which takes one offset."""
    message = pack_marker(commit, coordinator_epoch)
    return _payload(
        FrameKind.CONTROL,
        Attributes.TRANSACTIONAL,
        1,
        timestamp,
        timestamp,
        0,
        message,
        HEADER_SIZE,
    )


def encode_nothing(header: FrameHeader) -> FramePayload:
    """Encode an empty frame in place of the frame of `header`, whose records are all removed.

    The header that is added to it keeps the producer's sequence and epoch.
    """
    times = header.base_timestamp, header.max_timestamp
    return _payload(FrameKind.EMPTY, 0, 0, *times, 0, b"", HEADER_SIZE)


def _payload(
    kind: FrameKind,
    attributes: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    schema_id: int,
    message: Any,
    start: int,
) -> FramePayload:
    size = len(message)
    before = _ZEROS[: start - HEADER_SIZE]
    after = _ZEROS[: padded(start + size) - start - size]
    crc = crc32c.crc32c(after, crc32c.crc32c(message, crc32c.crc32c(before)))
    parts = (before, message, after)
    return FramePayload(
        kind,
        attributes,
        count,
        base_timestamp,
        max_timestamp,
        schema_id,
        parts,
        start,
        size,
        crc,
    )


def frame_parts(
    payload: FramePayload,
    *,
    base_offset: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    leader_epoch: int = 0,
    durable_end: int = 0,
    place: int = 0,
) -> tuple[FrameHeader, list[Any]]:
    """Return the header for `payload` at `base_offset`, and the bytes of the frame in parts.

    `place` is the CRC of the partition's name.
    """
    header = FrameHeader(
        payload_crc=payload.crc ^ place,
        length=payload.frame_size,
        version=VERSION,
        kind=payload.kind,
        attributes=payload.attributes | (Attributes.TRANSACTIONAL if transactional else 0),
        record_count=payload.record_count,
        base_offset=base_offset,
        last_offset=base_offset + payload.record_count - 1,
        base_timestamp=payload.base_timestamp,
        max_timestamp=payload.max_timestamp,
        delete_horizon=-1,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
        schema_id=payload.schema_id,
        durable_end=durable_end,
        payload_start=payload.start,
        payload_size=payload.size,
    )
    return header, [pack_header(header), *payload.parts]


def refilled(
    header: FrameHeader, payload: FramePayload, place: int
) -> tuple[FrameHeader, list[Any]]:
    """Return a frame like that of `header`, with other records.

    It keeps the offsets, the producer and the leader epoch of `header`.
    """
    stays = header.attributes & (Attributes.TRANSACTIONAL | Attributes.CLEANED)
    header = header._replace(
        payload_crc=payload.crc ^ place,
        length=payload.frame_size,
        version=VERSION,
        kind=payload.kind,
        attributes=payload.attributes | stays,
        record_count=payload.record_count,
        base_timestamp=payload.base_timestamp,
        max_timestamp=payload.max_timestamp,
        schema_id=payload.schema_id,
        payload_start=payload.start,
        payload_size=payload.size,
    )
    return header, [pack_header(header), *payload.parts]


def payload_bytes(
    data: memoryview, position: int, header: FrameHeader, where: str, place: int = 0
) -> memoryview:
    """Return the payload of the frame at `position`, its checksum verified. Raises CorruptLog.

    The checksum also fails for a frame that was written to another partition than `place`.
    """
    end = position + header.length
    found = crc32c.crc32c(data[position + HEADER_SIZE : end])
    if found != (header.payload_crc ^ place if header.version > 1 else header.payload_crc):
        raise CorruptLog(
            f"{where}: the checksum of the records at offsets {header.base_offset} to "
            f"{header.last_offset} does not match: they are damaged, or of another partition; "
            f"{REPAIR}"
        )
    start = position + header.payload_start
    return data[start : start + header.payload_size]


def decode(
    header: FrameHeader,
    payload: memoryview,
    value: pa.DataType,
    where: str,
    names: frozenset[str] | None = None,
) -> pa.RecordBatch:
    """Decode the columns of a data frame whose values have type `value`.

    The last column is `offset` if the offsets are not consecutive. Columns that are not in `names`
    (see `changelog.selection`) may be left out. Raises CorruptLog, OutOfMemory.
    """
    schema = columns_schema(value, headers=bool(header.attributes & Attributes.HEADERS))
    if header.attributes & Attributes.OFFSETS:
        schema = schema.append(_OFFSET)
    with _decoding(header, where):
        if header.kind == FrameKind.ROWS:
            columns = _read_rows(payload, schema)
        else:
            columns = read_batch(pa.py_buffer(payload), schema, selected(schema, names))
    _check_count(columns.num_rows, header, where)
    return columns


def decode_pairs(
    header: FrameHeader, payload: memoryview, where: str
) -> tuple[list[int], list[bytes | None], list[bytes | None]]:
    """Decode timestamps, keys and values of rows without headers. Raises CorruptLog.

    Arrow is not used, because it is slower for few records.
    """
    with _decoding(header, where):
        rows = _decode_rows(payload)
        if rows.headers is not None:
            raise ValueError("headers found, but the frame's attributes say that it has none")
    for column in (rows.timestamps, rows.keys, rows.values):
        _check_count(len(column), header, where)
    return rows.timestamps, rows.keys, rows.values


@contextlib.contextmanager
def _decoding(header: FrameHeader, where: str) -> Iterator[None]:
    """Translate errors of the decoders, and add the position of the frame."""
    try:
        yield
    except MemoryError as error:  # Arrow's is an ArrowException as well
        doing = f"decode {header.record_count} records in {header.length} bytes of {where}"
        raise out_of_memory(error, doing) from error
    except (pa.ArrowException, *UNREADABLE) as error:
        raise CorruptLog(f"{where}: records cannot be decoded: {error}; {REPAIR}") from error


def _check_count(found: int, header: FrameHeader, where: str) -> None:
    if found != header.record_count:
        raise CorruptLog(
            f"{where}: {found} records where the header says {header.record_count}; {REPAIR}"
        )


def walk(data: memoryview, where: str) -> Iterator[tuple[int, FrameHeader]]:
    """Iterate over position and header of each whole frame in `data`. Raises CorruptLog."""
    position = 0
    while position + HEADER_SIZE <= len(data):
        header = unpack_header(data, position, f"{where} + {position}")
        if position + header.length > len(data):
            return
        yield position, header
        position += header.length


def check_columns(columns: pa.RecordBatch) -> int:
    """Check the batch's schema; return its attribute bits. Raises InvalidRecord."""
    schema = columns.schema
    names = schema.names
    with_headers = names == [*_NAMES, "headers"]
    if not (names == _NAMES or with_headers) or not _has_times_and_keys(schema):
        raise InvalidRecord(
            f"a batch has the columns timestamp: int64, key: binary, value[, headers]; got {schema}"
        )
    if with_headers and schema.field(3).type != HEADERS_TYPE:
        raise InvalidRecord(f"headers must be {HEADERS_TYPE}, got {schema.field(3).type}")
    if columns.num_rows == 0:
        raise InvalidRecord("a batch must have at least one record")
    if columns.column(0).null_count:
        raise InvalidRecord("every record needs a timestamp, got null")
    return Attributes.HEADERS if with_headers else 0


def _has_times_and_keys(schema: pa.Schema) -> bool:
    return [schema.field(i).type for i in range(2)] == [pa.int64(), pa.binary()]


def _arrow_message(columns: pa.RecordBatch, compression: str) -> memoryview:
    if compression == "none":
        return memoryview(columns.serialize())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, columns.schema, options=options) as writer:
        writer.write_batch(columns)
    stream = memoryview(sink.getvalue())
    schema_end = 8 + int.from_bytes(stream[4:8], "little")
    message = stream[schema_end:-8]  # without the schema's message and the end-of-stream mark
    try:
        check_unpacked_size(open_message(pa.py_buffer(message)))
    except pa.ArrowInvalid as error:
        raise RecordTooLarge(
            f"the batch could not be read back: {error}; send smaller batches"
        ) from error
    return message


def _is_small(columns: pa.RecordBatch) -> bool:
    if columns.num_rows >= ARROW_MIN_RECORDS:
        return False
    # The size of the buffers is found twenty times faster, but a slice may use a part of them.
    size: int = columns.get_total_buffer_size()
    return size <= ROWS_MAX_BYTES or bool(columns.nbytes <= ROWS_MAX_BYTES)


def _rows_message(columns: pa.RecordBatch) -> bytes:
    headers = None
    if columns.num_columns > 3:
        headers = [
            [(pair["key"], pair["value"]) for pair in row or ()]
            for row in columns.column(3).to_pylist()
        ]
    timestamps, keys, values = (columns.column(i).to_pylist() for i in range(3))
    return _encode_rows(_Rows(timestamps, keys, values, headers))


def _read_rows(payload: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    rows = _decode_rows(payload)
    arrays = [
        of_items(rows.timestamps, pa.int64()),
        of_items(rows.keys, pa.binary()),
        of_items(rows.values, pa.binary()),
    ]
    if rows.headers is not None:
        pairs = [[{"key": k, "value": v} for k, v in row] for row in rows.headers]
        arrays.append(of_items(pairs, HEADERS_TYPE))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
