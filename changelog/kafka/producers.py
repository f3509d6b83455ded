"""Producers: their identities, and their batches that are already in the cluster.

A `ProducerIdentity` of this package is valid in this process only. Kafka's own producer ids are
internal to librdkafka, which numbers records and repeats what was not acknowledged. This module
recognizes repeated calls, by the same rules as the embedded log (`ProducerStates`), and answers
them without passing the records to librdkafka again.

Producers without a transactional id, of any number, share one producer of librdkafka, which keeps
the order in each partition. Each transactional producer has its own.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import NamedTuple

from strandline.changelog.clock import Clock
from strandline.changelog.config import check_client_name
from strandline.changelog.errors import (
    InvalidRecord,
    InvalidRequest,
    ProducerFenced,
    SchemaMismatch,
    StrandlineError,
)
from strandline.changelog.kafka.connection import KafkaConnection
from strandline.changelog.kafka.producing import KafkaBatch, KafkaProducer, Outcome
from strandline.changelog.kafka.topics import KafkaTopics, refuse_system
from strandline.changelog.kafka.transactions import Transactions
from strandline.changelog.producer_state import BatchMeta, ProducerStates, advance
from strandline.changelog.records import Append, Appended, ProducerIdentity, TopicPartition

EXPIRATION_MS = 24 * 60 * 60 * 1000
"""Milliseconds after which the state of an idle producer is removed."""
_MANY_PRODUCERS = 100
"""Number of producers of a partition above which idle ones are searched and removed."""


class Producers:
    """The producers of this process on one cluster. Thread-safe."""

    def __init__(self, connection: KafkaConnection, topics: KafkaTopics) -> None:
        self._connection = connection
        self._topics = topics
        self._written = _Written(connection.clock)
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._plain: KafkaProducer | None = None
        self._by_producer: dict[int, Transactions] = {}
        self._by_id: dict[str, int] = {}

    def init(self, transactional_id: str | None, timeout_ms: int) -> ProducerIdentity:
        """See Broker.init_producer."""
        with self._lock:
            identity = ProducerIdentity(next(self._ids), 0)
        if transactional_id is None:
            return identity
        check_client_name("a transactional producer", transactional_id)
        transactions = Transactions(
            self._connection, identity, transactional_id, timeout_ms, self._written.ended
        )
        with self._lock:
            old = self._by_id.get(transactional_id)
            self._by_id[transactional_id] = identity.producer_id
            self._by_producer[identity.producer_id] = transactions
            replaced = None if old is None else self._by_producer.pop(old, None)
        if replaced is not None:
            replaced.close()
        return identity

    def transactions(self, producer: ProducerIdentity) -> Transactions:
        """Return the transactions of a producer. Raises ProducerFenced."""
        with self._lock:
            found = self._by_producer.get(producer.producer_id)
        if found is None:
            raise ProducerFenced(
                f"producer {producer.producer_id} is not known here; another instance with its "
                f"transactional id took over, or it was never initialised with one"
            )
        return found

    def write(self, batches: list[KafkaBatch]) -> list[Outcome]:
        """Append this package's own batches, each to a different partition."""
        sending = self._plain_sending()
        with sending.lock:
            return self._send_plain(sending, batches)

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        """See Broker.append."""
        answers: list[Appended] = []
        for wave in waves(appends):
            answers += self._append(wave)
        return answers

    def _append(self, wave: Sequence[Append]) -> list[Appended]:
        """Append to different partitions for one producer, all plain or all in its transaction."""
        producer = _identity(wave[0])
        owner = self.transactions(producer) if wave[0].transactional else self._plain_sending()
        with owner.lock:
            known, refusal = self._known(wave)
            new = [request for request, answer in zip(wave, known, strict=False) if answer is None]
            outgoing = [KafkaBatch(TopicPartition(a.topic, a.partition), a.columns) for a in new]
            outcomes = self._send(owner, producer, outgoing)
            for request, outcome in zip(new, outcomes, strict=True):
                self._written.finalize(request, outcome)
        following = iter(zip(new, outcomes, strict=True))
        answers: list[Appended] = []
        for answer in known:
            if answer is None:
                answers.append(self._report(*next(following)))
            else:
                answers.append(answer)
        if refusal is not None:
            raise refusal
        return answers

    def _known(
        self, wave: Sequence[Append]
    ) -> tuple[list[Appended | None], StrandlineError | None]:
        """Return, for each append, its offsets if it was written already; else None.

        The list ends before the first append that is rejected; its error is returned too.
        """
        known: list[Appended | None] = []
        for request in wave:
            try:
                self._check(request)
                known.append(self._written.check(request))
            except StrandlineError as error:
                return known, error
        return known, None

    def _send(
        self,
        owner: Transactions | KafkaProducer,
        producer: ProducerIdentity,
        outgoing: list[KafkaBatch],
    ) -> list[Outcome]:
        if isinstance(owner, Transactions):
            return owner.send(producer, outgoing)
        return self._send_plain(owner, outgoing)

    def _send_plain(self, sending: KafkaProducer, outgoing: list[KafkaBatch]) -> list[Outcome]:
        usable = False
        try:
            outcomes = sending.send(outgoing)
            usable = sending.fatal is None
        finally:
            if not usable:  # interrupted, so that its batches were dropped; or a fatal error
                with self._lock:
                    self._plain = None
        return outcomes

    def _report(self, request: Append, outcome: Outcome) -> Appended:
        """Return or raise an outcome, and mark it as reported to the caller."""
        if isinstance(outcome, StrandlineError):
            self._topics.forget([request.topic])
            raise outcome
        self._written.mark_reported(request)
        return outcome

    def _check(self, request: Append) -> None:
        refuse_system(request.topic, "append to")
        partition = TopicPartition(request.topic, request.partition)
        self._topics.check(partition)
        if request.schema_id:
            raise SchemaMismatch(
                f"topic {request.topic!r}: typed topics are not available on a Kafka cluster yet, "
                f"got schema id {request.schema_id}; encode values as bytes"
            )
        if request.columns.schema.names[:3] != ["timestamp", "key", "value"]:
            raise InvalidRecord(
                f"topic {request.topic!r}: a batch has the columns timestamp, key, value; got "
                f"{request.columns.schema.names}"
            )

    def _plain_sending(self) -> KafkaProducer:
        with self._lock:
            if self._plain is None:
                self._plain = KafkaProducer(self._connection, {})
            return self._plain

    def close(self) -> None:
        """Abort open transactions, and close all producers."""
        with self._lock:
            open_ = list(self._by_producer.values())
            self._by_producer.clear()
            self._by_id.clear()
            self._plain = None
        for transactions in open_:
            transactions.close()


