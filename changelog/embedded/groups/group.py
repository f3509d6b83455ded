"""One consumer group: its members, and which partitions they own and are assigned.

    target       partitions of a member according to the assignor; new after each rebalance
    standbys     partitions of which a member keeps copies; independent of other members
    assignments  the assignments that a member may still act upon, by number
    owned        partitions that a member reports, or may take over by one of its assignments

A partition is assigned to its target member once no other member owns it. An assignment stays in
`assignments` until the member has reported that it saw a later one, because until then it may act
upon it. Therefore no two members ever own the same partition, even if messages are lost or late.

Not thread-safe: `GroupCoordinator` admits one thread at a time to each group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count

from strandline.changelog.copartition import CopartitionGroups
from strandline.changelog.embedded.groups.assignors import ASSIGNORS, spread_copies
from strandline.changelog.errors import InvalidConfig, MemberFenced
from strandline.changelog.groups import (
    MAX_GROUP_NAMES,
    Assignment,
    GroupInfo,
    MemberInfo,
    Subscription,
    check_tasks,
    names_in,
)
from strandline.changelog.records import TopicPartition

Partitions = frozenset[TopicPartition]
_NO_PARTITIONS: Partitions = frozenset()


@dataclass(eq=False)
class GroupMemberState:
    """The state of one member."""

    member_id: str
    slot: int
    """Smallest number that no other member had when this one joined."""
    subscription: Subscription
    deadline: float
    """Time at which the session ends without another heartbeat, in seconds (monotonic)."""
    target: Partitions = _NO_PARTITIONS
    """Partitions according to the assignor."""
    standbys: Partitions = _NO_PARTITIONS
    """Partitions of which the member keeps copies."""
    standbys_sent: Partitions = _NO_PARTITIONS
    """Standbys in the latest assignment."""
    reported: Partitions = _NO_PARTITIONS
    """Partitions in the member's latest report."""
    call: int = 0
    """Number of the heartbeat with the latest report: heartbeats may overtake each other."""
    assignments: dict[int, Partitions] = field(default_factory=lambda: {0: _NO_PARTITIONS})
    """Assignments that the member may still act upon, by number."""

    @property
    def name(self) -> str:
        """Name of the member's program, or its id."""
        return self.subscription.client or self.member_id

    @property
    def owned(self) -> Partitions:
        """Partitions that the member owns or may take over at any moment."""
        return self.reported.union(*self.assignments.values())

    @property
    def last_number(self) -> int:
        """Number of the latest assignment."""
        return max(self.assignments)

    def record_report(self, call: int, seen: int, owned: Collection[TopicPartition]) -> None:
        """Record a report: the member saw assignment `seen` and owns `owned`.

        A report that was overtaken by a later one is ignored.
        """
        if call > self.call:
            self.call = call
            self.reported = frozenset(owned) & self.owned
            self.assignments = {
                n: partitions
                for n, partitions in self.assignments.items()
                if n >= min(seen, self.last_number)
            }

    def assign(self, partitions: Partitions) -> None:
        """Assign these partitions; creates a new assignment only if something changed."""
        if (partitions, self.standbys) != (self.assignments[self.last_number], self.standbys_sent):
            self.assignments[self.last_number + 1] = partitions
            self.standbys_sent = self.standbys


