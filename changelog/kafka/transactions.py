"""The transactions of one producer with a transactional id.

    READY ──first append, or offsets──▶ OPEN ──commit, abort──▶ READY, with the next epoch
                                         └──failure──▶ OPEN, doomed: only to be aborted

librdkafka registers partitions, sends and ends; Kafka's coordinator decides and fences. The epoch of
the identity here counts this producer's transactions (KIP-890), so that a call that comes late,
or again, is told from one for the next.

Kafka cannot be asked which of the two it was when it refuses a producer at the commit: another
one with its id, or its own transaction that had been open for too long. Either is ProducerFenced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException

from strandline.changelog.errors import (
    InvalidTxnState,
    MemberFenced,
    ProducerFenced,
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
"""How much later than its timeout a call may come back."""
OFFSETS_S = 5.0
"""How long a group's coordinator may take; a commit that is begun anew finds out who it is now."""
Ended = Callable[[ProducerIdentity, Collection[TopicPartition]], None]
"""Told who the producer is from now on, and what it has written to until now."""


class Transactions:
    """One producer's. Thread-safe: one call after the other.

    Creating it takes over from any other with that id. Raises InvalidConfig, Retriable.
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
        self._dead: StrandlineError | None = None
        self._last: tuple[ProducerIdentity, bool] | None = None
        """The identity of the transaction that ended last, and whether it was committed."""
        self._partitions: set[TopicPartition] = set()
        """Those that were written to in the transaction."""
        self._groups: dict[str, Any] = {}
        """What librdkafka wants for a group's name."""
        self._sending = KafkaProducer(
            connection,
            {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms},
        )
        self._caller = DeadlineCaller()
        try:
            with connection.translated(f"taking over as {transactional_id!r}"):
                self._in_time(lambda: self._sending.producer.init_transactions(DEADLINE_S))
        except BaseException:
            self._caller.close()
            raise

    def send(self, producer: ProducerIdentity, batches: Sequence[KafkaBatch]) -> list[Outcome]:
        """Write batches in the transaction, which begins with the first."""
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
            return outcomes

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        member: Any = None,
    ) -> None:
        """Make committed offsets a part of the transaction; `member` is a member's metadata."""
        positions = [position_of(tp, one) for tp, one in offsets.items()]
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
                self._check_not_doomed()
                self._call(
                    lambda: self._sending.producer.commit_transaction(DEADLINE_S), "committing"
                )
            else:
                self._call(lambda: self._sending.producer.abort_transaction(DEADLINE_S), "aborting")
            self._finish(commit=commit)
            return self._identity

    def close(self) -> None:
        """Abort what is open, as far as the cluster lets it."""
        with self.lock:
            if self._open and self._dead is None and not self._is_aborted():
                self._sending.discard()  # the cluster aborts it when its time is over
            self._open = False
            self._caller.close()
            self._dead = self._dead or ProducerFenced(f"producer {self._name!r} was closed")

    def _is_aborted(self) -> bool:
        try:
            self._in_time(lambda: self._sending.producer.abort_transaction(DEADLINE_S))
        except (KafkaException, ProducerFenced):
            return False
        return True

    # What may happen when -------------------------------------------------------------

    def _join(self, producer: ProducerIdentity) -> None:
        """Open the transaction if need be, and only if this producer may."""
        self._check(producer)
        self._check_not_doomed()
        if not self._open:
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

    def _check_not_doomed(self) -> None:
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
        """Ask librdkafka; what it refuses says what is left of the transaction, and the producer."""
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
                    self._check_not_doomed()
            raise error from raised

    def _in_time(self, call: Callable[[], Any], seconds: float | None = None) -> None:
        """Make a call. Raises ProducerFenced if it does not come back: only another producer can go on."""
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
    """A group's name as librdkafka wants it: it gives one to consumers only."""
    consumer: Consumer = connection.client(
        Consumer, {"group.id": group, "enable.auto.commit": False}
    )
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()
