"""Reads Arrow IPC record-batch messages with a limit on the memory that they take.

A compressed buffer begins with its uncompressed length, and Arrow allocates that much memory before
it reads the data: a message of a few kilobytes can claim gigabytes, or become that large. Therefore
these lengths are added up first. Arrow itself checks that they are correct.

The layout is that of RecordBatch in Arrow's format/Message.fbs, in FlatBuffers.
"""

from __future__ import annotations

import struct

import pyarrow as pa

MAX_UNPACKED_BYTES = 1 << 30
"""Maximum uncompressed bytes of all compressed buffers of a message."""


def read_batch(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in a message, after checking that its buffers are long enough.

    If the writer is not trusted, call `validate(full=True)` on the batch before reading values.
    Raises ArrowInvalid.
    """
    try:
        found = pa.ipc.read_message(message)
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
        sizes = _unpacked_sizes(memoryview(message.metadata), memoryview(message.body))
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
        message = pa.ipc.read_message(content)
        check_unpacked_size(message)
        metadata = memoryview(message.metadata)
        sizes = _unpacked_sizes(metadata, memoryview(message.body))
        return sum(sizes) + sum(_buffer_sizes(metadata))
    except (EOFError, OSError, ValueError, struct.error) as error:
        raise pa.ArrowInvalid(str(error)) from error


def _buffer_sizes(metadata: memoryview) -> list[int]:
    """Return the lengths of a batch's buffers in the message, compressed or not."""
    batch = _target(metadata, _field(metadata, _target(metadata, 0), _MESSAGE_HEADER))
    buffers = _field(metadata, batch, _BATCH_BUFFERS)
    if not buffers:
        return []
    start = _target(metadata, buffers)
    (count,) = _U32.unpack_from(metadata, start)
    pairs = (_PAIR.unpack_from(metadata, start + _U32.size + n * _PAIR.size) for n in range(count))
    return [max(0, size) for _, size in pairs]


def _unpacked_sizes(metadata: memoryview, body: memoryview) -> list[int]:
    """Return the claimed uncompressed lengths of a batch's buffers; none if not compressed."""
    batch = _target(metadata, _field(metadata, _target(metadata, 0), _MESSAGE_HEADER))
    buffers = _field(metadata, batch, _BATCH_BUFFERS)
    if not buffers or not _field(metadata, batch, _BATCH_COMPRESSION):
        return []
    start = _target(metadata, buffers)
    (count,) = _U32.unpack_from(metadata, start)
    sizes = []
    for index in range(count):
        at, size = _PAIR.unpack_from(metadata, start + _U32.size + index * _PAIR.size)
        (unpacked,) = _I64.unpack_from(body, at) if size else (0,)
        sizes.append(0 if unpacked == _STORED_UNCOMPRESSED else unpacked)
    return sizes


# FlatBuffers --------------------------------------------------------------------------


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a table's field; 0 if the table lacks it."""
    vtable = table - _I32.unpack_from(data, table)[0]
    slot = 4 + 2 * number
    if slot >= _U16.unpack_from(data, vtable)[0]:
        return 0
    relative = int(_U16.unpack_from(data, vtable + slot)[0])
    return table + relative if relative else 0


def _target(data: memoryview, position: int) -> int:
    """Return the position to which the offset at `position` points."""
    return position + int(_U32.unpack_from(data, position)[0])


_MESSAGE_HEADER = 2
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_STORED_UNCOMPRESSED = -1
"""Length that marks a buffer stored uncompressed, because compression would not shrink it."""
_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")
_I64, _PAIR = struct.Struct("<q"), struct.Struct("<qq")
