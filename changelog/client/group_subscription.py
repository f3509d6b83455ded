"""A consumer's subscription with a group: assigns and revokes partitions between two polls."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strandline.changelog.broker import Broker
from strandline.changelog.client.membership import Membership, Partitions, program, rebalance
from strandline.changelog.clock import Clock
from strandline.changelog.errors import MemberFenced
from strandline.changelog.groups import Assignor, GroupMember, Subscription
from strandline.changelog.records import TopicPartition

_log = logging.getLogger("strandline")

Listener = Callable[[list[TopicPartition]], None]
"""Called with the partitions that a rebalance adds or takes away."""
Assign = Callable[[Collection[TopicPartition]], None]


@dataclass(frozen=True)
class GroupOptions:
    """A consumer's group, and how it is a member of it."""

    group: str
    session_timeout_ms: int
    max_poll_interval_ms: int
    instance: str | None
    assignor: Assignor


class RebalanceListener(NamedTuple):
    """Functions to be called during rebalances, as Kafka's ConsumerRebalanceListener."""

    on_assigned: Listener
    on_revoked: Listener
    on_lost: Listener


class GroupSubscription:
    """One subscription of a consumer. It joins at the first poll, and again after a loss."""

    def __init__(
        self,
        broker: Broker,
        options: GroupOptions,
        topics: Sequence[str],
        listener: RebalanceListener,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._group = options.group
        self._subscription = Subscription(
            tuple(topics),
            options.assignor,
            options.session_timeout_ms,
            program(),
            options.instance,
            tasks=(),
        )
        self._clock = clock
        self._max_poll_interval_ms = options.max_poll_interval_ms
        self._listener = listener
        self._membership: Membership | None = None
        self._shrunk: dict[str, int] = {}
        """Number of partitions of each topic that has fewer than the group has assigned."""

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
            assigned = self._existing(membership.allowed())
        except MemberFenced:
            self._membership = None
            assign([])
            if owned:
                self._listener.on_lost(list(owned))
            return
        kept = [tp for tp in owned if tp in assigned]
        new = sorted(assigned.difference(kept))

        def release(revoked: Partitions) -> bool:
            self._listener.on_revoked([tp for tp in owned if tp in revoked])
            assign(kept)
            return True

        def take(_new: Partitions) -> None:
            assign([*kept, *new])

        if rebalance(membership, frozenset(owned), assigned, release=release, take=take):
            self._listener.on_assigned(new)

    def refresh(self, owned: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the owned partitions that their topics still have; the others are lost.

        A topic that was created again may have fewer partitions. Kafka does not assign anew then.
        """
        topics = self._subscription.topics
        counts = {name: self._broker.topic(name).partitions for name in topics}
        assigned: Collection[TopicPartition] = ()
        with contextlib.suppress(MemberFenced):  # the next rebalance handles it
            if self._membership is not None:
                assigned = self._membership.allowed()
        missing = {tp.topic for tp in assigned if tp.partition >= counts[tp.topic]}
        self._shrunk = {topic: counts[topic] for topic in missing}
        kept = [tp for tp in owned if tp.partition < counts[tp.topic]]
        if lost := [tp for tp in owned if tp not in kept]:
            _log.warning(
                "topic %s has fewer partitions than before: %s are lost",
                ", ".join(sorted(missing)),
                ", ".join(map(str, lost)),
            )
            self._listener.on_lost(lost)
        return kept

    def _existing(self, assigned: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        if not self._shrunk:
            return assigned
        return frozenset(
            tp for tp in assigned if tp.partition < self._shrunk.get(tp.topic, tp.partition + 1)
        )

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


def no_listener(partitions: list[TopicPartition]) -> None:
    """Do nothing; the default listener."""
