"""Implementation of `Topic.append`: many records from outside of a task in one call."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import pyarrow as pa

from strandline.changelog.client.columns import to_batches
from strandline.changelog.client.producer import Producer
from strandline.changelog.errors import InvalidRecord, SchemaMismatch
from strandline.changelog.records import columns_schema
from strandline.changelog.times import to_ms
from strandline.framework.columns import batch_of, one_record, outgoing
from strandline.framework.formats.codecs import UNENCODABLE, TypedCodec
from strandline.framework.formats.wire import conform
from strandline.framework.topic_declaration import TopicDeclaration

APPEND_RECORDS = 65_536
"""Maximum number of records whose columns are built at a time, to bound memory."""


def append_to(topic: TopicDeclaration, data: Any, timestamp: int | dt.datetime | None) -> int:
    """Append data to a topic and return the number of records; see `Topic.append`."""
    now = topic.session.clock.now_ms()
    if timestamp is not None:
        now = to_ms(timestamp, now)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _append_table(topic, data, now)
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise InvalidRecord(
            f"topic {topic.name!r}: append takes records, a DataFrame or an Arrow table, got"
            f" {type(data).__name__}"
        )
    return _append_records(topic, iter(data), now)


def _append_table(topic: TopicDeclaration, data: Any, now: int) -> int:
    with topic.session.appending() as producer:
        if topic.schema is not topic.stored_schema or topic.key_serde is not None:
            return _append_formed(topic, producer, data, now)
        times = topic.timestamp_column or now
        appended = producer.append(topic.name, data, key=topic.key_column, timestamp=times)
    return sum(batch.last_offset - batch.base_offset + 1 for batch in appended)


def _append_formed(topic: TopicDeclaration, producer: Producer, data: Any, now: int) -> int:
    """Append a table to a topic whose values or keys have a serde of their own."""
    info = topic.session.broker().topic(topic.name)
    table, keys = _with_own_keys(topic, data)
    described = replace(info, schema=topic.schema, schema_id=0)
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
        schema = columns_schema(topic.values.arrow, headers=len(arrays) > 3)
        formed = pa.RecordBatch.from_arrays(arrays, schema=schema)
        producer.append_batches(outgoing(formed, info, producer))
        total += len(columns)
    return total


def _formed(topic: TopicDeclaration, values: pa.Array) -> pa.Array:
    try:
        return topic.typed.from_columns(values)
    except InvalidRecord as error:
        raise type(error)(f"topic {topic.name!r}: {error}") from error


def _with_own_keys(topic: TopicDeclaration, data: Any) -> tuple[pa.Table, pa.Array | None]:
    """Return a table and, if the topic has a `key_serde`, its keys encoded by it."""
    if type(data).__module__.partition(".")[0] == "pandas":
        # Otherwise pandas adds the index as a column.
        table = pa.Table.from_pandas(data, preserve_index=False)
    else:
        table = pa.table(data)
    name = topic.key_column or "key"
    if topic.key_serde is None or name not in table.column_names:
        return table, None
    column = table[name].combine_chunks()
    kept = table if topic.key_column else table.drop_columns(["key"])
    if topic.keys.rows is not None:
        fields = conform(column, topic.keys.rows.arrow, name)
        return kept, cast("TypedCodec", topic.keys).from_columns(fields)
    items = [None if key is None else topic.keys.item(key) for key in column.to_pylist()]
    return kept, topic.keys.encode(items)


def _append_records(topic: TopicDeclaration, records: Any, now: int) -> int:
    total = 0
    with topic.session.appending() as producer:
        info = topic.session.broker().topic(topic.name)
        while piece := [_items(topic, record, now) for record in islice(records, APPEND_RECORDS)]:
            columns = _columns(topic, piece)
            producer.append_batches(outgoing(columns, info, producer))
            total += len(piece)
    return total


def _items(topic: TopicDeclaration, record: Any, now: int) -> tuple[Any, Any, int]:
    if isinstance(record, tuple) and len(record) in (2, 3):
        key, value, *rest = record
        return topic.checked_item(key, value, rest[0] if rest else None, now)
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
