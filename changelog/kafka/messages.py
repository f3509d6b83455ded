"""Conversion of librdkafka's messages to columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
from confluent_kafka import Message

from strandline.changelog.records import HEADERS_TYPE, Batch, TopicPartition, columns_schema


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector in a `with` block that handles many messages.

    It would search for cycles after every few hundred new objects, which takes a fifth of the
    time. Messages have no cycles.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def batches_of(tp: TopicPartition, messages: Sequence[Message]) -> Iterator[Batch]:
    """Yield messages of one partition, at least one, as columns: a batch for each leader epoch."""
    if messages[0].leader_epoch() == messages[-1].leader_epoch():  # epochs never decrease
        yield _batch(tp, messages)
        return
    for _, group in groupby(messages, key=Message.leader_epoch):
        yield _batch(tp, list(group))


def _batch(tp: TopicPartition, messages: Sequence[Message]) -> Batch:
    columns = [
        pa.array(list(map(_WHEN, map(Message.timestamp, messages))), pa.int64()),
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
    ]
    heads = list(map(Message.headers, messages))
    has_headers = any(heads)
    if has_headers:
        pairs = [
            None if not one else [{"key": key, "value": value} for key, value in one]
            for one in heads
        ]
        columns.append(pa.array(pairs, HEADERS_TYPE))
    schema = columns_schema(pa.binary(), headers=has_headers)
    first, last = messages[0].offset(), messages[-1].offset()
    follow = last - first + 1 == len(messages)
    return Batch(
        *tp,
        first,
        pa.RecordBatch.from_arrays(columns, schema=schema),
        messages[0].leader_epoch() or 0,
        None if follow else pa.array(list(map(Message.offset, messages)), pa.int64()),
    )


_WHEN = itemgetter(1)
"""Function that returns the time in ms of a message's `timestamp()`, a pair of type and time."""
