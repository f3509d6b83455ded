"""The transaction coordinator: the state of each transactional id, and the end of each transaction.

    EMPTY ──first append──▶ ONGOING ──▶ COMMITTING ──▶ EMPTY, with the next epoch
                               └──────▶ aborted ─────▶ EMPTY, with the next epoch

A log has one coordinator. The producer epoch rises with every transaction (KIP-890), so a late
append or marker of an ended transaction can never affect the next one.

Producer ids are not kept across openings of the log. The first `init_producer` of a transactional
id after an opening assigns a new producer id. An epoch that a power cut lost therefore cannot be
assigned twice.
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
    NO_EFFECT_ERRORS,
    REPAIR,
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
"""Producer epoch at which a transactional id gets a new producer id."""
MAX_TIMEOUT_MS = 15 * 60 * 1000
"""Maximum transaction timeout in milliseconds.

The value is the default of Kafka's `transaction.max.timeout.ms`."""
EXPIRATION_MS = 7 * 24 * 60 * 60 * 1000
"""Milliseconds of idleness after which a transactional id expires.

The value is the default of Kafka's `transactional.id.expiration.ms`."""


Check = Callable[[], None]
"""A function that raises Fenced if a transaction may not be committed."""


class TransactionPhase(Enum):
    """The phase of a transactional id."""

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
        """Held during each call of the transaction's producer, the append or commit included."""
        self.state = TransactionPhase.EMPTY
        self.partitions: dict[Partition, None] = {}
        self.checks: list[Check] = []
        """Checks to repeat when the transaction is committed."""
        self.deadline = 0.0
        """Monotonic time in seconds after which the open transaction is aborted."""
        self.used_ms = 0
        """Steady time in milliseconds of the last use, for expiry."""
        self.last_ended: tuple[ProducerIdentity, bool] | None = None
        """The identity of the transaction that ended last, and True if it was committed."""
        self.refusal: BaseException | None = None
        """The error that refused the last transaction's commit; None if it was not refused."""
        self.pending_markers: dict[Partition, ProducerIdentity] = {}
        """Abort markers that there was no room for: partition → identity that the marker
        carries."""

    def overdue(self, now: float) -> bool:
        """Return True if the transaction has been open for longer than its timeout."""
        return self.state is TransactionPhase.ONGOING and now > self.deadline


