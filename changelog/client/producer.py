"""The producer: records, rows and whole tables into topics, each exactly once.

Every producer is idempotent: what a retry sends again, the log knows. With a
`transactional_id` all it sends is part of a transaction:

    READY ──begin──▶ OPEN ──commit──▶ READY
                      │  └─failure─▶ ABORTABLE ──abort──▶ READY
                      └──commit, no answer──▶ IN_DOUBT ──commit again──▶ READY
    any ──fenced──▶ FENCED: another instance has taken over

`send` collects records into batches. Without transactions a thread sends them when one is full
or `linger_ms` have passed; it ends when there is nothing to do. In a transaction they go when
a batch is full and at commit, on the calling thread. The bulk calls (`append*`) return once the
log has acknowledged, and keep their place in the order behind records sent before.

If the outcome of a batch is unknown (no answer within `delivery_timeout_ms`), its future says
so; a plain producer goes on with a new identity, a transaction can only be aborted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self

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
"""How long a topic's description is used before it is asked for again."""


class BatchMetadata(NamedTuple):
    """Where a batch went: offsets `base_offset` to `last_offset` of a partition."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    leader_epoch: int | None = None
    """Of the log when it wrote the batch (KIP-320), where it says so."""
    incarnation: str = ""
    """Which opening of the log wrote the batch, where it says so."""


class Producer:
    """Sends records to a log. Thread-safe.

    `linger_ms` is how long a record waits for others, `batch_bytes` how large a batch becomes,
    `buffer_bytes` how much may wait before `send` itself sends. `partitioner_seed` makes the
    partitions of keyless records the same each time.

    With a `transactional_id`, creating it takes over from any other producer with that id:
    finishes what that had committed, aborts what it left open, and fences it. A transaction
    may stay open for `transaction_timeout_ms`.

    Close it (or use `with`), or records that still linger are lost when the process ends.

    >>> from strandline.changelog.embedded.owner import Owner
    >>> from strandline.changelog.storage import MemoryStorage
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
        self._transactional_id = transactional_id
        self._batch_bytes = batch_bytes
        self._seed = partitioner_seed or self._clock.new_id()
        self._targets: dict[str, tuple[TopicTarget, float]] = {}
        self._standing = TransactionState(transactional=transactional_id is not None)
        self._sender = Sender(
            broker,
            self._clock,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
        )
        self._outbox = UnsentRecords(
            self._sender,
            check=self._standing.require_sending,
            failed=self._fail,
            linger_ms=None if transactional_id is not None else linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
        )
        weakref.finalize(self, _warn_of_lost, self._outbox.waiting)
        if transactional_id is not None:
            self._sender.init()

    @property
    def identity(self) -> ProducerIdentity | None:
        """Producer id and epoch; None before the first record of a plain producer."""
        return self._sender.identity

    @property
    def state(self) -> ProducerPhase:
        """Where the transaction is."""
        return self._standing.state

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
        """Send one record; the future has its offset once the log has it.

        `value` is bytes (on a typed topic a mapping, dataclass or msgspec.Struct); None is a
        tombstone. `key` becomes bytes by the rules of `changelog.client.keys`, and chooses the
        partition unless `partition` does. `timestamp` is in ms or a datetime, by
        default now; a float, and what looks like seconds, is InvalidRecord.

        Raises at once, with nothing sent and the transaction as it was: InvalidRecord,
        SchemaMismatch, RecordTooLarge, UnknownTopic, UnknownPartition, InvalidTxnState,
        TransactionAborted. What the log refuses later is raised by the future.
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
        return self._outbox.put(
            PendingRecord(target, partition, key_bytes, content, when, heads, size)
        )

    def check(self, topic: str, columns: pa.RecordBatch) -> None:
        """Refuse a batch of one record that the log, with its settings of now, would refuse.

        Args:
            topic: Name of the topic.
            columns: The record, in the log's own columns.

        Raises:
            InvalidRecord: It has no key on a compacted topic, or a time that is not allowed.
            RecordTooLarge: It is over `max.message.bytes`.
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
        """Append a DataFrame, Arrow data or a list of rows; where each batch went.

        `key` and `timestamp` name columns (see `changelog.client.columns`); any other `timestamp`
        is the time, in ms or a datetime, of records without one, by default now. Outside a transaction what comes before a
        failure stands. Raises what `send` and its futures do.
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
        """Append records given as lists of equal length, with encoded keys: one batch a partition."""
        target = self._target(topic)
        columns = (batch_of(target.info, keys, values, timestamps, headers) for _ in range(1))
        return self._append(target, columns, partition)

    def append_batch(
        self, topic: str, partition: int, columns: pa.RecordBatch, schema_id: int = 0
    ) -> list[BatchMetadata]:
        """Append a batch in the log's own columns (`changelog.records`) to one partition."""
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

    def append_batches(
        self, batches: Iterable[tuple[TopicPartition, pa.RecordBatch, int]]
    ) -> list[BatchMetadata]:
        """Append (partition, columns, schema id) for several partitions in one call to the log."""
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
        """Alone with the log, after all that waits; in a transaction, failing it on any error."""
        with self._outbox.sending:
            self._standing.require_sending()
            self._outbox.drain()
            self._standing.require_sending()
            try:
                yield
            except BaseException as error:
                self._fail(error)
                raise

    def _transmit(self, outgoing: Sequence[OutgoingBatch]) -> list[BatchMetadata]:
        outcomes = self._outbox.transmit(outgoing)
        appended = []
        for batch, outcome in zip(outgoing, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            offsets = outcome.base_offset, outcome.last_offset
            epoch = outcome.leader_epoch, outcome.incarnation
            appended.append(BatchMetadata(*batch.topic_partition, *offsets, *epoch))
        return appended

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent so far is in the log or has failed (see the futures).

        Raises RequestTimedOut if that takes more than `timeout` seconds; it goes on even so.
        """
        self._outbox.flush(timeout)

    # Transactions ---------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Open a transaction. Raises InvalidTxnState, ProducerFenced."""
        with self._outbox.sending:
            self._standing.require_transaction(ProducerPhase.READY)
            self._sender.init()
            self._outbox.touched = False
            self._standing.become(ProducerPhase.OPEN)

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int], group: str | GroupMember
    ) -> None:
        """Commit `offsets` (the next to read) for `group` if and when the transaction commits.

        A consumer that subscribed as one of a group gives its `Consumer.member` (KIP-447):
        MemberFenced, here or at the commit, says that others have its partitions by now.
        """
        with self._outbox.sending:
            self._standing.require_transaction(ProducerPhase.OPEN)
            located = {
                tp: CommittedOffset(offset) if isinstance(offset, int) else offset
                for tp, offset in offsets.items()
            }
            self._outbox.touched = True
            try:
                member = group if isinstance(group, GroupMember) else GroupMember(group, "")
                self._sender.add_offsets(member, located)
            except Exception as error:
                self._fail(error)
                raise

    def commit_transaction(self) -> None:
        """Send what waits and commit; all of the transaction is durable and visible then.

        Raises TransactionAborted if anything in it failed: abort it, and go on from the offsets
        that the log says are committed. Raises ProducerFenced; and Retriable or StorageFailed
        if the log did not say whether it committed: then call again, or start anew likewise.
        """
        with self._outbox.sending:
            self._standing.require_transaction(ProducerPhase.OPEN, ProducerPhase.IN_DOUBT)
            self._outbox.drain()
            with self._outbox.lock:
                self._standing.require(ProducerPhase.OPEN, ProducerPhase.IN_DOUBT)
                # From here on `send` is refused, so that nothing slips in behind the commit.
                self._standing.become(ProducerPhase.IN_DOUBT)
            if self._outbox.touched:
                self._end(commit=True)
            self._standing.become(ProducerPhase.READY)

    def abort_transaction(self) -> None:
        """Undo the transaction: records not sent are dropped, the others never become visible.

        Raises InvalidTxnState if it turns out to be committed, ProducerFenced, Retriable.
        """
        with self._outbox.sending:
            self._standing.require_transaction(
                ProducerPhase.OPEN, ProducerPhase.ABORTABLE, ProducerPhase.IN_DOUBT
            )
            aborted = TransactionAborted("the transaction was aborted")
            with self._outbox.lock:
                dropped = self._outbox.waiting.take()
                self._standing.become(ProducerPhase.ABORTABLE, self._standing.failure or aborted)
            for batch in dropped:
                batch.fail(aborted)
            if self._outbox.touched:
                self._abort()
            self._standing.become(ProducerPhase.READY)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Producer]:
        """`with producer.transaction():` commits at the end, or aborts if the block raises."""
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
            self._standing.become(ProducerPhase.FENCED, error)
            raise
        except (Retriable, StorageFailed):
            raise  # in doubt
        except Exception as error:
            self._standing.become(ProducerPhase.ABORTABLE, error)
            raise

    def _abort(self) -> None:
        try:
            self._end(commit=False)
        except TransactionAborted:
            self._sender.forget()  # aborted it is, by a timeout or with its owner
        except InvalidTxnState:
            self._sender.forget()
            self._standing.become(ProducerPhase.READY)
            raise

    def _fail(self, error: BaseException) -> None:
        """In a transaction only aborting is left; topics may have changed: ask for them again."""
        with self._outbox.lock:
            self._targets = {}
            self._standing.fail(error)

    # Topics -------------------------------------------------------------------------

    def _target(self, topic: str, *, fresh: bool = False) -> TopicTarget:
        known, asked = self._targets.get(topic, (None, 0.0))
        now = self._clock.monotonic()
        if known is not None and not fresh and now - asked < METADATA_MAX_AGE_S:
            return known
        info = self._broker.topic(topic)
        if known is None or known.info != info:
            earliest_ms = getattr(self._broker, "earliest_ms", 0)
            known = TopicTarget(info, self._batch_bytes, self._seed, earliest_ms=earliest_ms)
        self._targets[topic] = (known, now)
        return known

    # Closing --------------------------------------------------------------------------

    def close(self) -> None:
        """Send what waits (in a transaction: abort it). Harmless when repeated."""
        with self._outbox.sending:
            if self.state is ProducerPhase.CLOSED:
                return
            if self.state in (ProducerPhase.OPEN, ProducerPhase.ABORTABLE):
                with contextlib.suppress(StrandlineError):
                    self.abort_transaction()
            else:
                self._outbox.drain()
            with self._outbox.lock:
                self._standing.become(ProducerPhase.CLOSED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _warn_of_lost(waiting: Accumulator) -> None:
    """Say how many records a producer had taken and not sent when it was forgotten."""
    count = waiting.count
    if count:
        text = (
            f"a producer was collected, or its process ended, with {count:,} records that were not "
            "sent: they are lost. Close it, use `with log.producer() as producer`, or call flush()"
        )
        _log.warning("%s", text, extra={"records": count})
        warnings.warn(text, ResourceWarning, stacklevel=2)
