"""Avro's binary encoding, a column at a time: one field of all records at once.

An Avro record contains neither its length nor the places of its fields, so a reader must go through
it byte by byte. The beginning of each record is known, because each is a value of its own. The
first field of all records is therefore read at once, then the second, and so on. Every value is
checked to end where it should, so that a malformed one cannot shift into the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import of_items, of_numbers
from strandline.changelog.errors import InvalidRecord
from strandline.framework.formats.avro_decimals import from_bytes, to_bytes
from strandline.framework.formats.avro_schema import (
    AvroArray,
    AvroRecord,
    Node,
    NotColumnarAvro,
    Nullable,
    Scalar,
)
from strandline.framework.formats.binary import Bytes, Ints, binary, bounds_of, flat, ranges
from strandline.framework.formats.wire import spread

MAX_COLUMNAR_ITEMS = 1_000
"""Maximum number of items of an array that is read by columns.

The n-th items of all arrays are read at once, which is slow if only a few arrays are that long.
"""
MAX_COLUMN_BYTES = 2**31 - 1
"""Maximum number of bytes of a binary column in Arrow, whose offsets have 32 bits."""


# Writing ------------------------------------------------------------------------------


class ColumnPart(NamedTuple):
    """A column to be written: the size of each value, and a function that writes them."""

    sizes: Ints
    put: Callable[[Bytes, Ints], None]
    """Function of the output buffer and the place of each value in it."""


def encode(array: pa.Array, node: Node, prefix: bytes = b"") -> pa.Array:
    """Return each value of a column, of the node's Arrow type, after `prefix`. Raise InvalidRecord.

    >>> from strandline.framework.formats.avro_schema import parse
    >>> encode(pa.array([1, -65]), parse('"long"')).to_pylist()
    [b'\\x02', b'\\x81\\x01']
    """
    part = _part(array, node)
    bounds = bounds_of(part.sizes + len(prefix))
    if bounds[-1] > MAX_COLUMN_BYTES:
        raise InvalidRecord(f"{bounds[-1]} bytes of Avro at once; append fewer records at a time")
    out = np.empty(bounds[-1], np.uint8)
    starts = bounds[:-1]
    if prefix:
        out[starts[:, None] + np.arange(len(prefix))] = np.frombuffer(prefix, np.uint8)
    part.put(out, starts + len(prefix))
    return binary(bounds, out)


def _part(array: pa.Array, node: Node) -> ColumnPart:
    if isinstance(node, Nullable):
        return _nullable(array, node)
    if array.null_count:
        raise InvalidRecord(f"None in a field whose Avro type is {node.arrow}, without null")
    if isinstance(node, AvroRecord):
        return _joined(
            [_part(c, f.node) for c, f in zip(array.flatten(), node.fields, strict=True)]
        )
    if isinstance(node, AvroArray):
        return _items(array, node)
    if pa.types.is_decimal(array.type):
        array = to_bytes(array, node.size)
    return _WRITERS.get(node.kind, _varint_part)(array, node)


def _joined(parts: list[ColumnPart]) -> ColumnPart:
    def put(out: Bytes, at: Ints) -> None:
        for part in parts:
            part.put(out, at)
            at = at + part.sizes

    return ColumnPart(np.sum([part.sizes for part in parts], axis=0, dtype=np.int64), put)


def _nullable(array: pa.Array, node: Nullable) -> ColumnPart:
    there = array.is_valid().to_numpy(zero_copy_only=False)
    inner = _part(array.drop_null() if array.null_count else array, node.inner)
    sizes = np.ones(len(array), np.int64)
    sizes[there] += inner.sizes

    def put(out: Bytes, at: Ints) -> None:
        out[at] = np.where(there, 2 * (1 - node.null_at), 2 * node.null_at)
        inner.put(out, at[there] + 1)

    return ColumnPart(sizes, put)


def _items(array: pa.Array, node: AvroArray) -> ColumnPart:
    lengths = pc.list_value_length(array).to_numpy().astype(np.int64)
    inner = _part(array.flatten(), node.item)
    count = _Varints(lengths)
    filled = lengths > 0
    within, ends = bounds_of(inner.sizes), np.cumsum(lengths)
    begins = within[ends - lengths]
    sizes = np.where(filled, count.sizes + within[ends] - begins + 1, 1)

    def put(out: Bytes, at: Ints) -> None:
        inner.put(out, np.repeat(at + count.sizes - begins, lengths) + within[:-1])
        count.put(out, at)  # the count 0 of an empty array is also its end
        out[at + sizes - 1] = 0

    return ColumnPart(sizes, put)


class _Varints:
    """Ints in zigzag encoding, 7 bits a byte."""

    def __init__(self, values: Ints) -> None:
        self._coded = ((values << 1) ^ (values >> 63)).view(np.uint64)
        self.sizes = np.ones(len(values), np.int64)
        left = self._coded >> np.uint64(7)
        while left.any():
            self.sizes += left > 0
            left >>= np.uint64(7)

    def put(self, out: Bytes, at: Ints) -> None:
        left = self._coded
        while len(left):
            more = left > 0x7F
            out[at] = (left & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))
            at, left = at[more] + 1, left[more] >> np.uint64(7)


def _varint_part(array: pa.Array, _node: Scalar) -> ColumnPart:
    whole = array.cast(pa.int32()) if pa.types.is_date(array.type) else array
    varints = _Varints(whole.cast(pa.int64()).to_numpy().astype(np.int64, copy=False))
    return ColumnPart(varints.sizes, varints.put)


def _enum_part(array: pa.Array, node: Scalar) -> ColumnPart:
    places = pc.index_in(array, pa.array(node.symbols, pa.string()))
    if places.null_count:
        strange = array.filter(places.is_null())[0].as_py()
        raise InvalidRecord(f"{strange!r} is none of the Avro enum's {list(node.symbols)}")
    return _varint_part(places, node)


def _blob_part(array: pa.Array, _node: Scalar) -> ColumnPart:
    data, bounds = flat(array.cast(pa.binary()))
    lengths = np.diff(bounds)
    count = _Varints(lengths)

    def put(out: Bytes, at: Ints) -> None:
        count.put(out, at)
        out[ranges(at + count.sizes, lengths)] = data

    return ColumnPart(count.sizes + lengths, put)


def _fixed_part(array: pa.Array, node: Scalar) -> ColumnPart:
    data, bounds = flat(array)
    if len(array) and set(np.diff(bounds).tolist()) != {node.size}:
        raise InvalidRecord(f"a value of an Avro fixed of {node.size} bytes has another length")
    return _wide(data.reshape(len(array), node.size))


def _number_part(array: pa.Array, node: Scalar) -> ColumnPart:
    kind = _NUMBERS[node.kind]
    values = np.ascontiguousarray(array.to_numpy().astype(kind))
    return _wide(values.view(np.uint8).reshape(len(values), kind.itemsize))


def _wide(rows: Bytes) -> ColumnPart:
    width = rows.shape[1]

    def put(out: Bytes, at: Ints) -> None:
        out[at[:, None] + np.arange(width)] = rows

    return ColumnPart(np.full(len(rows), width, np.int64), put)


def _boolean_part(array: pa.Array, _node: Scalar) -> ColumnPart:
    return _wide(array.to_numpy(zero_copy_only=False).astype(np.uint8).reshape(len(array), 1))


_NUMBERS: dict[str, np.dtype[Any]] = {"float": np.dtype("<f4"), "double": np.dtype("<f8")}
_WRITERS: dict[str, Callable[[pa.Array, Scalar], ColumnPart]] = {
    "boolean": _boolean_part,
    "float": _number_part,
    "double": _number_part,
    "string": _blob_part,
    "bytes": _blob_part,
    "fixed": _fixed_part,
    "enum": _enum_part,
}


# Reading ------------------------------------------------------------------------------


class DecodeCursor:
    """Read position in each of many values."""

    def __init__(self, data: Bytes, at: Ints, end: Ints) -> None:
        self.data = data
        self.at = at
        self.end = end

    def __len__(self) -> int:
        return len(self.at)

    def only(self, rows: Ints) -> DecodeCursor:
        """Return a cursor over some of the values."""
        return DecodeCursor(self.data, self.at[rows], self.end[rows])

    def take(self, lengths: Ints) -> Ints:
        """Return the places of the next `lengths` bytes of each value, and advance past them."""
        if (lengths < 0).any() or (lengths > self.end - self.at).any():
            raise InvalidRecord("not Avro of this schema: a value ends within a field")
        begin = self.at
        self.at = begin + lengths
        return begin

    def byte(self) -> Bytes:
        """Return the next byte of each value."""
        return self.data[self.take(np.ones(len(self), np.int64))]

    def varint(self) -> Ints:
        """Return the next int of each value."""
        byte = self.byte()
        coded = (byte & 0x7F).astype(np.uint64)
        rows = np.flatnonzero(byte & 0x80)
        shift = 7
        while len(rows):
            if shift > 63:
                raise InvalidRecord("not Avro of this schema: an int of more than 64 bits")
            part = self.only(rows)
            byte = part.byte()
            self.at[rows] = part.at
            coded[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            rows = rows[(byte & 0x80) != 0]
            shift += 7
        whole = coded.view(np.int64)
        return (whole >> 1 & 0x7FFF_FFFF_FFFF_FFFF) ^ -(whole & 1)


def decode(data: pa.Array, node: Node) -> pa.Array:
    """Return the column of values that `encode` wrote, without prefix.

    Raises InvalidRecord, NotColumnarAvro.

    >>> from strandline.framework.formats.avro_schema import parse
    >>> decode(pa.array([b"\\x02", b"\\x81\\x01"]), parse('"long"')).to_pylist()
    [1, -65]
    """
    raw, bounds = flat(data)
    cursor = DecodeCursor(raw, bounds[:-1].copy(), bounds[1:])
    try:
        column = _read(cursor, node)
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise InvalidRecord(f"not Avro of this schema: {error}") from error
    if (cursor.at != cursor.end).any():
        raise InvalidRecord("not Avro of this schema: there are bytes after a value's last field")
    return column


def _read(cursor: DecodeCursor, node: Node) -> pa.Array:
    if isinstance(node, Nullable):
        return _read_nullable(cursor, node)
    if isinstance(node, AvroRecord):
        children = [_read(cursor, field.node) for field in node.fields]
        return pa.StructArray.from_arrays(children, fields=list(node.arrow))
    if isinstance(node, AvroArray):
        return _read_items(cursor, node)
    column = _READERS.get(node.kind, _read_ints)(cursor, node)
    return from_bytes(column, node.arrow) if pa.types.is_decimal(node.arrow) else column


def _read_nullable(cursor: DecodeCursor, node: Nullable) -> pa.Array:
    branch = cursor.varint()
    if ((branch != 0) & (branch != 1)).any():
        raise InvalidRecord("not Avro of this schema: a union of two has no third")
    there = branch != node.null_at
    rows = np.flatnonzero(there)
    if len(rows) == len(cursor):
        return _read(cursor, node.inner)
    part = cursor.only(rows)
    inner = _read(part, node.inner)
    cursor.at[rows] = part.at
    return spread(inner, there)


def _read_items(cursor: DecodeCursor, node: AvroArray) -> pa.Array:
    lengths = np.zeros(len(cursor), np.int64)
    read: list[tuple[Ints, pa.Array]] = []
    rows = np.arange(len(cursor))
    while len(rows):
        part = cursor.only(rows)
        counts = part.varint()
        sized = np.flatnonzero(counts < 0)  # a negative count is followed by the block's bytes
        if len(sized):
            sized_part = part.only(sized)
            sized_part.varint()
            part.at[sized] = sized_part.at
            counts = np.abs(counts)
            if (counts < 0).any():
                raise InvalidRecord("not Avro of this schema: an array of 2**63 items")
        lengths[rows] += counts
        if lengths.max(initial=0) > MAX_COLUMNAR_ITEMS:
            raise NotColumnarAvro("a long array")
        for nth in range(int(counts.max(initial=0))):
            having = np.flatnonzero(counts > nth)
            items = part.only(having)
            read.append((rows[having], _read(items, node.item)))
            part.at[having] = items.at
        cursor.at[rows] = part.at
        rows = rows[counts != 0]
    owners = np.concatenate([[], *(owner for owner, _ in read)]).astype(np.int64)
    kind = node.arrow.value_type
    flat_items = pa.concat_arrays([pa.array([], kind), *(array for _, array in read)])
    in_order = flat_items.take(of_numbers(np.argsort(owners, kind="stable")))
    offsets = pa.array(bounds_of(lengths), pa.int32())
    return pa.ListArray.from_arrays(offsets, in_order, type=node.arrow)


def _read_ints(cursor: DecodeCursor, node: Scalar) -> pa.Array:
    values = of_numbers(cursor.varint())
    if node.kind == "int":
        values = values.cast(pa.int32())
    return values.cast(node.arrow)


def _read_enum(cursor: DecodeCursor, node: Scalar) -> pa.Array:
    places = cursor.varint()
    if ((places < 0) | (places >= len(node.symbols))).any():
        raise InvalidRecord("not Avro of this schema: an enum's symbol that it does not have")
    return of_items(node.symbols, pa.string()).take(of_numbers(places))


def _read_blob(cursor: DecodeCursor, node: Scalar) -> pa.Array:
    lengths = cursor.varint()
    begin = cursor.take(lengths)
    blobs = binary(bounds_of(lengths), cursor.data[ranges(begin, lengths)])
    return blobs.cast(pa.string()) if node.kind == "string" else blobs


def _read_fixed(cursor: DecodeCursor, node: Scalar) -> pa.Array:
    lengths = np.full(len(cursor), node.size, np.int64)
    return binary(bounds_of(lengths), cursor.data[ranges(cursor.take(lengths), lengths)])


def _read_number(cursor: DecodeCursor, node: Scalar) -> pa.Array:
    kind = _NUMBERS[node.kind]
    begin = cursor.take(np.full(len(cursor), kind.itemsize, np.int64))
    raw = np.ascontiguousarray(cursor.data[begin[:, None] + np.arange(kind.itemsize)])
    return pa.array(raw.view(kind).reshape(-1), node.arrow)


def _read_boolean(cursor: DecodeCursor, _node: Scalar) -> pa.Array:
    values = cursor.byte()
    if (values > 1).any():
        raise InvalidRecord("not Avro of this schema: a bool that is neither 0 nor 1")
    return pa.array(values.astype(np.bool_))


_READERS: dict[str, Callable[[DecodeCursor, Scalar], pa.Array]] = {
    "boolean": _read_boolean,
    "float": _read_number,
    "double": _read_number,
    "string": _read_blob,
    "bytes": _read_blob,
    "fixed": _read_fixed,
    "enum": _read_enum,
}
