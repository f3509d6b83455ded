"""The topic in which an app records the declarations of its stores: `<app>-declarations`.

The topic is compacted and has one partition. It has records with three kinds of keys:

    <changelog>               declaration of the store with that changelog
    <changelog>/<partition>   progress of rewriting the values of that partition
    <topic>/                  another internal topic of the app; its ids and columns if it has rows

`DeclarationLog.change` is a compare-and-set, in a folder as on a Kafka cluster. It takes over the
transactional id of the topic, which fences other writers; reads the recorded declarations; decides;
and commits. A writer that is fenced in between reads and decides again. So of two programs that
start at the same time one is first, and the other is compared with its declarations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.broker import Broker
from strandline.changelog.client.asking_again import commit_until_known
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import Clock
from strandline.changelog.decoding import json_decoder
from strandline.changelog.errors import (
    UNREADABLE,
    CorruptLog,
    ProducerFenced,
    TransactionAborted,
    UnknownTopic,
)
from strandline.changelog.records import TopicPartition
from strandline.statestore.compacted_table import CompactedTable, records
from strandline.statestore.declaration import Declaration, RepartitionRecord

SUFFIX = "-declarations"
"""End of the name of the topic, after the name of the app."""
MAX_ATTEMPTS = 20
"""Maximum number of attempts at a change, if other programs write in between or it is aborted."""

Changes = Mapping[str, bytes | None]
"""Values of the records to write, by key; None removes a record."""


def declarations_topic(app: str) -> str:
    """Return the name of the topic in which an app records the declarations of its stores."""
    return f"{app}{SUFFIX}"


class RewriteProgress(msgspec.Struct, omit_defaults=True):
    """Progress of rewriting the values of one partition."""

    version: int
    """Version of the declaration for which they are rewritten."""
    after: bytes | None = None
    """Last key with a value of that version; later keys have the previous one. None after all."""


@dataclass
class RecordedDeclarations:
    """Recorded declarations and rewrites of an app at one moment."""

    stores: dict[str, Declaration] = field(default_factory=dict)
    """Declaration of each store, by the name of its changelog."""
    rewritten: dict[TopicPartition, RewriteProgress] = field(default_factory=dict)
    """Progress of rewriting, by changelog partition."""
    topics: dict[str, RepartitionRecord | None] = field(default_factory=dict)
    """Other internal topics of the app: for repartitioning, and of dead letters.

    Those for repartitioning have a record; None from earlier versions."""

    @classmethod
    def of(cls, entries: Iterable[tuple[bytes, bytes]]) -> RecordedDeclarations:
        """Decode keys and values of the topic. Raises FutureFormat, CorruptLog."""
        recorded = cls()
        for key, value in entries:
            changelog, slash, partition = key.decode().partition("/")
            if slash and not partition:
                recorded.topics[changelog] = _repartition(value) if value else None
            elif partition:
                tp = TopicPartition(changelog, int(partition))
                recorded.rewritten[tp] = _rewritten(value)
            else:
                recorded.stores[changelog] = Declaration.from_bytes(value)
        return recorded

    def keys(self) -> set[str]:
        """Return the keys of the recorded internal topics."""
        return {*self.stores, *map(topic_key, self.topics)}

    def is_current(self, changelog: TopicPartition) -> bool:
        """Return True if all values of a partition are written with the store's declaration."""
        declaration = self.stores.get(changelog.topic)
        if declaration is None or declaration.before is None:
            return True
        found = self.rewritten.get(changelog)
        return found is not None and found.version == declaration.version and found.after is None

    def rewritten_up_to(self, changelog: TopicPartition) -> bytes | None:
        """Return the last rewritten key of an unfinished partition; None if there is none."""
        found = self.rewritten.get(changelog)
        is_of_it = found is not None and found.version == self.stores[changelog.topic].version
        return found.after if found is not None and is_of_it else None

    def unfinished(self, changelog: str, partitions: int) -> list[int]:
        """Return the numbers of a changelog's partitions that are not completely rewritten."""
        numbers = range(partitions)
        return [n for n in numbers if not self.is_current(TopicPartition(changelog, n))]


