"""All groups of a log: joining, beating, leaving, and waiting for what changes.

A beat is answered when the member may hold something else than it knows, at the latest after
its timeout: so a member learns at once what others gave up, without asking often.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from strandline.changelog.clock import Clock
from strandline.changelog.config import check_client_name
from strandline.changelog.embedded.groups.group import Group
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.groups import (
    MAX_MEMBERS,
    MAX_SERVER_CHARACTERS,
    MAX_SERVERS,
    MAX_STANDBY_REPLICAS,
    MAX_SUBSCRIBED,
    Assignment,
    GroupInfo,
    GroupMember,
    Subscription,
)
from strandline.changelog.records import TopicPartition

_log = logging.getLogger("strandline")

MIN_SESSION_MS, MAX_SESSION_MS = 100, 30 * 60 * 1000
"""Kafka's `group.max.session.timeout.ms`; its minimum is 6 s, for brokers far away."""


class GroupCoordinator:
    """The groups of one log. Thread-safe."""

    def __init__(self, clock: Clock, counts: Callable[[str], int]) -> None:
        self._clock = clock
        self._counts = counts
        self._changed = threading.Condition()
        self._groups: dict[str, Group] = {}

    def join(self, name: str, subscription: Subscription) -> GroupMember:
        """A new member. Raises InvalidConfig."""
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
        holds: Collection[TopicPartition],
        timeout: float,
    ) -> Assignment:
        """See Broker.beat_group."""
        deadline = self._clock.monotonic() + timeout
        with self._changed:
            now = self._clock.monotonic()
            self._group(member.group).beat(member.member_id, call, seen, holds, now)
            self._changed.notify_all()
            while True:
                answer = self._group(member.group).answer(member.member_id)
                left = deadline - self._clock.monotonic()
                if answer.number > seen or left <= 0:
                    return answer
                self._changed.wait(left)

    def leave(self, member: GroupMember) -> None:
        """A member goes; harmless when it is gone already."""
        with self._changed:
            group = self._groups.get(member.group)
            if group is not None:
                group.leave(member.member_id)
                self._forget_if_empty(group)
                self._changed.notify_all()

    def check_commit(
        self, name: str, member_id: str, partitions: Collection[TopicPartition]
    ) -> None:
        """Raise MemberFenced if offsets may not be committed in that name."""
        with self._changed:
            self._group(name).check_commit(member_id, partitions)

    def held(self, name: str, member_id: str) -> frozenset[TopicPartition]:
        """What a member holds, or may take up at any moment. Raises MemberFenced."""
        with self._changed:
            return self._group(name).member(member_id).held

    def info(self, name: str) -> GroupInfo:
        """A group; one without members if nobody is in it."""
        with self._changed:
            return self._group(name).info()

    def names(self) -> Iterable[str]:
        """The groups that have members."""
        with self._changed:
            return list(self._groups)

    def tick(self) -> None:
        """Put out the silent; share out anew where topics have changed."""
        with self._changed:
            for group in list(self._groups.values()):
                silent = group.expire(self._clock.monotonic())
                if silent:
                    said = {"group": group.name, "members": silent}
                    _log.warning("group %s: not heard of in time: %s", *said.values(), extra=said)
                group.look_for_changes()
                self._forget_if_empty(group)
            self._changed.notify_all()

    def _group(self, name: str) -> Group:
        """The group of that name; one without members if nobody is in it."""
        group = self._groups.get(name)
        return group if group is not None else Group(name, self._counts)

    def _forget_if_empty(self, group: Group) -> None:
        if not len(group):
            self._groups.pop(group.name, None)


def _check(name: str, subscription: Subscription) -> None:
    check_client_name("a group", name)
    for said in filter(None, (subscription.client, subscription.instance)):
        check_client_name("a member of a group", said)
    if not subscription.topics:
        raise InvalidConfig(f"a member of group {name!r} names at least one topic, got none")
    for what, names in (
        ("topics", len(subscription.topics)),
        ("topics that go together", sum(map(len, subscription.together))),
    ):
        if names > MAX_SUBSCRIBED:
            raise InvalidConfig(
                f"a member of group {name!r} names {names:,} {what}, at most {MAX_SUBSCRIBED:,}; use "
                "several groups"
            )
    if len(subscription.servers) > MAX_SERVERS or any(
        len(url) > MAX_SERVER_CHARACTERS for url in subscription.servers
    ):
        raise InvalidConfig(
            f"a member of group {name!r} answers queries at {MAX_SERVERS} URLs of "
            f"{MAX_SERVER_CHARACTERS:,} characters at most, got {len(subscription.servers):,}"
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
