"""Projection of Arrow IPC record-batch messages: some columns of a message, as a smaller message.

A message lists the buffers of its columns one after another, depth first. Without the buffers of
unneeded columns it is decoded, and uncompressed, in less time. Arrow itself can leave out columns,
but not the fields of a struct, and the columns of a typed topic are the fields of one.

The message is changed and then read by Arrow, so all checks of Arrow remain. The layout is that of
RecordBatch in Arrow's format/Message.fbs, in FlatBuffers.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

import pyarrow as pa

from strandline.changelog.arrow_messages import open_message
from strandline.changelog.flatbuffers import I64, PAIR, U32, vector_of
from strandline.changelog.flatbuffers import field as field_of
from strandline.changelog.flatbuffers import target as target_of

_MESSAGE_HEADER, _BODY_LENGTH = 2, 3
_BATCH_NODES, _BATCH_BUFFERS = 1, 2
_CONTINUATION = b"\xff\xff\xff\xff"
_ALIGNMENT_BYTES = 64


class MessageLayout(NamedTuple):
    """Field nodes and buffers of a message, each with True if it is kept."""

    nodes: tuple[bool, ...]
    buffers: tuple[bool, ...]


def projected(message: pa.Message, schema: pa.Schema, part: pa.Schema) -> pa.Message | None:
    """Return a message with the columns of `part` only; None if a type cannot be left out.

    Args:
        message: Record batch of the columns in `schema`.
        schema: All columns.
        part: Some of the columns in the same order; of a struct, some of its fields.

    Raises:
        pa.ArrowInvalid: The message does not have the buffers of `schema`.
    """
    layout = layout_of(schema, part)
    if layout is None:
        return None
    try:
        return _without(message, layout)
    except struct.error as error:
        raise pa.ArrowInvalid(f"a message points out of its bytes: {error}") from error


@lru_cache(maxsize=256)
def layout_of(schema: pa.Schema, part: pa.Schema) -> MessageLayout | None:
    """Return the layout of a message of `schema`; None if its types have other layouts.

    >>> schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    >>> layout_of(schema, pa.schema([("s", pa.string())])).buffers
    (False, False, True, True, True)
    """
    nodes: list[bool] = []
    buffers: list[bool] = []

    def add(kind: pa.DataType, wanted: pa.DataType | None) -> None:
        nodes.append(wanted is not None)
        buffers.extend([wanted is not None] * _buffer_count(kind))
        for index in range(kind.num_fields):
            child = kind.field(index)
            add(child.type, _child_type(kind, child, wanted))

    try:
        for field in schema:
            add(field.type, part.field(field.name).type if field.name in part.names else None)
    except NotImplementedError:
        return None
    return MessageLayout(tuple(nodes), tuple(buffers))


def _child_type(
    kind: pa.DataType, child: pa.Field, wanted: pa.DataType | None
) -> pa.DataType | None:
    """Return the wanted type of a child of `kind`; None if it is not wanted."""
    if wanted is None or wanted == kind:
        return None if wanted is None else child.type
    return wanted.field(child.name).type if child.name in wanted.names else None


def _buffer_count(kind: pa.DataType) -> int:
    """Return the number of buffers of a type, without its children's."""
    types = pa.types
    if types.is_null(kind):
        return 0
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return 2
    if any(each(kind) for each in (types.is_binary, types.is_string)) or kind in _LARGE:
        return 3
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return 2
    raise NotImplementedError(str(kind))


_LARGE = (pa.large_binary(), pa.large_string())


def _without(message: pa.Message, layout: MessageLayout) -> pa.Message:
    metadata = bytearray(memoryview(message.metadata))
    table = target_of(metadata, 0)
    batch = target_of(metadata, field_of(metadata, table, _MESSAGE_HEADER))
    nodes = _pairs(metadata, batch, _BATCH_NODES, layout.nodes)
    spans = _pairs(metadata, batch, _BATCH_BUFFERS, layout.buffers)
    placed, size = _placed(spans)
    _rewrite(metadata, batch, _BATCH_NODES, nodes)
    _rewrite(metadata, batch, _BATCH_BUFFERS, placed)
    if length := field_of(metadata, table, _BODY_LENGTH):
        I64.pack_into(metadata, length, size)
    return _assembled(metadata, memoryview(message.body).cast("B"), spans, placed, size)


def _pairs(
    metadata: bytearray, batch: int, number: int, kept: tuple[bool, ...]
) -> list[tuple[int, int]]:
    """Return the kept elements of a vector of pairs."""
    start, count = vector_of(metadata, batch, number)
    if count != len(kept):
        raise pa.ArrowInvalid(f"a message has {count} parts, its schema {len(kept)}")
    found = (PAIR.unpack_from(metadata, start + index * PAIR.size) for index in range(count))
    return list(compress(found, kept))


def _placed(spans: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
    """Return new positions for the buffers, one after another, and the size of them all."""
    placed, end = [], 0
    for _, size in spans:
        placed.append((end, size))
        end += max(0, size) + -size % _ALIGNMENT_BYTES
    return placed, end


def _rewrite(metadata: bytearray, batch: int, number: int, pairs: list[tuple[int, int]]) -> None:
    """Replace the elements of a vector by fewer ones."""
    start, _ = vector_of(metadata, batch, number)
    if start:
        U32.pack_into(metadata, start - U32.size, len(pairs))
    for index, pair in enumerate(pairs):
        PAIR.pack_into(metadata, start + index * PAIR.size, *pair)


def _assembled(
    metadata: bytearray,
    body: memoryview,
    spans: list[tuple[int, int]],
    placed: list[tuple[int, int]],
    size: int,
) -> pa.Message:
    """Return the message of `metadata`, with copies of the buffers at `spans` as its body."""
    prefix = _CONTINUATION + U32.pack(len(metadata)) + metadata
    lead = -len(prefix) % _ALIGNMENT_BYTES
    begin = lead + len(prefix)
    buffer = pa.allocate_buffer(begin + size)
    content = memoryview(buffer).cast("B")
    content[lead:begin] = prefix
    for (source, length), (position, _) in zip(spans, placed, strict=True):
        if source < 0 or length < 0 or source + length > len(body):
            raise pa.ArrowInvalid("a message's buffer is beyond its body")
        at = begin + position
        content[at : at + length] = body[source : source + length]
    return open_message(buffer.slice(lead))
