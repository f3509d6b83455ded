"""The transactions of one producer with a transactional id.

    READY ──first append, or offsets──▶ OPEN ──commit, abort──▶ READY, with the next epoch
                                         └──failure──▶ OPEN, failed: must be aborted

librdkafka registers partitions, sends records and ends transactions; Kafka's coordinator decides
and fences. The epoch of the identity counts this producer's transactions (KIP-890), so that a late
or repeated call can be distinguished from one for the next transaction.

If Kafka rejects a producer at the commit, the cause is either another producer with its id, or a
transaction that was open for too long. Kafka does not report which; both raise ProducerFenced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException

from strandline.changelog.errors import (
    InvalidRecord,
    InvalidTxnState,
    MemberFenced,
    ProducerFenced,
    RecordTooLarge,
    StrandlineError,
    TransactionAborted,
)
from strandline.changelog.kafka.connection import DEADLINE_S, KafkaConnection
from strandline.changelog.kafka.deadline import DeadlineCaller
from strandline.changelog.kafka.failures import asks_for_abort, is_fatal
from strandline.changelog.kafka.groups import position_of
from strandline.changelog.kafka.producing import KafkaBatch, KafkaProducer, Outcome
from strandline.changelog.records import CommittedOffset, ProducerIdentity, TopicPartition

GRACE_S = 2.0
"""Seconds after its timeout in which a call may still return."""
OFFSETS_S = 5.0
"""Maximum seconds to wait for a group's coordinator. A new attempt of the commit looks up the
coordinator again."""
REFUSALS = (InvalidRecord, RecordTooLarge)
"""Errors of a batch that the cluster has refused.

