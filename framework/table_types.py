"""Types of tables: columns of a topic in the types that Spark and table formats have.

They have fewer types than Arrow: signed numbers only, timestamps in microseconds, 32-bit offsets.
Fields within lists, maps and structs are converted too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.client.keys import is_list
from strandline.changelog.errors import InvalidRecord, SchemaMismatch
from strandline.changelog.records import Batch

INSTANT = pa.timestamp("us", tz="UTC")
"""Type of a moment in a table."""


def spark_type(kind: pa.DataType, name: str) -> pa.DataType:
    """Return the type in which Spark accepts a column of Arrow type `kind`.

    Raises SchemaMismatch, naming the column, if there is none.

    >>> spark_type(pa.large_string(), "x"), spark_type(pa.uint32(), "x")
    (DataType(string), DataType(int64))
    """
    if kind in _RENAMED:
        return _RENAMED[kind]
    for matches, convert in _CONVERTED:
        if matches(kind):
            return convert(kind, name)
    if kind not in _SAME:
        raise SchemaMismatch(
            f"column {name!r} has type {kind}, which Spark and table formats do not have"
        )
    return kind


def fit(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    """Return `column` in the type of `field`; finer timestamps are truncated to Spark's unit."""
    if column.type == field.type:
        return column
    try:
        return pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
    except pa.ArrowException as error:
        raise InvalidRecord(
            f"{where}: column {field.name!r} is {column.type} and cannot be read as "
            f"{field.type}: {error}"
        ) from error


def times_of(batch: Batch) -> pa.Array:
    """Return the times of a batch's records."""
    return batch.columns.column("timestamp").cast(pa.timestamp("ms", tz="UTC"))


def place_of(batch: Batch) -> str:
    """Return where a batch begins, as text for errors."""
    return f"{batch.topic}-{batch.partition} from offset {batch.base_offset}"


def check_distinct(names: Sequence[str], reader: str, instead: str) -> None:
    """Raise SchemaMismatch for names of columns that differ only in case.

    Args:
        names: Names of all columns.
        reader: System that ignores case, for the error.
        instead: Way out other than another name, for the error.
    """
    counts = Counter(name.lower() for name in names)
    alike = [name for name in names if counts[name.lower()] > 1]
    if alike:
        raise SchemaMismatch(
            f"the columns {' and '.join(map(repr, alike))} are the same for {reader}, which ignores "
            f"case; rename one, or {instead}"
        )


_SAME = {
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), pa.null()),
}
_RENAMED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def _instant(kind: pa.DataType, _name: str) -> pa.DataType:
    return pa.timestamp("us") if kind.tz is None else INSTANT


def _decimal(kind: pa.DataType, name: str) -> pa.DataType:
    if kind.precision > 38:
        raise SchemaMismatch(f"column {name!r} is {kind}; Spark's decimals have 38 digits at most")
    return pa.decimal128(kind.precision, kind.scale)


def _list(kind: pa.DataType, name: str) -> pa.DataType:
    return pa.list_(pa.field("element", spark_type(kind.value_type, name)))


def _struct(kind: pa.DataType, name: str) -> pa.DataType:
    return pa.struct([pa.field(f.name, spark_type(f.type, f"{name}.{f.name}")) for f in kind])


def _map(kind: pa.DataType, name: str) -> pa.DataType:
    return pa.map_(spark_type(kind.key_type, name), spark_type(kind.item_type, name))


_CONVERTED: list[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], pa.DataType]]
] = [
    (pa.types.is_timestamp, _instant),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_duration, lambda _kind, _name: pa.duration("us")),
    (pa.types.is_time, lambda _kind, _name: pa.time64("ns")),
    (pa.types.is_fixed_size_binary, lambda _kind, _name: pa.binary()),
    (pa.types.is_dictionary, lambda kind, name: spark_type(kind.value_type, name)),
    (is_list, _list),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
]
