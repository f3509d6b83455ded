"""Arrow batches of any schema in one Flight stream.

A Flight stream has one schema, but one call transfers batches of several topics. So each batch is
sent as a row with a binary column that contains its IPC message. That costs one memory copy on the
sending side and none on the receiving side (measured: as fast as a native stream). All schemas are
in the stream's first message, and the header of each batch has the number of its schema.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import flight

from strandline.changelog.errors import InvalidRecord, InvalidRequest, RecordTooLarge
from strandline.changelog.flight.limits import MAX_REMOTE_APPEND_BYTES
from strandline.changelog.flight.messages import (
    MAX_APPEND_BYTES,
    AppendHeader,
    FetchedHeader,
    FetchedState,
    SmallAppend,
    StreamHeader,
    decode,
    decode_answer,
    decode_request,
    encode,
)
from strandline.changelog.ipc import claimed_bytes, read_batch
from strandline.changelog.records import Append, Batch, Fetched, TopicPartition

ROW_SCHEMA = pa.schema(
    [pa.field("message", pa.large_binary()), pa.field("offsets", pa.large_binary())]
)
"""Schema of a row: an IPC record-batch message, and the records' offsets (int64) if not dense."""


class StreamMessage(NamedTuple):
    """One message of a stream: a batch and its header, both encoded."""

    data: pa.RecordBatch
    header: bytes


def append_rows(appends: Sequence[Append]) -> Iterator[StreamMessage]:
    """Return the stream that carries `appends`."""
    schemas = _Schemas(append.columns.schema for append in appends)
    yield StreamMessage(EMPTY_ROW, encode(StreamHeader(schemas.found)))
    for append in appends:
        yield StreamMessage(_row(append.columns, None), encode(_append_header(append, schemas)))


def small_append(appends: Sequence[Append]) -> SmallAppend:
    """Return the single message that carries `appends`."""
    schemas = _Schemas(append.columns.schema for append in appends)
    batches = [
        (_append_header(append, schemas), append.columns.serialize().to_pybytes())
        for append in appends
    ]
    return SmallAppend(schemas.found, batches)


def read_appends(rows: Iterable[StreamMessage]) -> list[Append]:
    """Return the appends in a client's stream.

    Clients are not trusted: the sizes and every value of the batches are validated.
    """
    stream = iter(rows)
    schemas = _first_header(stream, decode_request).schemas
    appends = []
    size = 0
    for row in stream:
        header: AppendHeader = decode(row.header, AppendHeader)
        appends.append(_checked_append(header, _message(row.data), schemas))
        # The size of the columns counts and not that of the message, because columns may share
        # bytes of the message or be compressed in it.
        size += appends[-1].columns.nbytes
        if size > MAX_APPEND_BYTES:
            raise RecordTooLarge(
                f"an append call has more than {MAX_APPEND_BYTES:,} bytes; send its batches in several calls"
            )
    return appends


def read_small_append(sent: SmallAppend) -> list[Append]:
    """Return the appends in a client's message, validated in the same way."""
    return [
        _checked_append(header, pa.py_buffer(message), sent.schemas)
        for header, message in sent.batches
    ]


def claimed_by(sent: SmallAppend) -> int:
    """Return the number of bytes that the batches of a client claim to have when decompressed.

    Raises InvalidRecord, or RecordTooLarge if they are more than MAX_REMOTE_APPEND_BYTES.
    """
    try:
        size = sum(claimed_bytes(pa.py_buffer(message)) for _, message in sent.batches)
    except pa.ArrowException as error:
        raise InvalidRecord(f"cannot read a batch of the call: {error}") from error
    check_remote_append(size)
    return size


def check_remote_append(size: int) -> None:
    """Raise RecordTooLarge if the batches of a call over TCP have too many bytes."""
    if size > MAX_REMOTE_APPEND_BYTES:
        raise RecordTooLarge(
            f"an append call over TCP has {size:,} bytes, the limit is {MAX_REMOTE_APPEND_BYTES:,}; send "
            "its batches in several calls"
        )


def fetched_rows(fetched: Mapping[TopicPartition, Fetched]) -> Iterator[StreamMessage]:
    """Return the stream that carries the answer to a fetch.

    It releases each batch once it is encoded, so an answer that is not read has no batch twice.
    """
    batches = deque(batch for part in fetched.values() for batch in part.batches)
    schemas = _Schemas(batch.columns.schema for batch in batches)
    states = [
        FetchedState(
            topic,
            partition,
            part.next_offset,
            part.log_start,
            part.high_watermark,
            part.last_stable_offset,
            part.epochs,
            part.topic_id,
        )
        for (topic, partition), part in fetched.items()
    ]
    del fetched
    yield StreamMessage(EMPTY_ROW, encode(StreamHeader(schemas.found, states)))
    while batches:
        yield _fetched_row(batches.popleft(), schemas)


