"""Reads Arrow IPC record-batch messages with a limit on the memory that they take.

A compressed buffer begins with its uncompressed length, and Arrow allocates that much memory before
it reads the data: a message of a few kilobytes can claim gigabytes, or become that large. Therefore
these lengths are added up first. Arrow itself checks that they are correct.

The layout is that of RecordBatch in Arrow's format/Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from strandline.changelog.arrow_messages import open_message
from strandline.changelog.flatbuffers import I64, PAIR, field, target, vector_of
from strandline.changelog.ipc_projection import projected

MAX_UNPACKED_BYTES = 1 << 30
"""Maximum uncompressed bytes of all compressed buffers of a message."""


def read_batch(
    message: pa.Buffer, schema: pa.Schema, part: pa.Schema | None = None
) -> pa.RecordBatch:
    """Return the batch in a message, after checking that its buffers are long enough.

    If `part` is some of the columns of `schema`, only these are decoded, where that is possible.

    If the writer is not trusted, call `validate(full=True)` on the batch before reading values.
    Raises ArrowInvalid.
    """
    try:
        found = open_message(message)
        if part is not None and part != schema:
            smaller = projected(found, schema, part)
            found, schema = (found, schema) if smaller is None else (smaller, part)
        check_unpacked_size(found)
        batch = pa.ipc.read_record_batch(found, schema)
        batch.validate()
    except MemoryError:
        raise  # the batch's size is bounded, so the machine has too little memory
    except (EOFError, OSError, ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    return batch


def check_unpacked_size(message: pa.Message) -> None:
    """Raise ArrowInvalid if the claimed uncompressed size is more than MAX_UNPACKED_BYTES."""
    if message.type != "record batch":
        raise pa.ArrowInvalid(f"a record batch was expected, got a {message.type}")
    try:
        sizes = _unpacked_sizes(memoryview(message.metadata), lambda: message.body)
    except struct.error as error:
        raise pa.ArrowInvalid(f"a message points out of its bytes: {error}") from error
    if min(sizes, default=0) < 0 or sum(sizes) > MAX_UNPACKED_BYTES:
        raise pa.ArrowInvalid(
            f"a batch of {message.body.size:,} bytes claims to be {sum(sizes):,} bytes unpacked; at "
            f"most {MAX_UNPACKED_BYTES:,} are read"
        )


def claimed_bytes(content: pa.Buffer) -> int:
    """Return the uncompressed bytes of a message's buffers, as claimed by the message.

    Nothing is uncompressed. Buffers that share bytes are counted separately. Raises ArrowInvalid.
    """
    try:
        message = open_message(content)
        check_unpacked_size(message)
        metadata = memoryview(message.metadata)
        sizes = _unpacked_sizes(metadata, lambda: message.body)
        return sum(sizes) + sum(_buffer_sizes(metadata))
    except (EOFError, OSError, ValueError, RecursionError, struct.error) as error:
        raise pa.ArrowInvalid(str(error)) from error


def unpacked_bytes(content: memoryview) -> int:
    """Return the uncompressed bytes of a message's compressed buffers, as claimed by the message.

    It is 0 for a message without compression, and for one that cannot be read: `read_batch` raises
    for the latter. Arrow is not used, because this is called for every frame of a fetch.
    """
    try:
        if not field(content, _batch_table(content, _PREFIX_BYTES), _BATCH_COMPRESSION):
            return 0
        body = _PREFIX_BYTES + int.from_bytes(content[4:_PREFIX_BYTES], "little")
        sizes = _unpacked_sizes(content[_PREFIX_BYTES:body], lambda: content[body:])
    except struct.error:
        return 0
    return sum(size for size in sizes if size > 0)


def _buffer_sizes(metadata: memoryview) -> list[int]:
    """Return the lengths of a batch's buffers in the message, compressed or not."""
    start, count = vector_of(metadata, _batch_table(metadata), _BATCH_BUFFERS)
    pairs = (PAIR.unpack_from(metadata, start + n * PAIR.size) for n in range(count))
    return [max(0, size) for _, size in pairs]


def _unpacked_sizes(metadata: memoryview, body: Callable[[], Any]) -> list[int]:
    """Return the claimed uncompressed lengths of a batch's buffers; none if not compressed."""
    batch = _batch_table(metadata)
    if not field(metadata, batch, _BATCH_COMPRESSION):
        return []
    start, count = vector_of(metadata, batch, _BATCH_BUFFERS)
    content, sizes = memoryview(body()), []
    for index in range(count):
        at, size = PAIR.unpack_from(metadata, start + index * PAIR.size)
        (unpacked,) = I64.unpack_from(content, at) if size else (0,)
        sizes.append(0 if unpacked == _STORED_UNCOMPRESSED else unpacked)
    return sizes


def _batch_table(metadata: memoryview, start: int = 0) -> int:
    """Return the position of the table RecordBatch of the message whose metadata is at `start`."""
    return target(metadata, field(metadata, target(metadata, start), _MESSAGE_HEADER))


_PREFIX_BYTES = 8
"""Bytes before the metadata of a message: a mark, and the metadata's length."""
_MESSAGE_HEADER = 2
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_STORED_UNCOMPRESSED = -1
"""Length that marks a buffer stored uncompressed, because compression would not shrink it."""
