"""One group: who is in it, who holds what, and who may.

    target     what the assignor gives a member; set anew whenever members or topics change
    standbys   what it is to keep copies of, which concerns nobody else
    grants     the answers a member may still act upon, by number, each the partitions it may hold
    held       what it says it holds, or may take up by one of those answers, at any moment

A partition is granted to its target when no other member's `held` contains it. An answer that
was overtaken stays in `grants` until the member has said that it saw a later one: until then
it may act upon it. So two members never hold one partition, whatever is lost or late.

Not thread-safe: `Groups` lets in one thread at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count

from strandline.changelog.copartition import CopartitionGroups
from strandline.changelog.embedded.groups.assignors import ASSIGNORS, spread_copies
from strandline.changelog.errors import InvalidConfig, MemberFenced
from strandline.changelog.groups import Assignment, GroupInfo, MemberInfo, Subscription
from strandline.changelog.records import TopicPartition

Partitions = frozenset[TopicPartition]
_NOTHING: Partitions = frozenset()


@dataclass(eq=False)
class GroupMemberState:
    """One member."""

    member_id: str
    slot: int
    subscription: Subscription
    deadline: float
    """When it is out unless it is heard of, by the monotonic clock."""
    target: Partitions = _NOTHING
    standbys: Partitions = _NOTHING
    standbys_told: Partitions = _NOTHING
    """The standbys of its latest answer."""
    says: Partitions = _NOTHING
    """What it said last that it holds."""
    call: int = 0
    """Number of the call in which it said so: calls may overtake each other."""
    grants: dict[int, Partitions] = field(default_factory=lambda: {0: _NOTHING})

    @property
    def held(self) -> Partitions:
        """What it holds, or may take up at any moment."""
        return self.says.union(*self.grants.values())

    @property
    def last(self) -> int:
        """Number of the latest answer."""
        return max(self.grants)

    def heard(self, call: int, seen: int, holds: Collection[TopicPartition]) -> None:
        """It has seen answer `seen` and holds these; an overtaken call says nothing new."""
        if call > self.call:
            self.call = call
            self.says = frozenset(holds) & self.held
            self.grants = {n: may for n, may in self.grants.items() if n >= min(seen, self.last)}

    def grant(self, partitions: Partitions) -> None:
        """Let it hold these: another answer, if it says something else than before."""
        if (partitions, self.standbys) != (self.grants[self.last], self.standbys_told):
            self.grants[self.last + 1] = partitions
            self.standbys_told = self.standbys


class Group:
    """Members that share partitions. `counts` tells how many partitions a topic has, 0 if it is none."""

    def __init__(self, name: str, counts: Callable[[str], int]) -> None:
        self.name = name
        self.generation = 0
        self._count = counts
        self._counts: dict[str, int] = {}
        self._members: dict[str, GroupMemberState] = {}

    def __len__(self) -> int:
        return len(self._members)

    def join(self, member_id: str, subscription: Subscription, now: float) -> int:
        """A member comes; its slot. Raises InvalidConfig if the others share out in another way."""
        self._check_assignor(subscription)
        before = self._static(subscription.instance)
        if before is not None:  # fenced by the newcomer, which takes up where it was
            del self._members[before.member_id]
        taken = {member.slot for member in self._members.values()}
        slot = next(n for n in count() if n not in taken) if before is None else before.slot
        deadline = now + subscription.session_timeout_ms / 1000
        member = GroupMemberState(member_id, slot, subscription, deadline)
        if before is not None:
            member.target, member.standbys = before.target, before.standbys
        self._members[member_id] = member
        self._share_out()
        return slot

    def leave(self, member_id: str) -> None:
        """A member goes, and with it all it holds; harmless when repeated."""
        if self._members.pop(member_id, None) is not None:
            self._share_out()

    def beat(
        self, member_id: str, call: int, seen: int, holds: Collection[TopicPartition], now: float
    ) -> None:
        """A member is alive and says what it holds. Raises MemberFenced."""
        member = self.member(member_id)
        member.deadline = now + member.subscription.session_timeout_ms / 1000
        member.heard(call, seen, holds)
        self._grant()

    def answer(self, member_id: str) -> Assignment:
        """What a member may hold. Raises MemberFenced."""
        member = self.member(member_id)
        return Assignment(
            member.last, sorted(member.grants[member.last]), sorted(member.standbys_told)
        )

    def expire(self, now: float) -> list[str]:
        """Put out members that were not heard of in time; return which."""
        silent = [m.member_id for m in self._members.values() if m.deadline < now]
        for member_id in silent:
            self.leave(member_id)
        return silent

    def look_for_changes(self) -> None:
        """Share out anew if topics came, went or grew."""
        if self._counted() != self._counts:
            self._share_out()

    def check_commit(self, member_id: str, partitions: Collection[TopicPartition]) -> None:
        """Raise MemberFenced unless that member holds all these; "" is nobody's name."""
        if not member_id:
            if self._members:
                raise MemberFenced(
                    f"group {self.name!r} has members, so offsets are committed in the name of one; "
                    f"commit with the consumer that subscribed, or under another group"
                )
            return
        lost = sorted(set(partitions) - self.member(member_id).held)
        if lost:
            raise MemberFenced(
                f"member {member_id} of group {self.name!r} does not hold "
                f"{', '.join(map(str, lost))} any more; go on from what is committed"
            )

    def member(self, member_id: str) -> GroupMemberState:
        """One member. Raises MemberFenced if it is none, or no longer."""
        try:
            return self._members[member_id]
        except KeyError:
            raise MemberFenced(
                f"{member_id} is not (or no longer) a member of group {self.name!r}: it was not "
                f"heard of within its session timeout, another took its place, or the log has "
                f"another owner; join again, and go on from what is committed"
            ) from None

    def info(self) -> GroupInfo:
        """The group as it is described."""
        members = [
            MemberInfo(
                m.member_id,
                m.subscription.client,
                m.subscription.instance,
                list(m.subscription.topics),
                sorted(m.held),
                sorted(m.standbys_told),
                list(m.subscription.servers),
            )
            for m in self._members.values()
        ]
        assignor = next((m.subscription.assignor for m in self._members.values()), "")
        return GroupInfo(self.name, self.generation, assignor, members)

    def _static(self, instance: str | None) -> GroupMemberState | None:
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
                f"the members of group {self.name!r} share partitions by {others.pop()}, got "
                f"{subscription.assignor}; a group has one way, say the same"
            )

    def _counted(self) -> dict[str, int]:
        topics = {topic for m in self._members.values() for topic in m.subscription.topics}
        return {topic: self._count(topic) for topic in sorted(topics)}

    def _share_out(self) -> None:
        self._counts = self._counted()
        if self._members:
            members = self._members.values()
            assign = ASSIGNORS[next(iter(members)).subscription.assignor]
            leads = CopartitionGroups(
                together for m in members for together in m.subscription.together
            )
            wanted = {m.member_id: frozenset(leads.of(m.subscription.topics)) for m in members}
            had = _NOTHING.union(*(m.target for m in members))
            # Whoever has a copy of what nobody has any more is the first to get it.
            before = {m.member_id: {*m.target, *(m.standbys - had)} for m in members}
            copies = {m.member_id: set(m.standbys) for m in members}
            replicas = max(m.subscription.standby_replicas for m in members)
            shares = assign(wanted, leads.counts(self._counts), before)
            spread = spread_copies(shares, wanted, replicas, copies)
            for member in members:
                topics, share = member.subscription.topics, shares[member.member_id]
                member.target = leads.expand(share, topics, self._counts)
                kept = spread[member.member_id]
                member.standbys = leads.expand(kept, topics, self._counts)
        self.generation += 1
        self._grant()

    def _grant(self) -> None:
        """Give each what is its own and nobody holds; take from each what is not."""
        held = {member.member_id: member.held for member in self._members.values()}
        holders = Counter(tp for partitions in held.values() for tp in partitions)
        for member in self._members.values():
            mine = held[member.member_id]
            free = (tp for tp in member.target if holders[tp] == (tp in mine))
            member.grant(frozenset(free))
