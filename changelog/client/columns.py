"""Rows, DataFrames and Arrow tables to the batches of columns that the log takes.

On a topic of bytes the data has a column (or field) `value`, and optionally `key`, `timestamp`
and `headers`. On a typed topic it has the columns of the topic's schema: nullable ones that it
lacks are filled with nulls, other columns than these are refused. `key=` and `timestamp=` name
the columns that key and time the records, the value's own or ones beside it; without them,
columns `key` and `timestamp` that are none of the value's do so. Keys become bytes by the rules of
`changelog.client.keys`; a timestamp is a datetime (taken as UTC if it has no zone), a date, or
integer milliseconds. Columns are cast where nothing is lost by it, and refused otherwise.

Data frames of any library come in through the Arrow C stream interface (polars, pandas,
narwhals, pyarrow, DuckDB …), none of which is imported here.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.client.keys import encode_key, encode_keys, is_bytes, is_text
from strandline.changelog.errors import InvalidRecord, SchemaMismatch
from strandline.changelog.records import HEADERS_TYPE, Headers, TopicInfo, columns_schema
from strandline.changelog.schema import value_type
from strandline.changelog.times import check_column

PIECE_ROWS = 1 << 20
PIECE_BYTES = 128 << 20
"""Large data is converted in pieces of about this many rows and bytes."""


def to_batches(
    data: Any,
    topic: TopicInfo,
    *,
    now_ms: int,
    key: str | None = None,
    timestamp: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """`data` as batches in the schema of `changelog.records`, for `topic`, in order.

    `data` is a DataFrame, an Arrow table or batch, or an iterable of rows (mappings,
    dataclasses, msgspec structs). `key` and `timestamp` name columns; records without a
    timestamp get `now_ms`. Raises SchemaMismatch, InvalidRecord.

    >>> topic = TopicInfo("flights", "", 1, {}, pa.schema([("carrier", pa.string())]), 1)
    >>> [batch] = to_batches([{"carrier": "AA"}], topic, now_ms=7, key="carrier")
    >>> batch.to_pylist()
    [{'timestamp': 7, 'key': b'AA', 'value': {'carrier': 'AA'}}]
    """
    layout = _Layout(topic, key, timestamp, now_ms)
    for piece in _pieces(_table(data, layout)):
        yield layout.convert(piece)


def batch_of(
    topic: TopicInfo,
    keys: Sequence[bytes | None],
    values: Sequence[Any],
    timestamps: Sequence[int],
    headers: Sequence[Headers] | None = None,
) -> pa.RecordBatch:
    """One batch from lists of equal length; values are bytes, or mappings on a typed topic.

    Raises SchemaMismatch, InvalidRecord.
    """
    where = f"topic {topic.name!r}"
    try:
        arrays = [pa.array(timestamps, pa.int64()), pa.array(keys, pa.binary())]
        if topic.schema is None:
            arrays.append(pa.array(values, pa.binary()))
        else:
            arrays.append(struct_of(values, topic.schema, where))
        if headers is not None and any(headers):
            arrays.append(pa.array(headers, HEADERS_TYPE))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InvalidRecord(f"{where}: records cannot be put into columns: {error}") from error
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise InvalidRecord(
            f"{where}: keys, values, timestamps and headers differ in length: {sorted(lengths)}"
        )
    schema = columns_schema(arrays[2].type, headers=len(arrays) > 3)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_mapping(row: Any, where: str) -> Mapping[str, Any]:
    """A row's fields by name. Raises InvalidRecord for what is no row."""
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) or isinstance(row, msgspec.Struct):
        fields: dict[str, Any] = msgspec.to_builtins(row, builtin_types=_NATIVE)
        return fields
    raise InvalidRecord(
        f"{where}: a row is a mapping, a dataclass or a msgspec.Struct, got {type(row).__name__}"
    )


def check_names(
    names: Iterable[str], known: Sequence[str], required: Sequence[str], where: str
) -> None:
    """Raise SchemaMismatch unless every name is known, none is there twice, none required is missing."""
    got = list(names)
    missing = [name for name in required if name not in got]
    unknown = [name for name in got if name not in known]
    if len(set(got)) != len(got):
        raise SchemaMismatch(f"{where}: column names must be unique, got {', '.join(got)}")
    if unknown:
        near = difflib.get_close_matches(unknown[0], missing or known, n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else "leave it out, or extend the topic's schema"
        )
        raise SchemaMismatch(
            f"{where}: there is no column {unknown[0]!r}, only {', '.join(known)}; {hint}"
        )
    if missing:
        raise SchemaMismatch(
            f"{where}: column {missing[0]!r} is missing, and may not be null; "
            f"got {', '.join(got) or 'none'}"
        )


