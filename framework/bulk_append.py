"""Implementation of `Topic.append`: many records from outside of a task in one call."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import pyarrow as pa

from strandline.changelog.client.columns import check_valid, to_batches
from strandline.changelog.client.given import given_table, is_table, native
from strandline.changelog.errors import InvalidRecord, SchemaMismatch
from strandline.changelog.records import TopicInfo, columns_schema
from strandline.changelog.times import to_ms
from strandline.framework.columns import batch_of, one_record, outgoing
from strandline.framework.formats.codecs import UNENCODABLE, Codec, TypedCodec, from_column
from strandline.framework.formats.wire import conform
from strandline.framework.topic_declaration import TopicDeclaration

APPEND_RECORDS = 65_536
"""Maximum number of records whose columns are built at a time, to bound memory."""


def append_to(topic: TopicDeclaration, data: Any, timestamp: int | dt.datetime | None) -> int:
    """Append data to a topic and return the number of records; see `Topic.append`."""
    now = topic.session.clock.now_ms()
    if timestamp is not None:
        now = to_ms(timestamp, now)
    data = native(data)
    if is_table(data):
        return _append_table(topic, data, now)
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise InvalidRecord(
            f"topic {topic.name!r}: append takes records, a DataFrame or an Arrow table, got"
            f" {type(data).__name__}"
        )
    return _append_records(topic, iter(data), now)


def _append_table(topic: TopicDeclaration, data: Any, now: int) -> int:
    total = 0
    with topic.session.appending(topic.name) as producer:
        info = topic.session.broker().topic(topic.name)
        # Columns that were added to the topic since the app was written may be given too.
        schema = topic.schema if topic.stored_schema is None else info.schema
        for columns in stored_columns(topic, data, now, schema):
            producer.append_batches(outgoing(columns, info, producer))
            total += len(columns)
    return total


def stored_columns(
    topic: TopicDeclaration,
    data: Any,
    now: int,
    schema: pa.Schema | None,
    keys: pa.Array | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a table as batches in the form in which the log holds the topic's records.

    Args:
        topic: Topic to which the records belong.
        data: Data frame or Arrow table, as `Topic.append` takes it.
        now: Time of records without one, in milliseconds since the epoch.
        schema: Columns that the value of a typed topic has; None if values are not typed.
        keys: Keys in the form of the log; None takes them from a column of the table.

    Raises:
        SchemaMismatch: The columns do not fit those of the topic.
        InvalidRecord: A key or a value is not of the topic's type.
    """
    table = _table(data, topic, schema)
    if keys is None:
        table, keys = _with_own_keys(topic, table)
    if topic.rows is None and "value" in table.column_names:
        at = table.schema.get_field_index("value")
        check_valid(table["value"], "value", f"topic {topic.name!r}")
        values = _stored(topic, "value", topic.values, table["value"])
        table = table.set_column(at, "value", values)
    described = TopicInfo(topic.name, "", 1, {}, schema)
    total = 0
    for columns in to_batches(
        *(table, described), now_ms=now, key=topic.key_column, timestamp=topic.timestamp_column
    ):
        values = columns.column("value")
        if topic.rows is not None:
            values = _formed(topic, values)
        arrays = [columns.column("timestamp"), columns.column("key"), values, *columns.columns[3:]]
        if keys is not None:
            arrays[1] = keys.slice(total, len(columns))
        layout = columns_schema(values.type, headers=len(arrays) > 3)
        yield pa.RecordBatch.from_arrays(arrays, schema=layout)
        total += len(columns)


def _table(data: Any, topic: TopicDeclaration, schema: pa.Schema | None) -> pa.Table:
    types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    return given_table(data, types.get, f"topic {topic.name!r}")


def _formed(topic: TopicDeclaration, values: pa.Array) -> pa.Array:
    try:
        return topic.typed.from_columns(values)
    except InvalidRecord as error:
        raise type(error)(f"topic {topic.name!r}: {error}") from error


def _with_own_keys(topic: TopicDeclaration, table: pa.Table) -> tuple[pa.Table, pa.Array | None]:
    """Return the table for `to_batches`, and the stored keys if it would not make them.

    It makes those of a column of the value, unless they have a serde of their own.
    """
    name = topic.key_column or "key"
    if name not in table.column_names or (topic.key_column and topic.key_serde is None):
        return table, None
    check_valid(table[name], name, f"topic {topic.name!r}")
    column = table[name].combine_chunks()
    kept = table if topic.key_column else table.drop_columns(["key"])
    if topic.keys.rows is not None:
        fields = conform(column, topic.keys.rows.arrow, name)
        return kept, cast("TypedCodec", topic.keys).from_columns(fields)
    return kept, _stored(topic, name, topic.keys, column)


def _stored(topic: TopicDeclaration, name: str, codec: Codec, column: Any) -> pa.Array:
    """Return a column of keys or values as the log holds them; bytes are taken as they are."""
    try:
        return from_column(codec, column)
    except UNENCODABLE as error:
        raise InvalidRecord(
            f"topic {topic.name!r}: the column {name!r} ({column.type}) cannot be stored: {error}"
        ) from error


def _append_records(topic: TopicDeclaration, records: Any, now: int) -> int:
    total = 0
    with topic.session.appending(topic.name) as producer:
        info = topic.session.broker().topic(topic.name)
        while piece := [_items(topic, record, now) for record in islice(records, APPEND_RECORDS)]:
            columns = _columns(topic, piece)
            producer.append_batches(outgoing(columns, info, producer))
            total += len(piece)
    return total


def _items(topic: TopicDeclaration, record: Any, now: int) -> tuple[Any, Any, int]:
    if isinstance(record, tuple) and len(record) in (2, 3):
        key, value, *rest = record
        try:
            return topic.checked_item(key, value, rest[0] if rest else None, now)
        except InvalidRecord as error:
            if topic.key_column is None:
                raise
            raise type(error)(
                f"{error}; a tuple is (key, value) or (key, value, timestamp), and its key may be "
                f"None, because the column {topic.key_column!r} has it"
            ) from None
    if topic.key_column is not None:
        return topic.checked_item(None, record, None, now)
    raise InvalidRecord(
        f"topic {topic.name!r}: a record is (key, value) or (key, value, timestamp), got {record!r}"
    )


def _columns(topic: TopicDeclaration, items: list[tuple[Any, Any, int]]) -> pa.RecordBatch:
    """Return the columns of checked items; the error names the record that cannot be stored."""
    keys, values, timestamps = ([item[at] for item in items] for at in range(3))
    try:
        return batch_of(topic, topic.keys.encode(keys), topic.values.encode(values), timestamps)
    except (MemoryError, SchemaMismatch):
        raise
    except UNENCODABLE:
        for item in items:
            one_record(topic, *item)
        raise
