"""Typed values: a dataclass, a msgspec.Struct or an Arrow schema as a struct of columns.

`int` is int64, `float` float64, `datetime` timestamp[us, UTC] (a naive one is taken as UTC).
`bool`, `str`, `bytes`, `date`, `list[...]` and nested dataclasses or Structs have the Arrow types
of their names. `Annotated[Decimal, pa.decimal128(12, 2)]` gives a field another Arrow type, or one
that its Python type alone does not determine. A field may hold None if its annotation allows it. A field with a default may be
missing from older records, so its column is nullable; a null then reads as the default.

A value is checked when it is sent, and held as a tuple of its fields until the columns are built,
so that later changes of a mutable value have no effect. Checks are cached by the tuple of field
types: a known tuple costs one set look-up.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy, of_items
from strandline.changelog.client.casting import check_nulls
from strandline.changelog.client.items import column_of
from strandline.changelog.client.keys import is_list
from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.changelog.printable import shown_value

Row = tuple[Any, ...]


def is_typed(kind: Any) -> bool:
    """Return True if values of this kind are stored as columns."""
    if isinstance(kind, pa.Schema):
        return True
    if not isinstance(kind, type):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)


class RowType:
    """Conversion between values of one type and columns.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Delay:
    ...     carrier: str
    ...     minutes: float | None = None
    >>> rows = RowType(Delay)
    >>> rows.schema.field("minutes").type
    DataType(double)
    >>> column = rows.column([rows.check(Delay("AA", 4.0)), None])
    >>> rows.values(column)
    [Delay(carrier='AA', minutes=4.0), None]
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.name = "the Arrow schema" if isinstance(kind, pa.Schema) else kind.__name__
        self._fields = _fields_of(kind)
        self._names = [field.name for field in self._fields]
        self.schema = pa.schema(
            [pa.field(f.name, f.type.arrow, nullable=f.nullable) for f in self._fields]
        )
        self.arrow = pa.struct(list(self.schema))
        self._build = _builder(kind, self._names)
        self._take_apart = _taker(kind, self._names)
        self._seen: set[tuple[type, ...]] = set()
        self._times = _times_of(self.schema) if self.is_natural else None

    @property
    def fields(self) -> Sequence[Field]:
        """Columns, with their checks, writers and readers."""
        return self._fields

    def check(self, value: Any) -> Row:
        """Return the fields of `value`, checked against their columns. Raise InvalidRecord."""
        if not isinstance(value, dict if isinstance(self.kind, pa.Schema) else self.kind):
            raise InvalidRecord(f"expected {self.name}, got {shown_value(value)}")
        row = self._take_apart(value)
        signature = tuple(map(type, row))
        return row if signature in self._seen else self._check_fields(row, signature)

    def column(self, rows: Sequence[Row | None]) -> pa.StructArray:
        """Return checked rows as one struct column; None is a null (a tombstone)."""
        empty = (None,) * len(self._fields)
        absent = [row is None for row in rows]
        columns = zip(*(row or empty for row in rows), strict=True) if rows else [()] * len(empty)
        arrays = [f.type.write(items) for f, items in zip(self._fields, columns, strict=True)]
        mask = pa.array(absent) if any(absent) else None
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow), mask=mask)

    def values(self, column: pa.StructArray) -> list[Any]:
        """Return the values in a struct column, None where it is null. Raise InvalidRecord.

        A column can hold times and dates that Python cannot: before year 1 and after 9999.
        """
        try:
            if not column.null_count:
                return self._rows(column)
            rows = iter(self._rows(column.drop_null()))
        except OverflowError as error:
            raise InvalidRecord(
                f"{self.name} cannot hold the values in its columns: {error}"
            ) from error
        return [next(rows) if valid else None for valid in column.is_valid().to_pylist()]

    def filled(self, column: pa.StructArray) -> pa.StructArray:
        """Return the column with defaults for nulls wherever None is not allowed, at any depth."""
        arrays = [field.filled(column.field(field.name)) for field in self._fields]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow), mask=mask)

    def as_read(self, values: list[Any]) -> list[Any]:
        """Return the values as reading them from a column would, with all times in UTC.

        Raises InvalidRecord if a field does not fit the Arrow type that it was given.
        """
        if self._is_in_utc(values):
            return values
        return self.values(self.column([None if v is None else self.check(v) for v in values]))

    @property
    def is_natural(self) -> bool:
        """True if no field has an Arrow type of its own, at any depth."""
        return all(field.type.is_natural for field in self._fields)

    def _is_in_utc(self, values: Iterable[Any]) -> bool:
        """Return True if all times are known to be in UTC; False if that is not easily seen."""
        if self._times is None or (self._times and isinstance(self.kind, pa.Schema)):
            return False
        there = [value for value in values if value is not None]
        zones = {
            moment.tzinfo
            for name in self._times
            for moment in map(operator.attrgetter(name), there)
            if moment is not None
        }
        return zones <= {dt.UTC}

    def _rows(self, column: pa.StructArray) -> list[Any]:
        present = {field.name for field in column.type}
        lists = [
            field.read(column.field(field.name))
            if field.name in present
            else [field.missing() for _ in range(len(column))]
            for field in self._fields
        ]
        return list(map(self._build, *lists))

    def _check_fields(self, row: Row, signature: tuple[type, ...]) -> Row:
        checked = tuple(f.check(item, self.name) for f, item in zip(self._fields, row, strict=True))
        if all(map(operator.is_, checked, row)) and all(f.type.flat for f in self._fields):
            self._seen.add(signature)
        return checked


