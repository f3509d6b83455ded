"""Records as Spark's columns: the schema of a topic, and batches of the log in that schema.

A topic of bytes has the columns of Spark's Kafka source: key and value (binary), topic, partition,
offset, timestamp, and headers on request. A typed topic has its own columns; with `includeMetadata`
it also has key, topic, partition, offset and timestamp. A tombstone of a typed topic is a row of
nulls.

Spark has fewer types than Arrow, and from 4.2 on compares schemas exactly. Every column is
therefore cast: 32-bit offsets, signed numbers, microseconds in UTC, everything nullable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.errors import InvalidConfig, InvalidRecord, SchemaMismatch
from strandline.changelog.records import HEADERS_TYPE, Batch, TopicInfo

INSTANT = pa.timestamp("us", tz="UTC")
"""Type of a timestamp in Spark."""

METADATA = {
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": INSTANT,
}
"""Columns of every record, named as in Spark's Kafka source."""

_BYTES_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


def topics_schema(
    topics: list[TopicInfo], *, metadata: bool = False, headers: bool = False
) -> pa.Schema:
    """Return the schema of reading several topics at once, in types that Spark has.

    Raises SchemaMismatch for topics that differ, InvalidConfig for columns of the same name.
    """
    first, *others = topics
    schema = topic_schema(first, metadata=metadata, headers=headers)
    for other in others:
        if topic_schema(other, metadata=metadata, headers=headers) != schema:
            raise SchemaMismatch(
                f"topics {first.name!r} and {other.name!r} have different columns; "
                "read them one by one, and unionByName the results"
            )
    return schema


def topic_schema(topic: TopicInfo, *, metadata: bool, headers: bool) -> pa.Schema:
    """Return the schema of reading one topic."""
    if topic.schema is None:
        known = METADATA | {"value": pa.binary()}
        fields = [pa.field(name, known[name]) for name in _BYTES_COLUMNS]
    else:
        fields = [pa.field(f.name, spark_type(f.type, f.name)) for f in topic.schema]
        if metadata:
            fields += [pa.field(name, kind) for name, kind in METADATA.items()]
    if headers:
        fields.append(pa.field("headers", HEADERS_TYPE))
    schema = pa.schema(fields)
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise InvalidConfig(
            f"topic {topic.name!r} has columns of its own called {', '.join(twice)}: "
            "leave out includeMetadata and includeHeaders"
        )
    return schema


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
        raise SchemaMismatch(f"column {name!r} has type {kind}, which Spark does not have")
    return kind


def to_rows(batch: Batch, target: pa.Schema) -> pa.RecordBatch:
    """Return a batch of the log in the columns of `target`, which may be a part of the topic's.

    The batch may lack columns that `target` does not name (`changelog.selection`).
    """
    own = _own(batch)
    arrays = [_column(batch, field, own) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _own(batch: Batch) -> dict[str, pa.Array]:
    """Return the topic's own columns in a batch; of a batch without values, none."""
    if batch.columns.schema.get_field_index("value") < 0:
        return {}
    value = batch.columns.column("value")
    if not pa.types.is_struct(value.type):
        return {"value": value}
    return dict(zip(value.type.names, value.flatten(), strict=True))


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


def to_sized_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at least `rows`, except for the last one.

    A batch that is large enough is passed on without a copy.
    """
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if not waiting and batch.num_rows >= rows:
            yield batch
            continue
        waiting.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield _joined(waiting)
            waiting, count = [], 0
    if count:
        yield _joined(waiting)


def _column(batch: Batch, field: pa.Field, own: dict[str, pa.Array]) -> pa.Array:
    where = f"{batch.topic}-{batch.partition} from offset {batch.base_offset}"
    if field.name in own:
        return fit(own[field.name], field, where)
    if (make := _FROM_BATCH.get(field.name)) is not None:
        return fit(make(batch), field, where)
    return pa.nulls(len(batch), field.type)


def _timestamps(batch: Batch) -> pa.Array:
    return batch.columns.column("timestamp").cast(pa.timestamp("ms", tz="UTC"))


def _headers(batch: Batch) -> pa.Array:
    index = batch.columns.schema.get_field_index("headers")
    return pa.nulls(len(batch), HEADERS_TYPE) if index < 0 else batch.columns.column(index)


_FROM_BATCH: dict[str, Callable[[Batch], pa.Array]] = {
    "key": lambda batch: batch.columns.column("key"),
    "topic": lambda batch: pa.repeat(pa.scalar(batch.topic), len(batch)),
    "partition": lambda batch: pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch)),
    "offset": lambda batch: batch.offsets,
    "timestamp": _timestamps,
    "headers": _headers,
}


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


# Types ------------------------------------------------------------------------------------

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


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


_CONVERTED: list[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], pa.DataType]]
] = [
    (pa.types.is_timestamp, _instant),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_duration, lambda _kind, _name: pa.duration("us")),
    (pa.types.is_time, lambda _kind, _name: pa.time64("ns")),
    (pa.types.is_fixed_size_binary, lambda _kind, _name: pa.binary()),
    (pa.types.is_dictionary, lambda kind, name: spark_type(kind.value_type, name)),
    (_is_list, _list),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
]
