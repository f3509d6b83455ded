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

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import inspect

from strandline.changelog.errors import CorruptLog, InvalidRecord
from strandline.statestore.cells import (
    CellPart,
    CellReader,
    Mask,
    Unexpected,
    as_numpy,
    constant,
    joined,
    side_by_side,
)
from strandline.statestore.packed_scalars import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    KIND_OF,
    NULL,
    TEXT,
    Scalars,
    of_objects,
    packed,
    packed_texts,
    read_scalars,
    same_kind,
)
from strandline.statestore.serdes import Bytes, TypedMessagePack
from strandline.statestore.values import ValueCodec

Array = npt.NDArray[Any]
Block = tuple[Array, ...]
Column: TypeAlias = "pa.Array | list[Any]"
"""Arrow column, or objects of a type that has none."""

ARROW = {
    INT: pa.int64(),
    FLOAT: pa.float64(),
    BOOL: pa.bool_(),
    TEXT: pa.string(),
    BYTES: pa.binary(),
}
"""Arrow type of each kind of scalars."""


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
    fields = _fields(declared)
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
        self.dtypes = (_DTYPES[kind],)

    def block(self, values: Any) -> Block:
        return (as_numpy(_cast(self._codec, _as_column(self._codec, values), self._kind)),)

    def column(self, block: Block, valid: Mask) -> Column:
        return pa.array(block[0], ARROW[self._kind], mask=_mask(valid))

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
            return (_numbers(self._codec, _objects(self._codec, data), self.dtypes[0]),)
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
        column = _cast(self._codec, _as_column(self._codec, values), self._kind)
        return (object_array(column.to_pylist()),)

    def column(self, block: Block, valid: Mask) -> Column:
        try:
            return pa.array(block[0], ARROW[self._kind], mask=_mask(valid))
        except UnicodeEncodeError as error:
            raise _unfit(self._codec, error) from error

    def encode(self, block: Block) -> pa.Array:
        return pa.array(list(map(self._codec.serde.dumps, block[0].tolist())), pa.binary())

    def decode(self, data: pa.Array) -> Block:
        return (object_array(_objects(self._codec, data)),)

    def item(self, block: Block, row: int) -> Any:
        return block[0][row]