@dataclasses.dataclass(frozen=True)
class FieldType:
    """One Arrow type: its accepted items, and how they are written and read."""

    arrow: pa.DataType
    check: Callable[[Any], Any]
    """Function that returns the item frozen and converted, or raises TypeError or ValueError."""
    read: Callable[[pa.Array], list[Any]]
    write: Callable[[Sequence[Any]], pa.Array]
    flat: bool = True
    """True if the Python type alone proves that an item is right, and the type is immutable."""
    filled: Callable[[pa.Array], pa.Array] = lambda array: array
    """Function that fills nulls with defaults; see `RowType.filled`."""
    is_natural: bool = True
    """False if the annotation of a class names the Arrow type, so that not all values fit."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One column of a typed value."""

    name: str
    type: FieldType
    optional: bool
    default: Callable[[], Any] | None = None

    @property
    def nullable(self) -> bool:
        return self.optional or self.default is not None

    def missing(self) -> Any:
        """Return the value that a null, or a column missing from older records, reads as."""
        return None if self.default is None else self.default()

    def check(self, item: Any, owner: str) -> Any:
        """Return the checked item. Raise InvalidRecord; `owner` names the value in the message."""
        if item is None and self.optional:
            return None
        try:
            if item is None:
                raise TypeError("may not be None")
            return self.type.check(item)
        except (TypeError, ValueError, OverflowError, InvalidRecord, pa.ArrowException) as error:
            raise InvalidRecord(
                f"field {self.name!r} of {owner} is stored as {self.type.arrow};"
                f" got {shown_value(item)}: {error}"
            ) from None

    def collect(self, items: Sequence[Any]) -> pa.Array:
        """Return the column of items of the right type; None stands for a default."""
        if self.type.flat:
            return self.type.write(items)
        return self.type.write([None if item is None else self.type.check(item) for item in items])

    def filled(self, array: pa.Array) -> pa.Array:
        """Return the array with the default in place of nulls, if None is not allowed."""
        array = self.type.filled(array)
        if self.default is None or self.optional or not array.null_count:
            return array
        default = self.type.write([self.check(self.missing(), "the defaults")])
        places = [
            at if valid else len(array) for at, valid in enumerate(array.is_valid().to_pylist())
        ]
        return pa.concat_arrays([array, default]).take(pa.array(places, pa.int64()))

    def read(self, array: pa.Array) -> list[Any]:
        items = self.type.read(array)
        if self.optional or not array.null_count:
            return items
        return [self.missing() if item is None else item for item in items]


def _fields_of(kind: Any) -> list[Field]:
    if isinstance(kind, pa.Schema):
        return [Field(f.name, _arrow_type(f.type), f.nullable) for f in kind]
    hints = hints_of(kind)
    if issubclass(kind, msgspec.Struct):
        declared = [
            (f.name, _default(f.default, f.default_factory, msgspec.NODEFAULT))
            for f in msgspec.structs.fields(kind)
        ]
    else:
        declared = [
            (f.name, _default(f.default, f.default_factory, dataclasses.MISSING))
            for f in dataclasses.fields(kind)
            if f.init
        ]
    if not declared:
        raise InvalidConfig(f"{kind.__name__} has no fields, so it cannot be a topic's value")
    return [_field(kind, name, hints[name], default) for name, default in declared]


def _field(kind: type, name: str, hint: Any, default: Callable[[], Any] | None) -> Field:
    inner, optional = _without_none(hint)
    try:
        return Field(name, _field_type(inner), optional, default)
    except TypeError as error:
        raise InvalidConfig(
            f"field {name!r} of {kind.__name__} cannot be a column: {error}; use str, int, float,"
            " bool, bytes, datetime, date, a list or a dataclass of these, name the Arrow type, as in"
            " Annotated[Decimal, pa.decimal128(12, 2)], or give serde="
        ) from None


