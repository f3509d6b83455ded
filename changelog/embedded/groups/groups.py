"""All consumer groups of a log: join, heartbeat, leave, and wait for a new assignment.

A heartbeat is answered when there is a new assignment, at the latest after its timeout. A member
therefore receives revoked partitions of other members at once, without frequent heartbeats.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from itertools import chain

from strandline.changelog.clock import Clock
from strandline.changelog.config import check_client_name, check_topic_name
from strandline.changelog.embedded.groups.group import Group
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.groups import (
    MAX_MEMBERS,
    MAX_SERVER_CHARACTERS,
    MAX_SERVERS,
    MAX_STANDBY_REPLICAS,
    MAX_SUBSCRIBED_TOPICS,
    Assignment,
    GroupInfo,
    GroupMember,
    Subscription,
)
from strandline.changelog.records import TopicPartition

_log = logging.getLogger("strandline")

MIN_SESSION_MS, MAX_SESSION_MS = 100, 30 * 60 * 1000
"""Range of session timeouts. The maximum is Kafka's; its minimum is 6 s, for distant brokers."""


class GroupCoordinator:
    """The consumer groups of one log. Thread-safe."""

    def __init__(self, clock: Clock, counts: Callable[[str], int]) -> None:
        self._clock = clock
        self._counts = counts
        self._changed = threading.Condition()
        self._groups: dict[str, Group] = {}

    def join(self, name: str, subscription: Subscription) -> GroupMember:
        """Add a new member to a group. Raises InvalidConfig."""
        _check(name, subscription)
        member_id = f"{subscription.client or 'member'}-{self._clock.new_id()}"
        with self._changed:
            group = self._group(name)
            if len(group) >= MAX_MEMBERS:
                raise InvalidConfig(
                    f"group {name!r} has {len(group)} members and takes no more; use fewer processes, or "
                    "several groups"
                )
            slot = group.join(member_id, subscription, self._clock.monotonic())
            self._groups[name] = group
            self._changed.notify_all()
        return GroupMember(name, member_id, slot)

    def beat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        owned: Collection[TopicPartition],
        timeout: float,
    ) -> Assignment:
        """Process a heartbeat and wait up to `timeout` seconds for a new assignment.

        See Broker.heartbeat.
        """
        deadline = self._clock.monotonic() + timeout
        with self._changed:
            now = self._clock.monotonic()
            self._group(member.group).heartbeat(member.member_id, call, seen, owned, now)
            self._changed.notify_all()
            while True:
                assignment = self._group(member.group).assignment(member.member_id)
                remaining = deadline - self._clock.monotonic()
                if assignment.number > seen or remaining <= 0:
                    return assignment
                self._changed.wait(remaining)

    def leave(self, member: GroupMember) -> None:
        """Remove a member; does nothing if it was removed already."""
        with self._changed:
            group = self._groups.get(member.group)
            if group is not None:
                group.leave(member.member_id)
                self._forget_if_empty(group)
                self._changed.notify_all()

    def check_commit(
        self, name: str, member_id: str, partitions: Collection[TopicPartition]
    ) -> None:
        """Raise MemberFenced if this member may not commit offsets of these partitions."""
        with self._changed:
            self._group(name).check_commit(member_id, partitions)

    def held(self, name: str, member_id: str) -> frozenset[TopicPartition]:
        """Return the partitions that a member owns or may take over. Raises MemberFenced."""
        with self._changed:
            return self._group(name).member(member_id).owned

    def info(self, name: str) -> GroupInfo:
        """Describe a group; an unknown group has no members."""
        with self._changed:
            return self._group(name).info()

    def names(self) -> Iterable[str]:
        """Return the names of the groups that have members."""
        with self._changed:
            return list(self._groups)

    def tick(self) -> None:
        """Remove members whose session has timed out, and rebalance where topics have changed."""
        with self._changed:
            for group in list(self._groups.values()):
                expired = group.expire(self._clock.monotonic())
                if expired:
                    fields = {"group": group.name, "members": expired}
                    _log.warning(
                        "group %s: no heartbeat within the session timeout: %s",
                        *fields.values(),
                        extra=fields,
                    )
                group.check_topics()
                self._forget_if_empty(group)
            self._changed.notify_all()

    def _group(self, name: str) -> Group:
        """Return a group; a new one without members if it is unknown."""
        group = self._groups.get(name)
        return group if group is not None else Group(name, self._counts)

    def _forget_if_empty(self, group: Group) -> None:
        if not len(group):
            self._groups.pop(group.name, None)


def _check(name: str, subscription: Subscription) -> None:
    """Raise InvalidConfig or InvalidTopic for a subscription that is not valid or exceeds a limit."""
    check_client_name("a group", name)
    for given in filter(None, (subscription.client, subscription.instance)):
        check_client_name("a member of a group", given)
    if not subscription.topics:
        raise InvalidConfig(f"a member of group {name!r} must subscribe to at least one topic")
    tasks = subscription.tasks or ()
    for what, names in (
        ("topics", len(subscription.topics)),
        ("copartition groups", len(subscription.together)),
        ("copartitioned topics", sum(map(len, subscription.together))),
        ("tasks", len(tasks)),
        ("names of tasks and their topics", sum(map(len, tasks))),
    ):
        if names > MAX_SUBSCRIBED_TOPICS:
            raise InvalidConfig(
                f"a member of group {name!r} lists {names:,} {what}, "
                f"at most {MAX_SUBSCRIBED_TOPICS:,}; use several groups"
            )
    if not all(tasks):
        raise InvalidConfig(
            f"a member of group {name!r} lists a task without a name; each task is a list of its name "
            "and its topics"
        )
    for topic in {*subscription.topics, *chain.from_iterable(subscription.together)}:
        check_topic_name(topic, internal=True)
    if len(subscription.servers) > MAX_SERVERS or any(
        len(url) > MAX_SERVER_CHARACTERS for url in subscription.servers
    ):
        raise InvalidConfig(
            f"a member of group {name!r} serves queries at most at {MAX_SERVERS} URLs of at most "
            f"{MAX_SERVER_CHARACTERS:,} characters, got {len(subscription.servers):,}"
        )
    if not 0 <= subscription.standby_replicas <= MAX_STANDBY_REPLICAS:
        raise InvalidConfig(
            f"standby_replicas is 0 to {MAX_STANDBY_REPLICAS}, got {subscription.standby_replicas}"
        )
    if not MIN_SESSION_MS <= subscription.session_timeout_ms <= MAX_SESSION_MS:
        raise InvalidConfig(
            f"session.timeout.ms is {MIN_SESSION_MS} to {MAX_SESSION_MS}, got "
            f"{subscription.session_timeout_ms}"
        )
