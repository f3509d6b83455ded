"""Two members never own the same partition, with lost, late and repeated messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from strandline.changelog.embedded.groups.group import Group
from strandline.changelog.errors import InvalidConfig, MemberFenced
from strandline.changelog.groups import Assignment, Subscription
from strandline.changelog.records import TopicPartition


@dataclass(eq=False)
class Client:
    """A client's view of its membership: it acts on the answers that arrive, some late, some
    never."""

    member_id: str
    holds: set[TopicPartition] = field(default_factory=set)
    grant: Assignment = field(default_factory=lambda: Assignment(0, ()))
    calls: int = 0
    out: bool = False

    def take_up(self) -> None:
        self.holds |= set(self.grant.partitions)

    def release(self) -> None:
        self.holds &= set(self.grant.partitions)


Call = tuple[Client, int, int, set[TopicPartition]]
"""Client, number of the call, number of the last answer seen, owned partitions."""


class World:
    """Clients that own their assigned partitions, and a network that loses, delays and repeats
    calls."""

    def __init__(self) -> None:
        self.counts = {"t": 2, "u": 2}
        self.group = Group("g", lambda topic: self.counts.get(topic, 0))
        self.clients: dict[int, Client] = {}
        self.gone: list[Client] = []
        self.now = 0.0

    def join(self, who: int, both: bool) -> None:
        if who not in self.clients:
            client = Client(f"m{len(self.clients) + len(self.gone)}")
            subscription = Subscription(("t", "u") if both else ("t",), session_timeout_ms=10_000)
            self.group.join(client.member_id, subscription, self.now)
            self.clients[who] = client

    def talk(self, who: int, answered: bool) -> None:
        for call in self.send(who):
            self.arrive(call, answered)

    def send(self, who: int) -> list[Call]:
        """Return the call that a client sends; nothing if the client is not there."""
        client = self.clients.get(who)
        if client is None:
            return []
        client.calls += 1
        return [(client, client.calls, client.grant.number, set(client.holds))]

    def arrive(self, call: Call, answered: bool) -> None:
        if call[0] in self.gone:
            return
        client, number, seen, holds = call
        self.group.heartbeat(client.member_id, number, seen, holds, self.now)
        answer = self.group.assignment(client.member_id)
        if answered and answer.number >= client.grant.number:
            client.grant = answer

    def take_up(self, who: int) -> None:
        if who in self.clients:
            self.clients[who].take_up()

    def release(self, who: int) -> None:
        if who in self.clients:
            self.clients[who].release()

    def leave(self, who: int) -> None:
        if who in self.clients:
            self.group.leave([self.clients[who].member_id])
            self.gone.append(self.clients.pop(who))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        silent = self.group.expire(self.now)
        for who, client in list(self.clients.items()):
            if client.member_id in silent:
                self.gone.append(self.clients.pop(who))

    def count(self, topic: str, count: int) -> None:
        self.counts[topic] = count
        self.group.check_topics()

    def check(self) -> None:
        """Check ownership. An expelled client may still believe it owns partitions; its commits are
        refused."""
        seen: set[TopicPartition] = set()
        for client in self.clients.values():
            self.group.check_commit(client.member_id, client.holds)
            assert not seen & client.holds
            seen |= client.holds
        for client in self.gone:
            with pytest.raises(MemberFenced):
                self.group.check_commit(client.member_id, client.holds)

    def converge(self) -> None:
        """Let all remaining clients talk, and check that each partition is owned by one of them."""
        for _ in range(6):
            for who, client in self.clients.items():
                self.talk(who, answered=True)
                client.release()
                client.take_up()
        present = [client.member_id for client in self.clients.values()]
        wanted = {t for member in present for t in self.group.member(member).subscription.topics}
        held = {tp for client in self.clients.values() for tp in client.holds}
        assert held == {TopicPartition(t, n) for t in wanted for n in range(self.counts[t])}


@pytest.mark.parametrize("seed", range(40))
def test_two_members_never_own_the_same_partition(seed: int) -> None:
    for story in range(25):
        run_story(Random(f"{seed}/{story}"))


def run_story(chance: Random) -> None:
    """Run one random story of three clients that covers all combinations of events."""
    world, calls = World(), list[Call]()
    for _ in range(60):
        who, yes = chance.randrange(3), chance.random() < 0.7
        match chance.choices(STEPS, WEIGHTS)[0]:
            case "join":
                world.join(who, both=yes)
            case "talk":
                world.talk(who, answered=yes)
            case "send":
                calls += world.send(who)
            case "arrive" if calls:
                world.arrive(chance.choice(calls), answered=yes)
            case "take up":
                world.take_up(who)
            case "let go":
                world.release(who)
            case "leave":
                world.leave(who)
            case "wait":
                world.wait(chance.choice([1.0, 4.0, 11.0]))
            case "count":
                world.count(chance.choice("tu"), chance.randrange(5))
        world.check()
    world.converge()


STEPS = ("join", "talk", "send", "arrive", "take up", "let go", "leave", "wait", "count")
WEIGHTS = (3, 5, 2, 2, 4, 4, 0.5, 0.5, 0.5)


def group_of(*members: str, **subscription: Any) -> Group:
    group = Group("g", {"t": 4}.get)  # type: ignore[arg-type]
    for member in members:
        group.join(member, Subscription(("t",), **subscription), now=0.0)
    return group


def test_a_silent_member_is_removed_and_its_partitions_are_reassigned() -> None:
    group = group_of("a", "b")
    group.heartbeat("a", 1, 0, [], now=9.0)
    assert group.expire(now=10.5) == ["b"]
    assert len(group.assignment("a").partitions) == 4
    with pytest.raises(MemberFenced, match=r"not \(or no longer\) a member .* join again"):
        group.heartbeat("b", 1, 0, [], now=10.6)


def test_a_returning_static_member_keeps_its_partitions_and_no_others_move() -> None:
    group = group_of("b")
    group.join("a1", Subscription(("t",), instance="a"), now=0.0)
    had, others = group.member("a1").target, group.member("b").target
    group.join("a2", Subscription(("t",), instance="a"), now=1.0)
    assert group.member("a2").target == had
    assert group.member("b").target == others
    with pytest.raises(MemberFenced, match="another instance replaced it"):
        group.check_commit("a1", had)


def test_members_must_use_the_same_assignor() -> None:
    group = group_of("a", assignor="range")
    with pytest.raises(InvalidConfig, match="use the assignor range, got roundrobin"):
        group.join("b", Subscription(("t",), assignor="roundrobin"), now=0.0)
    with pytest.raises(InvalidConfig, match="assignor is cooperative-sticky"):
        group.join("b", Subscription(("t",), assignor="best"), now=0.0)  # type: ignore[arg-type]


def test_only_the_owner_of_a_partition_may_commit_its_offset() -> None:
    group = group_of("a")
    [tp, *_] = group.assignment("a").partitions
    group.check_commit("a", [tp])
    with pytest.raises(MemberFenced, match="does not own t-9 any more"):
        group.check_commit("a", [tp, TopicPartition("t", 9)])
    with pytest.raises(MemberFenced, match="commit with the consumer that subscribed"):
        group.check_commit("", [tp])
    group.leave(["a"])
    group.check_commit("", [tp])


def test_a_member_gets_the_lowest_free_slot() -> None:
    group = Group("g", {"t": 4}.get)  # type: ignore[arg-type]
    assert [group.join(name, Subscription(("t",)), now=0.0) for name in "abc"] == [0, 1, 2]
    group.leave(["b"])
    assert group.join("d", Subscription(("t",)), now=0.0) == 1
    static = Subscription(("t",), instance="s")
    assert group.join("e1", static, now=0.0) == group.join("e2", static, now=0.0) == 3


def test_copartitioned_topics_are_assigned_together() -> None:
    counts = {"clicks": 4, "users": 4, "bills": 4, "other": 3}
    group = Group("g", lambda topic: counts.get(topic, 0))
    both = (("clicks", "users"), ("users", "bills"), ("other",))
    for name in "ab":
        group.join(name, Subscription(tuple(counts), together=both), now=0.0)
    numbers = {
        name: {
            topic: {tp.partition for tp in group.member(name).target if tp.topic == topic}
            for topic in counts
        }
        for name in "ab"
    }
    for mine in numbers.values():
        assert mine["clicks"] == mine["users"] == mine["bills"]
        assert len(mine["clicks"]) == 2
    assert numbers["a"]["clicks"] | numbers["b"]["clicks"] == set(range(4))
    assert numbers["a"]["other"] | numbers["b"]["other"] == set(range(3))