def _field_type(hint: Any) -> FieldType:
    if typing.get_origin(hint) is typing.Annotated:
        declared, arrow = typing.get_args(hint)
        return _annotated_type(declared, arrow)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if typing.get_origin(hint) is list:
        return _list_type(*_without_none(typing.get_args(hint)[0]))
    if is_typed(hint) and not isinstance(hint, pa.Schema):
        return _struct_type(RowType(hint))
    raise TypeError(f"no Arrow type stands for {getattr(hint, '__name__', hint)}")


def item_type(arrow: pa.DataType) -> type | None:
    """Return the Python type of the items of an Arrow type; None if no field can declare it.

    >>> item_type(pa.int16()), item_type(pa.map_(pa.string(), pa.int64()))
    (<class 'int'>, None)
    """
    return next((kind for is_one, kind in _ITEMS if is_one(arrow)), None)


def _annotated_type(declared: Any, arrow: pa.DataType) -> FieldType:
    """Return the field type of `Annotated[declared, arrow]`. Raise TypeError if they differ."""
    items = item_type(arrow)
    if items is not (typing.get_origin(declared) or declared):
        named = "no type that can be declared" if items is None else items.__name__
        raise TypeError(f"the values of {arrow} are {named}, and the field is {declared}")
    return dataclasses.replace(_arrow_type(arrow), is_natural=False)


def _arrow_type(arrow: pa.DataType) -> FieldType:
    """Return the field type of an Arrow schema's column, converted by Arrow."""
    for plain in _PLAIN.values():
        if plain.arrow == arrow:
            return plain

    def check(item: Any) -> Any:
        made = pa.scalar(item, arrow).as_py()
        if type(made) is not type(item) or made != item:
            # Arrow may have shortened it.
            made = column_of([_in_utc(item, arrow)], arrow, "item", _WHERE)[0].as_py()
        if pa.types.is_nested(arrow):
            check_nulls(pa.array([made], arrow), arrow, "item", _WHERE)
        return made

    return FieldType(
        arrow,
        check,
        lambda array: list(array.to_pylist()),
        lambda items: of_items(items, arrow),
        flat=False,
    )


_WHERE = "in its form in the log"


def _in_utc(item: Any, kind: pa.DataType) -> Any:
    """Return an item with UTC as the zone of each datetime that lacks one and must have one."""
    if isinstance(item, dt.datetime) and pa.types.is_timestamp(kind):
        is_naive = item.tzinfo is None and kind.tz is not None
        return item.replace(tzinfo=dt.UTC) if is_naive else item
    if isinstance(item, dict) and pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return {name: _in_utc(each, fields.get(name, kind)) for name, each in item.items()}
    if isinstance(item, dict) and pa.types.is_map(kind):
        return {key: _in_utc(each, kind.item_type) for key, each in item.items()}
    if isinstance(item, list) and is_list(kind):
        return [_in_utc(each, kind.value_type) for each in item]
    return item


def _list_type(item: Any, optional: bool) -> FieldType:
    inner = Field("item", _field_type(item), optional)
    arrow = pa.list_(inner.type.arrow)

    def check(items: Any) -> Any:
        if not isinstance(items, list | tuple):
            raise TypeError("a list is expected")
        return [inner.check(entry, "the list") for entry in items]

    def write(lists: Sequence[Any]) -> pa.Array:
        offsets = [0]
        flat: list[Any] = []
        for entries in lists:
            flat.extend(entries or ())
            offsets.append(len(flat))
        mask = of_items([entries is None for entries in lists], pa.bool_())
        ends = of_items(offsets, pa.int32())
        return pa.ListArray.from_arrays(ends, inner.type.write(flat), type=arrow, mask=mask)

    def read(array: pa.ListArray) -> list[Any]:
        flat = inner.type.read(array.flatten())
        result, start = [], 0
        for length in array.value_lengths().to_pylist():
            result.append(None if length is None else flat[start : start + length])
            start += length or 0
        return result

    def filled(array: pa.ListArray) -> pa.Array:
        lengths = as_numpy(pc.fill_null(pc.list_value_length(array), 0))
        ends = of_items([0, *lengths.cumsum().tolist()], pa.int32())
        mask = array.is_null() if array.null_count else None
        items = inner.filled(array.flatten())
        return pa.ListArray.from_arrays(ends, items, type=arrow, mask=mask)

    return FieldType(
        *(arrow, check, read, write),
        flat=False,
        filled=filled,
        is_natural=inner.type.is_natural,
    )


def _struct_type(rows: RowType) -> FieldType:
    return FieldType(
        *(rows.arrow, rows.check, rows.values, rows.column),
        flat=False,
        filled=rows.filled,
        is_natural=rows.is_natural,
    )


