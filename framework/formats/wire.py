"""Typed values as bytes: a type (RowType) and a form (WireFormat) make a codec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy, of_items
from strandline.changelog.client.casting import cast_column
from strandline.changelog.errors import InvalidRecord, SchemaMismatch
from strandline.framework.formats.codecs import Codec, as_exactly, translated
from strandline.framework.formats.schema import Row, RowType
from strandline.statestore.serdes import Serde

if TYPE_CHECKING:
    from strandline.framework.formats.registry import SchemaRegistry


@dataclasses.dataclass(frozen=True)
class SerdeUse:
    """Place where a form is used."""

    topic: str
    part: str = "value"
    """"value" or "key"."""
    registry: SchemaRegistry | None = None
    """The app's schema registry."""

    @property
    def subject(self) -> str:
        """Name of the schemas in a registry (Confluent's TopicNameStrategy)."""
        return f"{self.topic}-{self.part}"

    def __str__(self) -> str:
        return f"topic {self.topic!r}" + ("" if self.part == "value" else f", {self.part}s")


@runtime_checkable
class SerdeForm(Protocol):
    """Argument of `serde=` that makes its own codec, instead of `dumps` and `loads`."""

    def codec(self, kind: Any, place: SerdeUse) -> Codec:
        """Return the codec of values of that type at that place. Raise InvalidConfig."""
        ...


class WireFormat(Protocol):
    """Conversion between a struct column and bytes. Neither column has a null at its top level."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a struct column as bytes.

        Raises InvalidRecord; with a registry also Retriable and SchemaMismatch.
        """
        ...

    def decode(self, data: pa.Array) -> pa.Array:
        """Return bytes as a column in the type's Arrow form. Raise InvalidRecord, Retriable."""
        ...

    def values(self, data: pa.Array) -> list[Any] | None:
        """Return the objects in `data` if there is a faster way than through columns; else None."""
        ...


class ScalarRowType:
    """Values of one scalar type, with the interface of `RowType`.

    >>> single = ScalarRowType(int)
    >>> single.values(single.column([single.check(3)]))
    [3]
    """

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.name = kind.__name__
        self.arrow = _SINGLE[kind]

    def check(self, value: Any) -> Any:
        return as_exactly(self.kind, value)

    def column(self, items: Sequence[Any]) -> pa.Array:
        return of_items(items, self.arrow)

    def values(self, column: pa.Array) -> list[Any]:
        return list(column.to_pylist())

    def filled(self, column: pa.Array) -> pa.Array:
        return column


_SINGLE = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


def is_single(kind: Any) -> bool:
    """Return True if values of this kind have a `ScalarRowType`."""
    return kind in _SINGLE


class WireCodec:
    """Codec of typed values, or scalars, in a form that converts whole columns."""

    exact: type | None = None
    arrow = pa.binary()

    def __init__(self, rows: RowType | ScalarRowType, wire: WireFormat) -> None:
        self.rows: RowType | None = rows if isinstance(rows, RowType) else None
        self._rows, self._wire = rows, wire

    def item(self, value: Any) -> Any:
        return None if value is None else self._rows.check(value)

    def row(self, item: Any) -> Row:
        row: Row = item
        return row

    def encode(self, items: Sequence[Any]) -> pa.Array:
        return self.from_columns(self._rows.column(items))

    def decode(self, column: pa.Array) -> list[Any]:
        if column.null_count:
            return with_nulls(self.decode(column.drop_null()), column)
        values = self._wire.values(column)
        return self._rows.values(self.to_columns(column)) if values is None else values

    def to_columns(self, column: pa.Array) -> pa.Array:
        return where_valid(column, self._decoded)

    def from_columns(self, column: pa.Array) -> pa.Array:
        return where_valid(column, lambda valid: self._wire.encode(self._rows.filled(valid)))

    def _decoded(self, column: pa.Array) -> pa.Array:
        made = self._wire.decode(column)
        if self.rows is not None:
            refuse_nulls(made, self._rows.arrow, self._rows.name)
        return made


