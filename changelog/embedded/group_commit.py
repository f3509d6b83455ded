"""Group commit: transactions that are committed at the same time share one round of fsyncs.

The order of the steps in `_run` makes a commit atomic over partitions. If a step were left out, a
power cut could lose a transaction or apply only part of it.

A marker that there is no room for is *pending*. The Prepare is durable, so the transaction is
committed. Until its marker is written, a partition shows no records from the transaction's first
one on. Every tick retries the pending markers, and so does the producer's next transaction. Until
they are written:

- The producer cannot begin its next transaction, because a late marker would end that one.
- The transaction's offsets are not visible, because a reader that sees the offsets may assume that
  the records are visible too.

A committed transaction is *finalized* when all its markers are durable. Only then may a `complete`
record replace its Prepare.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.syncing import sync_all
from strandline.changelog.embedded.transaction_log import (
    PreparedPartition,
    TransactionLog,
    TransactionRecord,
)
from strandline.changelog.errors import NO_EFFECT_ERRORS, StorageFailed, StrandlineError
from strandline.changelog.records import ProducerIdentity


class TransactionEnded(Protocol):
    """Callback for a transaction that has ended in every partition. It may be late or repeated."""

    def __call__(self, producer: ProducerIdentity, *, commit: bool) -> None: ...


class CommitStage(Enum):
    """Progress of a ticket. It decides what the coordinator may do after a failure."""

    REFUSED = "no Prepare was written: it can be aborted"
    UNKNOWN = "the Prepare may be durable or not: only a reopening can tell"
    COMMITTED = "the Prepare is durable"


@dataclass(eq=False)
class CommitTicket:
    """A transaction that is to be committed."""

    transactional_id: str
    producer: ProducerIdentity
    successor: ProducerIdentity
    """The producer's identity in its next transaction; the markers carry this epoch."""
    timeout_ms: int
    partitions: list[Partition]
    stage: CommitStage = CommitStage.REFUSED
    done: bool = False
    error: BaseException | None = None
    markers: dict[Partition, int] = field(default_factory=dict)
    """Offsets of the markers written so far."""

    @property
    def is_marked(self) -> bool:
        """True if the transaction has ended in every partition."""
        return all(p in self.markers or p.gate.retired for p in self.partitions)

    @property
    def pending_markers(self) -> list[Partition]:
        """Partitions without a marker that can be written as soon as there is room."""
        return [p for p in self.partitions if p not in self.markers and p.gate.usable]

    def is_finalized(self, *, fsync: bool) -> bool:
        """Return True if the Prepare is no longer needed.

        With `fsync` every marker must be durable, without it every marker must be written.
        """
        return all(
            p.gate.retired or (p in self.markers and (not fsync or self.markers[p] < p.synced_end))
            for p in self.partitions
        )

    def record(self, state: str) -> TransactionRecord:
        prepared = tuple(
            PreparedPartition(
                p.topic_partition.topic,
                p.topic_id,
                p.topic_partition.partition,
                p.manifest.leader_epoch,
                p.synced_end,
            )
            for p in self.partitions
        )
        return TransactionRecord(
            state,  # type: ignore[arg-type]
            self.producer.producer_id,
            self.producer.epoch,
            self.successor.epoch,
            self.timeout_ms,
            prepared if state == "prepare" else (),
        )


