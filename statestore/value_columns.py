"""Columns of a store's values: as Arrow columns, as arrays by slot, and as the stored bytes.

    declared value                        Arrow column
    int, float, bool, str, bytes          int64, double, bool, string, binary
    msgspec.Struct or dataclass           struct, if all fields are of these types or unions of them;
                                          a union's column has the type of the values that it holds,
                                          or is a dense union if they are of several types
    anything else, a serde                no column: a Python list of objects

A column is held as a `Block`: arrays of equal length. The stored bytes are those of
`statestore.values`, without an expiry.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.changelog.arrays import as_numpy, of_items
from strandline.changelog.errors import InvalidRecord
from strandline.statestore.cells import CellReader, Mask, Unexpected, joined
from strandline.statestore.packed_scalars import (
    BOOL,
    BYTES,
    KIND_OF,
    TEXT,
    packed,
    read_scalars,
    same_kind,
)
from strandline.statestore.scalar_columns import (
    ARROW,
    DTYPES,
    Array,
    Block,
    Column,
    as_column,
    cast_column,
    decoded_numbers,
    decoded_objects,
    null_mask,
    null_refused,
    object_array,
    objects,
    unfit_values,
)
from strandline.statestore.serdes import Bytes, TypedMessagePack
from strandline.statestore.struct_columns import StructValues, fields_of
from strandline.statestore.values import ValueCodec


class ValueColumns(Protocol):
    """Columns of one declared type of values. Columns given and returned have no nulls."""

    @property
    def dtypes(self) -> tuple[npt.DTypeLike, ...]:
        """Types of the arrays of a block."""
        ...

    def block(self, values: Any) -> Block:
        """Return values from outside as a block. Raises InvalidRecord."""
        ...

    def column(self, block: Block, valid: Mask) -> Column:
        """Return a block as an Arrow column or a list; null where not `valid`."""
        ...

    def encode(self, block: Block) -> pa.Array:
        """Return the stored bytes of each value."""
        ...

    def decode(self, data: pa.Array) -> Block:
        """Return the values of stored bytes. Raises CorruptLog."""
        ...

    def item(self, block: Block, row: int) -> Any:
        """Return the value of a row, in the form in which `ValueCodec` holds it."""
        ...


def value_columns(codec: ValueCodec) -> ValueColumns:
    """Return the columns of a codec's type. The codec must not add an expiry to values.

    >>> counts = value_columns(ValueCodec(int))
    >>> counts.encode(counts.block(pa.array([1, 200]))).to_pylist()
    [b'\\x01', b'\\xcc\\xc8']
    """
    declared = codec.declared
    if type(codec.serde) is Bytes and declared is bytes:
        return TextValues(codec, BYTES)
    if type(codec.serde) is not TypedMessagePack:
        return ObjectValues(codec)
    if declared in (int, float, bool):
        return NumberValues(codec, KIND_OF[declared])
    if declared is str:
        return TextValues(codec, TEXT)
    fields = fields_of(declared)
    return ObjectValues(codec) if fields is None else StructValues(codec, declared, fields)


def block_bytes(block: Block) -> Array:
    """Return the bytes of each row's text and objects, which are not in the arrays themselves."""
    total = np.zeros(len(block[0]), np.int64)
    for array in block:
        if array.dtype == np.object_:
            sizes = [len(item) if item is not None else 0 for item in array.tolist()]
            total += np.array(sizes, np.int64)
    return total


class NumberValues:
    """Columns of ints, floats or bools."""

    def __init__(self, codec: ValueCodec, kind: int) -> None:
        self._codec = codec
        self._kind = kind
        self.dtypes = (DTYPES[kind],)

    def block(self, values: Any) -> Block:
        return (as_numpy(cast_column(self._codec, as_column(self._codec, values), self._kind)),)

    def column(self, block: Block, valid: Mask) -> Column:
        return pa.array(block[0], ARROW[self._kind], mask=null_mask(valid))

    def encode(self, block: Block) -> pa.Array:
        bits = block[0].astype(np.int64) if self._kind == BOOL else block[0].view(np.int64)
        return joined([packed(same_kind(self._kind, bits))])

    def decode(self, data: pa.Array) -> Block:
        try:
            reader = CellReader(data)
            found = read_scalars(reader)
            reader.check_end()
            if (found.kinds != self._kind).any():
                raise Unexpected("a value is of another type")
        except Unexpected:
            return (
                decoded_numbers(self._codec, decoded_objects(self._codec, data), self.dtypes[0]),
            )
        if self._kind == BOOL:
            return (found.bits.astype(np.bool_),)
        return (found.bits.view(self.dtypes[0]),)

    def item(self, block: Block, row: int) -> Any:
        return block[0][row].item()


class TextValues:
    """Columns of str or bytes."""

    dtypes = (np.object_,)

    def __init__(self, codec: ValueCodec, kind: int) -> None:
        self._codec = codec
        self._kind = kind

    def block(self, values: Any) -> Block:
        column = cast_column(self._codec, as_column(self._codec, values), self._kind)
        return (object_array(column.to_pylist()),)

    def column(self, block: Block, valid: Mask) -> Column:
        try:
            return pa.array(block[0], ARROW[self._kind], mask=null_mask(valid))
        except UnicodeEncodeError as error:
            raise unfit_values(self._codec, error) from error

    def encode(self, block: Block) -> pa.Array:
        return of_items(map(self._codec.serde.dumps, block[0].tolist()), pa.binary())

    def decode(self, data: pa.Array) -> Block:
        return (object_array(decoded_objects(self._codec, data)),)

    def item(self, block: Block, row: int) -> Any:
        return block[0][row]


class ObjectValues:
    """Values of a type that has no Arrow column, each held as its stored bytes."""

    dtypes = (np.object_,)

    def __init__(self, codec: ValueCodec) -> None:
        self._codec = codec

    def block(self, values: Any) -> Block:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            values = objects(values)
        return (object_array(list(map(self._checked, values))),)

    def column(self, block: Block, valid: Mask) -> Column:
        loads, rows = self._loads, zip(block[0].tolist(), valid.tolist(), strict=True)
        return [loads(data) if has else None for data, has in rows]

    def encode(self, block: Block) -> pa.Array:
        return of_items(block[0].tolist(), pa.binary())

    def decode(self, data: pa.Array) -> Block:
        found = data.to_pylist()
        for each in found:
            self._loads(each)
        return (object_array(found),)

    def item(self, block: Block, row: int) -> Any:
        return self._loads(block[0][row])

    def _loads(self, data: bytes) -> Any:
        return self._codec.loads(data)

    def _checked(self, value: Any) -> bytes:
        if value is None:
            raise null_refused(self._codec)
        try:
            return self._codec.dumps(self._codec.hold(value)) or b""
        except InvalidRecord as error:
            raise InvalidRecord(f"store {self._codec.store!r}: {error}") from error


# Structs ------------------------------------------------------------------------------


# Helpers ------------------------------------------------------------------------------