class ObjectValues:
    """Values of a type that has no Arrow column, each held as its stored bytes."""

    dtypes = (np.object_,)

    def __init__(self, codec: ValueCodec) -> None:
        self._codec = codec

    def block(self, values: Any) -> Block:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            values = values.to_pylist()
        return (object_array(list(map(self._checked, values))),)

    def column(self, block: Block, valid: Mask) -> Column:
        loads, rows = self._loads, zip(block[0].tolist(), valid.tolist(), strict=True)
        return [loads(data) if has else None for data, has in rows]

    def encode(self, block: Block) -> pa.Array:
        return pa.array(block[0].tolist(), pa.binary())

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
            raise _null(self._codec)
        try:
            return self._codec.dumps(self._codec.hold(value)) or b""
        except InvalidRecord as error:
            raise InvalidRecord(f"store {self._codec.store!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class ScalarField:
    """Field of a struct of scalars."""

    name: str
    encoded_name: bytes
    """Name in MessagePack."""
    kinds: frozenset[int]
    """Kinds that its value may have."""

    @property
    def has_texts(self) -> bool:
        """True if a value may be str or bytes."""
        return bool(self.kinds & {TEXT, BYTES})

    @property
    def dtypes(self) -> tuple[npt.DTypeLike, ...]:
        """Types of the field's arrays in a block."""
        return (np.uint8, np.int64, np.object_) if self.has_texts else (np.uint8, np.int64)

    def arrays(self, column: Scalars) -> Block:
        """Return a column of the field as arrays of a block."""
        if not self.has_texts:
            return column.kinds, column.bits
        texts = column.texts
        return column.kinds, column.bits, no_objects(len(column.kinds)) if texts is None else texts

    def allows(self, kinds: Array) -> bool:
        """Return True if the field may have values of all these kinds."""
        return set(np.unique(kinds).tolist()) <= self.kinds


class StructValues:
    """Columns of a msgspec.Struct or a dataclass whose fields are scalars."""

    def __init__(self, codec: ValueCodec, declared: Any, fields: Sequence[ScalarField]) -> None:
        self._codec = codec
        self._declared = declared
        self._fields = fields
        self._header = _map_header(len(fields))
        self.dtypes = tuple(dtype for field in fields for dtype in field.dtypes)

    def block(self, values: Any) -> Block:
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            return self._of_objects(list(values))
        column = _as_column(self._codec, values)
        if not pa.types.is_struct(column.type):
            raise _refusal(self._codec, f"got a column of {column.type}; give a struct")
        names, expected = [each.name for each in column.type], [each.name for each in self._fields]
        if sorted(names) != sorted(expected):
            raise _refusal(self._codec, f"its fields are {expected}, got {names}")
        columns = dict(zip(names, column.flatten(), strict=True))
        return self._block(_scalars(self._codec, each, columns[each.name]) for each in self._fields)

    def column(self, block: Block, valid: Mask) -> Column:
        pairs = zip(self._fields, self._split(block), strict=True)
        columns = [_as_arrow(field, scalars) for field, scalars in pairs]
        names = [field.name for field in self._fields]
        mask = None if valid.all() else pa.array(~valid)
        return pa.StructArray.from_arrays(columns, names, mask=mask)

    def encode(self, block: Block) -> pa.Array:
        rows = len(block[0])
        pieces: list[pa.Array] = []
        parts: list[CellPart] = [constant(self._header, rows)]
        for field, scalars in zip(self._fields, self._split(block), strict=True):
            parts += [constant(field.encoded_name, rows), packed(scalars)]
            if scalars.has_texts:
                pieces += [joined(parts), packed_texts(scalars)]
                parts = []
        if parts:
            pieces.append(joined(parts))
        return side_by_side(pieces)

    def decode(self, data: pa.Array) -> Block:
        try:
            return self._read(CellReader(data))
        except Unexpected:
            items = _objects(self._codec, data)
        try:
            return self._of_objects(items)
        except InvalidRecord as error:
            raise _too_large(self._codec) from error

    def item(self, block: Block, row: int) -> Any:
        pairs = zip(self._fields, self._split(block), strict=True)
        return self._declared(**{field.name: scalars.item(row) for field, scalars in pairs})

    def _read(self, reader: CellReader) -> Block:
        """Read values that have all fields in the declared order. Raises Unexpected for others."""
        reader.skip_constant(self._header)
        columns = []
        for field in self._fields:
            reader.skip_constant(field.encoded_name)
            columns.append(read_scalars(reader))
            if not field.allows(columns[-1].kinds):
                raise Unexpected("a field is of another type")
        reader.check_end()
        return self._block(columns)

    def _of_objects(self, items: list[Any]) -> Block:
        try:
            columns = [
                of_objects([getattr(item, each.name) for item in items]) for each in self._fields
            ]
        except (OverflowError, AttributeError, KeyError) as error:
            raise _unfit(self._codec, error) from error
        for field, column in zip(self._fields, columns, strict=True):
            if not field.allows(column.kinds):
                raise _refusal(self._codec, f"field {field.name!r} has a value of another type")
        return self._block(columns)

    def _block(self, columns: Iterable[Scalars]) -> Block:
        pairs = zip(self._fields, columns, strict=True)
        return tuple(array for field, column in pairs for array in field.arrays(column))

    def _split(self, block: Block) -> list[Scalars]:
        arrays = iter(block)
        return [Scalars(*(next(arrays) for _ in field.dtypes)) for field in self._fields]


# Structs ------------------------------------------------------------------------------


def _fields(declared: Any) -> list[ScalarField] | None:
    """Return the fields of a class of scalars; None for any other type."""
    info = inspect.type_info(declared)
    if not isinstance(info, inspect.StructType | inspect.DataclassType) or not info.fields:
        return None
    if isinstance(info, inspect.StructType):
        is_plain = not (info.array_like or info.tag_field)
        is_plain = is_plain and not info.cls.__struct_config__.omit_defaults
    else:
        is_plain = all(each.init for each in dataclasses.fields(info.cls))
    if not is_plain or hasattr(info.cls, "__post_init__"):
        return None
    found = [_field(each) for each in info.fields]
    return None if None in found else [each for each in found if each is not None]


def _field(field: Any) -> ScalarField | None:
    info = field.type
    kinds = [_kind(each) for each in getattr(info, "types", (info,))]
    if None in kinds:
        return None
    allowed = frozenset(kind for kind in kinds if kind is not None)
    return ScalarField(field.name, msgspec.msgpack.encode(field.encode_name), allowed)


def _kind(info: Any) -> int | None:
    """Return the kind of a scalar type without limits; None for any other type."""
    limits = [value for name, value in _attributes_of(info) if name != "strict"]
    return _KIND_OF_INFO.get(type(info)) if all(value is None for value in limits) else None


def _attributes_of(info: Any) -> list[tuple[str, Any]]:
    """Return the names and values of the attributes of a msgspec struct."""
    return [(name, getattr(info, name)) for name in info.__struct_fields__]


def _map_header(count: int) -> bytes:
    """Return the first bytes of a MessagePack map of so many entries.

    >>> _map_header(2), _map_header(20)
    (b'\\x82', b'\\xde\\x00\\x14')
    """
    empty = msgspec.msgpack.encode(dict.fromkeys(range(count)))
    return empty[:1] if count < 16 else empty[:3]


def _scalars(codec: ValueCodec, field: ScalarField, column: pa.Array) -> Scalars:
    """Return the column of a field. Raises InvalidRecord."""
    if column.null_count and NULL not in field.kinds:
        raise _refusal(codec, f"field {field.name!r} has a null, and is not declared so")
    if isinstance(column, pa.UnionArray):
        found = of_objects(column.to_pylist())
        if not field.allows(found.kinds):
            raise _refusal(codec, f"field {field.name!r} has a value of another type")
        return found
    kind = _kind_for(codec, field, column.type)
    column = _cast(codec, column, kind, f"field {field.name!r} ")
    kinds = np.where(as_numpy(column.is_valid()), np.uint8(kind), np.uint8(NULL))
    if kind in (TEXT, BYTES):
        return Scalars(kinds, np.zeros(len(kinds), np.int64), object_array(column.to_pylist()))
    filled = as_numpy(
        column.fill_null(False if kind == BOOL else 0) if column.null_count else column
    )
    return Scalars(kinds, filled.astype(np.int64) if kind == BOOL else filled.view(np.int64))


def _kind_for(codec: ValueCodec, field: ScalarField, arrow: pa.DataType) -> int:
    """Return the kind of a field as which its column is taken."""
    kind = _kind_of_arrow(arrow)
    if kind == NULL:
        return max(field.kinds)
    if kind == INT and INT not in field.kinds and FLOAT in field.kinds:
        return FLOAT
    if kind is None or kind not in field.kinds:
        raise _refusal(codec, f"field {field.name!r} is a column of {arrow}; cast it first")
    return kind


def _as_arrow(field: ScalarField, column: Scalars) -> pa.Array:
    found = [kind for kind in np.unique(column.kinds).tolist() if kind != NULL]
    single = field.kinds - {NULL}
    kinds = found or (list(single) if len(single) == 1 else [])
    if not kinds:
        return pa.nulls(len(column.kinds))
    if len(kinds) == 1:
        return _of_kind(kinds[0], column)
    rows = np.arange(len(column.kinds), dtype=np.int32)
    places = {kind: place for place, kind in enumerate(kinds)}
    types = np.array([places.get(kind, 0) for kind in range(BYTES + 1)], np.int8)[column.kinds]
    children = [_of_kind(kind, column) for kind in kinds]
    names = [str(ARROW[kind]) for kind in kinds]
    return pa.UnionArray.from_dense(pa.array(types), pa.array(rows), children, names)


def _of_kind(kind: int, column: Scalars) -> pa.Array:
    """Return the values of one kind as a column; null in other rows."""
    mask = _mask(column.kinds == kind)
    if kind in (TEXT, BYTES):
        return pa.array(column.texts, ARROW[kind], mask=mask)
    values = column.bits.view(np.float64) if kind == FLOAT else column.bits
    return pa.array(values.astype(np.bool_) if kind == BOOL else values, ARROW[kind], mask=mask)


# Helpers ------------------------------------------------------------------------------


def object_array(items: Sequence[Any]) -> Array:
    """Return an array of Python objects."""
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array


def no_objects(count: int) -> Array:
    """Return an array of so many None."""
    return np.full(count, None, np.object_)


def _objects(codec: ValueCodec, data: pa.Array) -> list[Any]:
    return list(map(codec.loads, data.to_pylist()))


def _numbers(codec: ValueCodec, items: list[Any], dtype: npt.DTypeLike) -> Array:
    try:
        return np.array(items, dtype)
    except OverflowError as error:
        raise _too_large(codec) from error


def _too_large(codec: ValueCodec) -> CorruptLog:
    return CorruptLog(
        f"store {codec.store!r}: a stored value has an int of more than 64 bits, which columns "
        "cannot hold; use the store without columns"
    )


def _as_column(codec: ValueCodec, values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return values from outside as one Arrow column without nulls. Raises InvalidRecord."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if values.null_count:
        raise _null(codec)
    if isinstance(values, pa.DictionaryArray):
        return values.dictionary_decode()
    return values


def _cast(codec: ValueCodec, column: pa.Array, kind: int, what: str = "") -> pa.Array:
    found = _kind_of_arrow(column.type)
    is_fit = found == kind or (found, kind) == (INT, FLOAT) or (found == NULL and bool(what))
    if not is_fit and (what or len(column)):
        raise _refusal(codec, f"{what}got a column of {column.type}; cast it to {ARROW[kind]}")
    try:
        return column.cast(ARROW[kind])
    except pa.ArrowInvalid as error:
        raise _refusal(codec, f"{what}{error}") from error


def _kind_of_arrow(arrow: pa.DataType) -> int | None:
    types = pa.types
    tests: tuple[tuple[Callable[[pa.DataType], bool], int], ...] = (
        (types.is_null, NULL),
        (types.is_integer, INT),
        (types.is_floating, FLOAT),
        (types.is_boolean, BOOL),
        (types.is_string, TEXT),
        (types.is_large_string, TEXT),
        (types.is_string_view, TEXT),
        (types.is_binary, BYTES),
        (types.is_large_binary, BYTES),
        (types.is_binary_view, BYTES),
        (types.is_fixed_size_binary, BYTES),
    )
    return next((kind for test, kind in tests if test(arrow)), None)


def _mask(valid: Mask) -> Mask | None:
    return None if valid.all() else ~valid


def _refusal(codec: ValueCodec, why: str) -> InvalidRecord:
    return InvalidRecord(f"store {codec.store!r}: values must be {_name(codec.declared)}; {why}")


def _null(codec: ValueCodec) -> InvalidRecord:
    return InvalidRecord(
        f"store {codec.store!r}: a value is null, which is no value; to remove keys use "
        "delete_batch(keys)"
    )


def _unfit(codec: ValueCodec, error: Exception) -> InvalidRecord:
    return InvalidRecord(
        f"store {codec.store!r}: a value does not fit in a column ({error}); use a store without "
        "columns"
    )


def _name(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) else str(declared)


_DTYPES: dict[int, npt.DTypeLike] = {INT: np.int64, FLOAT: np.float64, BOOL: np.bool_}
_KIND_OF_INFO: dict[type, int] = {
    inspect.NoneType: NULL,
    inspect.IntType: INT,
    inspect.FloatType: FLOAT,
    inspect.BoolType: BOOL,
    inspect.StrType: TEXT,
    inspect.BytesType: BYTES,
}
