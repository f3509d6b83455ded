"""Appends batches to the cluster such that one batch of the log becomes one batch of Kafka's.

librdkafka numbers records itself, retries, and recognizes duplicates; but it splits a stream of
single records into batches in its own way. The promises of the log for a batch (it is written as a
whole or not at all, and its offsets are consecutive) are promises of Kafka for *its* batches. So:

- librdkafka sends nothing on its own: its `linger.ms` is longer than any call, and no batch is full
  before the log's batch is complete (`batch.size`, `batch.num.messages`);
- one batch per partition is passed to librdkafka at a time, and then `flush` sends it (a call with
  several batches for one partition is split into waves, see producers.py);
- only one call at a time uses a producer, because its flush would send half of another's batch.

A call returns when librdkafka has reported the outcome of all records, at the latest after
`message.timeout.ms`. So nothing can be written after the call has returned.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import chain, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from strandline.changelog.errors import (
    InvalidRecord,
    OutOfOrderSequence,
    RecordTooLarge,
    RequestTimedOut,
    StrandlineError,
)
from strandline.changelog.kafka.callbacks import called, in_callback
from strandline.changelog.kafka.connection import DEADLINE_S, KafkaConnection
from strandline.changelog.kafka.failures import error_of, failure
from strandline.changelog.records import Appended, TopicPartition

DELIVERY_MS = 30_000
"""Milliseconds for which librdkafka tries to deliver, by default (`message.timeout.ms`)."""
FLUSH_S = 0.5
"""Maximum seconds in one call of librdkafka, because Ctrl-C is handled only after the call."""
MAX_DISCARD_FLUSHES = 6
"""Maximum number of flushes that wait for reports of dropped records. After a fatal error no
reports arrive."""
MAX_RECORDS = 1_000_000
"""Maximum records of a batch, librdkafka's limit."""
EARLIEST_MS = 1
"""Earliest timestamp of a record in ms since the epoch. librdkafka replaces 0 by the current
time."""
MAX_BYTES = 900 << 20
"""Maximum bytes of a batch: librdkafka's limit, less room for Kafka's data of each record."""


class KafkaBatch(NamedTuple):
    """A batch for a partition."""

    partition: TopicPartition
    columns: pa.RecordBatch


Outcome = Appended | StrandlineError
"""Offsets of an appended batch, or the reason why it was not or may not have been appended."""


class KafkaProducer:
    """A producer of librdkafka. Thread-safe: calls run one after the other."""

    def __init__(self, connection: KafkaConnection, properties: Mapping[str, Any]) -> None:
        self._connection = connection
        self.lock = threading.RLock()
        self.fatal: KafkaError | None = None
        """Fatal error of the producer, after which it cannot be used; None if there was none."""
        timeout = _delivery_ms(connection.cluster.properties)
        if "transaction.timeout.ms" in properties:
            timeout = min(timeout, properties["transaction.timeout.ms"])
        self.producer: Producer = connection.client(
            Producer,
            {
                "enable.idempotence": True,
                "message.timeout.ms": timeout,
                "linger.ms": timeout - 1,
                "batch.size": 2**31 - 1,
                "batch.num.messages": MAX_RECORDS,
                "message.max.bytes": 1_000_000_000,
                "queue.buffering.max.messages": 0,
                "queue.buffering.max.kbytes": 2**31 - 1,
                **properties,
            },
        )

    def send(self, wave: Sequence[KafkaBatch]) -> list[Outcome]:
        """Append batches to different partitions, and return an outcome for each.

        If the call is interrupted, unsent records are dropped and the producer must not be used
        again.
        """
        with self.lock:
            try:
                sent = [self._enqueue(batch) for batch in wave]
                while self._flush():
                    pass
            except BaseException:
                self.discard()
                raise
        cause = self._connection.cause
        outcomes = [one.outcome(self.fatal, cause) for one in sent]
        if any(isinstance(outcome, Appended) for outcome in outcomes):
            self._connection.answered()
        return outcomes

    def _enqueue(self, batch: KafkaBatch) -> _Delivery:
        doing = f"appending to {batch.partition}"
        sent = _Delivery(batch, self._connection.where(doing))
        if sent.refused is None:
            refusal: Exception | None = None
            try:
                self._produce(batch, sent)
            except (KafkaException, BufferError, ValueError, TypeError) as error:
                refusal = error.with_traceback(None)
            if refusal is not None:
                # Drop the accepted records of this batch, and of earlier ones in the wave.
                self.discard()
                sent.refused = self._connection.failure_of(self._reason(refusal), doing)
        return sent

    def _produce(self, batch: KafkaBatch, sent: _Delivery) -> None:
        try:
            _produce(self.producer, batch, sent)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            # The caller has checked that the partition exists, so librdkafka's metadata is old.
            self.producer.list_topics(batch.partition.topic, timeout=DEADLINE_S)
            _produce(self.producer, batch, sent)

    def _reason(self, error: Exception) -> Exception:
        """Return the fatal error of the producer instead of an error that only refers to it."""
        found = error_of(error)
        is_over = found is not None and found.code() == KafkaError._FATAL
        return KafkaException(self.fatal) if is_over and self.fatal is not None else error

    def discard(self) -> None:
        """Drop all records that librdkafka has not sent."""
        self.producer.purge(in_queue=True, in_flight=True)
        for _ in range(MAX_DISCARD_FLUSHES):
            if not self._flush():
                break

    def _flush(self) -> int:
        """Send all records, handle reports for FLUSH_S; return the number still outstanding."""
        try:
            return int(called(lambda: self.producer.flush(FLUSH_S)))
        except KafkaException as raised:
            self.fatal = raised.args[0]
            return len(self.producer)