def read_fetched(rows: Iterable[StreamMessage]) -> dict[TopicPartition, Fetched]:
    """Return the answer to a fetch.

    Its values are not validated, because the owner that sends it has done so.
    """
    stream = iter(rows)
    first = _first_header(stream, decode_answer)
    fetched = {
        TopicPartition(state.topic, state.partition): Fetched(
            [],
            state.next_offset,
            state.log_start,
            state.high_watermark,
            state.last_stable_offset,
            state.epochs,
            state.topic_id,
        )
        for state in first.states
    }
    for row in stream:
        header: FetchedHeader = decode(row.header, FetchedHeader)
        fetched[TopicPartition(header.topic, header.partition)].batches.append(
            Batch(
                header.topic,
                header.partition,
                header.base_offset,
                _columns(_message(row.data), first.schemas, header.schema),
                header.leader_epoch,
                _sparse_offsets(row.data),
            )
        )
    return fetched


def rows_of(reader: Any) -> Iterator[StreamMessage]:
    """Yield the rows of a Flight stream as they arrive."""
    if reader.schema != ROW_SCHEMA:
        raise InvalidRequest(f"expected a stream of {ROW_SCHEMA.names}, got {reader.schema.names}")
    for chunk in reader:
        if chunk.data is None or chunk.app_metadata is None:
            raise InvalidRequest("a message of the stream lacks its batch or its header")
        chunk.data.validate(full=True)
        yield StreamMessage(chunk.data, chunk.app_metadata)


def stream_of(rows: Iterable[StreamMessage]) -> Any:
    """Return rows as the stream that a Flight server returns from DoGet."""
    return flight.GeneratorStream(ROW_SCHEMA, iter(rows))


class _Schemas:
    """The distinct schemas of a stream and their numbers."""

    def __init__(self, schemas: Iterable[pa.Schema]) -> None:
        self._numbers: dict[pa.Schema, int] = {}
        for schema in schemas:
            self._numbers.setdefault(schema, len(self._numbers))

    @property
    def found(self) -> list[pa.Schema]:
        return list(self._numbers)

    def number(self, schema: pa.Schema) -> int:
        return self._numbers[schema]


def _fetched_row(batch: Batch, schemas: _Schemas) -> StreamMessage:
    header = FetchedHeader(
        batch.topic,
        batch.partition,
        schemas.number(batch.columns.schema),
        batch.base_offset,
        batch.leader_epoch,
    )
    return StreamMessage(_row(batch.columns, batch.sparse_offsets), encode(header))


def _row(columns: pa.RecordBatch, offsets: pa.Int64Array | None) -> pa.RecordBatch:
    sparse = None if offsets is None else pa.py_buffer(np.asarray(offsets, dtype=np.int64))
    arrays = [_one_binary(columns.serialize()), _one_binary(sparse)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _one_binary(content: pa.Buffer | None) -> pa.Array:
    """Return a column with one row, whose value is `content` without a copy."""
    if content is None:
        return pa.nulls(1, pa.large_binary())
    ends = pa.py_buffer(np.array([0, content.size], dtype=np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, content])


def _message(row: pa.RecordBatch) -> pa.Buffer:
    if row.num_rows != 1 or row.column(0).null_count:
        raise InvalidRequest(f"a message of the stream has {row.num_rows} batches, expected one")
    return _content(row.column(0))


def _columns(message: pa.Buffer, schemas: list[pa.Schema], number: int) -> pa.RecordBatch:
    if not 0 <= number < len(schemas):
        raise InvalidRequest(f"a batch has schema {number} of the {len(schemas)} that were sent")
    try:
        return read_batch(message, schemas[number])
    except pa.ArrowException as error:
        raise InvalidRecord(f"cannot read a batch of the stream: {error}") from error


def _sparse_offsets(row: pa.RecordBatch) -> pa.Int64Array | None:
    if row.column(1).null_count:
        return None
    offsets = _content(row.column(1))
    return pa.Array.from_buffers(pa.int64(), offsets.size // 8, [None, offsets])


def _content(column: pa.Array) -> pa.Buffer:
    """Return the only value of a large_binary column without a copy; a scalar would copy it."""
    _, ends, data = column.buffers()
    start, end = np.frombuffer(ends, np.int64)[column.offset : column.offset + 2].tolist()
    return data.slice(start, end - start)


def _append_header(append: Append, schemas: _Schemas) -> AppendHeader:
    return AppendHeader(
        append.topic,
        append.partition,
        schemas.number(append.columns.schema),
        append.producer,
        append.base_sequence,
        append.transactional,
        append.schema_id,
    )


def _checked_append(header: AppendHeader, message: pa.Buffer, schemas: list[pa.Schema]) -> Append:
    """Return an append after validation of every length, offset and string in its columns."""
    columns = _columns(message, schemas, header.schema)
    try:
        columns.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRecord(
            f"a batch for {header.topic}-{header.partition} is not valid Arrow data: {error}"
        ) from error
    return Append(
        header.topic,
        header.partition,
        columns,
        header.producer,
        header.base_sequence,
        header.transactional,
        header.schema_id,
    )


def _first_header(
    stream: Iterator[StreamMessage], decoded: Callable[[bytes, Any], Any]
) -> StreamHeader:
    first = next(stream, None)
    if first is None:
        raise InvalidRequest("a stream of batches lacks its first message")
    header: StreamHeader = decoded(first.header, StreamHeader)
    return header


EMPTY_ROW = pa.RecordBatch.from_arrays(
    [pa.nulls(0, pa.large_binary()), pa.nulls(0, pa.large_binary())], schema=ROW_SCHEMA
)
"""Data of a message that has a header only."""
