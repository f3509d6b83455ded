"""Codecs: keys and values of a topic as columns of bytes or structs, in bulk.

framework/formats/choice.py chooses the codec of a topic. A codec's *item* is the form of a value
between `send` and the building of the column. It is the value itself if its type is exactly the
immutable type `exact`. Otherwise it is the result of `item()`, which has been checked and cannot
change any more. None stays None: a null.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import of_items
from strandline.changelog.client.keys import is_bytes, is_text
from strandline.changelog.decoding import unchecked_msgpack_decoder
from strandline.changelog.errors import UNREADABLE, InvalidRecord, StrandlineError
from strandline.framework.formats.schema import Row, RowType
from strandline.statestore.packing import pack_ints
from strandline.statestore.serdes import Serde, TypedMessagePack, value_serde

UNENCODABLE = (InvalidRecord, pa.ArrowException, OverflowError, ValueError, TypeError)
"""Errors that building a column raises if one of its items cannot be stored.

Catch MemoryError and SchemaMismatch first. Neither is the fault of a record, but Arrow's
MemoryError is an ArrowException too, and SchemaMismatch is an InvalidRecord.
"""


class Codec(Protocol):
    """Conversion between values and a column of keys or values."""

    exact: type | None
    """Immutable type whose values are their own items; None if there is none."""
    arrow: pa.DataType
    """Type of the column in the log."""
    rows: RowType | None
    """Columns of a typed value, in any form in the log; None if values are not typed."""

    def item(self, value: Any) -> Any:
        """Return the item to keep of `value`. Raise InvalidRecord if it cannot be stored."""
        ...

    def encode(self, items: Sequence[Any]) -> pa.Array:
        """Return the column of these items."""
        ...

    def decode(self, column: pa.Array) -> list[Any]:
        """Return the values in a column. Raise InvalidRecord."""
        ...


class TypedCodec(Codec, Protocol):
    """Conversion between typed values and a column of keys or values."""

    def row(self, item: Any) -> Row:
        """Return the fields of an item."""
        ...

    def to_columns(self, column: pa.Array) -> pa.Array:
        """Return the struct column of a column in the log. Raise InvalidRecord."""
        ...

    def from_columns(self, column: pa.Array) -> pa.Array:
        """Return the column in the log of a struct column. Raise InvalidRecord."""
        ...


class SerdeCodec:
    """Codec that calls a serde once per value; for scalars (`exact`) only in `encode`."""

    arrow = pa.binary()
    rows: RowType | None = None

    def __init__(self, serde: Serde[Any], exact: type | None = None) -> None:
        self._serde = serde
        self.exact = exact

    def item(self, value: Any) -> Any:
        if value is None:
            return None
        if self.exact is not None:
            value = as_exactly(self.exact, value)
        encoded = translated(self._serde, self._serde.dumps, value, doing="encode")
        if not isinstance(encoded, bytes):
            raise InvalidRecord(
                f"{type(self._serde).__name__}.dumps must return bytes; got {encoded!r}"
            )
        if isinstance(self._serde, TypedMessagePack) and self.exact is None:
            self._serde.loads(encoded)  # because a value of another type would stop every reader
        return encoded if self.exact is None else value

    def items(self, values: Sequence[Any]) -> list[Any]:
        """Return the items of values that are not None; see `item`. Raise InvalidRecord."""
        serde = self._serde
        if isinstance(serde, TypedMessagePack) and self.exact is None:
            encoded = serde.dumps_all(values)
            if encoded is not None:
                return encoded
        return list(map(self.item, values))

    def encode(self, items: Sequence[Any]) -> pa.Array:
        if self.exact not in (None, bytes):
            dumps = self._serde.dumps
            items = [None if item is None else dumps(item) for item in items]
        return of_items(items, pa.binary())

    def decode(self, column: pa.Array) -> list[Any]:
        loads = self._serde.loads
        items = column.to_pylist()
        if self.exact is bytes:
            return list(items)
        decoded: list[Any] = translated(
            self._serde,
            lambda: [None if data is None else loads(data) for data in items],
            doing="decode",
        )
        return decoded


class StrCodec:
    """Codec of text as UTF-8."""

    exact: type | None = str
    arrow = pa.binary()
    rows: RowType | None = None

    def item(self, value: Any) -> Any:
        if value is None:
            return None
        text: str = as_exactly(str, value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"{value!r} is not valid text: {error}") from None
        return text

    def encode(self, items: Sequence[Any]) -> pa.Array:
        return of_items(items, pa.string()).view(pa.binary())

    def decode(self, column: pa.Array) -> list[Any]:
        values: list[Any] = self.text(column).to_pylist()
        return values

    def text(self, column: pa.Array) -> pa.StringArray:
        """Return the column as text. Raise InvalidRecord."""
        try:
            return column.cast(pa.string())
        except MemoryError:
            raise  # because Arrow's MemoryError is an ArrowException too
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise InvalidRecord(f"not UTF-8 text: {error}; declare the type bytes") from error


class PackCodec:
    """Codec of scalars of one type in MessagePack, which packs and unpacks a column at a time."""

    arrow = pa.binary()
    rows: RowType | None = None

    def __init__(self, kind: type) -> None:
        self.exact: type | None = kind
        self._serde = value_serde(kind)
        self._decode_all = unchecked_msgpack_decoder(list[kind]).decode  # type: ignore[valid-type]

    def item(self, value: Any) -> Any:
        if value is None or self.exact is None:
            return None
        scalar = as_exactly(self.exact, value)
        self._serde.dumps(scalar)
        return scalar

    def encode(self, items: Sequence[Any]) -> pa.Array:
        try:
            if self.exact is int:
                return pack_ints(items)
            if None not in items:
                return of_items(map(_pack, items), pa.binary())
        except (OverflowError, TypeError):
            pass  # an int beyond 64 bits, or a null among ints: encode one by one below
        dumps = self._serde.dumps
        return of_items([None if i is None else dumps(i) for i in items], pa.binary())

    def decode(self, column: pa.Array) -> list[Any]:
        if _holds_one_scalar_each(column):
            try:
                values: list[Any] = self._decode_all(_as_one_array(column))
            except UNREADABLE as error:
                raise InvalidRecord(f"not a MessagePack {self.exact}: {error}") from error
            return values
        loads = self._serde.loads
        return [None if data is None else loads(data) for data in column.to_pylist()]


class RowCodec:
    """Codec of typed values as a struct of columns."""

    exact: type | None = None

    def __init__(self, rows: RowType) -> None:
        self.rows: RowType | None = rows
        self._rows = rows
        self.arrow = rows.arrow

    def item(self, value: Any) -> Any:
        return None if value is None else self._rows.check(value)

    def row(self, item: Any) -> Row:
        row: Row = item
        return row

    def encode(self, items: Sequence[Any]) -> pa.Array:
        return self._rows.column(items)

    def decode(self, column: pa.Array) -> list[Any]:
        if not pa.types.is_struct(column.type):
            raise InvalidRecord(f"the topic's values are {column.type}, not typed columns")
        return self._rows.values(column)

    def to_columns(self, column: pa.Array) -> pa.Array:
        return column

    def from_columns(self, column: pa.Array) -> pa.Array:
        return column


def as_column(codec: Codec, stored: pa.Array) -> pa.Array:
    """Return the values of a column in the log as a column of their own type.

    Typed values are a struct of their columns. Raises InvalidRecord for a value that cannot be
    decoded, and for values without a common type.

    >>> as_column(StrCodec(), pa.array([b"AA", None])).to_pylist()
    ['AA', None]
    """
    if codec.rows is not None:
        return cast("TypedCodec", codec).to_columns(stored)
    if isinstance(codec, StrCodec):
        return codec.text(stored)
    items = codec.decode(stored)
    try:
        return pa.array(items, _ARROW_TYPES.get(codec.exact))
    except UNENCODABLE as error:
        raise InvalidRecord(f"values that do not fit into one column: {error}") from error


def column_type(codec: Codec) -> pa.DataType | None:
    """Return the type of the columns that `as_column` makes; None if it depends on the values.

    >>> column_type(StrCodec()), column_type(PackCodec(int)), column_type(PackCodec(dict))
    (DataType(string), DataType(int64), None)
    """
    return codec.rows.arrow if codec.rows is not None else _ARROW_TYPES.get(codec.exact)


def from_column(codec: Codec, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of values that are not typed as the column in the log.

    Bytes are taken for values in their stored form, of which only text is checked. Raises one of
    UNENCODABLE for values of another type than the codec's.

    >>> from_column(PackCodec(int), pa.array([1, 2])).to_pylist()
    [b'\\x01', b'\\x02']
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if isinstance(codec, StrCodec) and (is_bytes(kind) or is_text(kind)):
        return pc.cast(pc.cast(column, pa.string()), pa.binary())  # raises unless it is UTF-8
    if is_bytes(kind):
        return pc.cast(column, pa.binary())
    items = column.to_pylist()
    if codec.exact is None or _ARROW_TYPES.get(codec.exact) != kind:
        items = [None if item is None else codec.item(item) for item in items]
    return codec.encode(items)


def items_of(codec: Codec, values: Sequence[Any]) -> list[Any]:
    """Return the items of values that are not None, together if possible. Raise InvalidRecord."""
    return codec.items(values) if isinstance(codec, SerdeCodec) else list(map(codec.item, values))


def translated(serde: Any, call: Callable[..., Any], *arguments: Any, doing: str) -> Any:
    """Return the result of a call of a user's serde; translate its errors into InvalidRecord."""
    try:
        return call(*arguments)
    except StrandlineError:
        raise
    except Exception as error:
        raise InvalidRecord(f"{type(serde).__name__} could not {doing}: {error}") from error


