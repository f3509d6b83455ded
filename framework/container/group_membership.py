"""A worker's place among those that run the same app: which partitions it may hold.

Workers are members of the group that is called like the app (`changelog.groups`). Partition n of
all topics that a task reads goes to one worker, and so does that of topics which are read by
one task in common, since they have one committed offset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from strandline.changelog.broker import Broker
from strandline.changelog.client.membership import Membership, program
from strandline.changelog.clock import Clock
from strandline.changelog.groups import GroupMember, Subscription
from strandline.changelog.records import TopicPartition
from strandline.framework.options import Options
from strandline.framework.task import TaskSpec


class GroupMembership(Protocol):
    """What a worker asks about the others. `Membership` is one."""

    @property
    def member(self) -> GroupMember:
        """In whose name it commits."""
        ...

    def allowed(self) -> frozenset[TopicPartition]:
        """What it may hold. Raises MemberFenced if it has lost everything."""
        ...

    def standbys(self) -> frozenset[TopicPartition]:
        """What others hold, and it is to keep copies of."""
        ...

    def holds(self, partitions: Collection[TopicPartition]) -> None:
        """Say what it holds from now on; a loss is told by `allowed`, not here."""
        ...

    def is_certain(self) -> bool:
        """Whether nobody else can hold what it holds."""
        ...

    def leave(self) -> None:
        """Hold nothing any more; harmless when repeated."""
        ...


Join = Callable[[], GroupMembership]
"""Takes a place; a worker that has lost it takes another one."""


class SoleMember:
    """The place of a worker that has everything and shares with nobody."""

    def __init__(self, group: str, partitions: Collection[TopicPartition]) -> None:
        self.member = GroupMember(group, "")
        self._partitions = frozenset(partitions)

    def allowed(self) -> frozenset[TopicPartition]:
        return self._partitions

    def standbys(self) -> frozenset[TopicPartition]:
        return frozenset()

    def holds(self, partitions: Collection[TopicPartition]) -> None:
        """Nobody wants to know."""

    def is_certain(self) -> bool:
        return True

    def leave(self) -> None:
        """There is nobody to leave to."""


def member_of(
    app: str,
    tasks: Sequence[TaskSpec],
    broker: Broker,
    clock: Clock,
    options: Options,
    servers: Sequence[str] = (),
) -> Join:
    """Joins the app's group. `servers` is where the worker answers queries."""
    together = [[topic.name for topic in task.inputs] for task in tasks]
    subscription = Subscription(
        sorted({topic for topics in together for topic in topics}),
        session_timeout_ms=options.session_timeout_ms,
        client=program(),
        instance=options.instance,
        together=together,
        standby_replicas=options.standby_replicas,
        servers=servers,
    )

    def join() -> Membership:
        return Membership(
            broker,
            app,
            subscription,
            clock,
            max_poll_interval_ms=options.max_poll_interval_ms,
        )

    return join
