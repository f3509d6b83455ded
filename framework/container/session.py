"""A worker's session: its group membership, and the producer whose transactions hold its commits.

The producer's transactional id contains the member's slot, which no other member of the group has.
Creating the producer aborts and fences the transactions of a dead worker that had this slot before.
A worker that was suspended while another one got its slot is fenced twice: as member and producer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa

from strandline.changelog.client.producer import Producer
from strandline.changelog.client.transaction_state import ProducerPhase
from strandline.changelog.errors import Fenced, InvalidTxnState, Retriable
from strandline.framework.container.commit import COMMITS, Committing
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.group_membership import GroupMembership, Join
from strandline.framework.container.instance import TaskInstance

_log = logging.getLogger("strandline")

FRAME_BYTES = 16 << 20
"""Size in bytes at which the producer begins a new batch."""


class WorkerSession:
    """Membership and producer of a worker: made by `acquire`, ended by `leave` and `fenced`.

    All methods raise the broker's errors.
    """

    def __init__(self, context: ContainerContext, join: Join) -> None:
        self.membership: GroupMembership | None = None
        """Membership in the app's group; None before `acquire` and after `leave`."""
        self._context = context
        self._join = join
        self._producer: Producer | None = None

    def acquire(self) -> GroupMembership:
        """Return the membership; join the group and make a producer if there is none."""
        if self.membership is None:
            membership = self._join()
            try:
                self._producer = self._producer_at(membership)
            except BaseException:
                membership.leave()
                raise
            self.membership = membership
        elif self._producer is None:
            self._producer = self._producer_at(self.membership)
        return self.membership

    def commit(self, instances: Sequence[TaskInstance]) -> None:
        """Commit the work of these instances with the app's processing guarantee."""
        assert self.membership is not None
        assert self._producer is not None
        work = Committing(self._context, self._producer, self.membership.member)
        with self._context.counters.committing():
            COMMITS[self._context.options.processing_guarantee](work, instances)

    def check(self, topic: str, columns: pa.RecordBatch) -> None:
        """Raise InvalidRecord if the log would refuse this record."""
        if self._producer is not None:
            self._producer.check(topic, columns)

    def abort(self) -> bool:
        """Abort the open transaction.

        Returns:
            True if no transaction is open now; False if its outcome is not known.
        """
        if self._producer is None:
            return False
        try:
            if self._producer.state is ProducerPhase.ABORTABLE:
                self._producer.abort_transaction()
            return self._producer.state is ProducerPhase.READY
        except (InvalidTxnState, Retriable):
            return False

    def renew(self) -> None:
        """Replace the producer with a new one, which fences the old one and its transaction."""
        if self.membership is not None:
            # Cleared first: if the log does not answer now, the next `acquire` makes the producer.
            self._producer = None
            self._producer = self._producer_at(self.membership)

    def fenced(self, error: Fenced, dropped: int) -> None:
        """Log that the worker was fenced and dropped this many records, and leave the group."""
        self._context.counters.fenced(error)
        member = "" if self.membership is None else self.membership.member.member_id
        _log.warning(
            "app %s: this worker was fenced; it drops what it had not committed (%d records) and "
            "joins again: %s",
            *(self._context.app, dropped, error),
            extra={"app": self._context.app, "member": member, "records": dropped, "error": error},
        )
        self.leave()

    def is_certain(self) -> bool:
        """Return True if no other worker can own this worker's partitions. Thread-safe."""
        membership = self.membership
        return membership is not None and membership.is_certain()

    def leave(self) -> None:
        """Close the producer, which aborts its transaction, and leave the group. Idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        membership, self.membership = self.membership, None
        if membership is not None:
            membership.leave()

    def _producer_at(self, place: GroupMembership) -> Producer:
        return Producer(
            self._context.broker,
            transactional_id=f"{self._context.app}-{place.member.slot}",
            transaction_timeout_ms=self._context.options.transaction_timeout_ms,
            batch_bytes=FRAME_BYTES,
            clock=self._context.clock,
        )