@dataclass
class GroupCommit:
    """Commits tickets in rounds.

    A caller that finds no round running runs one for all waiting tickets.
    """

    context: LogContext
    log: TransactionLog
    ended: TransactionEnded
    _waiting: list[CommitTicket] = field(default_factory=list)
    """Tickets that wait for the next round."""
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    """Guards `_waiting`."""
    _round: threading.Lock = field(default_factory=threading.Lock)
    """Held during a round, so that only one runs at a time."""
    _unfinalized: list[CommitTicket] = field(default_factory=list)
    """Committed tickets whose markers may not all be durable yet."""

    def commit(self, ticket: CommitTicket) -> None:
        """Return when the transaction is durable and visible.

        Raises StorageFailed; the ticket's stage then says what happened to the transaction.
        DiskFull in stage COMMITTED means that a marker is pending: call `write_pending_markers`
        until it succeeds.
        """
        with self._mutex:
            self._waiting.append(ticket)
        try:
            with self._round:
                if not ticket.done:
                    with self._mutex:
                        tickets, self._waiting = self._waiting, []
                    self._run(tickets)
        except BaseException:
            with self._mutex:
                if ticket in self._waiting:  # interrupted before any round took it
                    self._waiting.remove(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error

    def finalize(self) -> None:
        """Make the markers of committed transactions durable, and record these as complete."""
        with self._round:
            if self._unfinalized:
                self._write_pending(self._unfinalized)
                sync_all(self.context, self._partitions(self._unfinalized))
                self._write([], self._take_finalized())

    def write_pending_markers(self, transactional_id: str) -> None:
        """Write the pending markers of an id's last transaction, and make them visible.

        Raises DiskFull or TooManyFiles if there still is no room.
        """
        if self._tickets_with_pending(transactional_id):
            with self._round:
                pending = self._tickets_with_pending(transactional_id)
                self._write_pending(pending)
                for ticket in pending:
                    if ticket.error is not None:
                        raise ticket.error

    def is_finalized(self, transactional_id: str) -> bool:
        """Return True if no Prepare of that id is still needed."""
        return all(ticket.transactional_id != transactional_id for ticket in self._unfinalized)

    def _run(self, tickets: list[CommitTicket]) -> None:
        self.context.counters.rounds.add()
        try:
            # 1. Make durable: all records and offsets of these transactions, and the markers of
            #    earlier ones. A durable Prepare must never refer to records that a power cut can
            #    take away.
            failed = sync_all(self.context, self._partitions([*tickets, *self._unfinalized]))
            # 2. Earlier transactions whose markers are durable now no longer need a Prepare.
            #    Their `complete` records share the fsync of step 3.
            finalized = self._take_finalized()
            ready = self._ready(tickets, failed)
            # 3. Write the Prepare records and fsync them. This is the commit point: recovery
            #    completes these transactions from here on, and aborts them before.
            self._write(ready, finalized)
            # 4. Write the markers, which make the transactions visible. They become durable with
            #    the next round at the latest; after a crash recovery writes them again.
            self._unfinalized += ready
            self._write_markers(ready)
        except BaseException as error:
            for ticket in tickets:
                ticket.error = ticket.error or error
            raise
        finally:
            for ticket in tickets:
                ticket.done = True

    def _write(self, ready: list[CommitTicket], finalized: list[CommitTicket]) -> None:
        """Write Prepare records, durably, and `complete` records for finalized tickets."""
        records = [*map(_completed, finalized), *map(_prepared, ready)]
        if not records:
            return
        # Before the write, because a failure in the middle leaves open what is on the disk.
        _enter(CommitStage.UNKNOWN, ready)
        try:
            self.log.write(records)
        except NO_EFFECT_ERRORS:
            _enter(CommitStage.REFUSED, ready)
            self._unfinalized += finalized
            raise
        if ready:
            self.log.sync()
        _enter(CommitStage.COMMITTED, ready)

    def _ready(
        self, tickets: list[CommitTicket], failed: dict[Partition, StrandlineError]
    ) -> list[CommitTicket]:
        """Return the tickets that may be prepared; set the error of the others."""
        for ticket in tickets:
            ticket.error = next((failed[p] for p in ticket.partitions if p in failed), None)
            if ticket.error is None and not self.is_finalized(ticket.transactional_id):
                ticket.error = StorageFailed(
                    f"the last transaction of {ticket.transactional_id!r} is committed, but not "
                    f"all its markers could be written; reopen the log, which writes them"
                )
        return [ticket for ticket in tickets if ticket.error is None]

    def _write_markers(self, tickets: list[CommitTicket]) -> None:
        """Write the missing markers, and set each ticket's error (None if all were written)."""
        errors: dict[CommitTicket, StrandlineError] = {}
        hidden: set[Partition] = set()
        for ticket in tickets:
            for partition in ticket.partitions:
                if partition in ticket.markers or partition.gate.retired:
                    continue
                try:
                    offset, visible = partition.append_marker(ticket.successor, commit=True)
                except StrandlineError as error:
                    if not partition.gate.retired:
                        errors[ticket] = error
                    continue
                ticket.markers[partition] = offset
                if not visible:
                    hidden.add(partition)
        failed = sync_all(self.context, hidden)
        self._report_ended(tickets)
        for ticket in tickets:
            found = next((failed[p] for p in ticket.partitions if p in failed), None)
            ticket.error = errors.get(ticket, found)

    def _write_pending(self, tickets: list[CommitTicket]) -> None:
        pending = [ticket for ticket in tickets if ticket.pending_markers]
        if pending:
            self._write_markers(pending)

    def _report_ended(self, tickets: list[CommitTicket]) -> None:
        for ticket in tickets:
            if ticket.is_marked:
                self.ended(ticket.producer, commit=True)

    def _tickets_with_pending(self, transactional_id: str) -> list[CommitTicket]:
        return [
            t
            for t in self._unfinalized
            if t.transactional_id == transactional_id and t.pending_markers
        ]

    def _take_finalized(self) -> list[CommitTicket]:
        fsync = self.context.durability == "fsync"
        # Reported again, because the call that wrote the last marker may have been interrupted,
        # or a partition with a pending marker may have been deleted.
        self._report_ended(self._unfinalized)
        finalized = [ticket for ticket in self._unfinalized if ticket.is_finalized(fsync=fsync)]
        self._unfinalized = [ticket for ticket in self._unfinalized if ticket not in finalized]
        return finalized

    @staticmethod
    def _partitions(tickets: list[CommitTicket]) -> list[Partition]:
        return list({partition: None for ticket in tickets for partition in ticket.partitions})


def _enter(stage: CommitStage, tickets: list[CommitTicket]) -> None:
    for ticket in tickets:
        ticket.stage = stage


def _prepared(ticket: CommitTicket) -> tuple[str, TransactionRecord]:
    return ticket.transactional_id, ticket.record("prepare")


def _completed(ticket: CommitTicket) -> tuple[str, TransactionRecord]:
    return ticket.transactional_id, ticket.record("complete")
