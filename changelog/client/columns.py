"""Converts rows, DataFrames and Arrow tables to the batches of columns that the log stores.

On a topic of bytes the data has a column (or field) `value`, and optionally `key`, `timestamp`
and `headers`. On a typed topic it has the columns of the topic's schema: missing nullable columns
are filled with nulls, and unknown columns are rejected.

The arguments `key=` and `timestamp=` name the columns with the keys and times of records. These
may be columns of the value or additional ones. By default they are `key` and `timestamp`, if the
value has no columns of these names. Keys are encoded by the rules of `changelog.client.keys`. A
timestamp is a datetime (UTC if no datetime of the column has a zone), a date, or integer
milliseconds, and all of a column are of one of these kinds. Columns are cast
to the topic's types if that loses nothing, and rejected otherwise; only a float in a column of a
shorter type is rounded (`casting`). Rows become columns by the same rules (`items`).

DataFrames of any library (polars, pandas, narwhals, pyarrow, DuckDB …) are read through the Arrow C
stream interface; none of these libraries is imported here.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import of_items, repeated
from strandline.changelog.client.casting import cast_column, check_nulls, plain, with_buffers
from strandline.changelog.client.given import given_table, is_table, native
from strandline.changelog.client.items import check_names, column_of
from strandline.changelog.client.keys import encode_key, encode_keys, is_text
from strandline.changelog.errors import InvalidRecord, SchemaMismatch
from strandline.changelog.records import HEADERS_TYPE, Headers, TopicInfo, columns_schema
from strandline.changelog.schema import value_type
from strandline.changelog.times import check_column

PIECE_ROWS = 1 << 20
"""Maximum rows of a piece; large data is converted piece by piece."""
PIECE_BYTES = 128 << 20
"""Approximate maximum bytes of a piece."""


def to_batches(
    data: Any,
    topic: TopicInfo,
    *,
    now_ms: int,
    key: str | None = None,
    timestamp: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield `data` as batches in the schema of `changelog.records`, in order.

    `data` is a DataFrame, an Arrow table or batch, or an iterable of rows (mappings,
    dataclasses, msgspec structs). `key` and `timestamp` name columns; records without a
    timestamp get `now_ms`. Raises SchemaMismatch, InvalidRecord.

    >>> topic = TopicInfo("flights", "", 1, {}, pa.schema([("carrier", pa.string())]), 1)
    >>> [batch] = to_batches([{"carrier": "AA"}], topic, now_ms=7, key="carrier")
    >>> batch.to_pylist()
    [{'timestamp': 7, 'key': b'AA', 'value': {'carrier': 'AA'}}]
    """
    layout = _Layout(topic, key, timestamp, now_ms)
    table = _table(data, layout)
    for name, column in zip(table.column_names, table.columns, strict=True):
        check_valid(column, name, layout.where)
    for piece in _pieces(_whole(table)):
        yield layout.convert(piece)


def check_valid(column: pa.ChunkedArray, name: str, where: str) -> None:
    """Raise InvalidRecord for Arrow data that contradicts its type, such as text that is no UTF-8.

    Arrow does not check it when it reads a Parquet file, for example. In the log it would be taken
    for damage, and could end the process that reads it.
    """
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRecord(
            f"{where}: column {name!r} is not valid {column.type}: {error}; decode or replace such values, "
            "or give the column as bytes"
        ) from error


def in_ms(times: pa.Array) -> pa.Int64Array:
    """Return datetimes, dates or integer milliseconds in milliseconds since the epoch.

    >>> in_ms(pa.array([1_500_000], pa.timestamp("us", "UTC"))).to_pylist()
    [1500]
    """
    kind = times.type
    if not pa.types.is_integer(kind):
        times = pc.cast(times, pa.timestamp("ms", getattr(kind, "tz", None)), safe=False)
    return pc.cast(times, pa.int64())


def check_columns(
    data: pa.Schema, topic: TopicInfo, *, key: str | None = None, timestamp: str | None = None
) -> None:
    """Raise SchemaMismatch if data with these columns does not fit the topic, whatever its values.

    >>> topic = TopicInfo("flights", "", 1, {}, pa.schema([("carrier", pa.string())]), 1)
    >>> check_columns(pa.schema([("carrier", pa.large_string())]), topic, key="carrier")
    """
    layout = _Layout(topic, key, timestamp, now_ms=0)
    layout.convert(pa.RecordBatch.from_pylist([], schema=data))


