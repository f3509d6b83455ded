"""A worker's membership in its app's group, and the producer whose transactions hold its commits.

The producer's transactional id contains the member's slot, so a new worker aborts and fences what a
dead one with the same slot has left open.
"""

from __future__ import annotations

import contextlib

from strandline.changelog.client.membership import Membership
from strandline.changelog.client.producer import Producer
from strandline.changelog.client.transaction_state import ProducerPhase
from strandline.changelog.errors import StrandlineError
from strandline.changelog.groups import GroupMember, Subscription
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.log_link import FaustLink

TRANSACTION_TIMEOUT_MS = 10_000
"""Milliseconds that a transaction may stay open; it is open during a commit only."""
BATCH_BYTES = 16 << 20
"""Size in bytes at which the producer begins a new batch."""


class GroupWorker:
    """Membership and producer from joining to leaving. Its methods block; call them on a thread."""

    def __init__(
        self, link: FaustLink, group: str, subscription: Subscription, max_poll_ms: int
    ) -> None:
        self._link = link
        self._group = group
        self.topics = frozenset(subscription.topics)
        self._membership = Membership(
            link.broker, group, subscription, link.clock, max_poll_interval_ms=max_poll_ms
        )
        try:
            self.producer = self._new_producer()
        except BaseException:
            self._membership.leave()
            raise

    @property
    def member(self) -> GroupMember:
        """Identity of the member."""
        return self._membership.member

    def assigned(self) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
        """Return the assigned partitions and those to keep copies of. Raises MemberFenced."""
        return self._membership.allowed(), self._membership.standbys()

    def report(self, owned: frozenset[TopicPartition]) -> bool:
        """Report the owned partitions to the group; False if new ones were away meanwhile."""
        return self._membership.holds(owned)

    def abort(self) -> None:
        """Abort the transaction that has failed."""
        if self.producer.state in (ProducerPhase.OPEN, ProducerPhase.ABORTABLE):
            self.producer.abort_transaction()

    @property
    def is_ready(self) -> bool:
        """True if the producer can begin a transaction; False after one with unknown outcome."""
        return self.producer.state is ProducerPhase.READY

    def renew(self) -> None:
        """Replace the producer; the log ends the old one's transaction first, whatever its state."""
        old, self.producer = self.producer, self._new_producer()
        with contextlib.suppress(StrandlineError):
            old.close()  # fenced by now

    def _new_producer(self) -> Producer:
        return Producer(
            self._link.broker,
            transactional_id=f"{self._group}-{self.member.slot}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            batch_bytes=BATCH_BYTES,
            clock=self._link.clock,
        )

    def leave(self) -> None:
        """Close the producer, which aborts its transaction, and leave the group."""
        try:
            self.producer.close()
        except StrandlineError:
            pass  # fenced, or the log is gone: the transaction is aborted by its timeout
        finally:
            self._membership.leave()