def required(schema: pa.Schema) -> list[str]:
    """The columns that no row may lack."""
    return [field.name for field in schema if not field.nullable]


def struct_of(rows: Sequence[Any], schema: pa.Schema, where: str) -> pa.StructArray:
    """Rows (mappings, or None for a tombstone) as one struct column. Raises SchemaMismatch."""
    absent = [row is None for row in rows]
    mask = pa.array(absent) if any(absent) else None
    names, needed = set(schema.names), required(schema)
    for row in rows:
        if row is not None and row.keys() != names:
            check_names(row, schema.names, needed, where)
    children = []
    for field in schema:
        column = [None if row is None else row.get(field.name) for row in rows]
        children.append(_fit(_array(column, field.type, field.name, where), field, where, mask))
    return pa.StructArray.from_arrays(children, fields=list(schema), mask=mask)


class _Layout:
    """Which column of the data becomes what, for one topic."""

    def __init__(
        self, topic: TopicInfo, key: str | None, timestamp: str | None, now_ms: int
    ) -> None:
        self._schema = topic.schema
        self._value_type = value_type(topic.schema)
        self._key = key
        self._timestamp = timestamp
        self._now_ms = now_ms
        self.where = f"topic {topic.name!r}"
        own = ["value", "headers"] if topic.schema is None else topic.schema.names
        beside = [key or "key", timestamp or "timestamp"]
        self.first = own[:1]
        self._known = [*own, *(name for name in beside if name not in own)]
        self._required = ["value"] if topic.schema is None else required(topic.schema)

    def check(self, names: Iterable[str]) -> None:
        """Raise SchemaMismatch unless data may have just these columns."""
        check_names(names, self._known, self._required, self.where)

    def type_of(self, name: str) -> pa.DataType | None:
        """The type of a column, as far as the topic says."""
        if self._schema is not None:
            index = self._schema.get_field_index(name)
            return self._schema.field(index).type if index >= 0 else None
        return HEADERS_TYPE if name == "headers" else None

    def is_key_beside(self, name: str) -> bool:
        """Whether that column keys the records and is none of the value's."""
        own = self._schema is not None and name in self._schema.names
        return name == (self._key or "key") and not own

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the data's columns to one of the log's."""
        columns = self._checked(batch)
        times = self._times(self._named(columns, self._timestamp, "timestamp"), len(batch))
        keys = self._keys(self._named(columns, self._key, "key"), len(batch))
        if self._schema is None:
            arrays = [times, keys, columns["value"]]
            headers = self._headers(columns.get("headers"))
            arrays += [] if headers is None else [headers]
        else:
            fields = list(self._schema)
            children = [
                columns[f.name] if f.name in columns else pa.nulls(len(batch), f.type)
                for f in fields
            ]
            arrays = [times, keys, pa.StructArray.from_arrays(children, fields=fields)]
        schema = columns_schema(self._value_type, headers=len(arrays) > 3)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _checked(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The data's columns by name, those of the topic in the topic's types."""
        self.check(batch.schema.names)
        columns = dict(zip(batch.schema.names, map(_plain, batch.columns), strict=True))
        if self._schema is None:
            return {**columns, "value": _utf8_or_bytes(columns["value"], self.where)}
        own = {f.name: f for f in self._schema}
        return {
            name: _fit(column, own[name], self.where) if name in own else column
            for name, column in columns.items()
        }

    def _named(
        self, columns: Mapping[str, pa.Array], name: str | None, argument: str
    ) -> pa.Array | None:
        """The column that the argument `key=` or `timestamp=` names, or None."""
        if name is None:
            own = self._schema is not None and argument in self._schema.names
            return None if own else columns.get(argument)
        if name not in columns:
            raise SchemaMismatch(
                f"{self.where}: {argument}={name!r} names no column; there are {', '.join(columns)}"
            )
        return columns[name]

    def _keys(self, column: pa.Array | None, length: int) -> pa.BinaryArray:
        return pa.nulls(length, pa.binary()) if column is None else encode_keys(column)

    def _times(self, column: pa.Array | None, length: int) -> pa.Int64Array:
        if column is None:
            return pa.repeat(pa.scalar(self._now_ms, pa.int64()), length)
        kind, name = column.type, self._timestamp or "timestamp"
        if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise SchemaMismatch(
                f"{self.where}: the timestamp column {name!r} must hold datetimes or integer "
                f"milliseconds, got {kind}"
            )
        if not pa.types.is_integer(kind):
            column = pc.cast(column, pa.timestamp("ms", getattr(kind, "tz", None)), safe=False)
        times = pc.cast(column, pa.int64())
        _refuse(times.is_null(), f"{self.where}: timestamp {name!r} is null")
        _refuse(pc.less(times, 0), f"{self.where}: timestamp {name!r} is before 1970")
        if pa.types.is_integer(kind):
            check_column(times, self._now_ms, f"{self.where}: timestamp {name!r}")
        return times

    def _headers(self, column: pa.Array | None) -> pa.Array | None:
        if column is None or column.null_count == len(column):
            return None
        headers = cast_column(column, HEADERS_TYPE, "headers", self.where)
        pairs = headers.flatten()
        if len(pairs) == 0:
            return None
        _refuse(pairs.field("key").is_null(), f"{self.where}: the name of a header is null")
        return headers