def batch_of(
    topic: TopicInfo,
    keys: Sequence[bytes | None],
    values: Sequence[Any],
    timestamps: Sequence[int],
    headers: Sequence[Headers] | None = None,
) -> pa.RecordBatch:
    """Return a batch of lists of equal length; values are bytes, or mappings on a typed topic.

    Raises SchemaMismatch, InvalidRecord.
    """
    where = f"topic {topic.name!r}"
    try:
        arrays = [of_items(timestamps, pa.int64()), of_items(keys, pa.binary())]
        if topic.schema is None:
            arrays.append(of_items(values, pa.binary()))
        else:
            arrays.append(struct_of(values, topic.schema, where))
        if headers is not None and any(headers):
            arrays.append(of_items(headers, HEADERS_TYPE))
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError) as error:
        raise InvalidRecord(f"{where}: records cannot be put into columns: {error}") from error
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise InvalidRecord(
            f"{where}: keys, values, timestamps and headers differ in length: {sorted(lengths)}"
        )
    schema = columns_schema(arrays[2].type, headers=len(arrays) > 3)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_mapping(row: Any, where: str) -> Mapping[str, Any]:
    """Return a row's fields by name. Raises InvalidRecord if `row` has no fields."""
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) or isinstance(row, msgspec.Struct):
        fields: dict[str, Any] = msgspec.to_builtins(row, builtin_types=_NATIVE)
        return fields
    raise InvalidRecord(
        f"{where}: a row is a mapping, a dataclass or a msgspec.Struct, got {type(row).__name__}"
    )


def required(schema: pa.Schema) -> list[str]:
    """Return the columns that every row must have."""
    return [field.name for field in schema if not field.nullable]


def struct_of(rows: Sequence[Any], schema: pa.Schema, where: str) -> pa.StructArray:
    """Return rows (mappings, or None for a tombstone) as a struct column. Raises SchemaMismatch."""
    absent = [row is None for row in rows]
    mask = pa.array(absent) if any(absent) else None
    names, needed = set(schema.names), required(schema)
    for row in rows:
        if row is not None and row.keys() != names:
            check_names(row, schema.names, needed, where)
    children = []
    for field in schema:
        column = [None if row is None else row.get(field.name) for row in rows]
        children.append(_fit(column_of(column, field.type, field.name, where), field, where, mask))
    return pa.StructArray.from_arrays(children, fields=list(schema), mask=mask)


class _Layout:
    """Mapping of the data's columns to those of the log, for one topic."""

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
        """Raise SchemaMismatch unless data may have exactly these columns."""
        check_names(names, self._known, self._required, self.where)

    def type_of(self, name: str) -> pa.DataType | None:
        """Return the type of a column, or None if the topic does not define it."""
        if self._schema is not None:
            index = self._schema.get_field_index(name)
            return self._schema.field(index).type if index >= 0 else None
        return HEADERS_TYPE if name == "headers" else None

    def is_key_beside(self, name: str) -> bool:
        """Return True if the column has the keys of records and is not a column of the value."""
        own = self._schema is not None and name in self._schema.names
        return name == (self._key or "key") and not own

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of the data's columns to a batch of the log's columns."""
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
        """Return the data's columns by name, the value's columns cast to the topic's types."""
        self.check(batch.schema.names)
        columns = dict(zip(batch.schema.names, map(plain, batch.columns), strict=True))
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
        """Return the column that the argument `key=` or `timestamp=` names, or None."""
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
            return repeated(self._now_ms, length)
        kind, name = column.type, self._timestamp or "timestamp"
        if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise SchemaMismatch(
                f"{self.where}: the timestamp column {name!r} must hold datetimes or integer "
                f"milliseconds, got {kind}"
            )
        times = in_ms(column)
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


# Types that Arrow stores as they are. msgspec would convert them to text by default.
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
    data = native(data)
    if is_table(data):
        return given_table(data, layout.type_of, layout.where)
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
    names = names or layout.first  # rows without any field are records too
    for name in names:
        column = [row.get(name) for row in rows]
        if layout.is_key_beside(name):
            arrays.append(of_items(map(encode_key, column), pa.binary()))
        else:
            arrays.append(column_of(column, layout.type_of(name), name, layout.where))
    return pa.Table.from_arrays(arrays, names=names)


def _pieces(table: pa.Table) -> Iterator[pa.RecordBatch]:
    fitting = table.num_rows * PIECE_BYTES // max(1, table.nbytes)
    step = max(1, min(PIECE_ROWS, fitting))
    for start in range(0, table.num_rows, step):
        yield from table.slice(start, step).combine_chunks().to_batches()


def _whole(table: pa.Table) -> pa.Table:
    columns = [
        pa.chunked_array(map(with_buffers, column.chunks), column.type) for column in table.columns
    ]
    return pa.Table.from_arrays(columns, table.column_names)


def _fit(column: pa.Array, field: pa.Field, where: str, mask: pa.Array | None = None) -> pa.Array:
    """Cast `column` to the type of `field`, and check its nulls except where `mask` is true."""
    fitted = cast_column(column, field.type, field.name, where)
    if not field.nullable and fitted.null_count:
        null = fitted.is_null() if mask is None else pc.and_not(fitted.is_null(), mask)
        _refuse(null, f"{where}: column {field.name!r} ({field.type} not null) is null")
    check_nulls(fitted, field.type, field.name, where)
    return fitted


def _utf8_or_bytes(column: pa.Array, where: str) -> pa.BinaryArray:
    if is_text(column.type):
        return pc.cast(column, pa.binary())
    return cast_column(column, pa.binary(), "value", where)


def _refuse(bad: pa.BooleanArray, problem: str) -> None:
    """Raise SchemaMismatch with the first row for which `bad` is true."""
    row = pc.index(bad, pa.scalar(value=True)).as_py()
    if row >= 0:
        raise SchemaMismatch(f"{problem} in row {row}")