class _Key(NamedTuple):
    partition: TopicPartition
    producer: ProducerIdentity
    base_sequence: int


class _Written:
    """The batches that are in the cluster, and those that may be."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: defaultdict[TopicPartition, ProducerStates] = defaultdict(ProducerStates)
        self._unreported: set[_Key] = set()
        """Batches written after one that failed in the same call, and so not reported yet."""
        self._unknown: dict[tuple[TopicPartition, ProducerIdentity], StrandlineError] = {}
        """Errors of batches with an unknown outcome. The producer cannot append to the partition
        after one."""

    def check(self, request: Append) -> Appended | None:
        """Return the offsets of a batch that was written already; None for a new one.

        Raises OutOfOrderSequence, or the error after which nothing more may be appended.
        """
        key = _key(request)
        with self._lock:
            found = self._states[key.partition].check(
                key.producer,
                key.base_sequence,
                request.columns.num_rows,
                request.transactional,
                str(key.partition),
            )
            if found is not None and key in self._unreported:
                self._unreported.discard(key)
                return found._replace(duplicate=False)
            if found is None and (key.partition, key.producer) in self._unknown:
                raise copy(self._unknown[key.partition, key.producer])
            return found

    def finalize(self, request: Append, outcome: Outcome) -> None:
        """Record the outcome of a new batch."""
        key = _key(request)
        with self._lock:
            if isinstance(outcome, Appended):
                self._appended(key, request, outcome)
                self._unreported.add(key)
            elif not isinstance(outcome, InvalidRequest):
                # A copy, because the one that is raised gets references to the whole stack.
                self._unknown[key.partition, key.producer] = copy(outcome)
                while len(self._unknown) > _MANY_PRODUCERS * _MANY_PRODUCERS:
                    del self._unknown[next(iter(self._unknown))]

    def mark_reported(self, request: Append) -> None:
        """Record that the outcome of a batch was returned to the caller."""
        with self._lock:
            self._unreported.discard(_key(request))

    def _appended(self, key: _Key, request: Append, outcome: Appended) -> None:
        now = self._elapsed_ms()
        states = self._states[key.partition]
        last = advance(key.base_sequence, request.columns.num_rows - 1)
        states.appended(
            key.producer,
            BatchMeta(key.base_sequence, last, outcome.base_offset, outcome.last_offset),
            transactional=request.transactional,
            timestamp=now,
        )
        if len(states.entries) > _MANY_PRODUCERS:
            states.expire(now - EXPIRATION_MS)

    def _elapsed_ms(self) -> int:
        """Return milliseconds that do not depend on the wall clock, which may be set."""
        return int(self._clock.monotonic() * 1000)

    def ended(self, successor: ProducerIdentity, partitions: Collection[TopicPartition]) -> None:
        """Record the end of a transaction; its producer has the identity `successor` now."""
        with self._lock:
            for partition in partitions:
                self._states[partition].ended(successor, -1, self._elapsed_ms())


def _key(request: Append) -> _Key:
    partition = TopicPartition(request.topic, request.partition)
    return _Key(partition, _identity(request), request.base_sequence)


def _identity(request: Append) -> ProducerIdentity:
    if request.producer is None or request.base_sequence < 0:
        raise InvalidRecord(
            f"topic {request.topic!r}: every batch carries its producer and a sequence from 0 on; "
            f"got {request.producer}, {request.base_sequence}"
        )
    return request.producer


def waves(appends: Sequence[Append]) -> Iterator[list[Append]]:
    """Split appends, in order, where a partition is repeated or the producer changes.

    >>> a, b = (Append("t", n, None, ProducerIdentity(1, 0), 0) for n in (0, 1))
    >>> [len(wave) for wave in waves([a, b, a, a])]
    [2, 1, 1]
    """
    wave: list[Append] = []
    partitions: set[tuple[str, int]] = set()
    for request in appends:
        partition = (request.topic, request.partition)
        if wave and (partition in partitions or _producer_of(request) != _producer_of(wave[0])):
            yield wave
            wave, partitions = [], set()
        wave.append(request)
        partitions.add(partition)
    if wave:
        yield wave


def _producer_of(request: Append) -> tuple[ProducerIdentity | None, bool]:
    return request.producer, request.transactional
