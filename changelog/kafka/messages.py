"""Conversion of librdkafka's messages to columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from strandline.changelog.arrays import of_items
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
        of_items(map(_WHEN, map(Message.timestamp, messages)), pa.int64()),
        of_items(map(Message.key, messages), pa.binary()),
        of_items(map(Message.value, messages), pa.binary()),
    ]
    heads = _headers(messages)
    has_headers = any(heads)
    if has_headers:
        pairs = [
            None if not one else [{"key": key, "value": value} for key, value in one]
            for one in heads
        ]
        columns.append(of_items(pairs, HEADERS_TYPE))
    schema = columns_schema(pa.binary(), headers=has_headers)
    first, last = messages[0].offset(), messages[-1].offset()
    follow = last - first + 1 == len(messages)
    return Batch(
        *tp,
        first,
        pa.RecordBatch.from_arrays(columns, schema=schema),
        messages[0].leader_epoch() or 0,
        None if follow else of_items(map(Message.offset, messages), pa.int64()),
    )


def _headers(messages: Sequence[Message]) -> list[Any]:
    """Return the headers of messages as pairs of name and value; None for a message without any."""
    try:
        return list(map(Message.headers, messages))
    except SystemError:  # a message has a header whose name is not UTF-8
        return list(map(_readable_headers, messages))


def _readable_headers(message: Message) -> list[tuple[str, bytes | None]] | None:
    """Return the headers of a message; names that are not UTF-8 become `UNREADABLE_NAME`."""
    with suppress(SystemError):
        message.headers()
    # confluent-kafka raises once. Then it returns such a header as a tuple with a null pointer in
    # place of the name. Touching that would end the process; the garbage collector passes over it.
    found: Any = message.headers()
    if found is None:
        return None
    return [
        (pair[0] if len(gc.get_referents(pair)) == 2 else UNREADABLE_NAME, pair[1])
        for pair in found
    ]


UNREADABLE_NAME = "\ufffd"
"""Name of a header whose name is not UTF-8, which confluent-kafka cannot read."""

_WHEN = itemgetter(1)
"""Function that returns the time in ms of a message's `timestamp()`, a pair of type and time."""
