"""Values of structs and dataclasses as columns: one for each field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import inspect

from strandline.changelog.arrays import as_numpy
from strandline.changelog.client.casting import plain
from strandline.changelog.errors import InvalidRecord
from strandline.statestore.cells import (
    CellPart,
    CellReader,
    Mask,
    Unexpected,
    constant,
    joined,
    side_by_side,
)
from strandline.statestore.packed_scalars import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    NULL,
    TEXT,
    Scalars,
    kinds_among,
    of_objects,
    packed,
    packed_texts,
    read_scalars,
)
from strandline.statestore.scalar_columns import (
    ARROW,
    KIND_OF_INFO,
    Array,
    Block,
    Column,
    as_column,
    cast_column,
    decoded_objects,
    kind_of_arrow,
    no_objects,
    null_mask,
    object_array,
    refused_value,
    too_large,
    unfit_values,
)
from strandline.statestore.values import ValueCodec


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
        return self.kinds.issuperset(kinds_among(kinds))


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
        column = as_column(self._codec, values)
        if not pa.types.is_struct(column.type):
            raise refused_value(self._codec, f"got a column of {column.type}; give a struct")
        names, expected = [each.name for each in column.type], [each.name for each in self._fields]
        if sorted(names) != sorted(expected):
            raise refused_value(self._codec, f"its fields are {expected}, got {names}")
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
            items = decoded_objects(self._codec, data)
        try:
            return self._of_objects(items)
        except InvalidRecord as error:
            raise too_large(self._codec) from error

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
            raise unfit_values(self._codec, error) from error
        for field, column in zip(self._fields, columns, strict=True):
            if not field.allows(column.kinds):
                raise refused_value(
                    self._codec, f"field {field.name!r} has a value of another type"
                )
        return self._block(columns)

    def _block(self, columns: Iterable[Scalars]) -> Block:
        pairs = zip(self._fields, columns, strict=True)
        return tuple(array for field, column in pairs for array in field.arrays(column))

    def _split(self, block: Block) -> list[Scalars]:
        arrays = iter(block)
        return [Scalars(*(next(arrays) for _ in field.dtypes)) for field in self._fields]


def fields_of(declared: Any) -> list[ScalarField] | None:
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
    return KIND_OF_INFO.get(type(info)) if all(value is None for value in limits) else None


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
    column = plain(column)
    if column.null_count and NULL not in field.kinds:
        raise refused_value(codec, f"field {field.name!r} has a null, and is not declared so")
    if isinstance(column, pa.UnionArray):
        found = of_objects(column.to_pylist())
        if not field.allows(found.kinds):
            raise refused_value(codec, f"field {field.name!r} has a value of another type")
        return found
    kind = _kind_for(codec, field, column.type)
    column = cast_column(codec, column, kind, f"field {field.name!r} ")
    kinds = np.where(as_numpy(column.is_valid()), np.uint8(kind), np.uint8(NULL))
    if kind in (TEXT, BYTES):
        return Scalars(kinds, np.zeros(len(kinds), np.int64), object_array(column.to_pylist()))
    filled = as_numpy(
        column.fill_null(False if kind == BOOL else 0) if column.null_count else column
    )
    return Scalars(kinds, filled.astype(np.int64) if kind == BOOL else filled.view(np.int64))


def _kind_for(codec: ValueCodec, field: ScalarField, arrow: pa.DataType) -> int:
    """Return the kind of a field as which its column is taken."""
    kind = kind_of_arrow(arrow)
    if kind == NULL:
        return max(field.kinds)
    if kind == INT and INT not in field.kinds and FLOAT in field.kinds:
        return FLOAT
    if kind is None or kind not in field.kinds:
        raise refused_value(codec, f"field {field.name!r} is a column of {arrow}; cast it first")
    return kind


def _as_arrow(field: ScalarField, column: Scalars) -> pa.Array:
    found = [kind for kind in kinds_among(column.kinds) if kind != NULL]
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
    mask = null_mask(column.kinds == kind)
    if kind in (TEXT, BYTES):
        return pa.array(column.texts, ARROW[kind], mask=mask)
    values = column.bits.view(np.float64) if kind == FLOAT else column.bits
    return pa.array(values.astype(np.bool_) if kind == BOOL else values, ARROW[kind], mask=mask)
