"""Schemas of streams: columns as Polars types, from and to the types of topics.

Each row of a stream has the columns of the topic's value, the column `timestamp` (ms since the
epoch), and the column `key` if the key is no column of the value. A column of the value that has
one of these names is called `value_<name>`, as in `Topic.to_polars`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.changelog.errors import InvalidConfig
from strandline.framework.formats.schema import RowType, is_typed
from strandline.framework.streams.places import refusal
from strandline.framework.topic import Topic

if TYPE_CHECKING:
    import polars as pl

KEY = "key"
"""Column of the key of a record, if the key is no column of the value."""
TIME = "timestamp"
"""Column of the time of a record, in ms since the epoch."""
VALUE = "value"
"""Column of values that have no columns of their own."""
INTERNAL = "__"
"""Beginning of the names of columns that a plan adds for itself."""
WATERMARK = "__watermark"
"""Column of the watermark in ms before a row, of the partition that it was first read from."""
ROW = "__record"
"""Column of the number of the row in its batch; null for rows that stand for no row of it."""


@dataclasses.dataclass(frozen=True)
class Keying:
    """Columns that hold the key of a stream's records, and the placing of the records by it."""

    columns: tuple[str, ...] = ()
    """Columns that hold the key; none if no column is known to hold it."""
    in_value: bool = True
    """False if the key is the column `key`, which is no column of the value."""
    placed_by: tuple[str, ...] = ()
    """Columns by which the records are assigned to partitions; none if that is not known."""
    is_repartitioned: bool = False
    """True if an internal topic has assigned them, whose keys are encoded in a way of their own."""

    def without(self, changed: Iterable[str]) -> Keying:
        """Return the keying after these columns were removed or got other values."""
        gone = set(changed)
        columns = () if gone & set(self.columns) else self.columns
        placed_by = () if gone & set(self.placed_by) else self.placed_by
        return self._as(columns, placed_by, in_value=self.in_value or not columns)

    def within(self, names: Iterable[str]) -> Keying:
        """Return the keying of a stream that has only these columns."""
        return self.without({*self.columns, *self.placed_by} - set(names))

    def renamed(self, names: Mapping[str, str]) -> Keying:
        """Return the keying after columns were renamed."""
        columns = tuple(names.get(name, name) for name in self.columns)
        placed_by = tuple(names.get(name, name) for name in self.placed_by)
        return self._as(columns, placed_by, in_value=self.in_value or columns != (KEY,))

    def unplaced(self) -> Keying:
        """Return the keying of records that may no longer be in the partition of their key."""
        return self._as(self.columns, (), in_value=self.in_value)

    def not_of_value(self) -> tuple[str, ...]:
        """Return the columns that are no part of a record's value."""
        return (TIME,) if self.in_value else (KEY, TIME)

    def _as(
        self, columns: tuple[str, ...], placed_by: tuple[str, ...], *, in_value: bool
    ) -> Keying:
        """Return the keying with other columns; records that nothing places are not repartitioned."""
        return Keying(columns, in_value, placed_by, self.is_repartitioned and bool(placed_by))


# Schemas of topics and functions ---------------------------------------------------------------


def internal_columns() -> dict[str, pl.DataType]:
    """Return the columns that every row of a source has for the plan itself."""
    import polars as pl

    return {WATERMARK: pl.Int64(), ROW: pl.Int64()}


def value_fields(topic: Topic[Any, Any], operator: str) -> pl.Schema:
    """Return the fields of a topic's values. Raise InvalidConfig if they are not typed."""
    import polars as pl

    if topic.schema is not None:
        return polars_schema(topic.schema)
    dtype = _plain_type(topic.kind)
    if dtype is None:
        raise refusal(
            operator,
            f"the values of topic {topic.name!r} are {_name(topic.kind)}, which has no columns;"
            " declare app.topic(…, value=) as a dataclass, a msgspec.Struct, a pyarrow.Schema, str,"
            " int, float, bool or bytes",
        )
    return pl.Schema({VALUE: dtype})


def key_type(topic: Topic[Any, Any], operator: str) -> pl.DataType:
    """Return the type of a topic's keys that are no column. Raise InvalidConfig."""
    dtype = _key_type(topic.key_kind)
    if dtype is None:
        raise refusal(
            operator,
            f"the keys of topic {topic.name!r} are {_name(topic.key_kind)}, which no column can"
            " hold; declare app.topic(…, key=) as str, int, float, bytes, bool, date, datetime or a"
            " tuple of these",
        )
    return dtype


def not_a_schema(schema: Any, operator: str) -> InvalidConfig:
    """Return the error for an argument `schema=` that is none."""
    return refusal(
        operator,
        f"schema={schema!r:.200} is no schema; give a dataclass, a msgspec.Struct, a"
        " pyarrow.Schema or a polars.Schema",
    )


