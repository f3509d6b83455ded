"""A consumer's part in sharing the partitions of a group: what it takes up and lets go, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from strandline.changelog.broker import Broker
from strandline.changelog.client.membership import Membership, program
from strandline.changelog.clock import Clock
from strandline.changelog.errors import MemberFenced
from strandline.changelog.groups import Assignor, GroupMember, Subscription
from strandline.changelog.records import TopicPartition

Listener = Callable[[list[TopicPartition]], None]
Assign = Callable[[Collection[TopicPartition]], None]


class GroupSubscription:
    """One subscription of a consumer: joins at the first poll, and again whenever it was lost."""

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
        """Who the consumer is; before the first poll, and after a loss, nobody."""
        if self._membership is None:
            return GroupMember(self._group, _NOBODY)
        return self._membership.member

    def take_part(self, holds: Sequence[TopicPartition], assign: Assign) -> None:
        """Let go of what goes to others, and take up what is new; `assign` is given what is held then."""
        membership = self._membership or self._join()
        try:
            allowed = membership.allowed()
        except MemberFenced:
            self._membership = None
            assign([])
            if holds:
                self._on_lost(list(holds))
            return
        kept = [tp for tp in holds if tp in allowed]
        if len(kept) < len(holds):
            self._on_revoked([tp for tp in holds if tp not in allowed])
            assign(kept)
            membership.holds(kept)
        if new := sorted(allowed.difference(kept)):
            assign([*kept, *new])
            membership.holds([*kept, *new])
            self._on_assigned(new)

    def leave(self) -> None:
        """Leave the group; a static member is expected back, and only says no more."""
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


_NOBODY = "nobody"
"""No member's id: whoever commits in this name is refused, not taken for one outside the group."""


def _nothing(partitions: list[TopicPartition]) -> None:
    """Stands where no listener is."""
