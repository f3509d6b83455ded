"""Batches on their way into the cluster: one of ours becomes one of Kafka's.

librdkafka numbers records itself, retries, and recognises what came twice; but it cuts a
stream of single records into batches as it pleases. What we promise of a batch (it is written
whole or not at all, and its offsets follow one another) Kafka promises of *its* batches. So:

- nothing is sent by itself: librdkafka may wait for longer than any call lasts (`linger.ms`), and
  no batch is full before ours is (`batch.size`, `batch.num.messages`);
- of each partition one batch at a time is handed over; then `flush` sends it (a call with several
  of one partition goes in waves, see producers.py);
- only one call at a time uses a producer, or its flush would send half of another's batch.

A call returns when librdkafka knows what became of everything: at the latest when
`message.timeout.ms` have gone by, so nothing is left behind that may be written later.
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
"""How long librdkafka tries, where the URL does not say (`message.timeout.ms`)."""
FLUSH_S = 0.5
"""How long Python is away in one call: so long Ctrl-C has to wait."""
DISCARDS = 6
"""So often at most it is waited for the reports of what was given up: a fatal error comes instead of them."""
MAX_RECORDS = 1_000_000
"""Of a batch: librdkafka's limit."""
EARLIEST_MS = 1
"""Of a record's time: 0 is now, to librdkafka."""
MAX_BYTES = 900 << 20
"""Likewise, with room for what Kafka adds to each record."""


class KafkaBatch(NamedTuple):
    """A batch for a partition."""

    partition: TopicPartition
    columns: pa.RecordBatch


Outcome = Appended | StrandlineError
"""Where a batch went, or why it did not, or may not have."""


class KafkaProducer:
    """One producer of librdkafka's. Thread-safe: one call after the other."""

    def __init__(self, connection: KafkaConnection, properties: Mapping[str, Any]) -> None:
        self._connection = connection
        self.lock = threading.RLock()
        self.fatal: KafkaError | None = None
        """What has ended this producer: it can do nothing more."""
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
        """Write batches of different partitions; an outcome for each.

        Interrupted, the producer must not be used again: what it had is given up.
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
                # What was taken in of this batch, and of those before it in the wave, is still here.
                self.discard()
                sent.refused = self._connection.failure_of(self._reason(refusal), doing)
        return sent

    def _produce(self, batch: KafkaBatch, sent: _Delivery) -> None:
        try:
            _produce(self.producer, batch, sent)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            # The caller has seen that there is one: librdkafka has not heard of it yet.
            self.producer.list_topics(batch.partition.topic, timeout=DEADLINE_S)
            _produce(self.producer, batch, sent)

    def _reason(self, error: Exception) -> Exception:
        """What has ended this producer, if it is refused since it has come to its end."""
        found = error_of(error)
        is_over = found is not None and found.code() == KafkaError._FATAL
        return KafkaException(self.fatal) if is_over and self.fatal is not None else error

    def discard(self) -> None:
        """Give up whatever librdkafka has not sent."""
        self.producer.purge(in_queue=True, in_flight=True)
        for _ in range(DISCARDS):
            if not self._flush():
                break

    def _flush(self) -> int:
        """Send what waits, and serve reports for a while; how many are still to come."""
        try:
            return int(called(lambda: self.producer.flush(FLUSH_S)))
        except KafkaException as raised:
            self.fatal = raised.args[0]
            return len(self.producer)


class _Delivery:
    """What becomes of a batch: librdkafka tells of its first and last record."""

    def __init__(self, batch: KafkaBatch, where: str) -> None:
        self._count = batch.columns.num_rows
        self._where = where
        self._ends: list[tuple[KafkaError | None, int]] = []
        self.refused = _refusal(batch, where)

    @in_callback
    def report(self, error: KafkaError | None, message: Message) -> None:
        """Called by librdkafka, within `flush`."""
        offset = message.offset()
        self._ends.append((error, -1 if offset is None else offset))

    def outcome(self, fatal: KafkaError | None, cause: str) -> Outcome:
        """What came of it; `cause` is what connections were last in trouble with."""
        if self.refused is not None:
            # A copy, since one that is raised comes to hold the producer, which may hold this for good:
            # librdkafka keeps reports that nobody has fetched.
            return copy(self.refused)
        for error, _ in self._ends:
            if error is not None:
                # What has ended the producer says why it was not even sent.
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
    """Hand over a batch; librdkafka tells of its first and last record."""
    # Record by record: confluent-kafka's produce_batch knows neither timestamps nor headers. But by
    # position, since by name a call takes half as long again, and without a loop in Python.
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
    """Why a batch cannot be handed over at all."""
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
        return RequestTimedOut(f"{where}: given up before it was sent, or while it was")
    return failure(error, where, cause)


def _delivery_ms(properties: Mapping[str, str]) -> int:
    given = properties.get("message.timeout.ms") or properties.get("delivery.timeout.ms")
    return max(2, int(given)) if given and given.isdecimal() else DELIVERY_MS