class Coordinator:
    """Coordinates the transactions of one log."""

    def __init__(self, context: LogContext, log: TransactionLog, ended: TransactionEnded) -> None:
        self._context = context
        self._log = log
        self._ended = ended
        self._commits = GroupCommit(context, log, ended)
        self._lock = threading.Lock()
        """Guards the maps below. A transaction's lock is taken before it, never while it is
        held."""
        self._by_id: dict[str, Transaction] = {}
        self._by_producer: dict[int, Transaction] = {}
        self._before_opening: dict[str, TransactionRecord] = {}
        """Records of transactional ids that have not called init_producer since the opening."""
        self._before_opening_by_producer: dict[int, TransactionRecord] = {}
        """The same records by producer id."""

    # Producers ------------------------------------------------------------------------

    def init_producer(self, transactional_id: str | None, timeout_ms: int) -> ProducerIdentity:
        """Assign a producer identity. See Broker.init_producer."""
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
        """Return the state of a transactional id. An unknown one gets a new producer id."""
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
            transaction.used_ms = self._context.steady_ms()
            return transaction

    def _write_empty(self, transaction: Transaction) -> None:
        """Write an `empty` record for the transactional id, durably."""
        producer = transaction.producer
        record = TransactionRecord(
            "empty", producer.producer_id, producer.epoch, producer.epoch, transaction.timeout_ms
        )
        self._commits.write_pending_markers(transaction.transactional_id)
        # This record replaces the id's last one, and that may be a Prepare. Recovery needs the
        # Prepare until all markers are durable, so they are made durable first.
        self._commits.finalize()
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
        """Keep the producer's transaction open while the block appends to `partition`.

        The partition is registered before the append, so the end of the transaction writes a marker
        there even if the append fails halfway.

        `check` is called now, and once more when the transaction is committed.

        Raises ProducerFenced, TransactionAborted, InvalidTxnState, and DiskFull while there is no
        room for the markers of the previous transaction.
        """
        transaction = self._find(producer)
        with transaction.lock:
            self._check_current(transaction, producer)
            if transaction.state is TransactionPhase.EMPTY:
                # Before the new transaction begins, because a pending marker that is written
                # later would end the new one.
                self._write_pending_markers(transaction)
                transaction.state = TransactionPhase.ONGOING
                timeout = transaction.timeout_ms / 1000
                transaction.deadline = self._context.clock.monotonic() + timeout
                transaction.used_ms = self._context.steady_ms()
            transaction.partitions[partition] = None
            if check is not None:
                check()
            yield
            if check is not None:
                transaction.checks.append(check)

    def end(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """Commit or abort a transaction. See Broker.end_transaction."""
        if commit and self._committed_before_opening(producer):
            return producer._replace(epoch=producer.epoch + 1)
        transaction = self._find(producer)
        with transaction.lock:
            if transaction.last_ended is not None and transaction.last_ended[0] == producer:
                return self._repeat_outcome(transaction, commit)
            self._check_current(transaction, producer)
            if not commit:
                # Even with no partition yet: the new epoch fences appends that arrive late.
                self._abort(transaction)
                return transaction.producer
            if transaction.state is TransactionPhase.EMPTY:
                return transaction.producer
            if self._context.clock.monotonic() > transaction.deadline:
                self._abort(transaction)
                raise self._timed_out(transaction)
            self._recheck(transaction)
            return self._commit(transaction)

    def _recheck(self, transaction: Transaction) -> None:
        """Repeat the checks of the transaction. If one fails, abort the transaction and raise."""
        try:
            for check in transaction.checks:
                check()
        except Fenced:
            self._abort(transaction)
            raise

    def _commit(self, transaction: Transaction) -> ProducerIdentity:
        """Commit the transaction. Return the producer's identity for the next one."""
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
        """Update the transaction after its commit has succeeded or failed."""
        if ticket.stage is CommitStage.COMMITTED:
            self._finish(transaction, ticket.successor, committed=True)
        elif ticket.stage is CommitStage.REFUSED:
            self._abort(transaction)
            transaction.refusal = ticket.error
        else:
            transaction.state = TransactionPhase.FAILED

    def _abort(self, transaction: Transaction) -> None:
        """Write abort markers to all partitions of the transaction.

        No Prepare is needed, because recovery aborts every transaction that is not prepared.
        """
        successor = self._successor(transaction)
        for partition in transaction.partitions:
            if not partition.gate.retired:
                try:
                    partition.append_marker(successor, commit=False)
                except NO_EFFECT_ERRORS:
                    transaction.pending_markers[partition] = successor
                except StrandlineError:
                    continue  # the partition is poisoned; recovery aborts the transaction there
        # Correctness does not need this fsync. It makes the markers visible now, rather than with
        # the next fsync of another writer.
        sync_all(self._context, transaction.partitions)
        self._finish(transaction, successor, committed=False)

    def _write_pending_markers(self, transaction: Transaction) -> None:
        """Write the markers that there was no room for. Raises DiskFull if there still is none."""
        self._commits.write_pending_markers(transaction.transactional_id)
        for partition, successor in list(transaction.pending_markers.items()):
            if partition.gate.usable:
                with contextlib.suppress(UnknownTopic):  # the topic was deleted meanwhile
                    partition.append_marker(successor, commit=False)
            del transaction.pending_markers[partition]

    def _finish(
        self, transaction: Transaction, successor: ProducerIdentity, *, committed: bool
    ) -> None:
        """Reset the transaction after its end, and give the producer its next epoch."""
        ended = transaction.producer
        transaction.last_ended = (ended, committed)
        transaction.refusal = None
        transaction.partitions = {}
        transaction.checks = []
        transaction.state = TransactionPhase.EMPTY
        transaction.producer = successor
        self._context.counters.ended(committed=committed)
        # GroupCommit reports commits itself, once the last marker is written.
        if not committed:
            self._ended(ended, commit=False)
        if successor.epoch >= MAX_EPOCH:
            self._renew(transaction)

    def _renew(self, transaction: Transaction) -> None:
        """Assign a new producer id, because the epochs of the old one are used up."""
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
        """Return the transaction of a producer id.

        Raises TransactionAborted if the producer is from before this opening, else ProducerFenced.
        """
        transaction = self._by_producer.get(producer.producer_id)
        if transaction is not None:
            return transaction
        earlier = self._before_opening_by_producer.get(producer.producer_id)
        if earlier is not None and producer.epoch >= earlier.next_epoch:
            raise TransactionAborted(
                f"producer {producer.producer_id}: the log was reopened, which aborted the "
                f"open transaction; call init_producer and continue from the last commit"
            )
        raise ProducerFenced(
            f"producer {producer.producer_id} is not known here; another instance with its "
            f"transactional id took over, or it was never initialised with one"
        )

    def _committed_before_opening(self, producer: ProducerIdentity) -> bool:
        """Return True if the producer asks for a commit that took effect before this opening.

        Its answer was lost with the previous owner.
        """
        record = self._before_opening_by_producer.get(producer.producer_id)
        return record is not None and record.state != "empty" and record.epoch == producer.epoch

    def _check_current(self, transaction: Transaction, producer: ProducerIdentity) -> None:
        """Raise unless `producer` is the present identity of the transactional id."""
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
                f"the last commit of {transaction.transactional_id!r} failed, and may be "
                f"durable or not; reopen the log to find out whether it took effect"
            )

    @staticmethod
    def _timed_out(transaction: Transaction) -> TransactionAborted:
        """Return the error for a transaction that was aborted without its producer's request."""
        if transaction.refusal is not None:
            return TransactionAborted(
                f"the transaction of {transaction.transactional_id!r} was aborted, because its "
                f"commit failed: {transaction.refusal}"
            )
        return TransactionAborted(
            f"the transaction of {transaction.transactional_id!r} was aborted, probably because "
            f"it was open for longer than transaction.timeout.ms = {transaction.timeout_ms}; call "
            f"init_producer and continue from the last commit"
        )

    def _repeat_outcome(self, transaction: Transaction, commit: bool) -> ProducerIdentity:
        """Answer a repeated call to end a transaction that has ended already."""
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
        """Number of transactions that have not ended."""
        with self._lock:
            return sum(t.state is not TransactionPhase.EMPTY for t in self._by_id.values())

    # Time and recovery ----------------------------------------------------------------

    def tick(self) -> None:
        """Abort transactions past their timeout, and finalize those whose markers are durable."""
        now = self._context.clock.monotonic()
        with self._lock:
            transactions = list(self._by_id.values())
        for transaction in transactions:
            if transaction.overdue(now) or transaction.pending_markers:
                with transaction.lock, contextlib.suppress(StorageFailed):
                    if transaction.overdue(now):
                        self._abort(transaction)
                    self._write_pending_markers(transaction)
        with contextlib.suppress(*NO_EFFECT_ERRORS):  # the next tick tries again
            self._commits.finalize()
            self._expire(self._context.steady_ms() - EXPIRATION_MS)

    def _expire(self, older_than: int) -> None:
        """Forget transactional ids that were not used since `older_than` (steady milliseconds).

        A producer that calls init_producer afterwards starts with a new producer id.
        """
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
        """Record which transactions are complete."""
        self._commits.finalize()

    def recover(
        self,
        find: Callable[[str, int], Partition | None],
        partitions: Callable[[], Iterator[Partition]],
        *,
        is_new_copy: bool,
    ) -> None:
        """Complete the prepared transactions and abort all others, durably.

        Called once, at the opening.

        Args:
            find: Returns a partition by topic id and number.
            partitions: Returns all partitions.
            is_new_copy: True if no reader has read this copy of a log yet.

        Raises:
            CorruptLog: A partition ends before the offset that a Prepare recorded as durable.
        """
        records = self._log.load()
        highest = max((max(p.producers.entries, default=-1) for p in partitions()), default=-1)
        self._log.skip_producer_ids(highest)
        touched: set[Partition] = set()
        completed = []
        for name, record in records.items():
            if record.state == "prepare":
                touched |= _complete(record, find, is_new_copy=is_new_copy)
                completed.append((name, _as_complete(record)))
        for partition in partitions():
            touched |= _abort_open(partition)
        failed = sync_all(self._context, touched)
        for error in failed.values():
            raise error
        if completed:
            self._log.write(completed, sync=True)
        self._before_opening = records
        self._before_opening_by_producer = {
            record.producer_id: record for record in records.values()
        }


def _complete(
    record: TransactionRecord,
    find: Callable[[str, int], Partition | None],
    *,
    is_new_copy: bool,
) -> set[Partition]:
    """Write the commit markers of a prepared transaction that are missing after a crash.

    Readers of the log may have seen such a marker, so it has its old leader epoch. In a new copy it
    gets one of the copy, because the original may have written anything at this offset meanwhile.
    """
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
            partition.append_marker(successor, commit=True, recovery=not is_new_copy)
            touched.add(partition)
    return touched


def _abort_open(partition: Partition) -> set[Partition]:
    """Write abort markers for all transactions that are open in a partition."""
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
