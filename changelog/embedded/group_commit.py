"""The commit of transactions: several that arrive together share one round of fsyncs.

The order of steps is what makes a commit atomic over partitions; each is there because its
absence loses or halves a transaction in a power cut.

A marker for which there is no room is *owed*. The Prepare is durable, so the transaction is
committed, and until its marker is there its partition shows no records from its first one on. Owed markers are
written as soon as there is room: by every tick, and whenever the producer asks. Until then the producer
may not begin its next transaction, since the marker would end that one too; and the transaction's offsets
are not shown, since who sees them may take it that all the rest is there.
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
from strandline.changelog.errors import UNDONE, StorageFailed, StrandlineError
from strandline.changelog.records import ProducerIdentity


class TransactionEnded(Protocol):
    """Told who wrote a transaction that has ended in every partition; perhaps late, or repeatedly."""

    def __call__(self, producer: ProducerIdentity, *, commit: bool) -> None: ...


class CommitStage(Enum):
    """How far a ticket has got: what its owner may do about a failure."""

    REFUSED = "no Prepare was written: it can be aborted"
    UNKNOWN = "the Prepare may be durable or not: only a reopening can tell"
    COMMITTED = "the Prepare is durable"


@dataclass(eq=False)
class CommitTicket:
    """A transaction that wants to be committed."""

    transactional_id: str
    producer: ProducerIdentity
    successor: ProducerIdentity
    """Who the producer is in its next transaction; its markers carry this epoch."""
    timeout_ms: int
    partitions: list[Partition]
    stage: CommitStage = CommitStage.REFUSED
    done: bool = False
    error: BaseException | None = None
    markers: dict[Partition, int] = field(default_factory=dict)
    """Offsets of the markers written."""

    @property
    def is_marked(self) -> bool:
        """Whether it has ended in every partition."""
        return all(p in self.markers or p.retired for p in self.partitions)

    @property
    def pending_markers(self) -> list[Partition]:
        """Partitions that have no marker, though one can be written there as soon as there is room."""
        return [p for p in self.partitions if p not in self.markers and p.usable]

    def is_finalized(self, *, fsync: bool) -> bool:
        """Whether every marker is as safe as it should be, so that the Prepare can go."""
        return all(
            p.retired or (p in self.markers and (not fsync or self.markers[p] < p.synced_end))
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
    """Commits tickets in rounds; whoever finds no round running runs one for all who wait."""

    environment: LogContext
    log: TransactionLog
    ended: TransactionEnded
    _waiting: list[CommitTicket] = field(default_factory=list)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _round: threading.Lock = field(default_factory=threading.Lock)
    _unfinalized: list[CommitTicket] = field(default_factory=list)
    """Committed, but their markers are not known to be durable yet."""

    def commit(self, ticket: CommitTicket) -> None:
        """Return when the transaction is durable and visible.

        Raises StorageFailed; the ticket's stage says what it means for the transaction. DiskFull in
        stage COMMITTED means that a marker is owed: `pay` tells when it is visible.
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
                if ticket in self._waiting:  # interrupted before any round took it along
                    self._waiting.remove(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error

    def finalize(self) -> None:
        """Make the markers of committed transactions durable, and write that they are."""
        with self._round:
            if self._unfinalized:
                self._write_pending(self._unfinalized)
                sync_all(self.environment, self._partitions(self._unfinalized))
                self._write([], self._take_finalized())

    def write_pending_markers(self, transactional_id: str) -> None:
        """Write the markers that an id's last transaction is owed, and make them visible.

        Raises DiskFull, TooManyFiles if there is still no room.
        """
        if self._tickets_with_pending(transactional_id):
            with self._round:
                pending = self._tickets_with_pending(transactional_id)
                self._write_pending(pending)
                for ticket in pending:
                    if ticket.error is not None:
                        raise ticket.error

    def is_finalized(self, transactional_id: str) -> bool:
        """Whether no Prepare of that id is still needed."""
        return all(ticket.transactional_id != transactional_id for ticket in self._unfinalized)

    def _run(self, tickets: list[CommitTicket]) -> None:
        self.environment.counters.rounds.add()
        try:
            # 1. All data and offsets of these transactions, and earlier ones' markers.
            failed = sync_all(self.environment, self._partitions([*tickets, *self._unfinalized]))
            # 2. Earlier transactions whose markers are durable now are complete.
            finalized = self._take_finalized()
            ready = self._ready(tickets, failed)
            # 3. Prepare: the commit point.
            self._write(ready, finalized)
            # 4. Markers, which make the transactions visible.
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
        """Prepare some transactions, durably, and note that others are complete."""
        records = [*map(_completed, finalized), *map(_prepared, ready)]
        if not records:
            return
        _enter(CommitStage.UNKNOWN, ready)
        try:
            self.log.write(records)
        except UNDONE:
            _enter(CommitStage.REFUSED, ready)
            self._unfinalized += finalized
            raise
        if ready:
            self.log.sync()
        _enter(CommitStage.COMMITTED, ready)

    def _ready(
        self, tickets: list[CommitTicket], failed: dict[Partition, StrandlineError]
    ) -> list[CommitTicket]:
        """Those that may be prepared; the others get their error."""
        for ticket in tickets:
            ticket.error = next((failed[p] for p in ticket.partitions if p in failed), None)
            if ticket.error is None and not self.is_finalized(ticket.transactional_id):
                ticket.error = StorageFailed(
                    f"the last transaction of {ticket.transactional_id!r} is committed, but not "
                    f"all its markers could be written; reopen the log, which writes them"
                )
        return [ticket for ticket in tickets if ticket.error is None]

    def _write_markers(self, tickets: list[CommitTicket]) -> None:
        """Write the markers that are not there yet; each ticket gets its error, or none."""
        errors: dict[CommitTicket, StrandlineError] = {}
        hidden: set[Partition] = set()
        for ticket in tickets:
            for partition in ticket.partitions:
                if partition in ticket.markers or partition.retired:
                    continue
                try:
                    offset, visible = partition.append_marker(ticket.successor, commit=True)
                except StrandlineError as error:
                    if not partition.retired:
                        errors[ticket] = error
                    continue
                ticket.markers[partition] = offset
                if not visible:
                    hidden.add(partition)
        failed = sync_all(self.environment, hidden)
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
        fsync = self.environment.durability == "fsync"
        # Again: whoever marked them may have been interrupted, or a partition that was owed one be gone.
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
