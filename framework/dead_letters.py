"""Dead letters, and putting them back where they came from.

A dead letter has the headers of its record, followed by those that say what failed and where the
record is. Putting it back appends the record to the partition that it came from, with its own key,
value, time and headers, so that the app handles it again. The positions of the letters that were
put back are committed in the same transaction, for the group `<topic>-retry`: each is put back once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.client.consumer import Consumer
from strandline.changelog.client.producer import Producer
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.records import HEADERS_TYPE, Batch, TopicPartition
from strandline.changelog.scan import scan_batches
from strandline.changelog.schema import upgrade, value_type
from strandline.framework.dead_letter_names import (
    ERROR_LEFT_OUT,
    ERROR_TYPE,
    FAUST_DEAD_LETTER,
    FAUST_ERROR,
    FAUST_ORIGIN,
    ORIGIN,
)
from strandline.statestore.internal_names import DEAD_LETTER

ENDINGS = (DEAD_LETTER, FAUST_DEAD_LETTER)
"""Endings of the names of dead-letter topics: of an app's tasks, and of Faust's topics."""
_FIRST_HEADERS = (ERROR_TYPE, FAUST_ERROR)
"""First of the headers that follow those of the record itself."""
_ORIGINS = (ORIGIN, FAUST_ORIGIN)
"""Beginnings of the names of the headers that say where the record is."""
BATCH_RECORDS = 10_000
"""Maximum number of letters in a transaction."""


class Letter(NamedTuple):
    """A dead letter: where its record is, and the record's own headers."""

    topic: str
    """Topic of the record; "" for a letter of a timer or window."""
    partition: int
    offset: int
    headers: list[tuple[str, bytes | None]]
    is_whole: bool
    """False if the log had no room for the record's value."""


@dataclass(frozen=True)
class Retried:
    """Result of putting letters back."""

    records: dict[str, int]
    """Number of records put back, by topic."""
    left: int
    """Number of letters that have no record to put back.

    They are of timers and windows, or are without the record's value, and the record was deleted.
    """


def group_of(topic: str) -> str:
    """Return the group whose committed offsets tell which letters of a topic were put back."""
    return f"{topic}-retry"


def retry(broker: Broker, topic: str) -> Retried:
    """Put the letters that a dead-letter topic has now back into their topics, each once.

    Args:
        broker: The log.
        topic: Dead-letter topic of a task, or of a topic of a Faust app.

    Raises:
        InvalidRequest: It is no dead-letter topic.
        UnknownTopic: The topic, or one that a letter came from, does not exist.
        ProducerFenced: Another process puts the same letters back.
    """
    if not topic.endswith(ENDINGS):
        raise InvalidRequest(
            f"{topic!r} is no dead-letter topic; the name of one ends with "
            f"{' or '.join(ENDINGS)}: see `strandline dead-letters list`"
        )
    group, put_back, left = group_of(topic), dict[str, int](), 0
    partitions = [TopicPartition(topic, n) for n in range(broker.topic(topic).partitions)]
    with (
        Producer(broker, transactional_id=group) as producer,
        Consumer(broker, group=group, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            batches = consumer.poll(1.0, max_records=BATCH_RECORDS)
            with producer.transaction():
                for batch in batches:
                    found = list(_records_of(broker, batch))
                    producer.append_batches(found)
                    for tp, columns, _ in found:
                        put_back[tp.topic] = put_back.get(tp.topic, 0) + len(columns)
                    left += len(batch) - sum(len(columns) for _, columns, _ in found)
                producer.send_offsets_to_transaction(consumer.positions(), group)
    return Retried(put_back, left)


def waiting(broker: Broker, topic: str) -> int:
    """Return the number of letters of a topic that were not put back."""
    partitions = [TopicPartition(topic, n) for n in range(broker.topic(topic).partitions)]
    bounds = broker.offsets(partitions)
    done = broker.committed(group_of(topic), partitions, require_stable=False)
    at = {tp: done[tp].offset if tp in done else bounds[tp].log_start for tp in partitions}
    ends = {tp: bounds[tp].last_stable_offset for tp in partitions}
    return sum(len(batch) for batch in scan_batches(broker, at, ends))


def _records_of(
    broker: Broker, batch: Batch
) -> Iterator[tuple[TopicPartition, pa.RecordBatch, int]]:
    """Yield the records of letters, in runs of one partition, with the version of their schema."""
    start = 0
    for _, run in groupby(_letters(batch), _run_of):
        letters = list(run)
        columns = batch.columns.slice(start, len(letters))
        start += len(letters)
        first = letters[0]
        if not first.topic:
            continue
        info = broker.topic(first.topic)
        tp = TopicPartition(first.topic, first.partition)
        found = _with_headers(columns, letters) if first.is_whole else _original(broker, first)
        if found is not None:
            yield tp, upgrade(found, value_type(info.schema)), info.schema_id


def _run_of(letter: Letter) -> tuple[str, int, int]:
    """Return what successive letters have in common if their records are appended together."""
    return letter.topic, letter.partition, -1 if letter.is_whole else letter.offset


def _letters(batch: Batch) -> list[Letter]:
    at = batch.columns.schema.get_field_index("headers")
    if at < 0:
        return [_letter([])] * len(batch)
    return [_letter(found or []) for found in batch.columns.column(at).to_pylist()]


def _letter(headers: list[Mapping[str, bytes | str | None]]) -> Letter:
    pairs = [(str(one["key"]), one["value"]) for one in headers]
    names = [name for name, _ in pairs]
    own = max(
        (len(names) - 1 - names[::-1].index(n) for n in _FIRST_HEADERS if n in names),
        default=len(names),
    )
    added = dict(pairs[own:])
    kept = [(name, value) for name, value in pairs[:own] if not isinstance(value, str)]
    for origin in _ORIGINS:
        topic = _text(added.get(f"{origin}.topic"))
        if topic:
            partition, offset = (_text(added.get(f"{origin}.{n}")) for n in ("partition", "offset"))
            is_whole = "value" not in _text(added.get(ERROR_LEFT_OUT))
            return Letter(topic, int(partition), int(offset), kept, is_whole)
    return Letter("", -1, -1, kept, is_whole=True)


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _with_headers(columns: pa.RecordBatch, letters: list[Letter]) -> pa.RecordBatch:
    """Return the columns of letters with the headers of their records."""
    at = columns.schema.get_field_index("headers")
    if not any(letter.headers for letter in letters):
        return columns.remove_column(at)
    return columns.set_column(
        at,
        pa.field("headers", HEADERS_TYPE),
        pa.array([one.headers for one in letters], HEADERS_TYPE),
    )


def _original(broker: Broker, letter: Letter) -> pa.RecordBatch | None:
    """Return the record of a letter without its value; None if it was deleted."""
    tp, offset = TopicPartition(letter.topic, letter.partition), letter.offset
    bounds = broker.offsets([tp])[tp]
    if bounds.log_start <= offset < bounds.last_stable_offset:
        for batch in scan_batches(broker, {tp: offset}, {tp: offset + 1}):
            if len(found := batch.clip(offset, offset + 1)):
                return found.columns
    return None
