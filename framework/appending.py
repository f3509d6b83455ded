"""`topic.append`: many records from outside of a task, in one go."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pyarrow as pa

from changelog.errors import InvalidRecord
from framework.columns import batch_of, outgoing
from framework.context import to_ms
from framework.topic import Topic

PIECE = 65_536
"""Records whose columns are built at a time."""


def append_to(topic: Topic[Any, Any], data: Any, timestamp: int | dt.datetime | None) -> int:
    """See `Topic.append`."""
    now = topic.app.clock.now_ms() if timestamp is None else to_ms(timestamp)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _append_table(topic, data, now)
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise InvalidRecord(
            f"topic {topic.name!r}: append takes records, a DataFrame or an Arrow table, got"
            f" {type(data).__name__}"
        )
    return _append_records(topic, iter(data), now)


def _append_table(topic: Topic[Any, Any], data: Any, now: int) -> int:
    with topic.app.producer() as producer:
        times = topic.timestamp_column or now
        appended = producer.append(topic.name, data, key=topic.key_column, timestamp=times)
    return sum(batch.last_offset - batch.base_offset + 1 for batch in appended)


def _append_records(topic: Topic[Any, Any], records: Any, now: int) -> int:
    total = 0
    with topic.app.producer() as producer:
        info = topic.app.broker.topic(topic.name)
        while piece := [_items(topic, record, now) for record in islice(records, PIECE)]:
            columns = _columns(topic, piece)
            producer.append_batches(outgoing(columns, info))
            total += len(piece)
    return total


def _items(topic: Topic[Any, Any], record: Any, now: int) -> tuple[Any, Any, int]:
    if isinstance(record, tuple) and len(record) in (2, 3):
        key, value, *rest = record
        return topic.checked_item(key, value, rest[0] if rest else None, now)
    if topic.key_column is not None:
        return topic.checked_item(None, record, None, now)
    raise InvalidRecord(
        f"topic {topic.name!r}: a record is (key, value) or (key, value, timestamp), got {record!r}"
    )


def _columns(topic: Topic[Any, Any], items: list[tuple[Any, Any, int]]) -> pa.RecordBatch:
    keys, values, timestamps = ([item[at] for item in items] for at in range(3))
    try:
        return batch_of(topic, topic.keys.encode(keys), topic.values.encode(values), timestamps)
    except (pa.ArrowException, UnicodeError, OverflowError, ValueError, TypeError):
        for item in items:
            topic.encode_one(*item)
        raise