class DeclarationLog:
    """Reads and writes the recorded declarations of one app. Thread-safe."""

    def __init__(self, broker: Broker, app: str, clock: Clock) -> None:
        self.topic = declarations_topic(app)
        self._broker = broker
        self._clock = clock
        self._table = CompactedTable(broker, self.topic, clock)
        self._known = RecordedDeclarations()
        self._lock = threading.Lock()

    def read(self) -> RecordedDeclarations:
        """Return the recorded declarations as of now; none if the topic does not exist.

        Raises RequestTimedOut if an open transaction of the topic does not end, and the broker's
        errors.
        """
        with self._lock:
            try:
                if self._table.read_on():
                    self._known = RecordedDeclarations.of(self._table.entries())
            except UnknownTopic:
                self._known = RecordedDeclarations()
            return self._known

    def change(self, decide: Callable[[RecordedDeclarations], Changes]) -> RecordedDeclarations:
        """Write the changes that `decide` returns; return the recorded declarations after that.

        `decide` gets the recorded declarations, and is called again if others were recorded in
        between. If it raises, nothing is written and the error is raised.
        """
        for attempt in range(MAX_ATTEMPTS):
            recorded = self.read()
            if not decide(recorded):
                return recorded
            self._table.create()
            producer = Producer(self._broker, transactional_id=self.topic, clock=self._clock)
            try:
                if changes := decide(self.read()):
                    append_at_once(producer, [self.columns(changes)])
                # No further call of `decide`: the last one is that whose changes were written.
                break
            except (ProducerFenced, TransactionAborted):
                if attempt == MAX_ATTEMPTS - 1:
                    raise
            finally:
                producer.close()
        return self.read()

    def columns(self, changes: Changes) -> tuple[TopicPartition, pa.RecordBatch]:
        """Return changes as an append to the topic, for the caller's own transaction."""
        return self._table.partition, changes_of(changes, self._clock)


def partition_key(changelog: TopicPartition) -> str:
    """Return the key of the record with the rewriting progress of a partition."""
    return f"{changelog.topic}/{changelog.partition}"


def topic_key(topic: str) -> str:
    """Return the key of the record of an internal topic that is not a changelog."""
    return f"{topic}/"


def changes_of(changes: Changes, clock: Clock) -> pa.RecordBatch:
    """Return changes as columns of the log."""
    keys = of_items([key.encode() for key in changes], pa.binary())
    return records(keys, of_items(list(changes.values()), pa.binary()), clock.now_ms())


def topic_to_bytes(record: RepartitionRecord | None) -> bytes:
    """Return the value of the record of an internal topic that is not a changelog."""
    if record is None:
        return b""
    return msgspec.json.encode(record.ids if record.columns is None else record)


def append_at_once(
    producer: Producer, appends: Iterable[tuple[TopicPartition, pa.RecordBatch]]
) -> None:
    """Append columns to partitions in one transaction; commit it. Raises the producer's errors."""
    producer.begin_transaction()
    producer.append_batches([(tp, columns, 0) for tp, columns in appends])
    commit_until_known(producer)


def _rewritten(data: bytes) -> RewriteProgress:
    try:
        return _decode(data)
    except UNREADABLE as error:
        raise CorruptLog(f"a recorded progress of rewriting is damaged: {error}") from error


def _repartition(data: bytes) -> RepartitionRecord:
    try:
        return _decode_repartition(data)
    except UNREADABLE as error:
        raise CorruptLog(f"the record of a repartition topic is damaged: {error}") from error


_decode = json_decoder(RewriteProgress).decode
_decode_repartition = json_decoder(RepartitionRecord).decode
