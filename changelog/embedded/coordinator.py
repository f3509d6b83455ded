"""The transaction coordinator: who may write in which transaction, and how each ends.

    EMPTY ──first append──▶ ONGOING ──▶ COMMITTING ──▶ EMPTY, with the next epoch
                               └──────▶ aborted ─────▶ EMPTY, with the next epoch

There is one for a log. The epoch rises with every transaction (KIP-890), so that a late
append or marker of an ended one can never hit the next. Producer ids are not handed on from
one opening of the log to the next: `init_producer` of a known transactional id gives a new
one, so an identity that a power cut forgot cannot be given out again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from enum import Enum

from strandline.changelog.config import check_client_name
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.group_commit import (
    CommitStage,
    CommitTicket,
    GroupCommit,
    TransactionEnded,
)
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.syncing import sync_all
from strandline.changelog.embedded.transaction_log import TransactionLog, TransactionRecord
from strandline.changelog.errors import (
    REPAIR,
    UNDONE,
    CorruptLog,
    Fenced,
    InvalidConfig,
    InvalidTxnState,
    ProducerFenced,
    StorageFailed,
    StrandlineError,
    TransactionAborted,
    UnknownTopic,
)
from strandline.changelog.records import ProducerIdentity

MAX_EPOCH = (1 << 31) - 2
MAX_TIMEOUT_MS = 15 * 60 * 1000
"""Kafka's `transaction.max.timeout.ms`."""
EXPIRATION_MS = 7 * 24 * 60 * 60 * 1000
"""Kafka's `transactional.id.expiration.ms`."""


Check = Callable[[], None]
"""Raises Fenced if a transaction may not be committed."""


class TransactionPhase(Enum):
    """Where a transactional id is."""

    EMPTY = "no transaction open"
    ONGOING = "a transaction open"
    COMMITTING = "a transaction being committed"
    FAILED = "a transaction whose outcome only a reopening can tell"


