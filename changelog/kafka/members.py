"""Membership in groups: the members of this process, and descriptions of all members.

Kafka's coordinator knows the members of a group and their partitions. Other data of an app's
members (slots, query URLs) are shared through `MemberDirectory`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from strandline.changelog.errors import (
    InvalidConfig,
    MemberFenced,
    RequestTimedOut,
    Retriable,
    StrandlineError,
    UnknownTopic,
)
from strandline.changelog.groups import (
    Assignment,
    GroupInfo,
    GroupMember,
    MemberInfo,
    Subscription,
    check_tasks,
)
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
    MemberEntries,
    MemberEntry,
    holders,
    is_mine,
    lowest_free,
)
from strandline.changelog.kafka.topics import KafkaTopics
from strandline.changelog.records import TopicPartition

JOIN_S = 60.0
"""Maximum seconds to wait for joining. A group that has lost a member is rebalanced only after that
member's session timeout."""
LOG_WAIT_AFTER_S = 2.0
"""Seconds after which a worker that joins logs what it is waiting for."""
WAIT_S = 1.0
"""Maximum seconds that a consumer waits for joining. The wait is short, because members that must
release partitions may run in the same thread."""
STABLE = "Stable"
"""Kafka's name for the state of a group that is not being rebalanced."""
UNKNOWN_GENERATION = -1
"""Generation in descriptions of groups, because Kafka does not report it."""


class Members:
    """The members of all groups of one cluster. Thread-safe."""

    def __init__(
        self,
        connection: KafkaConnection,
        topics: KafkaTopics,
        coordinators: Coordinators,
        directory: MemberDirectory,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._coordinators = coordinators
        self._directory = directory
        self._lock = threading.Lock()
        self._local: dict[str, KafkaMember] = {}
        """Members of this process by member id."""

    def join(self, group: str, subscription: Subscription) -> GroupMember:
        """See Broker.join_group."""
        units = CopartitionedSubscription.of(group, subscription)
        share = _Share(units, self._topics)
        if not units.are_partitions:
            self._directory.ensure_partitions(group, max(1, units.needed(share.count)))
        member = KafkaMember(
            self._connection, group, subscription, units.subscribed, share.partitions
        )
        try:
            if units.are_partitions:
                member.join(WAIT_S)
                slot = 0
            else:
                slot = self._take_slot(member, units)
                member.refresh_regularly(lambda: self._refresh(member, share))
        except BaseException:
            member.leave()
            raise
        name = member.member_id or f"{subscription.client}-{self._connection.clock.new_id()}"
        with self._lock:
            self._local[name] = member
        return GroupMember(group, name, slot)

    def beat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        timeout: float,
    ) -> Assignment:
        """See Broker.heartbeat."""
        return self.of(member.group, member.member_id).beat(call, seen, holds, timeout)

    def leave(self, member: GroupMember) -> None:
        """See Broker.leave_group."""
        with self._lock:
            found = self._local.pop(member.member_id, None)
        if found is not None:
            found.leave()
            # After an error, the next member that joins deletes the record.
            with contextlib.suppress(StrandlineError):
                if found.subscription.together:
                    self._directory.write(member.group, {member.member_id: None})

    def of(self, group: str, member_id: str) -> KafkaMember:
        """Return a member of this process. Raises MemberFenced."""
        with self._lock:
            found = self._local.get(member_id)
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
        entries = self._directory.read(group)
        copies = self._copies(entries, described)
        members = [
            self._info(group, one, entries.get(one.member_id), copies[one.member_id])
            for one in described.members
        ]
        return GroupInfo(group, UNKNOWN_GENERATION, described.assignor, members)

    def _info(
        self, group: str, member: CoordinatorMember, entry: MemberEntry | None, copies: set[Unit]
    ) -> MemberInfo:
        if entry is None:
            entry = MemberEntry(0, tuple(sorted({topic for topic, _ in member.units})), ())
        share = _Share(CopartitionedSubscription(group, entry.topics, entry.together), self._topics)
        return MemberInfo(
            member.member_id,
            member.client,
            entry.instance,
            entry.topics,
            sorted(share.partitions(member.units)),
            sorted(share.partitions(copies)),
            entry.servers,
        )

    def close(self) -> None:
        """Leave all groups."""
        with self._lock:
            local, self._local = list(self._local.values()), {}
        for member in local:
            member.leave()

    # Slots ----------------------------------------------------------------------------

    def _take_slot(self, member: KafkaMember, units: CopartitionedSubscription) -> int:
        """Wait until the consumer is a member, and take a slot that no other member has.

        Raises RequestTimedOut, and InvalidConfig if other members define other units.
        """
        if not member.join(LOG_WAIT_AFTER_S):
            self._log_what_it_waits_for(member)
        if not member.join(JOIN_S):
            raise RequestTimedOut(
                f"{self._connection.where(f'group {member.group!r}')}: not a member after {JOIN_S:g} s; "
                f"check that the brokers keep up, and that the group's other members are alive"
            )
        subscription, mine = member.subscription, member.member_id
        topics_differ = subscription.topics_differ and units.are_numbers
        while True:
            entries = self._directory.read(member.group)
            alive = self._alive(member.group)
            others = {name: entries[name] for name in entries if name in alive - {mine}}
            _check_same_units(units, entries, alive - {mine}, topics_differ=topics_differ)
            check_tasks(member.group, subscription, [(n, _told(o)) for n, o in others.items()])
            if mine in entries and is_mine(entries, alive, mine):
                gone = [other for other in entries if other not in alive]
                self._directory.write(member.group, dict.fromkeys(gone))
                return entries[mine].slot
            slot = lowest_free(entries, alive, mine)
            entry = MemberEntry(
                slot,
                units.topics,
                units.together,
                subscription.standby_replicas,
                tuple(subscription.servers),
                subscription.instance,
                topics_differ,
                _tuples(subscription.tasks),
            )
            self._directory.write(member.group, {mine: entry})

    def _log_what_it_waits_for(self, member: KafkaMember) -> None:
        """Log that a join waits for earlier members, if there are any.

        Kafka does not report which of them are alive.
        """
        with contextlib.suppress(Retriable):
            before = self._alive(member.group) & self._directory.read(member.group).keys()
            if before and not member.member_id:
                log.warning(
                    "%s waits for earlier members (%d): a dead one blocks it until its session timeout "
                    "is over (session_timeout_ms, %g s here), a working one until its next commit",
                    self._connection.where(f"group {member.group!r}"),
                    len(before),
                    member.subscription.session_timeout_ms / 1000,
                    extra={"group": member.group, "members": sorted(before)},
                )

    def _alive(self, group: str) -> set[str]:
        described = self._described(group)
        return set() if described is None else {one.member_id for one in described.members}

    # Refreshing -----------------------------------------------------------------------

    def _refresh(self, member: KafkaMember, share: _Share) -> None:
        """Update what Kafka does not report: partitions added to topics, and standby copies."""
        share.refresh()
        member.add_grown_partitions()
        self._directory.ensure_partitions(member.group, max(1, share.units.needed(share.count)))
        entries = self._directory.read(member.group)
        copies: set[Unit] = set()
        # The query loads every broker, so it is only made if copies are kept.
        if any(entry.standby_replicas for entry in entries.values()):
            described = self._described(member.group)
            if described is None or described.state != STABLE:
                return  # a rebalance must not close copies that remain
            copies = self._copies(entries, described)[member.member_id]
        member.set_standbys(share.partitions(copies))

    def _copies(
        self, entries: MemberEntries, described: CoordinatorGroup
    ) -> defaultdict[str, set[Unit]]:
        """Return the units that each member keeps copies of; none during a rebalance."""
        copies: defaultdict[str, set[Unit]] = defaultdict(set)
        if described.state == STABLE:
            alive = [one.member_id for one in described.members]
            for one in described.members:
                for unit in one.units:
                    for holder in holders(entries, alive, unit[1], one.member_id):
                        copies[holder].add(unit)
        return copies

    def _described(self, group: str) -> CoordinatorGroup | None:
        """Return Kafka's description of a group; None if the group does not exist."""

        def described() -> tuple[CoordinatorGroup | None]:
            return (self._coordinators.group(group),)

        return self._connection.until(described, f"describing group {group!r}")[0]


