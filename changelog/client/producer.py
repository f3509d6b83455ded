"""The producer: writes records, rows and whole tables to topics, each exactly once.

Every producer is idempotent: the log recognizes a batch that is sent again by a retry. With a
`transactional_id` everything that it sends is part of a transaction:

    READY ──begin──▶ OPEN ──commit──▶ READY
                      │  └─failure─▶ ABORTABLE ──abort──▶ READY
                      └──commit, no answer──▶ IN_DOUBT ──commit again──▶ READY
    any ──fenced──▶ FENCED: another instance has taken over

`send` collects records into batches. Without transactions a background thread sends a batch when
it is full or after `linger_ms`; the thread ends when there is nothing to send. In a transaction,
batches are sent on the calling thread, when one is full and at the commit. The bulk calls
(`append*`) return once the log has acknowledged the data. They first send the records of earlier
calls, so the order is kept.

If the outcome of a batch is unknown (no answer within `delivery_timeout_ms`), its futures raise
RequestTimedOut. A plain producer then continues with a new identity; a transaction must be aborted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.client.accumulator import (
    Accumulator,
    PendingRecord,
    RecordMetadata,
    TopicTarget,
    checked_headers,
    record_size,
)
from strandline.changelog.client.columns import batch_of, to_batches
from strandline.changelog.client.keys import encode_key
from strandline.changelog.client.sender import OutgoingBatch, Sender
from strandline.changelog.client.transaction_state import ProducerPhase, TransactionState
from strandline.changelog.client.unsent import UnsentRecords
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import ClosedByWith
from strandline.changelog.errors import (
    InvalidRecord,
    InvalidTxnState,
    ProducerFenced,
    RecordTooLarge,
    Retriable,
    SchemaMismatch,
    StorageFailed,
    StrandlineError,
    TransactionAborted,
)
from strandline.changelog.groups import GroupMember
from strandline.changelog.records import CommittedOffset, Headers, ProducerIdentity, TopicPartition
from strandline.changelog.settings import INT_MAX, LONG_MAX, check_number
from strandline.changelog.times import to_ms

_log = logging.getLogger("strandline")

METADATA_MAX_AGE_S = 60.0
"""Seconds for which a topic's description is cached."""


