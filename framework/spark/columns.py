"""Records as Spark's columns: the schema of a topic, and batches of the log in that schema.

A topic of bytes has the columns of Spark's Kafka source: key and value (binary), topic, partition,
offset, timestamp, and headers on request. A typed topic has its own columns; with `includeMetadata`
it also has key, topic, partition, offset and timestamp. A tombstone of a typed topic is a row of
nulls.

Spark has fewer types than Arrow, and from 4.2 on compares schemas exactly. Every column is
therefore cast: 32-bit offsets, signed numbers, microseconds in UTC, everything nullable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

import numpy as np
import pyarrow as pa

from strandline.changelog.arrays import repeated
from strandline.changelog.client.keys import is_list
from strandline.changelog.errors import InvalidConfig, SchemaMismatch
from strandline.changelog.records import HEADERS_TYPE, Batch, TopicInfo
from strandline.framework.table_types import (
    INSTANT,
    fit,
    place_of,
    spark_type,
    times_of,
)

SIZED_BYTES = 32 << 20
"""Bytes from which batches are passed on, however few rows they have."""

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
    beside = list(METADATA.items()) if metadata and topic.schema is not None else []
    beside += [("headers", HEADERS_TYPE)] if headers else []
    if topic.schema is None:
        known = METADATA | {"value": pa.binary()}
        fields = [pa.field(name, known[name]) for name in _BYTES_COLUMNS]
    else:
        fields = [pa.field(f.name, spark_type(f.type, f.name)) for f in topic.schema]
    taken = {name for name, _ in beside}
    if twice := [field.name for field in fields if field.name.lower() in taken]:
        raise InvalidConfig(
            f"topic {topic.name!r} has columns of its own called {', '.join(twice)}: "
            "leave out includeMetadata and includeHeaders, or give a .schema(…), in which these names "
            "are the metadata"
        )
    return pa.schema([*fields, *beside])


def metadata_names(topic: TopicInfo, *, metadata: bool, headers: bool) -> frozenset[str]:
    """Return the names that are columns of metadata in a read of a topic.

    A topic's own column hides one of metadata with its name, unless the read asks for metadata. So
    a column that is added to the topic does not replace the metadata of such a read.
    """
    asked = {*(METADATA if metadata else ()), *(("headers",) if headers else ())}
    hidden = set() if topic.schema is None else {*topic.schema.names} - asked
    return frozenset(_FROM_BATCH.keys() - hidden)


def check_columns(
    topics: list[TopicInfo], target: pa.Schema, metadata: Mapping[str, frozenset[str]]
) -> None:
    """Raise InvalidConfig if a given schema has columns or fields that none of the topics has.

    A column of the topic that older records lack is null in them. Any other column would be null in
    all records.

    Args:
        topics: Topics of the read.
        target: Columns of the read.
        metadata: Names of metadata by topic (`metadata_names`).
    """
    known: dict[str, list[pa.DataType]] = {}
    for topic in topics:
        for name, kind in _types(topic, metadata[topic.name]).items():
            known.setdefault(name, []).append(kind)
    names = ", ".join(topic.name for topic in topics)
    check_names(f"topic {names}", target, known)
    check_fields(f"topic {names}", target, known)


def _types(topic: TopicInfo, metadata: frozenset[str]) -> dict[str, pa.DataType]:
    """Return the types of all columns of a topic and of its metadata."""
    schema = pa.schema([("value", pa.binary())]) if topic.schema is None else topic.schema
    known = METADATA | {"headers": HEADERS_TYPE}
    return {field.name: field.type for field in schema} | {name: known[name] for name in metadata}


def check_names(what: str, target: pa.Schema, known: Collection[str]) -> None:
    """Raise InvalidConfig if a given schema has no columns, or others than the known ones of `what`."""
    if not target.names:
        raise InvalidConfig(
            f"the schema has no columns, so the rows of {what} could not be counted; name at least "
            f"one of {', '.join(sorted(known))}"
        )
    unknown = [name for name in target.names if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its columns: {', '.join(sorted(known))}"
        raise InvalidConfig(
            f"{what} has no column {', '.join(unknown)}, which the schema names; {hint}"
        )


def check_fields(what: str, target: pa.Schema, known: Mapping[str, Sequence[pa.DataType]]) -> None:
    """Raise InvalidConfig if a column of a given schema has fields that no known type of it has.

    Arrow would make a column of nulls of such a field.
    """
    unknown = [
        pair
        for field in target
        for pair in _unknown_fields(field.type, known.get(field.name, ()), field.name)
    ]
    if unknown:
        path, others = unknown[0]
        parent, _, name = path.rpartition(".")
        near = get_close_matches(name, [each.removeprefix(f"{parent}.") for each in others], n=1)
        there = f"its fields: {', '.join(others)}"
        hint = f"did you mean {f'{parent}.{near[0]}'!r}?" if near else there
        paths = ", ".join(each for each, _ in unknown)
        raise InvalidConfig(f"{what} has no field {paths}, which the schema names; {hint}")


def _unknown_fields(
    kind: pa.DataType, known: Sequence[pa.DataType], path: str
) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each field that no known type has, and the paths that are known there.

    Paths are named as in Spark: `element` of an array, `key` and `value` of a map.
    """
    if pa.types.is_struct(kind):
        structs = [each for each in known if pa.types.is_struct(each)]
        others = sorted({f"{path}.{name}" for each in structs for name in each.names})
        for field in kind if structs else ():
            at, name = f"{path}.{field.name}", field.name
            if at in others:
                inner = [e.field(e.names.index(name)).type for e in structs if name in e.names]
                yield from _unknown_fields(field.type, inner, at)
            else:
                yield at, others
    elif pa.types.is_map(kind):
        maps = [each for each in known if pa.types.is_map(each)]
        yield from _unknown_fields(kind.key_type, [m.key_type for m in maps], f"{path}.key")
        yield from _unknown_fields(kind.item_type, [m.item_type for m in maps], f"{path}.value")
    elif is_list(kind):
        items = [each.value_type for each in known if is_list(each)]
        yield from _unknown_fields(kind.value_type, items, f"{path}.element")