def as_exactly(exact: type, value: Any) -> Any:
    """Return `value` as exactly this scalar type, if that loses nothing. Raise InvalidRecord."""
    if type(value) is exact:
        return value
    boolean = isinstance(value, bool | np.bool_)
    if exact is bool and boolean:
        return bool(value)
    if exact is int and not boolean and hasattr(value, "__index__"):
        return operator.index(value)
    if exact is float and not boolean and isinstance(value, int | float | np.number):
        return float(value)
    if exact is str and isinstance(value, str):
        return str(value)
    if exact is bytes and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRecord(f"expected {exact.__name__}, got {value!r} ({type(value).__name__})")


_pack = msgspec.msgpack.Encoder().encode
_ARROW_TYPES: dict[type | None, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    bytes: pa.binary(),
}


def _scalar_sizes() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of a MessagePack scalar by its first byte; 0 for anything longer."""
    sizes = np.zeros(256, np.int64)
    sizes[0x00:0x80] = 1
    sizes[0xE0:0x100] = 1
    sizes[0xA0:0xC0] = np.arange(1, 33)
    for first, size in {0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9}.items():
        sizes[first] = size
    for first in (0xCC, 0xD0):
        sizes[first : first + 4] = (2, 3, 5, 9)
    return sizes


_SIZES = _scalar_sizes()


def _bounds(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the offsets of a binary column's values in its data buffer."""
    whole = np.frombuffer(column.buffers()[1], np.int32)
    return whole[column.offset : column.offset + len(column) + 1]


def _holds_one_scalar_each(column: pa.Array) -> bool:
    """Return True if every value of the column is exactly one short scalar."""
    if column.null_count or len(column) == 0 or column.type != pa.binary():
        return False
    bounds = _bounds(column)
    lengths = np.diff(bounds)
    if lengths.min() == 0:
        return False
    data = np.frombuffer(column.buffers()[2], np.uint8)
    return bool((_SIZES[data[bounds[:-1]]] == lengths).all())


def _as_one_array(column: pa.Array) -> bytes:
    """Return the column's bytes as one MessagePack array (array 32)."""
    bounds = _bounds(column)
    data = memoryview(column.buffers()[2])[bounds[0] : bounds[-1]]
    return b"\xdd" + len(column).to_bytes(4, "big") + bytes(data)
