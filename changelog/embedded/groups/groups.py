"""All consumer groups of a log: join, heartbeat, leave, and wait for a new assignment.

A heartbeat is answered when there is a new assignment, at the latest after its timeout. A member
therefore receives revoked partitions of other members at once, without frequent heartbeats.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
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
        self._lock = threading.Lock()
        """Guards the table of groups. It is held for moments only: an assignment takes long."""
        self._groups: dict[str, _SharedGroup] = {}

    def join(self, name: str, subscription: Subscription) -> GroupMember:
        """Add a new member to a group. Raises InvalidConfig."""
        _check(name, subscription)
        member_id = f"{subscription.client or 'member'}-{self._clock.new_id()}"
        with self._changing(name) as group:
            if len(group) >= MAX_MEMBERS:
                raise InvalidConfig(
                    f"group {name!r} has {len(group)} members and takes no more; use fewer processes, or "
                    "several groups"
                )
            slot = group.join(member_id, subscription, self._clock.monotonic())
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
        shared = self._shared(member.group)
        with shared.changed:
            now = self._clock.monotonic()
            shared.group.heartbeat(member.member_id, call, seen, owned, now)
            shared.changed.notify_all()
            while True:
                assignment = shared.group.assignment(member.member_id)
                remaining = deadline - self._clock.monotonic()
                if assignment.number > seen or remaining <= 0:
                    return assignment
                shared.changed.wait(remaining)

    def leave(self, members: Collection[GroupMember]) -> None:
        """Remove members; does nothing for those that were removed already."""
        for name in sorted({member.group for member in members}):
            with self._changing(name) as group:
                group.leave([one.member_id for one in members if one.group == name])

    def check_commit(
        self, name: str, member_id: str, partitions: Collection[TopicPartition]
    ) -> None:
        """Raise MemberFenced if this member may not commit offsets of these partitions."""
        with self._reading(name) as group:
            group.check_commit(member_id, partitions)

    def held(self, name: str, member_id: str) -> frozenset[TopicPartition]:
        """Return the partitions that a member owns or may take over. Raises MemberFenced."""
        with self._reading(name) as group:
            return group.member(member_id).owned

    def info(self, name: str) -> GroupInfo:
        """Describe a group; an unknown group has no members."""
        with self._reading(name) as group:
            return group.info()

    def names(self) -> Iterable[str]:
        """Return the names of the groups that have members."""
        with self._lock:
            return [name for name, shared in self._groups.items() if len(shared.group)]

    def tick(self) -> None:
        """Remove members whose session has timed out, and rebalance where topics have changed."""
        with self._lock:
            names = list(self._groups)
        for name in names:
            with self._changing(name) as group:
                expired = group.expire(self._clock.monotonic())
                if expired:
                    fields = {"group": name, "members": expired}
                    _log.warning(
                        "group %s: no heartbeat within the session timeout: %s",
                        *fields.values(),
                        extra=fields,
                    )
                group.check_topics()

    @contextmanager
    def _reading(self, name: str) -> Iterator[Group]:
        """Yield a group that no other thread changes meanwhile; an empty one if it is unknown."""
        shared = self._shared(name)
        with shared.changed:
            yield shared.group

    @contextmanager
    def _changing(self, name: str) -> Iterator[Group]:
        """Yield a group to change it, and notify its waiting heartbeats.

        A group without members is forgotten at the end. A thread that has waited for such a group
        gets the one that is known now, because a member of a forgotten group would be lost.
        """
        while True:
            with self._lock:
                shared = self._groups.setdefault(name, self._new(name))
            with shared.changed:
                if self._groups.get(name) is not shared:
                    continue
                try:
                    yield shared.group
                finally:
                    if not len(shared.group):
                        with self._lock:
                            del self._groups[name]
                    shared.changed.notify_all()
                return

    def _shared(self, name: str) -> _SharedGroup:
        """Return a group; a new one without members, which is not kept, if it is unknown."""
        with self._lock:
            return self._groups.get(name) or self._new(name)

    def _new(self, name: str) -> _SharedGroup:
        return _SharedGroup(Group(name, self._counts))


class _SharedGroup:
    """A group, and the condition by which threads take turns with it.

    Each group has its own, so a group whose assignment takes long delays no other group.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.changed = threading.Condition()


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
