"""No two members hold a partition, whatever is lost, late or said twice."""

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
    """A member as it is over there: it acts on the answers it gets, some late, some never."""

    member_id: str
    holds: set[TopicPartition] = field(default_factory=set)
    grant: Assignment = field(default_factory=lambda: Assignment(0, ()))
    calls: int = 0
    out: bool = False

    def take_up(self) -> None:
        self.holds |= set(self.grant.partitions)

    def let_go(self) -> None:
        self.holds &= set(self.grant.partitions)


Call = tuple[Client, int, int, set[TopicPartition]]
"""Who says it, the call's number, the answer seen, what is held."""


class World:
    """Clients hold what they were told they may; the network loses, delays and repeats."""

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
        """A call on its way, if that client is there."""
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

    def let_go(self, who: int) -> None:
        if who in self.clients:
            self.clients[who].let_go()

    def leave(self, who: int) -> None:
        if who in self.clients:
            self.group.leave(self.clients[who].member_id)
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
        """One that is out may believe it holds something: the owner refuses its commits."""
        seen: set[TopicPartition] = set()
        for client in self.clients.values():
            self.group.check_commit(client.member_id, client.holds)
            assert not seen & client.holds
            seen |= client.holds
        for client in self.gone:
            with pytest.raises(MemberFenced):
                self.group.check_commit(client.member_id, client.holds)

    def settle(self) -> None:
        """When all that are left talk, each partition comes to one of them."""
        for _ in range(6):
            for who, client in self.clients.items():
                self.talk(who, answered=True)
                client.let_go()
                client.take_up()
        present = [client.member_id for client in self.clients.values()]
        wanted = {t for member in present for t in self.group.member(member).subscription.topics}
        held = {tp for client in self.clients.values() for tp in client.holds}
        assert held == {TopicPartition(t, n) for t in wanted for n in range(self.counts[t])}


@pytest.mark.parametrize("seed", range(40))
def test_no_two_members_hold_a_partition(seed: int) -> None:
    for story in range(25):
        told(Random(f"{seed}/{story}"))


def told(chance: Random) -> None:
    """One story of three clients, in which everything happens often enough to meet everything else."""
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
                world.let_go(who)
            case "leave":
                world.leave(who)
            case "wait":
                world.wait(chance.choice([1.0, 4.0, 11.0]))
            case "count":
                world.count(chance.choice("tu"), chance.randrange(5))
        world.check()
    world.settle()


STEPS = ("join", "talk", "send", "arrive", "take up", "let go", "leave", "wait", "count")
WEIGHTS = (3, 5, 2, 2, 4, 4, 0.5, 0.5, 0.5)


def group_of(*members: str, **subscription: Any) -> Group:
    group = Group("g", {"t": 4}.get)  # type: ignore[arg-type]
    for member in members:
        group.join(member, Subscription(("t",), **subscription), now=0.0)
    return group


def test_a_silent_member_is_out_and_its_partitions_go_to_the_others() -> None:
    group = group_of("a", "b")
    group.heartbeat("a", 1, 0, [], now=9.0)
    assert group.expire(now=10.5) == ["b"]
    assert len(group.assignment("a").partitions) == 4
    with pytest.raises(MemberFenced, match=r"not \(or no longer\) a member .* join again"):
        group.heartbeat("b", 1, 0, [], now=10.6)


def test_a_static_member_that_comes_back_has_what_it_had_and_nobody_elses_moves() -> None:
    group = group_of("b")
    group.join("a1", Subscription(("t",), instance="a"), now=0.0)
    had, others = group.member("a1").target, group.member("b").target
    group.join("a2", Subscription(("t",), instance="a"), now=1.0)
    assert group.member("a2").target == had
    assert group.member("b").target == others
    with pytest.raises(MemberFenced, match="another instance replaced it"):
        group.check_commit("a1", had)


def test_members_share_out_in_one_way() -> None:
    group = group_of("a", assignor="range")
    with pytest.raises(InvalidConfig, match="by range, got roundrobin"):
        group.join("b", Subscription(("t",), assignor="roundrobin"), now=0.0)
    with pytest.raises(InvalidConfig, match="assignor is cooperative-sticky"):
        group.join("b", Subscription(("t",), assignor="best"), now=0.0)  # type: ignore[arg-type]


def test_offsets_are_committed_in_the_name_of_who_holds_the_partition() -> None:
    group = group_of("a")
    [tp, *_] = group.assignment("a").partitions
    group.check_commit("a", [tp])
    with pytest.raises(MemberFenced, match="does not own t-9 any more"):
        group.check_commit("a", [tp, TopicPartition("t", 9)])
    with pytest.raises(MemberFenced, match="commit with the consumer that subscribed"):
        group.check_commit("", [tp])
    group.leave("a")
    group.check_commit("", [tp])


def test_a_member_has_the_lowest_number_that_is_free() -> None:
    group = Group("g", {"t": 4}.get)  # type: ignore[arg-type]
    assert [group.join(name, Subscription(("t",)), now=0.0) for name in "abc"] == [0, 1, 2]
    group.leave("b")
    assert group.join("d", Subscription(("t",)), now=0.0) == 1
    static = Subscription(("t",), instance="s")
    assert group.join("e1", static, now=0.0) == group.join("e2", static, now=0.0) == 3


def test_topics_that_belong_together_go_to_one_member() -> None:
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
