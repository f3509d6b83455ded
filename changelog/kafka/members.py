"""Membership in groups: of the members in this process, and what the cluster tells of the others.

Kafka's coordinator knows who is in a group and what was assigned to whom. What it does not know of the
members of an app (slots, where they answer queries) they tell one another (`MemberDirectory`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable

from strandline.changelog.errors import (
    InvalidConfig,
    MemberFenced,
    RequestTimedOut,
    Retriable,
    StrandlineError,
    UnknownTopic,
)
from strandline.changelog.groups import Assignment, GroupInfo, GroupMember, MemberInfo, Subscription
from strandline.changelog.kafka.connection import KafkaConnection, log
from strandline.changelog.kafka.coordinators import (
    CoordinatorGroup,
    CoordinatorMember,
    Coordinators,
)
from strandline.changelog.kafka.copartitioning import CopartitionedSubscription, Unit
from strandline.changelog.kafka.member import KafkaMember
from strandline.changelog.kafka.member_directory import (
    MemberDirectory,
    MemberEntry,
    Roll,
    holders,
    is_mine,
    lowest_free,
)
from strandline.changelog.kafka.topics import KafkaTopics
from strandline.changelog.records import TopicPartition

JOIN_S = 60.0
"""A group that has lost a member is shared out anew only when that member's time is over."""
SAID_AFTER_S = 2.0
"""After this it is said what a worker that joins waits for."""
WAIT_S = 1.0
"""So long a consumer is kept waiting: it may be others in its own thread that have to give up."""
STABLE = "Stable"
"""The state of a group that is shared out."""
UNKNOWN_GENERATION = -1
"""Kafka does not tell it."""


