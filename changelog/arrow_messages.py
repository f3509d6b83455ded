"""Arrow IPC messages, opened after everything that their metadata refers to was counted.

The metadata of a message are a FlatBuffer, in which any number of references may lead to one table
or text. Arrow takes memory for each reference, so a schema of two megabytes can become eight
million fields. Arrow itself writes every table and text once, and takes at least 40 bytes for a
field. Therefore each reference is counted, and a message with more fields or longer texts than its
bytes can hold is refused before Arrow opens it.

All messages of schemas and of record batches are opened here; `tests/test_architecture.py` forbids
it elsewhere. The layout is that of Arrow's format/Message.fbs and format/Schema.fbs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from strandline.changelog.depth import MAX_DEPTH, too_deep
from strandline.changelog.flatbuffers import I32, U32, field, target, vector_of

BYTES_PER_FIELD = 32
"""Minimum number of bytes of a field, or of a pair of metadata, in an honest message."""


@dataclass
class FieldBudget:
    """Number of fields that several messages may still have together; nested ones count."""

    left: int


def open_message(content: pa.Buffer) -> pa.Message:
    """Return the message in `content`. Raises ArrowInvalid, EOFError, OSError, RecursionError."""
    _count_fields(memoryview(content))
    return pa.ipc.read_message(content)


def open_schema(message: bytes, budget: FieldBudget | None = None) -> pa.Schema:
    """Return the schema in an Arrow IPC message, and subtract its fields from a budget.

    Raises ArrowInvalid, EOFError, OSError, RecursionError. The budget is then unchanged.
    """
    most = len(message) if budget is None else budget.left
    if len(message) <= _KNOWN_BYTES:
        fields = _count_known(message)
    else:
        fields = _count_fields(message, most)
    _check_budget(fields, most)
    if budget is not None:
        budget.left -= fields
    return pa.ipc.read_schema(pa.py_buffer(message))


def _count_fields(message: bytes | memoryview, most: int | None = None) -> int:
    """Return the number of a message's fields and pairs of metadata.

    Raises ArrowInvalid for more of them than `most` or than its bytes can hold, and RecursionError
    for nesting.
    """
    content = memoryview(message).cast("B")
    try:
        return _References(_metadata(content), len(content) if most is None else most).count()
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"a message points out of its bytes: {error}") from error


def _metadata(content: memoryview) -> memoryview:
    """Return the FlatBuffer of a message, which begins with a mark and the FlatBuffer's length."""
    (size,) = I32.unpack_from(content, len(_CONTINUATION))
    if (
        content[: len(_CONTINUATION)] != _CONTINUATION
        or not 0 < size <= len(content) - _PREFIX_BYTES
    ):
        raise pa.ArrowInvalid("the bytes do not begin with an Arrow IPC message")
    return content[_PREFIX_BYTES : _PREFIX_BYTES + size]


class _References:
    """The references in a message's metadata, each counted as often as it occurs."""

    def __init__(self, metadata: memoryview, most: int) -> None:
        self._data = metadata
        self._most = most
        self._fields = 0
        self._text = 0

    def count(self) -> int:
        """Return the number of fields and pairs of metadata."""
        data, message = self._data, target(self._data, 0)
        self._add_pairs(message, _MESSAGE_METADATA)
        kind, header = field(data, message, _HEADER_TYPE), field(data, message, _HEADER)
        if kind and header and data[kind] == _SCHEMA:
            schema = target(data, header)
            self._add_pairs(schema, _SCHEMA_METADATA)
            self._add_schema(schema)
        return self._fields

    def _add_schema(self, schema: int) -> None:
        """Count the fields level by level, so that nesting takes no stack."""
        level = self._tables(schema, _SCHEMA_FIELDS)
        depth = 0
        while level:
            depth += 1
            if depth > MAX_DEPTH:
                raise too_deep()
            for table in level:
                self._add_field(table)
            level = [child for table in level for child in self._tables(table, _FIELD_CHILDREN)]

    def _add_field(self, table: int) -> None:
        data = self._data
        self._add_text(table, _FIELD_NAME, 1)
        self._add_pairs(table, _FIELD_METADATA)
        kind = field(data, table, _FIELD_TYPE_TYPE)
        vector = _VECTOR_OF_TYPE.get(data[kind]) if kind else None
        of_type = field(data, table, _FIELD_TYPE) if vector else 0
        if vector and of_type:
            self._add_text(target(data, of_type), *vector)

    def _add_pairs(self, table: int, number: int) -> None:
        for pair in self._tables(table, number):
            self._add_text(pair, _PAIR_KEY, 1)
            self._add_text(pair, _PAIR_VALUE, 1)

    def _add_text(self, table: int, number: int, width: int) -> None:
        """Count the bytes of a text, or of a vector whose items have `width` bytes."""
        self._text += vector_of(self._data, table, number)[1] * width
        if self._text > len(self._data):
            raise pa.ArrowInvalid(
                f"a message whose metadata have {len(self._data):,} bytes refers to longer texts "
                "than that, repeated ones included; write each text once, as Arrow does"
            )

    def _tables(self, table: int, number: int) -> list[int]:
        """Return the tables in a vector, after counting them."""
        start, count = vector_of(self._data, table, number)
        self._fields += count
        if self._fields * BYTES_PER_FIELD > len(self._data):
            raise pa.ArrowInvalid(
                f"a message whose metadata have {len(self._data):,} bytes refers to at least "
                f"{self._fields:,} fields and pairs of metadata, repeated ones included; write "
                "each field once, as Arrow does"
            )
        _check_budget(self._fields, self._most)
        return [target(self._data, start + n * U32.size) for n in range(count)]


def _check_budget(fields: int, most: int) -> None:
    if fields > most:
        raise pa.ArrowInvalid(
            f"a schema has at least {fields:,} fields and pairs of metadata, and at most {most:,} "
            "more may be sent in this request; send fewer or smaller schemas at a time"
        )


@lru_cache(maxsize=256)
def _count_known(message: bytes) -> int:
    """Return the result of `_count_fields`, cached: each append repeats its schema."""
    return _count_fields(message)


_KNOWN_BYTES = 4 << 10
"""Maximum size of schemas whose count is cached."""
_CONTINUATION = b"\xff\xff\xff\xff"
_PREFIX_BYTES = 8
"""Bytes before the metadata of a message: a mark, and the metadata's length."""
_HEADER_TYPE, _HEADER, _MESSAGE_METADATA = 1, 2, 4
_SCHEMA = 1
"""Type of a message's header that is a schema."""
_SCHEMA_FIELDS, _SCHEMA_METADATA = 1, 2
_FIELD_NAME, _FIELD_TYPE_TYPE, _FIELD_TYPE, _FIELD_CHILDREN, _FIELD_METADATA = 0, 2, 3, 5, 6
_PAIR_KEY, _PAIR_VALUE = 0, 1
_VECTOR_OF_TYPE = {10: (1, 1), 14: (1, 4)}
"""Vectors in the tables of types, by the type's number: the vector's number, and its items' size.
They are the time zone of a timestamp, and the ids of a union's types."""