class _Share:
    """The partitions that units represent, for the last known partition counts of topics."""

    def __init__(self, units: CopartitionedSubscription, topics: KafkaTopics) -> None:
        self.units = units
        self._topics = topics
        self._counts: dict[str, int] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the current number of partitions of each topic."""
        if not self.units.are_partitions:
            self._counts = {name: _count(self._topics, name) for name in self.units.topics}

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if it does not exist."""
        return self._counts.get(topic, 0)

    def partitions(self, units: Iterable[Unit]) -> frozenset[TopicPartition]:
        """Return the partitions that these units represent."""
        return self.units.partitions(units, self.count)


def _tuples(tasks: Sequence[Sequence[str]] | None) -> tuple[tuple[str, ...], ...] | None:
    return None if tasks is None else tuple(map(tuple, tasks))


def _told(entry: MemberEntry) -> Subscription:
    """Return what a member has published of its subscription."""
    return Subscription(entry.topics, tasks=entry.tasks)


def _count(topics: KafkaTopics, name: str) -> int:
    try:
        return topics.shape(name).partitions
    except UnknownTopic:
        return 0


def _check_same_units(
    units: CopartitionedSubscription,
    entries: MemberEntries,
    others: Collection[str],
    *,
    topics_differ: bool,
) -> None:
    """Raise InvalidConfig unless the units of the other members mean the same.

    With `topics_differ` units are numbers of partitions, so they mean the same for all members that
    have it too.
    """
    mine = units.topics, units.together
    for other in others:
        entry = entries.get(other)
        if entry is None or (topics_differ and entry.topics_differ):
            continue
        if (entry.topics, entry.together) != mine:
            raise InvalidConfig(
                f"group {units.group!r}: a member has the copartition groups "
                f"{list(map(list, entry.together))}, this one {list(map(list, units.together))}; on "
                f"Kafka all workers of an app must have the same tasks: stop the others before "
                f"changing them"
            )