class Members:
    """Of the groups of one cluster. Thread-safe."""

    def __init__(
        self,
        connection: KafkaConnection,
        topics: KafkaTopics,
        coordinators: Coordinators,
        roster: MemberDirectory,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._coordinators = coordinators
        self._roster = roster
        self._lock = threading.Lock()
        self._here: dict[str, KafkaMember] = {}

    def join(self, group: str, subscription: Subscription) -> GroupMember:
        """See Broker.join_group."""
        units = CopartitionedSubscription.of(group, subscription)
        share = _Share(units, self._topics)
        if not units.are_partitions:
            self._roster.make_room(group, max(1, units.needed(share.count)))
        member = KafkaMember(
            self._connection, group, subscription, units.subscribed, share.partitions
        )
        try:
            if units.are_partitions:
                member.join(WAIT_S)
                slot = 0
            else:
                slot = self._seated(member, units)
                member.look_around(lambda: self._look_around(member, share))
        except BaseException:
            member.leave()
            raise
        name = member.member_id or f"{subscription.client}-{self._connection.clock.new_id()}"
        with self._lock:
            self._here[name] = member
        return GroupMember(group, name, slot)

    def beat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        timeout: float,
    ) -> Assignment:
        """See Broker.beat_group."""
        return self.of(member.group, member.member_id).beat(call, seen, holds, timeout)

    def leave(self, member: GroupMember) -> None:
        """See Broker.leave_group."""
        with self._lock:
            found = self._here.pop(member.member_id, None)
        if found is not None:
            found.leave()
            with contextlib.suppress(StrandlineError):  # the next one who comes does it
                if found.subscription.together:
                    self._roster.say(member.group, {member.member_id: None})

    def of(self, group: str, member_id: str) -> KafkaMember:
        """A member of this process. Raises MemberFenced."""
        with self._lock:
            found = self._here.get(member_id)
        if found is None or found.group != group:
            raise MemberFenced(
                f"{self._connection.where(f'group {group!r}')}: {member_id!r} is no member of this "
                f"process; join again"
            )
        return found

    def describe(self, group: str) -> GroupInfo:
        """See Broker.describe_group."""
        described = self._described(group)
        if described is None:
            return GroupInfo(group, UNKNOWN_GENERATION, "", ())
        roll = self._roster.read(group)
        copies = self._copies(roll, described)
        members = [
            self._info(group, one, roll.get(one.member_id), copies[one.member_id])
            for one in described.members
        ]
        return GroupInfo(group, UNKNOWN_GENERATION, described.assignor, members)

    def _info(
        self, group: str, told: CoordinatorMember, entry: MemberEntry | None, copies: set[Unit]
    ) -> MemberInfo:
        if entry is None:
            entry = MemberEntry(0, tuple(sorted({topic for topic, _ in told.units})), ())
        share = _Share(CopartitionedSubscription(group, entry.topics, entry.together), self._topics)
        return MemberInfo(
            told.member_id,
            told.client,
            entry.instance,
            entry.topics,
            sorted(share.partitions(told.units)),
            sorted(share.partitions(copies)),
            entry.servers,
        )

    def close(self) -> None:
        """Leave all groups."""
        with self._lock:
            here, self._here = list(self._here.values()), {}
        for member in here:
            member.leave()

    # Slots ----------------------------------------------------------------------------

    def _seated(self, member: KafkaMember, units: CopartitionedSubscription) -> int:
        """Wait until it is in, and take a slot that no other member has.

        Raises RequestTimedOut, and InvalidConfig if others share out otherwise.
        """
        if not member.join(SAID_AFTER_S):
            self._say_who_is_waited_for(member)
        if not member.join(JOIN_S):
            raise RequestTimedOut(
                f"{self._connection.where(f'group {member.group!r}')}: not a member after {JOIN_S:g} s; "
                f"check that the brokers keep up, and that the group's other members are alive"
            )
        subscription, mine = member.subscription, member.member_id
        while True:
            roll = self._roster.read(member.group)
            alive = self._alive(member.group)
            _check_alike(units, roll, alive - {mine})
            if mine in roll and is_mine(roll, alive, mine):
                gone = [other for other in roll if other not in alive]
                self._roster.say(member.group, dict.fromkeys(gone))
                return roll[mine].slot
            slot = lowest_free(roll, alive, mine)
            entry = MemberEntry(
                slot,
                units.topics,
                units.together,
                subscription.standby_replicas,
                tuple(subscription.servers),
                subscription.instance,
            )
            self._roster.say(member.group, {mine: entry})

    def _say_who_is_waited_for(self, member: KafkaMember) -> None:
        """That members from before hold it up, if there are any: Kafka does not say which of them live."""
        with contextlib.suppress(Retriable):
            before = self._alive(member.group) & self._roster.read(member.group).keys()
            if before and not member.member_id:
                log.warning(
                    "%s waits for %d from before: one that has died holds it up until its session "
                    "timeout is over (session_timeout_ms, %g s here), one that works until its next commit",
                    self._connection.where(f"group {member.group!r}"),
                    len(before),
                    member.subscription.session_timeout_ms / 1000,
                    extra={"group": member.group, "members": sorted(before)},
                )

    def _alive(self, group: str) -> set[str]:
        described = self._described(group)
        return set() if described is None else {one.member_id for one in described.members}

    # Looking around -------------------------------------------------------------------

    def _look_around(self, member: KafkaMember, share: _Share) -> None:
        """What may have changed without Kafka's saying so: topics that grew, others' copies."""
        share.refresh()
        member.count_again()
        self._roster.make_room(member.group, max(1, share.units.needed(share.count)))
        roll = self._roster.read(member.group)
        copies: set[Unit] = set()
        # Asking who is in it costs every broker something, so only where copies are kept.
        if any(entry.standby_replicas for entry in roll.values()):
            described = self._described(member.group)
            if described is not None:
                copies = self._copies(roll, described)[member.member_id]
        member.keep_copies(share.partitions(copies))

    def _copies(self, roll: Roll, described: CoordinatorGroup) -> defaultdict[str, set[Unit]]:
        """By member, the units that it is to keep copies of; none while they are shared out."""
        copies: defaultdict[str, set[Unit]] = defaultdict(set)
        if described.state == STABLE:
            alive = [one.member_id for one in described.members]
            for one in described.members:
                for unit in one.units:
                    for holder in holders(roll, alive, unit[1], one.member_id):
                        copies[holder].add(unit)
        return copies

    def _described(self, group: str) -> CoordinatorGroup | None:
        """What Kafka says of a group; None if there is none."""

        def described() -> tuple[CoordinatorGroup | None]:
            return (self._coordinators.group(group),)

        return self._connection.until(described, f"describing group {group!r}")[0]


class _Share:
    """What units stand for, by the number of partitions that topics were last seen with."""

    def __init__(self, units: CopartitionedSubscription, topics: KafkaTopics) -> None:
        self.units = units
        self._topics = topics
        self._counts: dict[str, int] = {}
        self.refresh()

    def refresh(self) -> None:
        """See how many partitions there are now."""
        if not self.units.are_partitions:
            self._counts = {name: _count(self._topics, name) for name in self.units.topics}

    def count(self, topic: str) -> int:
        """Of one topic; 0 if there is none."""
        return self._counts.get(topic, 0)

    def partitions(self, units: Iterable[Unit]) -> frozenset[TopicPartition]:
        """What these stand for."""
        return self.units.partitions(units, self.count)


def _count(topics: KafkaTopics, name: str) -> int:
    try:
        return topics.shape(name).partitions
    except UnknownTopic:
        return 0


def _check_alike(units: CopartitionedSubscription, roll: Roll, others: Collection[str]) -> None:
    """Raise InvalidConfig unless the others give the same meaning to units."""
    mine = units.topics, units.together
    for other in others:
        entry = roll.get(other)
        if entry is not None and (entry.topics, entry.together) != mine:
            raise InvalidConfig(
                f"group {units.group!r}: a member shares out {list(map(list, entry.together))}, this "
                f"one {list(map(list, units.together))}; on Kafka all workers of an app have the same "
                f"tasks: stop the others before changing them"
            )