class Transaction:
    """One transactional id and its current transaction."""

    def __init__(self, transactional_id: str, producer: ProducerIdentity, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.timeout_ms = timeout_ms
        self.lock = threading.RLock()
        self.state = TransactionPhase.EMPTY
        self.partitions: dict[Partition, None] = {}
        self.checks: list[Check] = []
        """What must hold when it is to be committed."""
        self.deadline = 0.0
        self.used_ms = 0
        self.last_ended: tuple[ProducerIdentity, bool] | None = None
        """The identity whose transaction ended last, and whether it was committed."""
        self.refusal: BaseException | None = None
        """Why that was refused its commit; None if it was not."""
        self.pending_markers: dict[Partition, ProducerIdentity] = {}
        """Partitions without room for the marker of an abort, and whose marker it is."""

    def overdue(self, now: float) -> bool:
        """Whether its transaction has been open for too long."""
        return self.state is TransactionPhase.ONGOING and now > self.deadline


class Coordinator:
    """The transactions of one log."""

    def __init__(
        self, environment: LogContext, log: TransactionLog, ended: TransactionEnded
    ) -> None:
        self._environment = environment
        self._log = log
        self._ended = ended
        self._commits = GroupCommit(environment, log, ended)
        self._lock = threading.Lock()
        self._by_id: dict[str, Transaction] = {}
        self._by_producer: dict[int, Transaction] = {}
        self._before_opening: dict[str, TransactionRecord] = {}
        """Ids that have not called init_producer since the log was opened."""
        self._before_opening_by_producer: dict[int, TransactionRecord] = {}
        """The same by producer id."""

    # Producers ------------------------------------------------------------------------

    def init_producer(self, transactional_id: str | None, timeout_ms: int) -> ProducerIdentity:
        """See Broker.init_producer."""
        if transactional_id is None:
            with self._lock:
                return ProducerIdentity(self._log.new_producer_id(), 0)
        if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
            raise InvalidConfig(
                f"transaction.timeout.ms must be 1 to {MAX_TIMEOUT_MS}, got {timeout_ms}"
            )
        check_client_name("a transactional producer", transactional_id)
        transaction = self._transaction_of(transactional_id, timeout_ms)
        with transaction.lock:
            self._check_not_failed(transaction)
            if transaction.state is TransactionPhase.ONGOING:
                self._abort(transaction)
            elif transaction.last_ended is not None:
                self._bump(transaction)
            transaction.last_ended = (ProducerIdentity(-1, -1), False)
            transaction.timeout_ms = timeout_ms
            self._write_empty(transaction)
            return transaction.producer

    def _transaction_of(self, transactional_id: str, timeout_ms: int) -> Transaction:
        with self._lock:
            transaction = self._by_id.get(transactional_id)
            if transaction is None:
                producer = ProducerIdentity(self._log.new_producer_id(), 0)
                transaction = Transaction(transactional_id, producer, timeout_ms)
                self._by_id[transactional_id] = transaction
                self._by_producer[producer.producer_id] = transaction
                old = self._before_opening.pop(transactional_id, None)
                if old is not None:
                    self._before_opening_by_producer.pop(old.producer_id, None)
            transaction.used_ms = self._environment.steady_ms()
            return transaction

    def _write_empty(self, transaction: Transaction) -> None:
        producer = transaction.producer
        record = TransactionRecord(
            "empty", producer.producer_id, producer.epoch, producer.epoch, transaction.timeout_ms
        )
        self._commits.write_pending_markers(transaction.transactional_id)
        self._commits.finalize()  # or this record would supersede a Prepare that is still needed
        if not self._commits.is_finalized(transaction.transactional_id):
            raise StorageFailed(
                f"the last transaction of {transaction.transactional_id!r} is committed, but not "
                f"all its markers could be written; reopen the log, which writes them"
            )
        self._log.write([(transaction.transactional_id, record)], sync=True)

    # Transactions ---------------------------------------------------------------------

    @contextlib.contextmanager
    def joined(
        self, producer: ProducerIdentity, partition: Partition, check: Check | None = None
    ) -> Iterator[None]:
        """Hold the producer's transaction open while something is appended to `partition`.

        The partition is registered first, so the end of the transaction reaches it whatever
        happens. `check` must hold now, and once more when the transaction is to be committed. Raises
        ProducerFenced, TransactionAborted, InvalidTxnState; and DiskFull while there is no room
        for the markers of the transaction before.
        """
        transaction = self._find(producer)
        with transaction.lock:
            self._check_current(transaction, producer)
            if transaction.state is TransactionPhase.EMPTY:
                self._write_pending_markers(
                    transaction
                )  # or the marker, written later, would end this one
                transaction.state = TransactionPhase.ONGOING
                timeout = transaction.timeout_ms / 1000
                transaction.deadline = self._environment.clock.monotonic() + timeout
                transaction.used_ms = self._environment.steady_ms()
            transaction.partitions[partition] = None
            if check is not None:
                check()
            yield
            if check is not None:
                transaction.checks.append(check)

    def end(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """See Broker.end_transaction."""
        if commit and self._committed_before_opening(producer):
            return producer._replace(epoch=producer.epoch + 1)
        transaction = self._find(producer)
        with transaction.lock:
            if transaction.last_ended is not None and transaction.last_ended[0] == producer:
                return self._repeat_outcome(transaction, commit)
            self._check_current(transaction, producer)
            if not commit:  # also if nothing of it is here yet: what comes late is too late then
                self._abort(transaction)
                return transaction.producer
            if transaction.state is TransactionPhase.EMPTY:
                return transaction.producer
            if self._environment.clock.monotonic() > transaction.deadline:
                self._abort(transaction)
                raise self._timed_out(transaction)
            self._recheck(transaction)
            return self._commit(transaction)

    def _recheck(self, transaction: Transaction) -> None:
        """What was true when the transaction grew must be so at its end, or it is aborted."""
        try:
            for check in transaction.checks:
                check()
        except Fenced:
            self._abort(transaction)
            raise

    def _commit(self, transaction: Transaction) -> ProducerIdentity:
        transaction.state = TransactionPhase.COMMITTING
        successor = self._successor(transaction)
        ticket = CommitTicket(
            transaction.transactional_id,
            transaction.producer,
            successor,
            transaction.timeout_ms,
            list(transaction.partitions),
        )
        try:
            self._commits.commit(ticket)
        finally:
            self._apply_outcome(transaction, ticket)
        return transaction.producer

    def _apply_outcome(self, transaction: Transaction, ticket: CommitTicket) -> None:
        """What a commit, failed or not, has made of the transaction."""
        if ticket.stage is CommitStage.COMMITTED:
            self._finish(transaction, ticket.successor, committed=True)
        elif ticket.stage is CommitStage.REFUSED:
            self._abort(transaction)
            transaction.refusal = ticket.error
        else:
            transaction.state = TransactionPhase.FAILED

    def _abort(self, transaction: Transaction) -> None:
        """Markers to all partitions; no Prepare, since what is not prepared is aborted."""
        successor = self._successor(transaction)
        for partition in transaction.partitions:
            if not partition.retired:
                try:
                    partition.append_marker(successor, commit=False)
                except UNDONE:
                    transaction.pending_markers[partition] = successor
                except StrandlineError:
                    continue  # that partition cannot be written until recovery aborts the rest
        # Not for safety, but so that readers get past the marker without waiting for others.
        sync_all(self._environment, transaction.partitions)
        self._finish(transaction, successor, committed=False)

    def _write_pending_markers(self, transaction: Transaction) -> None:
        """Write the markers for which there was no room. Raises DiskFull if there still is none."""
        self._commits.write_pending_markers(transaction.transactional_id)
        for partition, successor in list(transaction.pending_markers.items()):
            if partition.usable:
                with contextlib.suppress(UnknownTopic):  # deleted this moment
                    partition.append_marker(successor, commit=False)
            del transaction.pending_markers[partition]

    def _finish(
        self, transaction: Transaction, successor: ProducerIdentity, *, committed: bool
    ) -> None:
        ended = transaction.producer
        transaction.last_ended = (ended, committed)
        transaction.refusal = None
        transaction.partitions = {}
        transaction.checks = []
        transaction.state = TransactionPhase.EMPTY
        transaction.producer = successor
        self._environment.counters.ended(committed=committed)
        if not committed:  # of a commit GroupCommit tells, when the last marker is there
            self._ended(ended, commit=False)
        if successor.epoch >= MAX_EPOCH:
            self._renew(transaction)

    def _renew(self, transaction: Transaction) -> None:
        """The epochs are used up: a new producer id takes their place."""
        with self._lock:
            transaction.producer = ProducerIdentity(self._log.new_producer_id(), 0)
            self._by_producer[transaction.producer.producer_id] = transaction

    def _bump(self, transaction: Transaction) -> None:
        transaction.producer = self._successor(transaction)
        if transaction.producer.epoch >= MAX_EPOCH:
            self._renew(transaction)

    @staticmethod
    def _successor(transaction: Transaction) -> ProducerIdentity:
        return transaction.producer._replace(epoch=transaction.producer.epoch + 1)

    # Checks ---------------------------------------------------------------------------

    def _find(self, producer: ProducerIdentity) -> Transaction:
        transaction = self._by_producer.get(producer.producer_id)
        if transaction is not None:
            return transaction
        earlier = self._before_opening_by_producer.get(producer.producer_id)
        if earlier is not None and producer.epoch >= earlier.next_epoch:
            raise TransactionAborted(
                f"producer {producer.producer_id}: the log was reopened, which aborted what was "
                f"open; call init_producer and go on from the last commit"
            )
        raise ProducerFenced(
            f"producer {producer.producer_id} is not known here; another instance with its "
            f"transactional id took over, or it was never initialised with one"
        )

    def _committed_before_opening(self, producer: ProducerIdentity) -> bool:
        """Whether this is a commit whose answer was lost with the owner before us."""
        record = self._before_opening_by_producer.get(producer.producer_id)
        return record is not None and record.state != "empty" and record.epoch == producer.epoch

    def _check_current(self, transaction: Transaction, producer: ProducerIdentity) -> None:
        self._check_not_failed(transaction)
        current = transaction.producer
        if producer != current:
            if transaction.last_ended == (producer, False):
                raise self._timed_out(transaction)
            raise ProducerFenced(
                f"transactional id {transaction.transactional_id!r} has producer id "
                f"{current.producer_id}, epoch {current.epoch} by now; got "
                f"{producer.producer_id}, epoch {producer.epoch}; another instance took over"
            )

    @staticmethod
    def _check_not_failed(transaction: Transaction) -> None:
        if transaction.state is TransactionPhase.FAILED:
            raise StorageFailed(
                f"the last commit of {transaction.transactional_id!r} failed on the way to the "
                f"disk; reopen the log to learn whether it took effect"
            )

    @staticmethod
    def _timed_out(transaction: Transaction) -> TransactionAborted:
        if transaction.refusal is not None:
            return TransactionAborted(
                f"the transaction of {transaction.transactional_id!r} was aborted, since it could "
                f"not be committed: {transaction.refusal}"
            )
        return TransactionAborted(
            f"the transaction of {transaction.transactional_id!r} was aborted, as a rule because "
            f"it was open for more than transaction.timeout.ms = {transaction.timeout_ms}; call "
            f"init_producer and go on from the last commit"
        )

    def _repeat_outcome(self, transaction: Transaction, commit: bool) -> ProducerIdentity:
        _, committed = transaction.last_ended or (None, False)
        if commit == committed:
            if commit:
                self._commits.write_pending_markers(transaction.transactional_id)
            return transaction.producer
        if commit:
            raise self._timed_out(transaction)
        raise InvalidTxnState(
            f"the transaction of {transaction.transactional_id!r} was committed and cannot be aborted"
        )

    @property
    def open_transactions(self) -> int:
        """How many have not ended."""
        with self._lock:
            return sum(t.state is not TransactionPhase.EMPTY for t in self._by_id.values())

    # Time and recovery ----------------------------------------------------------------

    def tick(self) -> None:
        """Abort what is open for too long; note which markers are durable by now."""
        now = self._environment.clock.monotonic()
        with self._lock:
            transactions = list(self._by_id.values())
        for transaction in transactions:
            if transaction.overdue(now) or transaction.pending_markers:
                with transaction.lock, contextlib.suppress(StorageFailed):
                    if transaction.overdue(now):
                        self._abort(transaction)
                    self._write_pending_markers(transaction)
        with contextlib.suppress(*UNDONE):  # the next tick may find room
            self._commits.finalize()
            self._expire(self._environment.steady_ms() - EXPIRATION_MS)

    def _expire(self, older_than: int) -> None:
        """Forget transactional ids idle for a week; a producer that comes back begins anew."""
        with self._lock:
            idle = [
                transaction
                for transaction in self._by_id.values()
                if transaction.used_ms < older_than
                and transaction.state is TransactionPhase.EMPTY
                and not transaction.pending_markers
                and self._commits.is_finalized(transaction.transactional_id)
            ]
            for transaction in idle:
                del self._by_id[transaction.transactional_id]
                self._by_producer.pop(transaction.producer.producer_id, None)
        if idle:
            self._log.forget([transaction.transactional_id for transaction in idle])

    def close(self) -> None:
        """Write down which transactions are complete."""
        self._commits.finalize()

    def recover(
        self,
        find: Callable[[str, int], Partition | None],
        partitions: Callable[[], Iterator[Partition]],
    ) -> None:
        """After opening: complete what was prepared, abort the rest, make both durable.

        `find` gives a partition by topic id and number. Raises CorruptLog if a partition holds
        less than a Prepare says was durable.
        """
        records = self._log.load()
        highest = max((max(p.producers.entries, default=-1) for p in partitions()), default=-1)
        self._log.skip_producer_ids(highest)
        touched: set[Partition] = set()
        completed = []
        for name, record in records.items():
            if record.state == "prepare":
                touched |= _complete(record, find)
                completed.append((name, _as_complete(record)))
        for partition in partitions():
            touched |= _abort_open(partition)
        failed = sync_all(self._environment, touched)
        for error in failed.values():
            raise error
        if completed:
            self._log.write(completed, sync=True)
        self._before_opening = records
        self._before_opening_by_producer = {
            record.producer_id: record for record in records.values()
        }


def _complete(
    record: TransactionRecord, find: Callable[[str, int], Partition | None]
) -> set[Partition]:
    """Write the commit markers that a crash left out."""
    successor = ProducerIdentity(record.producer_id, record.next_epoch)
    touched = set()
    for prepared in record.partitions:
        partition = find(prepared.topic_id, prepared.partition)
        if partition is None:
            continue  # the topic was deleted
        if partition.log_end < prepared.end:
            raise CorruptLog(
                f"{partition.folder}: {partition.topic_partition} ends at offset "
                f"{partition.log_end}, but a committed transaction reaches to {prepared.end}; {REPAIR}"
            )
        if partition.producers.epoch(record.producer_id) < record.next_epoch:
            partition.append_marker(successor, commit=True, recovery=True)
            touched.add(partition)
    return touched


def _abort_open(partition: Partition) -> set[Partition]:
    """Write abort markers for every transaction still open in a partition."""
    touched = set()
    for producer_id in partition.producers.open_producers:
        epoch = partition.producers.epoch(producer_id) + 1
        partition.append_marker(ProducerIdentity(producer_id, epoch), commit=False)
        touched.add(partition)
    return touched


def _as_complete(record: TransactionRecord) -> TransactionRecord:
    return TransactionRecord(
        "complete", record.producer_id, record.epoch, record.next_epoch, record.timeout_ms
    )