def _exact(arrow: pa.DataType, *accepted: type, convert: Callable[[Any], Any]) -> FieldType:
    def check(item: Any) -> Any:
        if type(item) is accepted[0]:
            if accepted[0] in (int, str):
                pa.scalar(item, arrow)
            return item
        if not isinstance(item, accepted) or (isinstance(item, bool) and bool not in accepted):
            raise TypeError(f"{accepted[0].__name__} is expected")
        return convert(item)

    return FieldType(
        arrow, check, lambda a: list(a.to_pylist()), lambda items: of_items(items, arrow)
    )


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INSTANT = pa.timestamp("us", tz="UTC")


def read_datetimes(array: pa.Array) -> list[dt.datetime | None]:
    """Return timestamps as datetimes in UTC; equal ones share one object."""
    encoded = array.cast(pa.int64()).dictionary_encode()
    micro = dt.timedelta(microseconds=1)
    known = [_EPOCH + count * micro for count in encoded.dictionary.to_pylist()]
    return [None if i is None else known[i] for i in encoded.indices.to_pylist()]


def _index(item: Any) -> int:
    return operator.index(item)


def _day(item: Any) -> dt.date:
    if isinstance(item, dt.datetime):  # a subclass of date, whose time would be lost
        raise TypeError("date is expected; take the day of it by .date()")
    return dt.date(item.year, item.month, item.day)


_PLAIN: dict[Any, FieldType] = {
    str: _exact(pa.string(), str, convert=str),
    bytes: _exact(pa.binary(), bytes, bytearray, memoryview, convert=bytes),
    bool: _exact(pa.bool_(), bool, convert=bool),
    int: _exact(pa.int64(), int, typing.SupportsIndex, convert=_index),
    float: _exact(pa.float64(), float, int, typing.SupportsFloat, convert=float),
    dt.datetime: dataclasses.replace(
        _exact(_INSTANT, dt.datetime, convert=lambda item: item), read=read_datetimes
    ),
    dt.date: _exact(pa.date32(), dt.date, convert=_day),
}
_ITEMS: list[tuple[Callable[[pa.DataType], bool], type]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_fixed_size_binary, bytes),
    (pa.types.is_timestamp, dt.datetime),
    (pa.types.is_date, dt.date),
    (pa.types.is_time, dt.time),
    (pa.types.is_duration, dt.timedelta),
    (is_list, list),
    (pa.types.is_struct, dict),
]
"""Python types of the items of Arrow types."""


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return `X | None` as (X, True), and any other annotation X as (X, False).

    Of the metadata of an annotation, only an Arrow type is kept.
    """
    if typing.get_origin(hint) is typing.Annotated:
        inner, optional = _without_none(hint.__origin__)
        arrow = [one for one in hint.__metadata__ if isinstance(one, pa.DataType)]
        return (typing.Annotated[inner, arrow[0]] if arrow else inner), optional
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if len(inner) != 1 or len(inner) == len(typing.get_args(hint)):
        raise InvalidConfig(f"{hint} cannot be a column: a column has one type")
    return _without_none(inner[0])[0], True


def hints_of(kind: type) -> dict[str, Any]:
    """Return the annotations of a dataclass or Struct. Raise InvalidConfig."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise InvalidConfig(
            f"the annotations of {kind.__name__} cannot be read ({error});"
            " define it, and the types it names, at the top level of a module"
        ) from None


def _default(value: Any, factory: Any, nothing: Any) -> Callable[[], Any] | None:
    if factory is not nothing:
        return typing.cast("Callable[[], Any]", factory)
    return None if value is nothing else lambda: value


def _times_of(schema: pa.Schema) -> list[str] | None:
    """Return the names of the columns that hold times; None if some are nested."""
    nested = [f for f in schema if pa.types.is_nested(f.type) and "timestamp" in str(f.type)]
    return None if nested else [f.name for f in schema if pa.types.is_timestamp(f.type)]


def _builder(kind: Any, names: list[str]) -> Callable[..., Any]:
    if isinstance(kind, pa.Schema):
        return lambda *items: dict(zip(names, items, strict=True))
    parameters = list(inspect.signature(kind).parameters.values())
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if positional == names:
        return typing.cast("Callable[..., Any]", kind)
    return lambda *items: kind(**dict(zip(names, items, strict=True)))


def _taker(kind: Any, names: list[str]) -> Callable[[Any], Row]:
    if isinstance(kind, pa.Schema):
        known = set(names)

        def take(value: dict[str, Any]) -> Row:
            if not value.keys() <= known:
                raise InvalidRecord(
                    f"the topic has no columns {sorted(value.keys() - known)};"
                    f" its columns are {names}"
                )
            return tuple(map(value.get, names))

        return take
    if len(names) == 1:
        single = operator.attrgetter(names[0])
        return lambda value: (single(value),)
    return operator.attrgetter(*names)
