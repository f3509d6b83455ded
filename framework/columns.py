"""Columns in the form that the log takes: built, extended to the topic's schema, split by
partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.errors import InvalidRecord, SchemaMismatch
from strandline.changelog.records import (
    HEADERS_TYPE,
    Headers,
    TopicInfo,
    TopicPartition,
    columns_schema,
)
from strandline.changelog.schema import upgrade, value_type
from strandline.framework.formats.codecs import UNENCODABLE
from strandline.framework.topic_declaration import TopicDeclaration

if TYPE_CHECKING:
    from strandline.changelog.client.producer import Producer

Outgoing = tuple[TopicPartition, pa.RecordBatch, int]
"""A partition, the columns to append to it, and the id of their schema."""


def batch_of(
    topic: TopicDeclaration,
    keys: pa.Array,
    values: pa.Array,
    timestamps: Any,
    headers: dict[int, Headers] | None = None,
) -> pa.RecordBatch:
    """Return keys, values, timestamps and headers as one batch for the log."""
    arrays = [of_items(timestamps, pa.int64()), keys, values]
    if headers:
        arrays.append(_headers_column(headers, len(keys)))
    return pa.RecordBatch.from_arrays(
        arrays, schema=columns_schema(topic.values.arrow, headers=bool(headers))
    )


def one_record(
    topic: TopicDeclaration, key: Any, value: Any, timestamp: int, headers: Headers = ()
) -> pa.RecordBatch:
    """Return the columns of one record, given as items of the codecs. Raise InvalidRecord."""
    try:
        keys, values = topic.keys.encode([key]), topic.values.encode([value])
        return batch_of(topic, keys, values, [timestamp], {0: headers} if headers else None)
    except (MemoryError, SchemaMismatch):
        raise
    except UNENCODABLE as error:
        raise InvalidRecord(
            f"topic {topic.name!r}: the record with key {key!r} cannot be stored: {error}"
        ) from error


def outgoing(columns: pa.RecordBatch, info: TopicInfo, producer: Producer) -> Iterator[Outgoing]:
    """Yield an app's columns as appends by `producer` to the partitions of a topic.

    If the schema of a typed topic has been extended since the app was written, columns that the app
    does not know are null.
    """
    upgraded = upgrade(columns, value_type(info.schema))
    for partition, part in producer.partitioned(info.name, upgraded):
        yield partition, part, info.schema_id


def outgoing_to_all(
    columns: pa.RecordBatch, info: TopicInfo, _producer: Producer
) -> Iterator[Outgoing]:
    """Yield an app's columns as one append to each partition of a topic."""
    upgraded = upgrade(columns, value_type(info.schema))
    for number in range(info.partitions):
        yield TopicPartition(info.name, number), upgraded, info.schema_id


def _headers_column(headers: dict[int, Headers], length: int) -> pa.Array:
    rows = [
        [{"key": name, "value": value} for name, value in headers.get(at, ())]
        for at in range(length)
    ]
    return of_items(rows, HEADERS_TYPE)