class ObjectCodec:
    """Codec of typed values in a form that converts one object at a time."""

    exact: type | None = None
    arrow = pa.binary()

    def __init__(self, rows: RowType, serde: Serde[Any]) -> None:
        self.rows: RowType | None = rows
        self._rows, self._serde = rows, serde

    def item(self, value: Any) -> Any:
        """Return the fields (for the key and time columns) and the bytes of a value."""
        if value is None:
            return None
        row = self._rows.check(value)
        [value] = self._rows.as_read([value])
        return row, self._encoded(value)

    def row(self, item: Any) -> Row:
        row: Row = item[0]
        return row

    def encode(self, items: Sequence[Any]) -> pa.Array:
        return of_items([None if item is None else item[1] for item in items], pa.binary())

    def decode(self, column: pa.Array) -> list[Any]:
        loads = self._serde.loads
        values: list[Any] = translated(
            self._serde,
            lambda: self._rows.as_read(
                [None if d is None else loads(d) for d in column.to_pylist()]
            ),
            doing="decode",
        )
        return values

    def to_columns(self, column: pa.Array) -> pa.Array:
        values = self.decode(column)
        return self._rows.column([None if v is None else self._rows.check(v) for v in values])

    def from_columns(self, column: pa.Array) -> pa.Array:
        values = self._rows.values(column)
        encoded = [None if value is None else self._encoded(value) for value in values]
        return of_items(encoded, pa.binary())

    def _encoded(self, value: Any) -> bytes:
        encoded = translated(self._serde, self._serde.dumps, value, doing="encode")
        if not isinstance(encoded, bytes):
            raise InvalidRecord(
                f"{type(self._serde).__name__}.dumps must return bytes; got {encoded!r}"
            )
        return encoded


def with_nulls(values: Sequence[Any], column: pa.Array) -> list[Any]:
    """Return `values` in the valid places of `column`, and None where it is null."""
    given = iter(values)
    return [next(given) if valid else None for valid in column.is_valid().to_pylist()]


def where_valid(column: pa.Array, call: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return the results of `call` for the valid values, with nulls in their places."""
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([where_valid(chunk, call) for chunk in column.chunks])
    if not column.null_count:
        return call(column)
    made = call(column.drop_null())
    return spread(made, as_numpy(column.is_valid()))


def spread(array: pa.Array, valid: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    """Return the values of `array`, in order, where `valid` is true; nulls elsewhere."""
    places = np.cumsum(valid) - 1
    return array.take(pa.array(places, pa.int64(), mask=~valid))


def refuse_nulls(column: pa.Array, kind: pa.DataType, owner: str) -> None:
    """Raise InvalidRecord if a field is null that may not be, at any depth of structs."""
    here = column.drop_null() if column.null_count else column
    for index, field in enumerate(kind):
        child = here.field(index)
        if child.null_count and not field.nullable:
            raise InvalidRecord(f"field {field.name!r} of {owner} is missing, and has no default")
        if pa.types.is_struct(field.type):
            refuse_nulls(child, field.type, f"{owner}.{field.name}")


def conform(array: pa.Array, kind: pa.DataType, name: str = "value") -> pa.Array:
    """Return the values as another type: fields are matched by name, and missing ones are null.

    Raises InvalidRecord if that loses something.

    >>> conform(pa.array([{"n": 1, "x": 2}]), pa.struct([("n", pa.float64()), ("m", pa.string())]))[0]
    <pyarrow.StructScalar: [('n', 1.0), ('m', None)]>
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        have = {f.name: child for f, child in zip(array.type, array.flatten(), strict=True)}
        children = [
            conform(have[f.name], f.type, f.name)
            if f.name in have
            else pa.nulls(len(array), f.type)
            for f in kind
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        return relisted(array, conform(array.flatten(), kind.value_type, name), kind)
    return leaf(array, kind, name)


def leaf(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return values without parts as another type. An int32 may be a date: days since 1970.

    Raises InvalidRecord if that loses something.
    """
    if {array.type, kind} == {pa.date32(), pa.int32()}:
        return array.cast(kind)
    try:
        return cast_column(array, kind, name, "in its form in the log")
    except SchemaMismatch as error:
        raise InvalidRecord(str(error)) from error


def relisted(array: pa.ListArray, items: pa.Array, kind: pa.DataType | None = None) -> pa.ListArray:
    """Return lists of other items with the lengths of those in `array`."""
    lengths = as_numpy(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, items, type=kind, mask=mask)
