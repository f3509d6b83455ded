"""Dead letters, and putting them back where they came from.

A dead letter has the headers of its record, followed by those that say what failed and where the
record is. Putting it back appends the record to the partition that it came from, with its own key,
value, time and headers, so that the app handles it again. If the topic was created again since, it
may have other partitions, so the record is appended to the partition of its key. The positions of
the letters that were put back are committed in the same transaction, for the group `<topic>-retry`:
each is put back once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.broker import Broker
from strandline.changelog.client.asking_again import stable_offsets
from strandline.changelog.client.consumer import Consumer
from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.records import HEADERS_TYPE, Batch, TopicInfo, TopicPartition
from strandline.changelog.scan import num_unread, scan_batches
from strandline.changelog.schema import upgrade, value_type
from strandline.framework.dead_letter_names import (
    ERROR_LEFT_OUT,
    ERROR_TYPE,
    FAUST_DEAD_LETTER,
    FAUST_ERROR,
    FAUST_ORIGIN,
    ORIGIN,
    TOPIC_ID,
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
LOADING_S = 30.0
"""Maximum seconds to wait for the transaction of another process that puts the letters back."""


class Letter(NamedTuple):
    """A dead letter: where its record is, and the record's own headers."""

    topic: str
    """Topic of the record; "" for a letter of a timer or window."""
    partition: int
    offset: int
    headers: list[tuple[str, bytes | None]]
    topic_id: str = ""
    """Id of the topic; "" if the letter does not tell."""
    is_whole: bool = True
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
        OffsetOutOfRange: The dead-letter topic was deleted and created again meanwhile. What was put
            back before stays so.
        ProducerFenced: Another process puts the same letters back.
    """
    if not topic.endswith(ENDINGS):
        raise InvalidRequest(
            f"{topic!r} is no dead-letter topic; the name of one ends with "
            f"{' or '.join(ENDINGS)}: see `strandline dead-letters list`"
        )
    group, put_back, left = group_of(topic), dict[str, int](), 0
    origins = Origins(broker)
    partitions = broker.topic(topic).topic_partitions
    with (
        Producer(broker, transactional_id=group) as producer,
        Consumer(broker, group=group, auto_offset_reset="none") as consumer,
    ):
        consumer.assign(partitions)
        done = stable_offsets(broker, group, partitions, SystemClock(), within_s=LOADING_S)
        for tp, start in consumer.beginning_offsets(partitions).items():
            consumer.seek(tp, max(start, done[tp].offset if tp in done else start))
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            batches = consumer.poll(1.0, max_records=BATCH_RECORDS)
            # Before the transaction, which has a timeout: it may take long to find records.
            found = [one for batch in batches for one in origins.records_of(batch)]
            with producer.transaction():
                producer.append_batches(found)
                producer.send_offsets_to_transaction(consumer.positions(), group)
            left += sum(map(len, batches)) - sum(len(columns) for _, columns, _ in found)
            for tp, columns, _ in found:
                put_back[tp.topic] = put_back.get(tp.topic, 0) + len(columns)
    return Retried(put_back, left)


def waiting(broker: Broker, topic: str) -> int:
    """Return the number of letters of a topic that were not put back."""
    return num_unread(broker, group_of(topic), topic)


class Origins:
    """The topics from which letters came."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._infos: dict[str, TopicInfo] = {}

    def records_of(self, batch: Batch) -> Iterator[tuple[TopicPartition, pa.RecordBatch, int]]:
        """Yield the records of letters by partition, with the version of their schema.

        Those of a partition are in the order of the letters.
        """
        letters = _letters(batch)
        by_partition: dict[TopicPartition, list[int]] = {}
        keys = batch.columns.column("key")
        for at, letter in enumerate(letters):
            if letter.topic:
                tp = TopicPartition(letter.topic, self._partition(letter, keys[at].as_py()))
                by_partition.setdefault(tp, []).append(at)
        for tp, indices in by_partition.items():
            info = self._info(tp.topic)
            for whole, run in groupby(indices, key=lambda at: -1 if letters[at].is_whole else at):
                chosen = list(run)
                columns = batch.columns.take(pa.array(chosen))
                if whole < 0:
                    found = _with_headers(columns, [letters[at] for at in chosen])
                else:
                    found = self._original(letters[whole], columns)
                if found is not None:
                    yield tp, upgrade(found, value_type(info.schema)), info.schema_id

    def _partition(self, letter: Letter, key: bytes | None) -> int:
        """Return the partition to which the record of a letter is appended."""
        info = self._info(letter.topic)
        if letter.partition < info.partitions and letter.topic_id in ("", info.topic_id):
            return letter.partition
        if key is None:
            return letter.partition % info.partitions
        return partition_for(key, info.partitions)

    def _info(self, topic: str) -> TopicInfo:
        if topic not in self._infos:
            self._infos[topic] = self._broker.topic(topic)
        return self._infos[topic]

    def _original(self, letter: Letter, columns: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the record of a letter without its value; None if it was deleted.

        Args:
            letter: The letter.
            columns: The letter as the log has it, with the record's own key and time.
        """
        if letter.topic_id not in ("", self._info(letter.topic).topic_id):
            return None
        tp, offset = TopicPartition(letter.topic, letter.partition), letter.offset
        bounds = self._broker.offsets([tp])[tp]
        if bounds.log_start <= offset < bounds.last_stable_offset:
            for batch in scan_batches(self._broker, {tp: offset}, {tp: offset + 1}):
                if len(found := batch.clip(offset, offset + 1)):
                    is_same = letter.topic_id or _are_alike(found.columns, columns)
                    return found.columns if is_same else None
        return None


def _are_alike(record: pa.RecordBatch, letter: pa.RecordBatch) -> bool:
    """Return True if a record has the time and the key of a letter.

    Letters of earlier versions do not say which topic of a name their record was in.
    """
    return bool(
        record.column("timestamp").equals(letter.column("timestamp"))
        and record.column("key").equals(letter.column("key"))
    )


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
            topic_id = _text(added.get(f"{origin}.{TOPIC_ID}"))
            return Letter(topic, int(partition), int(offset), kept, topic_id, is_whole)
    return Letter("", -1, -1, kept)


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
        of_items([one.headers for one in letters], HEADERS_TYPE),
    )
