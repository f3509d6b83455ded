"""A worker's membership in the group of its app, which assigns partitions to it.

The group has the name of the app (`changelog.groups`). Partition n of all topics that a task reads
is assigned to one worker. Tasks that share a topic are assigned together, because the topic has one
committed offset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from strandline.changelog.client.membership import Membership, program
from strandline.changelog.groups import GroupMember, Subscription
from strandline.changelog.records import TopicPartition
from strandline.framework.container.container_context import ContainerContext


class GroupMembership(Protocol):
    """Interface between a worker and its group. `Membership` implements it."""

    @property
    def member(self) -> GroupMember:
        """Member in whose name the worker commits."""
        ...

    def allowed(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions. Raises MemberFenced if the membership is lost."""
        ...

    def standbys(self) -> frozenset[TopicPartition]:
        """Return the partitions, owned by other workers, of which this one keeps standby copies."""
        ...

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Report the owned partitions; False if new ones may have been another worker's meanwhile.

        `allowed`, not this method, reports a lost membership.
        """
        ...

    def is_certain(self) -> bool:
        """Return True if no other worker can own the partitions of this one."""
        ...

    def leave(self) -> None:
        """Leave the group and give up all partitions. Idempotent."""
        ...


Join = Callable[[], GroupMembership]
"""Joins the group; called again after a membership is lost."""


class SoleMember:
    """Membership of a worker that runs alone and owns all partitions."""

    def __init__(self, group: str, partitions: Collection[TopicPartition]) -> None:
        self.member = GroupMember(group, "")
        self._partitions = frozenset(partitions)

    def allowed(self) -> frozenset[TopicPartition]:
        return self._partitions

    def standbys(self) -> frozenset[TopicPartition]:
        return frozenset()

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Return True: there is no group, and so no other worker."""
        return True

    def is_certain(self) -> bool:
        return True

    def leave(self) -> None:
        """Do nothing, because there is no group."""


def member_of(context: ContainerContext, servers: Sequence[str] = ()) -> Join:
    """Return a function that joins the app's group.

    `servers` are the URLs at which the worker answers queries; the group lists them for clients.
    """
    options = context.options
    together = [[topic.name for topic in task.inputs] for task in context.tasks]
    subscription = Subscription(
        sorted({topic for topics in together for topic in topics}),
        session_timeout_ms=options.session_timeout_ms,
        client=program(),
        instance=options.instance,
        together=together,
        standby_replicas=options.standby_replicas,
        servers=servers,
        tasks=[[task.name, *(topic.name for topic in task.inputs)] for task in context.tasks],
    )

    def join() -> Membership:
        return Membership(
            context.broker,
            context.app,
            subscription,
            context.clock,
            max_poll_interval_ms=options.max_poll_interval_ms,
        )

    return join
