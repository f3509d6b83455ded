"""A consumer's subscription with a group: assigns and revokes partitions between two polls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from strandline.changelog.broker import Broker
from strandline.changelog.client.membership import Membership, Partitions, program, rebalance
from strandline.changelog.clock import Clock
from strandline.changelog.errors import MemberFenced
from strandline.changelog.groups import Assignor, GroupMember, Subscription
from strandline.changelog.records import TopicPartition

Listener = Callable[[list[TopicPartition]], None]
Assign = Callable[[Collection[TopicPartition]], None]


class GroupSubscription:
    """One subscription of a consumer. It joins at the first poll, and again after a loss."""

    def __init__(
        self,
        broker: Broker,
        group: str,
        topics: Sequence[str],
        on_assigned: Listener | None,
        on_revoked: Listener | None,
        on_lost: Listener | None,
        *,
        clock: Clock,
        session_timeout_ms: int,
        max_poll_interval_ms: int,
        instance: str | None,
        assignor: Assignor,
    ) -> None:
        self._broker = broker
        self._group = group
        self._subscription = Subscription(
            tuple(topics), assignor, session_timeout_ms, program(), instance
        )
        self._clock = clock
        self._max_poll_interval_ms = max_poll_interval_ms
        self._on_assigned = on_assigned or _nothing
        self._on_revoked = on_revoked or _nothing
        self._on_lost = on_lost or _nothing
        self._membership: Membership | None = None

    @property
    def member(self) -> GroupMember:
        """Identity of the consumer; before the first poll and after a loss, of no member."""
        if self._membership is None:
            return GroupMember(self._group, _NO_MEMBER_ID)
        return self._membership.member

    def rebalance(self, owned: Sequence[TopicPartition], assign: Assign) -> None:
        """Release revoked partitions and add new ones; `assign` gets the owned ones afterwards."""
        membership = self._membership or self._join()
        try:
            assigned = membership.allowed()
        except MemberFenced:
            self._membership = None
            assign([])
            if owned:
                self._on_lost(list(owned))
            return
        kept = [tp for tp in owned if tp in assigned]
        new = sorted(assigned.difference(kept))

        def release(revoked: Partitions) -> bool:
            self._on_revoked([tp for tp in owned if tp in revoked])
            assign(kept)
            return True

        def take(_new: Partitions) -> None:
            assign([*kept, *new])

        rebalance(membership, frozenset(owned), assigned, release=release, take=take)
        if new:
            self._on_assigned(new)

    def leave(self) -> None:
        """Leave the group. A static member only stops its heartbeats, because it may return."""
        if self._membership is not None:
            membership, self._membership = self._membership, None
            membership.leave()

    def _join(self) -> Membership:
        self._membership = Membership(
            self._broker,
            self._group,
            self._subscription,
            self._clock,
            max_poll_interval_ms=self._max_poll_interval_ms,
        )
        return self._membership


_NO_MEMBER_ID = "nobody"
"""Member id that no member has. A commit with it is rejected, while a commit with an empty id
would count as one from outside the group."""


def _nothing(partitions: list[TopicPartition]) -> None:
    """Do nothing; the default listener."""