class BatchMetadata(NamedTuple):
    """Partition and offsets of an appended batch; `last_offset` is included."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    leader_epoch: int | None = None
    """Leader epoch in which the batch was written (KIP-320); None if the log does not report it."""
    incarnation: str = ""
    """Opening of the log that wrote the batch; empty if the log does not report it."""


class Producer(ClosedByWith):
    """Sends records to a log. Thread-safe.

    Close it, or use it in a `with` statement: otherwise records that have not been sent yet are
    lost when the process ends.

    Args:
        broker: The log. `Log.producer` passes its own.
        transactional_id: Id of a transactional producer; None (default) for a plain one. A new
            producer takes over from an earlier one with the same id: it completes transactions
            that were being committed, aborts open ones, and fences the earlier producer.
        transaction_timeout_ms: Milliseconds that a transaction may stay open before the log
            aborts it. Default 10,000.
        linger_ms: Milliseconds that a record waits for others to share its batch. Default 5,
            like Kafka's. Unused in transactions.
        batch_bytes: Approximate size of a full batch in bytes. Default 1 MiB.
        buffer_bytes: Maximum size of unsent records in bytes. Above it `send` itself sends them
            before it returns. Default 64 MiB.
        delivery_timeout_ms: Milliseconds for which a call to the log is retried. Default 30,000.
        clock: Time source; the system's by default.
        partitioner_seed: Seed that makes the partitions of keyless records reproducible; random
            by default.

    Raises:
        InvalidConfig: An argument is out of range.

    >>> from strandline.changelog.embedded.owner import Owner
    >>> from strandline.changelog.memory_storage import MemoryStorage
    >>> owner = Owner(MemoryStorage(), background=False)
    >>> info = owner.create_topic("greetings")
    >>> with Producer(owner) as producer:
    ...     sent = producer.send("greetings", b"hello", key="k")
    >>> sent.result().offset
    0
    """

    def __init__(
        self,
        broker: Broker,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 10_000,
        linger_ms: float = 5,
        batch_bytes: int = 1 << 20,
        buffer_bytes: int = 64 << 20,
        delivery_timeout_ms: int = 30_000,
        clock: Clock | None = None,
        partitioner_seed: str | None = None,
    ) -> None:
        check_number("linger_ms", linger_ms, 0, whole=False)
        check_number("batch_bytes", batch_bytes, 1, INT_MAX)
        check_number("buffer_bytes", buffer_bytes, 1, LONG_MAX)
        check_number("delivery_timeout_ms", delivery_timeout_ms, 0)
        self._broker = broker
        self._clock = clock or SystemClock()
        self._batch_bytes = batch_bytes
        self._seed = partitioner_seed or self._clock.new_id()
        self._targets: dict[str, tuple[TopicTarget, float]] = {}
        self._transaction = TransactionState(transactional=transactional_id is not None)
        self._sender = Sender(
            broker,
            self._clock,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
        )
        self._unsent = UnsentRecords(
            self._sender,
            check=self._transaction.require_sending,
            failed=self._fail,
            linger_ms=None if transactional_id is not None else linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
        )
        weakref.finalize(self, _warn_of_lost, self._unsent.waiting)
        if transactional_id is not None:
            self._sender.init()

    @property
    def identity(self) -> ProducerIdentity | None:
        """Producer id and epoch; None before the first record of a plain producer."""
        return self._sender.identity

    @property
    def state(self) -> ProducerPhase:
        """State of the producer and its transaction."""
        return self._transaction.state

    # One record -----------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | dt.datetime | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> Future[RecordMetadata]:
        """Add a record to the next batch, and return a future of its offset.

        Args:
            topic: Name of the topic.
            value: Bytes; on a typed topic a mapping, dataclass or msgspec.Struct. None is a
                tombstone.
            key: Key of the record, encoded by the rules of `changelog.client.keys`. It selects
                the partition. None: no key.
            partition: Partition of the record, instead of the one selected by the key.
            timestamp: Milliseconds since the epoch, or a datetime; now by default.
            headers: Pairs of name and value.

        Returns:
            Future that completes when the log has acknowledged the record. It raises errors that
            occur after `send` has returned.

        Raises:
            InvalidRecord: The record cannot be stored in the topic, or `timestamp` is a float or
                looks like seconds. Like all errors below, it leaves the transaction unchanged.
            SchemaMismatch: The value does not fit the topic's schema.
            RecordTooLarge: The record exceeds the topic's `max.message.bytes`.
            UnknownTopic: There is no such topic.
            UnknownPartition: The topic has no such partition.
            InvalidTxnState: The producer is transactional, and no transaction is open.
            TransactionAborted: The open transaction failed and must be aborted.
        """
        key_bytes = encode_key(key)
        target = self._target(topic)
        try:
            content = target.content(value)
        except SchemaMismatch:
            target = self._target(topic, fresh=True)  # the schema may have been extended
            content = target.content(value)
        heads = checked_headers(headers, topic) if headers else ()
        when = self._clock.now_ms()
        if timestamp is not None:
            when = to_ms(timestamp, when)
        size = record_size(key_bytes, content, heads)
        try:
            target.check_record(key_bytes, when, size)
        except (InvalidRecord, RecordTooLarge):
            target = self._target(topic, fresh=True)  # the settings may have been changed
            target.check_record(key_bytes, when, size)
        return self._unsent.put(
            PendingRecord(target, partition, key_bytes, content, when, heads, size)
        )

    def check(self, topic: str, columns: pa.RecordBatch) -> None:
        """Raise the error with which the log would reject a batch of one record.

        Args:
            topic: Name of the topic.
            columns: The record, in the columns of `changelog.records`.

        Raises:
            InvalidRecord: The topic is compacted and the record has no key, or its timestamp is
                not allowed.
            RecordTooLarge: The record exceeds the topic's `max.message.bytes`.
            UnknownTopic: There is no such topic.
        """
        try:
            self._target(topic).check_one(columns, self._clock.now_ms())
        except InvalidRecord:  # the settings may have been changed
            self._target(topic, fresh=True).check_one(columns, self._clock.now_ms())

    # Many records ---------------------------------------------------------------------

    def append(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        timestamp: str | int | dt.datetime | None = None,
        partition: int | None = None,
    ) -> list[BatchMetadata]:
        """Append a DataFrame, Arrow data or a list of rows; return once all is acknowledged.

        Outside a transaction, batches before a failure remain in the log.

        Args:
            topic: Name of the topic.
            data: A DataFrame, an Arrow table or batch, or a list of mappings, dataclasses or
                msgspec.Structs. `changelog.client.columns` describes its columns.
            key: Column with the keys; by default `key`, if that is no column of the value.
            timestamp: Column with the timestamps; by default `timestamp`, if that is no column
                of the value. An integer (milliseconds since the epoch) or a datetime is the
                time of all records that have none; now by default.
            partition: Partition of all records; by default each record's key selects it.

        Returns:
            Partition and offsets of each batch.

        Raises:
            InvalidRecord: A record cannot be stored in the topic.
            SchemaMismatch: The columns do not fit the topic's schema.
            RecordTooLarge: A record exceeds the topic's `max.message.bytes`.
            UnknownTopic: There is no such topic.
            UnknownPartition: The topic has no such partition.
            InvalidTxnState: The producer is transactional, and no transaction is open.
            TransactionAborted: The open transaction failed and must be aborted.
            RequestTimedOut: The log did not answer within `delivery_timeout_ms`.
        """
        target = self._target(topic, fresh=True)
        column = timestamp if isinstance(timestamp, str) else None
        now_ms = self._clock.now_ms()
        if timestamp is not None and column is None:
            now_ms = to_ms(timestamp, now_ms)
        batches = to_batches(data, target.info, now_ms=now_ms, key=key, timestamp=column)
        return self._append(target, batches, partition)

    def append_columns(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[Any],
        timestamps: Sequence[int],
        headers: Sequence[Headers] | None = None,
        *,
        partition: int | None = None,
    ) -> list[BatchMetadata]:
        """Append records given as lists of equal length, in one batch per partition.

        Args:
            topic: Name of the topic.
            keys: Encoded keys; None for records without one.
            values: Values as for `send`.
            timestamps: Milliseconds since the epoch.
            headers: Headers of each record; None: no record has any.
            partition: Partition of all records; by default each record's key selects it.

        Returns:
            Partition and offsets of each batch.
        """
        target = self._target(topic)
        columns = (batch_of(target.info, keys, values, timestamps, headers) for _ in range(1))
        return self._append(target, columns, partition)

    def append_batch(
        self, topic: str, partition: int, columns: pa.RecordBatch, schema_id: int = 0
    ) -> list[BatchMetadata]:
        """Append a batch in the columns of `changelog.records` to one partition.

        `schema_id` is the version of the topic's schema that the values have; 0 for bytes.
        """
        return self.append_batches([(TopicPartition(topic, partition), columns, schema_id)])

    def partitioned(
        self, topic: str, columns: pa.RecordBatch
    ) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        """Cut a batch up by the partition of each record, as `append` and `send` choose it.

        A key decides by its hash. Records without one stay at a partition for about a batch, then go to
        another one (KIP-480), over all calls of this producer; many that come at once go to all.
        """
        for partition, part in self._target(topic).partitioned(columns):
            yield TopicPartition(topic, partition), part

    def end_batches(self) -> None:
        """Let the next records without a key go to another partition, as after a full batch."""
        for target, _ in list(self._targets.values()):
            target.sticky.move_on()

    def append_batches(
        self, batches: Iterable[tuple[TopicPartition, pa.RecordBatch, int]]
    ) -> list[BatchMetadata]:
        """Append batches, as for `append_batch`, to several partitions in one call to the log."""
        with self._bulk():
            outgoing = [
                OutgoingBatch(tp, frame, schema_id)
                for tp, columns, schema_id in batches
                for frame in self._target(tp.topic).frames(columns)
            ]
            return self._transmit(outgoing)

    def _append(
        self, target: TopicTarget, pieces: Iterable[pa.RecordBatch], partition: int | None
    ) -> list[BatchMetadata]:
        if partition is not None:
            target.checked(partition)
        name, schema_id = target.info.name, target.info.schema_id
        appended = []
        with self._bulk():
            for columns in pieces:
                split = (
                    target.partitioned(columns)
                    if partition is None
                    else iter([(partition, columns)])
                )
                outgoing = [
                    OutgoingBatch(TopicPartition(name, number), frame, schema_id)
                    for number, part in split
                    for frame in target.frames(part)
                ]
                appended += self._transmit(outgoing)
        return appended

    @contextlib.contextmanager
    def _bulk(self) -> Iterator[None]:
        """Hold the sending lock for a bulk call, after sending all pending records.

        An error in the block fails the open transaction.
        """
        with self._unsent.sending:
            self._transaction.require_sending()
            self._unsent.drain()
            self._transaction.require_sending()
            try:
                yield
            except BaseException as error:
                self._fail(error)
                raise

    def _transmit(self, outgoing: Sequence[OutgoingBatch]) -> list[BatchMetadata]:
        outcomes = self._unsent.transmit(outgoing)
        appended = []
        for batch, outcome in zip(outgoing, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            offsets = outcome.base_offset, outcome.last_offset
            epoch = outcome.leader_epoch, outcome.incarnation
            appended.append(BatchMetadata(*batch.topic_partition, *offsets, *epoch))
        return appended

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far is acknowledged or has failed (see the futures).

        Args:
            timeout: Seconds to wait; None (default): until `delivery_timeout_ms` ends the wait.

        Raises:
            RequestTimedOut: Records are still pending after `timeout` seconds. The producer
                keeps trying to send them.
        """
        self._unsent.flush(timeout)

    # Transactions ---------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begin a transaction.

        Raises:
            InvalidTxnState: A transaction is open, or the producer is not transactional.
            ProducerFenced: Another producer with the same transactional id has taken over.
        """
        with self._unsent.sending:
            self._transaction.require_transaction(ProducerPhase.READY)
            self._sender.init()
            self._unsent.touched = False
            self._transaction.become(ProducerPhase.OPEN)

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int], group: str | GroupMember
    ) -> None:
        """Commit consumer offsets as part of the transaction.

        Args:
            offsets: Next offset to read, by partition. `Consumer.positions` says of which topic
                each is; a number alone is of the topic that exists.
            group: Name of the group. A consumer that is a member of a group passes
                `Consumer.member` instead (KIP-447).

        Raises:
            MemberFenced: Another member may own the partitions now. Raised here or by
                `commit_transaction`.
            InvalidTxnState: No transaction is open.
            TransactionAborted: The open transaction failed and must be aborted.
        """
        with self._unsent.sending:
            self._transaction.require_transaction(ProducerPhase.OPEN)
            located = {
                tp: CommittedOffset(offset) if isinstance(offset, int) else offset
                for tp, offset in offsets.items()
            }
            self._unsent.touched = True
            try:
                member = group if isinstance(group, GroupMember) else GroupMember(group, "")
                self._sender.add_offsets(member, located)
            except Exception as error:
                self._fail(error)
                raise

    def commit_transaction(self) -> None:
        """Send all pending records and commit; the transaction is durable and visible then.

        Raises:
            TransactionAborted: A part of the transaction failed. Call `abort_transaction` and
                continue from the group's committed offsets.
            ProducerFenced: Another producer with the same transactional id has taken over.
            Retriable: The outcome is unknown. Call again, or create a new producer and continue
                from the committed offsets.
            StorageFailed: As for Retriable.
            InvalidTxnState: No transaction is open.
        """
        with self._unsent.sending:
            self._transaction.require_transaction(ProducerPhase.OPEN, ProducerPhase.IN_DOUBT)
            self._unsent.drain()
            with self._unsent.lock:
                self._transaction.require(ProducerPhase.OPEN, ProducerPhase.IN_DOUBT)
                # `send` is rejected from here on, so that no record is added after the commit.
                self._transaction.become(ProducerPhase.IN_DOUBT)
            if self._unsent.touched:
                self._end(commit=True)
            self._transaction.become(ProducerPhase.READY)

    def abort_transaction(self) -> None:
        """Abort the transaction: drop unsent records; sent ones never become visible.

        Raises:
            InvalidTxnState: No transaction is open, or it was already committed.
            ProducerFenced: Another producer with the same transactional id has taken over.
            Retriable: The outcome is unknown; call again.
        """
        with self._unsent.sending:
            self._transaction.require_transaction(
                ProducerPhase.OPEN, ProducerPhase.ABORTABLE, ProducerPhase.IN_DOUBT
            )
            aborted = TransactionAborted("the transaction was aborted")
            with self._unsent.lock:
                dropped = self._unsent.waiting.take()
                self._transaction.become(
                    ProducerPhase.ABORTABLE, self._transaction.failure or aborted
                )
            for batch in dropped:
                batch.fail(aborted)
            if self._unsent.touched:
                self._abort()
            self._transaction.become(ProducerPhase.READY)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Run a `with` block in a transaction: commit at its end, abort if it raises."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            if self.state in (ProducerPhase.OPEN, ProducerPhase.ABORTABLE):
                self.abort_transaction()
            raise

    def _end(self, *, commit: bool) -> None:
        try:
            self._sender.end_transaction(commit=commit)
        except ProducerFenced as error:
            self._transaction.become(ProducerPhase.FENCED, error)
            raise
        except (Retriable, StorageFailed):
            raise  # in doubt
        except Exception as error:
            self._transaction.become(ProducerPhase.ABORTABLE, error)
            raise

    def _abort(self) -> None:
        try:
            self._end(commit=False)
        except TransactionAborted:
            self._sender.forget()  # the log aborted it already: it timed out, or its owner died
        except InvalidTxnState:
            self._sender.forget()
            self._transaction.become(ProducerPhase.READY)
            raise

    def _fail(self, error: BaseException) -> None:
        """Mark an open transaction as failed, and drop cached topics, which may have changed."""
        with self._unsent.lock:
            self._targets = {}
            self._transaction.fail(error)

    # Topics -------------------------------------------------------------------------

    def _target(self, topic: str, *, fresh: bool = False) -> TopicTarget:
        known, asked = self._targets.get(topic, (None, 0.0))
        now = self._clock.monotonic()
        if known is not None and not fresh and now - asked < METADATA_MAX_AGE_S:
            return known
        info = self._broker.topic(topic)
        if known is None or known.info != info:
            earliest_ms = self._broker.earliest_ms
            known = TopicTarget(info, self._batch_bytes, self._seed, earliest_ms=earliest_ms)
        self._targets[topic] = (known, now)
        return known

    # Closing --------------------------------------------------------------------------

    def close(self) -> None:
        """Send all pending records, or abort an open transaction. Repeated calls have no effect."""
        with self._unsent.sending:
            if self.state is ProducerPhase.CLOSED:
                return
            if self.state in (ProducerPhase.OPEN, ProducerPhase.ABORTABLE):
                with contextlib.suppress(StrandlineError):
                    self.abort_transaction()
            else:
                self._unsent.drain()
            with self._unsent.lock:
                self._transaction.become(ProducerPhase.CLOSED)


def _warn_of_lost(waiting: Accumulator) -> None:
    """Log a warning if a producer is garbage collected with unsent records."""
    count = waiting.count
    if count:
        text = (
            f"a producer was collected, or its process ended, with {count:,} records that were not "
            "sent: they are lost. Close it, use `with log.producer() as producer`, or call flush()"
        )
        _log.warning("%s", text, extra={"records": count})
        warnings.warn(text, ResourceWarning, stacklevel=2)