def declared_schema(schema: Any, operator: str) -> pl.Schema:
    """Return the columns that `schema=` declares.

    Args:
        schema: A pyarrow.Schema, a Polars schema, a dataclass or a msgspec.Struct.
        operator: Name of the operator, for errors.

    Raises:
        InvalidConfig: It is something else, has no fields, or a field cannot be a column.
    """
    import polars as pl

    if isinstance(schema, pl.Schema):
        found = schema
        arrow_schema(found, operator)
    elif is_typed(schema):
        found = polars_schema(RowType(schema).schema)
    else:
        raise not_a_schema(schema, operator)
    check_names(found, operator)
    return found


def row_kind(schema: Any, operator: str) -> Any:
    """Return `schema=` as a type of rows: the class itself, or an Arrow schema."""
    import polars as pl

    return arrow_schema(schema, operator) if isinstance(schema, pl.Schema) else schema


def check_names(names: Iterable[str], operator: str) -> None:
    """Raise InvalidConfig if a user's column has a name that is reserved."""
    for name in names:
        if name.startswith(INTERNAL):
            raise refusal(
                operator,
                f"the column name {name!r} is reserved, as all names that begin with two"
                " underscores; choose another one",
            )


# Types -----------------------------------------------------------------------------------------


def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the Polars types of an Arrow schema.

    >>> dict(polars_schema(pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])))
    {'n': Int64, 'at': Datetime(time_unit='us', time_zone='UTC')}
    """
    import polars as pl

    plain = pa.schema([field.with_type(storable_type(field.type)) for field in schema])
    return typing.cast("pl.DataFrame", pl.from_arrow(plain.empty_table())).schema


def arrow_schema(schema: Mapping[str, pl.DataType], operator: str) -> pa.Schema:
    """Return columns as the schema of a topic. Raise InvalidConfig for a type it cannot hold.

    >>> import polars as pl
    >>> arrow_schema({"n": pl.Int64(), "s": pl.List(pl.String())}, "to").field("s").type
    ListType(list<item: string>)
    """
    import polars as pl

    found = []
    for name, dtype in schema.items():
        try:
            made = pl.DataFrame(schema={name: dtype}).to_arrow().schema.field(0).type
            found.append(pa.field(name, storable_type(made)))
        except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError) as error:
            raise refusal(
                operator,
                f"column {name!r} is {dtype}, which a topic cannot hold; cast it, as"
                f" with_columns({name}=sl.col({name!r}).cast(…)), or drop it",
            ) from error
    return pa.schema(found)


def storable_type(arrow: pa.DataType) -> pa.DataType:
    """Return the type as which a topic stores an Arrow type. Raise TypeError if there is none."""
    is_ = pa.types
    if is_.is_null(arrow):
        raise TypeError("a column of nulls has no type")
    if is_.is_dictionary(arrow):
        return storable_type(arrow.value_type)
    if is_.is_large_string(arrow) or is_.is_string_view(arrow):
        return pa.string()
    if is_.is_large_binary(arrow) or is_.is_binary_view(arrow):
        return pa.binary()
    if is_.is_large_list(arrow) or is_.is_list(arrow):
        return pa.list_(storable_type(arrow.value_type))
    if is_.is_struct(arrow):
        return pa.struct([field.with_type(storable_type(field.type)) for field in arrow])
    return arrow


def python_type(dtype: pl.DataType) -> Any:
    """Return the type of a key that has the values of a column; None if it cannot be a key."""
    import polars as pl

    if dtype.is_integer():
        return int
    if dtype.is_float():
        return float
    if isinstance(dtype, pl.Datetime):
        # Keys are moments in microseconds.
        return dt.datetime if dtype.time_zone and dtype.time_unit != "ns" else None
    return _PYTHON.get(str(dtype))


def _plain_type(kind: Any) -> pl.DataType | None:
    """Return the type of a column of Python objects of one kind; None if there is none."""
    import polars as pl

    plain: dict[Any, pl.DataType] = {
        str: pl.String(),
        int: pl.Int64(),
        float: pl.Float64(),
        bool: pl.Boolean(),
        bytes: pl.Binary(),
    }
    return plain.get(kind) if isinstance(kind, type) else None


def _key_type(kind: Any) -> pl.DataType | None:
    import polars as pl

    if typing.get_origin(kind) is tuple:
        elements = [_key_type(_without_none(argument)) for argument in typing.get_args(kind)]
        known = [element for element in elements if element is not None]
        if len(known) < len(elements):
            return None
        return pl.Struct([pl.Field(str(at), element) for at, element in enumerate(known)])
    if kind is dt.datetime:
        return pl.Datetime("us", "UTC")
    return pl.Date() if kind is dt.date else _plain_type(kind)


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    inner = [argument for argument in typing.get_args(kind) if argument is not type(None)]
    return inner[0] if len(inner) == 1 else kind


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


_PYTHON: dict[str, Any] = {"String": str, "Binary": bytes, "Boolean": bool, "Date": dt.date}
"""Python type by the name of a Polars type."""