class Group:
    """A consumer group; `counts` returns the number of partitions of a topic, 0 if missing."""

    def __init__(self, name: str, counts: Callable[[str], int]) -> None:
        self.name = name
        self.generation = 0
        self._count = counts
        self._counts: dict[str, int] = {}
        self._members: dict[str, GroupMemberState] = {}

    def __len__(self) -> int:
        return len(self._members)

    def join(self, member_id: str, subscription: Subscription, now: float) -> int:
        """Add a member and return its slot.

        Raises InvalidConfig for a different assignor, too many names, or the tasks of another
        program.
        """
        self._check_assignor(subscription)
        previous = self._static(subscription.instance)
        others = [member for member in self._members.values() if member is not previous]
        self._check_names(subscription, others)
        check_tasks(self.name, subscription, [(one.name, one.subscription) for one in others])
        if previous is not None:  # a static member (KIP-345) rejoins: fence its previous instance
            del self._members[previous.member_id]
        taken = {member.slot for member in self._members.values()}
        slot = next(n for n in count() if n not in taken) if previous is None else previous.slot
        deadline = now + subscription.session_timeout_ms / 1000
        member = GroupMemberState(member_id, slot, subscription, deadline)
        if previous is not None:
            member.target, member.standbys = previous.target, previous.standbys
        self._members[member_id] = member
        self._rebalance()
        return slot

    def leave(self, member_ids: Collection[str]) -> None:
        """Remove members and revoke their partitions; may be called repeatedly."""
        left = [self._members.pop(member_id, None) for member_id in member_ids]
        if any(left):
            self._rebalance()

    def heartbeat(
        self, member_id: str, call: int, seen: int, owned: Collection[TopicPartition], now: float
    ) -> None:
        """Process a heartbeat, in which a member reports its partitions. Raises MemberFenced."""
        member = self.member(member_id)
        member.deadline = now + member.subscription.session_timeout_ms / 1000
        member.record_report(call, seen, owned)
        self._assign_free()

    def assignment(self, member_id: str) -> Assignment:
        """Return the latest assignment of a member. Raises MemberFenced."""
        member = self.member(member_id)
        return Assignment(
            member.last_number,
            sorted(member.assignments[member.last_number]),
            sorted(member.standbys_sent),
        )

    def expire(self, now: float) -> list[str]:
        """Remove the members whose session has timed out; return their ids."""
        expired = [m.member_id for m in self._members.values() if m.deadline < now]
        self.leave(expired)
        return expired

    def check_topics(self) -> None:
        """Rebalance if topics were created, deleted or grown."""
        if self._partition_counts() != self._counts:
            self._rebalance()

    def check_commit(self, member_id: str, partitions: Collection[TopicPartition]) -> None:
        """Raise MemberFenced unless a member owns all these partitions.

        Without a member id ("") offsets may be committed only while the group has no members.
        """
        if not member_id:
            if self._members:
                raise MemberFenced(
                    f"group {self.name!r} has members, hence only members may commit offsets; "
                    f"commit with the consumer that subscribed, or for another group"
                )
            return
        lost = sorted(set(partitions) - self.member(member_id).owned)
        if lost:
            raise MemberFenced(
                f"member {member_id} of group {self.name!r} does not own "
                f"{', '.join(map(str, lost))} any more; continue from the committed offsets"
            )

    def member(self, member_id: str) -> GroupMemberState:
        """Return a member. Raises MemberFenced if the id is unknown or was removed."""
        try:
            return self._members[member_id]
        except KeyError:
            raise MemberFenced(
                f"{member_id} is not (or no longer) a member of group {self.name!r}: it sent no "
                f"heartbeat within its session timeout, another instance replaced it, or the log has "
                f"another owner; join again, and continue from the committed offsets"
            ) from None

    def info(self) -> GroupInfo:
        """Return a description of the group."""
        members = [
            MemberInfo(
                m.member_id,
                m.subscription.client,
                m.subscription.instance,
                list(m.subscription.topics),
                sorted(m.owned),
                sorted(m.standbys_sent),
                list(m.subscription.servers),
            )
            for m in self._members.values()
        ]
        assignor = next((m.subscription.assignor for m in self._members.values()), "")
        return GroupInfo(self.name, self.generation, assignor, members)

    def _static(self, instance: str | None) -> GroupMemberState | None:
        """Return the static member with this instance id; None if there is none."""
        if instance is None:
            return None
        same = (m for m in self._members.values() if m.subscription.instance == instance)
        return next(same, None)

    def _check_assignor(self, subscription: Subscription) -> None:
        if subscription.assignor not in ASSIGNORS:
            raise InvalidConfig(
                f"assignor is {', '.join(sorted(ASSIGNORS))}, got {subscription.assignor!r}"
            )
        others = {m.subscription.assignor for m in self._members.values()}
        if others - {subscription.assignor}:
            raise InvalidConfig(
                f"the members of group {self.name!r} use the assignor {others.pop()}, got "
                f"{subscription.assignor}; all members of a group must use the same one"
            )

    def _check_names(
        self, subscription: Subscription, others: Collection[GroupMemberState]
    ) -> None:
        """Raise InvalidConfig if the group's members would name too much for fast assignments."""
        names = names_in(subscription) + sum(names_in(one.subscription) for one in others)
        if names > MAX_GROUP_NAMES:
            raise InvalidConfig(
                f"the {len(others) + 1} members of group {self.name!r} would list {names:,} topics, "
                f"copartitioned topics and tasks in all, at most {MAX_GROUP_NAMES:,}; use several groups"
            )

    def _partition_counts(self) -> dict[str, int]:
        """Return the current number of partitions of each subscribed topic."""
        topics = {topic for m in self._members.values() for topic in m.subscription.topics}
        return {topic: self._count(topic) for topic in sorted(topics)}

    def _rebalance(self) -> None:
        """Compute the targets and standbys of all members, and assign what is free."""
        self._counts = self._partition_counts()
        if self._members:
            members = self._members.values()
            assign = ASSIGNORS[next(iter(members)).subscription.assignor]
            copartition_groups = CopartitionGroups(
                copartitioned for m in members for copartitioned in m.subscription.together
            )
            wanted = {
                m.member_id: frozenset(copartition_groups.of(m.subscription.topics))
                for m in members
            }
            targeted = _NO_PARTITIONS.union(*(m.target for m in members))
            # A standby of a partition whose owner is gone gets it first, because it has a copy.
            previous = {m.member_id: {*m.target, *(m.standbys - targeted)} for m in members}
            copies = {m.member_id: set(m.standbys) for m in members}
            replicas = max(m.subscription.standby_replicas for m in members)
            shares = assign(wanted, copartition_groups.counts(self._counts), previous)
            spread = spread_copies(shares, wanted, replicas, copies)
            for member in members:
                topics, share = member.subscription.topics, shares[member.member_id]
                member.target = copartition_groups.expand(share, topics, self._counts)
                kept = spread[member.member_id]
                member.standbys = copartition_groups.expand(kept, topics, self._counts)
        self.generation += 1
        self._assign_free()

    def _assign_free(self) -> None:
        """Assign to each member the partitions of its target that no other member owns."""
        owned = {member.member_id: member.owned for member in self._members.values()}
        owners = Counter(tp for partitions in owned.values() for tp in partitions)
        for member in self._members.values():
            own = owned[member.member_id]
            free = (tp for tp in member.target if owners[tp] == (tp in own))
            member.assign(frozenset(free))