class _Delivery:
    """Delivery of a batch, from librdkafka's reports on its first and last record."""

    def __init__(self, batch: KafkaBatch, where: str) -> None:
        self._count = batch.columns.num_rows
        self._where = where
        self._ends: list[tuple[KafkaError | None, int]] = []
        self.refused = _refusal(batch, where)

    @in_callback
    def report(self, error: KafkaError | None, message: Message) -> None:
        """Handle a delivery report; librdkafka calls it within `flush`."""
        offset = message.offset()
        self._ends.append((error, -1 if offset is None else offset))

    def outcome(self, fatal: KafkaError | None, cause: str) -> Outcome:
        """Return the outcome; `cause` is the latest problem with a broker."""
        if self.refused is not None:
            # A copy, because a raised error gets a reference to the producer through its traceback.
            # The producer may keep this object for ever, because librdkafka keeps unread reports.
            return copy(self.refused)
        for error, _ in self._ends:
            if error is not None:
                # For records that were never sent, report the fatal error of the producer.
                unsent = fatal is not None and error.code() == KafkaError._PURGE_QUEUE
                return _failed(fatal if unsent else error, self._where, cause)
        if not self._ends and fatal is not None:
            return _failed(fatal, self._where, cause)
        if not self._ends:
            return RequestTimedOut(f"{self._where}: no answer; whether it was written is not known")
        offsets = [offset for _, offset in self._ends]
        first, last = min(offsets), max(offsets)
        if last - first + 1 != self._count:
            return OutOfOrderSequence(
                f"{self._where}: {self._count} records are at offsets {first} to {last}, with "
                f"others in between; begin with a new producer"
            )
        return Appended(first, last)


def _produce(producer: Producer, batch: KafkaBatch, sent: _Delivery) -> None:
    """Pass a batch to librdkafka, which reports the delivery of its first and last record."""
    # Record by record, because confluent-kafka's produce_batch supports neither timestamps nor
    # headers. Arguments are positional, because keywords make a call 50 % slower, and `map` avoids
    # a loop in Python.
    (topic, partition), columns = batch.partition, batch.columns
    between = repeat(None, max(columns.num_rows - 2, 0))
    has_headers = columns.schema.get_field_index("headers") >= 0
    calls = map(
        producer.produce,
        repeat(topic),
        columns.column("value").to_pylist(),
        columns.column("key").to_pylist(),
        repeat(partition),
        chain([sent.report], between, [sent.report]),
        repeat(None),
        columns.column("timestamp").to_pylist(),
        map(_pairs, columns.column("headers").to_pylist()) if has_headers else repeat(None),
    )
    deque(calls, maxlen=0)


def _pairs(heads: Sequence[Mapping[str, Any]] | None) -> list[tuple[str, bytes]] | None:
    return [(head["key"], head["value"]) for head in heads] if heads else None


def _refusal(batch: KafkaBatch, where: str) -> StrandlineError | None:
    """Return the reason why a batch cannot be passed to librdkafka; None if it can."""
    columns = batch.columns
    if columns.num_rows > MAX_RECORDS or columns.nbytes > MAX_BYTES:
        return RecordTooLarge(
            f"{where}: a batch has at most {MAX_RECORDS} records and {MAX_BYTES} bytes, got "
            f"{columns.num_rows} and {columns.nbytes}; send smaller batches"
        )
    earliest = pc.min(columns.column("timestamp")).as_py()
    if earliest is not None and earliest < EARLIEST_MS:
        return InvalidRecord(
            f"{where}: timestamps are milliseconds since 1970, and librdkafka takes 0 for `now`; "
            f"got {earliest}, use {EARLIEST_MS} or later"
        )
    return None


def _failed(error: Any, where: str, cause: str) -> StrandlineError:
    if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
        return RequestTimedOut(f"{where}: dropped before it was sent, or while it was being sent")
    return failure(error, where, cause)


def _delivery_ms(properties: Mapping[str, str]) -> int:
    given = properties.get("message.timeout.ms") or properties.get("delivery.timeout.ms")
    return max(2, int(given)) if given and given.isdecimal() else DELIVERY_MS