librdkafka (2.16) counts its records in the sequence numbers of the partition although they were
not written, so the next transaction that writes there would fail (docs/upstream.md). The client is
therefore replaced after the abort.
"""
Ended = Callable[[ProducerIdentity, Collection[TopicPartition]], None]
"""Function called after a transaction, with the producer's next identity and the partitions that it
has written to."""


class Transactions:
    """The transactions of one producer. Thread-safe: calls run one after the other.

    The constructor fences other producers with the same id. Raises InvalidConfig, Retriable.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        identity: ProducerIdentity,
        transactional_id: str,
        timeout_ms: int,
        ended: Ended,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._name = transactional_id
        self._ended = ended
        self.lock = threading.RLock()
        self._open = False
        self._doom: StrandlineError | None = None
        """Error after which the open transaction must be aborted."""
        self._dead: StrandlineError | None = None
        """Error after which the producer cannot be used."""
        self._last: tuple[ProducerIdentity, bool] | None = None
        """Identity of the last ended transaction, and True if it was committed."""
        self._partitions: set[TopicPartition] = set()
        """Partitions written to in the open transaction."""
        self._groups: dict[str, Any] = {}
        """Metadata that librdkafka requires in place of a group's name, by group."""
        self._timeout_ms = timeout_ms
        self._refused = False
        """True if the cluster has refused a batch since the client was made."""
        self._caller = DeadlineCaller()
        try:
            self._sending = self._client()
        except BaseException:
            self._caller.close()
            raise

    def _client(self) -> KafkaProducer:
        """Return a client of librdkafka that has taken over the transactional id."""
        properties = {
            "transactional.id": self._name,
            "transaction.timeout.ms": self._timeout_ms,
        }
        client = KafkaProducer(self._connection, properties)
        with self._connection.translated(f"taking over as {self._name!r}"):
            self._in_time(lambda: client.producer.init_transactions(DEADLINE_S))
        return client

    def send(self, producer: ProducerIdentity, batches: Sequence[KafkaBatch]) -> list[Outcome]:
        """Append batches in the transaction. The first append begins it."""
        if not batches:
            return []
        with self.lock:
            self._join(producer)
            self._partitions.update(batch.partition for batch in batches)
            try:
                outcomes = self._sending.send(batches)
            except BaseException as error:
                self._doom = TransactionAborted(f"sending was interrupted: {error!r}")
                raise
            failed = next((o for o in outcomes if isinstance(o, StrandlineError)), None)
            if isinstance(failed, ProducerFenced):
                self._dead = failed
            self._doom = self._doom or failed
            self._refused = self._refused or any(isinstance(one, REFUSALS) for one in outcomes)
            return outcomes

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        member: Any = None,
    ) -> None:
        """Add consumer offsets to the transaction; `member` is the metadata of a member, if any."""
        positions = [position_of(tp, one, self._connection) for tp, one in offsets.items()]
        with self.lock:
            self._join(producer)
            if member is None:
                if group not in self._groups:
                    self._groups[group] = _metadata(self._connection, group)
                member = self._groups[group]
            self._call(
                lambda: self._sending.producer.send_offsets_to_transaction(
                    positions, member, OFFSETS_S
                ),
                f"adding offsets of group {group!r} to the transaction",
                OFFSETS_S,
            )

    def end(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """See Broker.end_transaction."""
        with self.lock:
            if self._last is not None and self._last[0] == producer:
                return self._answer_again(commit=commit)
            self._check(producer)
            if not self._open:
                return self._identity
            if commit:
                self._check_not_failed()
                self._call(
                    lambda: self._sending.producer.commit_transaction(DEADLINE_S), "committing"
                )
            else:
                self._call(lambda: self._sending.producer.abort_transaction(DEADLINE_S), "aborting")
            self._finish(commit=commit)
            return self._identity

    def close(self) -> None:
        """Abort an open transaction if the cluster answers, and close the producer."""
        with self.lock:
            if self._open and self._dead is None and not self._try_abort():
                self._sending.discard()  # the cluster aborts the transaction after its timeout
            self._open = False
            self._caller.close()
            self._dead = self._dead or ProducerFenced(f"producer {self._name!r} was closed")

    def _try_abort(self) -> bool:
        try:
            self._in_time(lambda: self._sending.producer.abort_transaction(DEADLINE_S))
        except (KafkaException, ProducerFenced):
            return False
        return True

    # State ----------------------------------------------------------------------------

    def _join(self, producer: ProducerIdentity) -> None:
        """Begin a transaction if none is open. Raises if the producer may not write in it."""
        self._check(producer)
        self._check_not_failed()
        if not self._open:
            if self._refused:
                self._sending = self._client()
                self._refused = False
            with self._connection.translated(self._doing("beginning")):
                self._sending.producer.begin_transaction()
            self._open = True

    def _check(self, producer: ProducerIdentity) -> None:
        if self._dead is not None:
            raise self._dead
        if producer != self._identity:
            raise ProducerFenced(
                f"transactional id {self._name!r} has epoch {self._identity.epoch} by now, got "
                f"{producer.epoch}; its transaction has ended"
            )

    def _check_not_failed(self) -> None:
        if self._doom is not None:
            raise TransactionAborted(
                f"the transaction of {self._name!r} can only be aborted: {self._doom}"
            ) from self._doom

    def _answer_again(self, *, commit: bool) -> ProducerIdentity:
        _, committed = self._last or (None, False)
        if commit == committed:
            return self._identity
        if commit:
            raise TransactionAborted(f"the transaction of {self._name!r} was aborted")
        raise InvalidTxnState(
            f"the transaction of {self._name!r} was committed and cannot be aborted"
        )

    def _finish(self, *, commit: bool) -> None:
        self._last = (self._identity, commit)
        self._identity = self._identity._replace(epoch=self._identity.epoch + 1)
        self._open = False
        self._doom = None
        self._ended(self._identity, self._partitions)
        self._partitions = set()

    def _call(self, call: Callable[[], Any], doing: str, seconds: float | None = None) -> None:
        """Call librdkafka, and update the state of transaction and producer after an error."""
        try:
            self._in_time(call, seconds)
            self._connection.answered()
        except KafkaException as raised:
            error = self._connection.failure_of(raised, self._doing(doing))
            if isinstance(error, ProducerFenced) or is_fatal(raised):
                self._dead = error
            elif asks_for_abort(raised):
                self._doom = error
                if not isinstance(error, MemberFenced):
                    self._check_not_failed()
            raise error from raised

    def _in_time(self, call: Callable[[], Any], seconds: float | None = None) -> None:
        """Make a call. Raises ProducerFenced if it hangs, because the producer is unusable then."""
        try:
            self._caller(call, (DEADLINE_S if seconds is None else seconds) + GRACE_S)
        except TimeoutError:
            self._dead = ProducerFenced(
                f"{self._connection.where(self._doing('waiting'))}: the client lost sight of a broker, "
                f"and cannot go on; begin with a new producer"
            )
            raise self._dead from None

    def _doing(self, what: str) -> str:
        return f"transactional id {self._name!r}, {what}"


def _metadata(connection: KafkaConnection, group: str) -> Any:
    """Return a group's metadata for librdkafka, which only a consumer can create."""
    consumer: Consumer = connection.client(
        Consumer, {"group.id": group, "enable.auto.commit": False}
    )
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()