def to_rows(batch: Batch, target: pa.Schema, metadata: frozenset[str]) -> pa.RecordBatch:
    """Return a batch of the log in the columns of `target`, which may be a part of the topic's.

    Args:
        batch: Batch, which may lack columns that `target` does not name (`changelog.selection`),
            and own columns of the topic that were added after its records.
        target: Columns of the read.
        metadata: Names of columns of metadata (`metadata_names`); the others are the topic's own.
    """
    values = _values(batch)
    arrays = [
        _metadata(batch, field) if field.name in metadata else _own(batch, field, values)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _values(batch: Batch) -> dict[str, pa.Array]:
    """Return the topic's own columns that a batch has; of a batch without values, none."""
    if batch.columns.schema.get_field_index("value") < 0:
        return {}
    value = batch.columns.column("value")
    if not pa.types.is_struct(value.type):
        return {"value": value}
    return dict(zip(value.type.names, value.flatten(), strict=True))


def to_sized_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at least `rows` rows or `SIZED_BYTES` bytes.

    The last batch, and the last before a change of the columns, may be smaller. A batch that is
    large enough is passed on without a copy.
    """
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if waiting and batch.schema != waiting[0].schema:
            yield _joined(waiting)
            waiting, count, size = [], 0, 0
        waiting.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= rows or size >= SIZED_BYTES:
            yield _joined(waiting)
            waiting, count, size = [], 0, 0
    if count:
        yield _joined(waiting)


def _own(batch: Batch, field: pa.Field, values: Mapping[str, pa.Array]) -> pa.Array:
    if field.name not in values:  # added after these records, or a column of another topic
        return pa.nulls(len(batch), field.type)
    return fit(values[field.name], field, place_of(batch))


def _metadata(batch: Batch, field: pa.Field) -> pa.Array:
    return fit(_FROM_BATCH[field.name](batch), field, place_of(batch))


_FROM_BATCH: dict[str, Callable[[Batch], pa.Array]] = {
    "key": lambda batch: batch.columns.column("key"),
    "topic": lambda batch: pa.repeat(pa.scalar(batch.topic), len(batch)),
    "partition": lambda batch: repeated(batch.partition, len(batch), np.int32),
    "offset": lambda batch: batch.offsets,
    "timestamp": times_of,
    "headers": lambda batch: batch.headers,
}


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