# A plain value that Arrow takes as it is, where MessagePack would turn it into text.
_NATIVE = (
    bytes,
    bytearray,
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
)


def _table(data: Any, layout: _Layout) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if type(data).__module__.partition(".")[0] == "pandas":
        # Otherwise the index comes along as a column.
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    if isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise InvalidRecord(
            f"{layout.where}: data to append is a DataFrame, Arrow data or a list of rows, got "
            f"{type(data).__name__}"
        )
    return _rows_table([as_mapping(row, layout.where) for row in data], layout)


def _rows_table(rows: Sequence[Mapping[str, Any]], layout: _Layout) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if rows:
        layout.check(names)
    arrays = []
    names = names or layout.first  # of rows without a field, each is a record even so
    for name in names:
        column = [row.get(name) for row in rows]
        if layout.is_key_beside(name):
            arrays.append(pa.array(map(encode_key, column), pa.binary()))
        else:
            arrays.append(_array(column, layout.type_of(name), name, layout.where))
    return pa.Table.from_arrays(arrays, names=names)


def _pieces(table: pa.Table) -> Iterator[pa.RecordBatch]:
    fitting = table.num_rows * PIECE_BYTES // max(1, table.nbytes)
    step = max(1, min(PIECE_ROWS, fitting))
    for start in range(0, table.num_rows, step):
        yield from table.slice(start, step).combine_chunks().to_batches()


def _plain(column: pa.Array) -> pa.Array:
    """Without dictionaries and views, which few of Arrow's functions know."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = _plain(column.dictionary)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    if pa.types.is_string_view(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_binary_view(kind):
        return pc.cast(column, pa.binary())
    return column


def _array(column: list[Any], kind: pa.DataType | None, name: str, where: str) -> pa.Array:
    """A list as an Arrow array of the type its values suggest, since pa.array truncates 1.5 to 1.

    Nested ones get `kind` at once: what they suggest depends on which fields happen to be set.
    """
    direct = kind is not None and (pa.types.is_nested(kind) or is_bytes(kind))
    try:
        return pa.array(column, kind) if direct else pa.array(column)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        expected = f", expected {kind}" if kind is not None else ""
        raise SchemaMismatch(f"{where}: column {name!r}{expected}: {error}") from error


def _fit(column: pa.Array, field: pa.Field, where: str, mask: pa.Array | None = None) -> pa.Array:
    """`column` in the type of `field`, with its nulls checked (but where `mask` is true)."""
    fitted = cast_column(column, field.type, field.name, where)
    if not field.nullable and fitted.null_count:
        null = fitted.is_null() if mask is None else pc.and_not(fitted.is_null(), mask)
        _refuse(null, f"{where}: column {field.name!r} ({field.type} not null) is null")
    return fitted


def cast_column(column: pa.Array, kind: pa.DataType, name: str, where: str) -> pa.Array:
    """`column` as another type of the same family. Raises SchemaMismatch if that loses something."""
    if column.type == kind:
        return column
    expected = f"{where}: column {name!r}: expected {kind}, got {column.type}"
    if not pa.types.is_null(column.type) and _family(column.type) != _family(kind):
        raise SchemaMismatch(f"{expected}; convert it first")
    try:
        return pc.cast(column, kind, safe=True)
    except pa.ArrowException as error:
        raise SchemaMismatch(f"{expected}, which loses something: {error}") from error


def _family(kind: pa.DataType) -> str:
    """Types between which a cast keeps the meaning of a value."""
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if is_text(kind):
        return "text"
    if is_bytes(kind):
        return "bytes"
    if types.is_timestamp(kind):
        return "zoned time" if kind.tz else "time"
    for same in (types.is_date, types.is_time, types.is_duration, types.is_nested):
        if same(kind):
            return str(same.__name__)
    return str(kind)


def _utf8_or_bytes(column: pa.Array, where: str) -> pa.BinaryArray:
    if is_text(column.type):
        return pc.cast(column, pa.binary())
    return cast_column(column, pa.binary(), "value", where)


def _refuse(bad: pa.BooleanArray, problem: str) -> None:
    """Raise if any is true, naming the first row."""
    row = pc.index(bad, pa.scalar(value=True)).as_py()
    if row >= 0:
        raise SchemaMismatch(f"{problem} in row {row}")
