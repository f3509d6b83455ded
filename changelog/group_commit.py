"""The commit of transactions: several that arrive together share one round of fsyncs.

The order of steps is what makes a commit atomic over partitions; each is there because its
absence loses or halves a transaction in a power cut.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from changelog.environment import Environment
from changelog.errors import StorageFailed, StrandlineError
from changelog.partition import Partition, sync_all
from changelog.records import ProducerIdentity
from changelog.transaction_log import PreparedPartition, TransactionLog, TransactionRecord


@dataclass(eq=False)
class Ticket:
    """A transaction that wants to be committed."""

    transactional_id: str
    producer: ProducerIdentity
    successor: ProducerIdentity
    """Who the producer is in its next transaction; its markers carry this epoch."""
    timeout_ms: int
    partitions: list[Partition]
    done: bool = False
    error: StrandlineError | None = None

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

    environment: Environment
    log: TransactionLog
    _waiting: list[Ticket] = field(default_factory=list)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _round: threading.Lock = field(default_factory=threading.Lock)
    _unsettled: list[Ticket] = field(default_factory=list)
    """Committed, but their markers are not known to be durable yet."""

    def commit(self, ticket: Ticket) -> None:
        """Return when the transaction is durable and visible.

        Raises StorageFailed; without a durable Prepare the transaction is then aborted by
        recovery, and after a failed fsync of the transaction log only recovery knows.
        """
        with self._mutex:
            self._waiting.append(ticket)
        with self._round:
            if not ticket.done:
                with self._mutex:
                    tickets, self._waiting = self._waiting, []
                self._run(tickets)
        if ticket.error is not None:
            raise ticket.error

    def settle(self) -> None:
        """Make the markers of committed transactions durable, and write that they are."""
        with self._round:
            if self._unsettled:
                failed = sync_all(self.environment, self._partitions(self._unsettled))
                completed = self._take_settled(failed)
                if completed:
                    self.log.write(completed, sync=False)

    def _run(self, tickets: list[Ticket]) -> None:
        try:
            # 1. All data and offsets of these transactions, and earlier ones' markers.
            failed = sync_all(self.environment, self._partitions([*tickets, *self._unsettled]))
            self._refuse(tickets, failed)
            ready = [ticket for ticket in tickets if ticket.error is None]
            # 2. Earlier transactions whose markers are durable now are complete.
            records = self._take_settled(failed)
            # 3. Prepare: the commit point.
            records += [(t.transactional_id, t.record("prepare")) for t in ready]
            if records:
                self.log.write(records, sync=bool(ready))
            # 4. Markers, which make the transactions visible.
            self._mark(ready)
        except StrandlineError as error:
            for ticket in tickets:
                ticket.error = ticket.error or error
        finally:
            for ticket in tickets:
                ticket.done = True

    def _mark(self, tickets: list[Ticket]) -> None:
        """Past the commit point: a failure here leaves it to recovery to show the transaction."""
        self._unsettled += tickets
        hidden: set[Partition] = set()
        for ticket in tickets:
            for partition in ticket.partitions:
                try:
                    if not partition.append_marker(ticket.successor, commit=True):
                        hidden.add(partition)
                except StorageFailed as error:
                    if not partition.retired:
                        ticket.error = error
        self._refuse(tickets, sync_all(self.environment, hidden))

    def _take_settled(
        self, failed: dict[Partition, StorageFailed]
    ) -> list[tuple[str, TransactionRecord]]:
        settled = [t for t in self._unsettled if failed.keys().isdisjoint(t.partitions)]
        self._unsettled = [t for t in self._unsettled if t not in settled]
        return [(ticket.transactional_id, ticket.record("complete")) for ticket in settled]

    def _refuse(self, tickets: list[Ticket], failed: dict[Partition, StorageFailed]) -> None:
        """Give the tickets that touch a failed partition, or follow one that does, its error."""
        stuck = {
            t.transactional_id: error
            for t in self._unsettled
            for partition, error in failed.items()
            if partition in t.partitions
        }
        for ticket in tickets:
            own = [failed[p] for p in ticket.partitions if p in failed]
            found = own[0] if own else stuck.get(ticket.transactional_id)
            ticket.error = ticket.error or found

    @staticmethod
    def _partitions(tickets: list[Ticket]) -> list[Partition]:
        return list({partition: None for ticket in tickets for partition in ticket.partitions})
