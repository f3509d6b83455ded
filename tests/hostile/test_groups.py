"""Joining a group takes time in proportion to the names of the member, and their number is
bounded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from strandline.changelog.clock import ManualClock, SystemClock
from strandline.changelog.embedded.groups.assignors import sticky
from strandline.changelog.embedded.groups.groups import GroupCoordinator
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.flight.sessions import ClientSession
from strandline.changelog.groups import MAX_SUBSCRIBED_TOPICS, Assignor, Subscription, check_tasks
from strandline.changelog.records import TopicPartition
from tests.compared import Name


class Number(int):
    """A partition's number that counts comparisons."""

    __slots__ = ()
    compared = 0
    __hash__ = int.__hash__

    def __lt__(self, other: int) -> bool:
        Number.compared += 1
        return int(self) < other


def steps_of(groups: GroupCoordinator, subscriptions: Sequence[Subscription]) -> int:
    """Return lines run and names compared while members join, a deterministic measure of time."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    Name.compared, before = 0, sys.gettrace()
    sys.settrace(count)
    try:
        for subscription in subscriptions:
            groups.join("g", subscription)
    finally:
        sys.settrace(before)
    return lines + Name.compared


def names(count: int) -> list[Name]:
    return [Name(f"topic-{number}") for number in range(count)]


def chained(count: int) -> list[list[Name]]:
    """Return pairs that chain all topics together; the last pair comes first."""
    return [[one, other] for one, other in zip(names(count), names(count)[1:], strict=False)][::-1]


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range", "roundrobin"])
@pytest.mark.parametrize("exist", [True, False])
def test_joining_takes_linear_time_in_the_number_of_topics(assignor: Assignor, exist: bool) -> None:
    def steps(count: int) -> int:
        wanted = [Subscription(names(count), assignor, client=f"m{n}") for n in range(3)]
        return steps_of(GroupCoordinator(SystemClock(), lambda _: int(exist)), wanted)

    assert steps(800) < 6 * steps(200)


def test_joining_takes_linear_time_in_the_number_of_copartitioned_topics() -> None:
    def steps(count: int) -> int:
        wanted = Subscription(names(count), together=chained(count))
        return steps_of(GroupCoordinator(SystemClock(), lambda _: 1), [wanted])

    assert steps(800) < 6 * steps(200)


def test_joining_takes_linear_time_in_the_number_of_partitions() -> None:
    def steps(count: int) -> int:
        wanted = [Subscription([Name("t")], client=f"m{n}") for n in range(4)]
        return steps_of(GroupCoordinator(SystemClock(), lambda _: count), wanted)

    assert steps(800) < 6 * steps(200)


def test_moving_partitions_takes_linear_time() -> None:
    """A member that joins takes half of the partitions, one after another."""

    def compared(count: int) -> int:
        before = {"a": {TopicPartition("t", Number(number)) for number in range(count)}}
        Number.compared = 0
        shares = sticky({"a": ["t"], "b": ["t"]}, {"t": count}, before)
        assert [len(share) for share in shares.values()] == [count // 2, count // 2]
        return Number.compared

    assert compared(1_600) < 8 * compared(400), "four times as many, with a logarithm"


def test_a_task_has_a_name() -> None:
    groups = GroupCoordinator(SystemClock(), lambda _: 1)
    with pytest.raises(InvalidConfig, match="a task without a name"):
        groups.join("g", Subscription(["t"], tasks=[["count", "t"], []]))
    # A member on a cluster may have it, because Kafka checks nothing.
    nameless = Subscription(["t"], tasks=[[]])
    check_tasks("g", Subscription(["t"], tasks=[["count", "t"]]), [("m", nameless)])


def test_the_number_of_topics_of_a_member_is_bounded() -> None:
    groups = GroupCoordinator(SystemClock(), lambda _: 1)
    many = [f"t{n}" for n in range(MAX_SUBSCRIBED_TOPICS + 1)]
    for refused in (
        Subscription(many),
        Subscription(["t"], together=[[name] for name in many]),
        Subscription(["t"], together=[[]] * (MAX_SUBSCRIBED_TOPICS + 1)),
        Subscription(["t"], tasks=[["task"]] * (MAX_SUBSCRIBED_TOPICS + 1)),
        Subscription(["t"], servers=["tcp://x:1"] * 101),
        Subscription(["t"], servers=["x" * 2_001]),
    ):
        with pytest.raises(InvalidConfig, match="at most"):
            groups.join("g", refused)
    assert groups.info("g").members == []


def test_the_number_of_members_of_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.changelog.embedded.groups.groups.MAX_MEMBERS", 3)
    groups = GroupCoordinator(SystemClock(), lambda _: 0)
    for _ in range(3):
        groups.join("g", Subscription(["t"]))
    with pytest.raises(InvalidConfig, match="takes no more"):
        groups.join("g", Subscription(["t"]))
    assert len(groups.info("g").members) == 3


def test_the_names_of_all_members_of_a_group_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each assignment reads the names of all members, not only those of the one that joins."""
    monkeypatch.setattr("strandline.changelog.embedded.groups.group.MAX_GROUP_NAMES", 10)
    groups = GroupCoordinator(SystemClock(), lambda _: 0)
    wide = Subscription([f"t{n}" for n in range(5)], instance="static")
    groups.join("g", wide)
    groups.join("g", Subscription(["a", "b"], together=[["a", "b"]]))
    for refused in (
        Subscription(["c", "d"]),
        Subscription(["c"], together=[["c"]]),
        Subscription(["c"], tasks=[["task"]]),
    ):
        with pytest.raises(InvalidConfig, match="at most 10; use several groups"):
            groups.join("g", refused)
    groups.join("g", wide)  # replaces the static member, whose names no longer count
    groups.join("g", Subscription(["c"]))
    groups.join("other", wide)
    assert [len(groups.info(name).members) for name in ("g", "other")] == [3, 1]


def test_an_assignment_that_takes_long_delays_no_other_group() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def count(topic: str) -> int:
        if topic == "slow":
            begun.set()
            go_on.wait(60)
        return 1

    groups = GroupCoordinator(SystemClock(), count)
    other = groups.join("other", Subscription(["t"]))
    slow = threading.Thread(target=groups.join, args=("g", Subscription(["slow"])))
    slow.start()
    answers: list[object] = []

    def call() -> None:
        answers.append(groups.beat(other, 1, 0, [], 0.0).partitions)
        answers.append(len(groups.info("other").members))
        groups.leave([other])
        answers.append("other" in groups.names())

    try:
        assert begun.wait(60)
        calls = threading.Thread(target=call, daemon=True)
        calls.start()
        calls.join(10)
        assert answers == [[TopicPartition("t", 0)], 1, False]
    finally:
        go_on.set()
        slow.join()
    assert list(groups.names()) == ["g"]


def test_a_member_that_joins_while_its_group_is_forgotten_is_kept() -> None:
    groups = GroupCoordinator(SystemClock(), lambda _: 1)

    def join_and_leave() -> None:
        for _ in range(200):
            member = groups.join("g", Subscription(["t"]))
            assert member.member_id in {one.member_id for one in groups.info("g").members}
            groups.leave([member])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(join_and_leave) for _ in range(4)]:
            done.result()
    assert list(groups.names()) == []


def test_members_that_leave_together_cause_one_assignment() -> None:
    assignments = 0

    def count(topic: str) -> int:
        nonlocal assignments
        assignments += 1
        return 6

    clock = ManualClock()
    groups = GroupCoordinator(clock, count)
    members = [groups.join("g", Subscription(["t"], session_timeout_ms=10_000)) for _ in range(6)]
    assignments = 0
    groups.leave(members[:3])
    assert assignments == 1
    groups.leave(members[:3])
    assert assignments == 1
    clock.advance(9_000)
    groups.beat(members[3], 1, 0, [], 0.0)
    assignments = 0
    clock.advance(2_000)
    groups.tick()  # two sessions have timed out
    assert assignments == 2, "one for them, and a look at the topics"
    assert [one.member_id for one in groups.info("g").members] == [members[3].member_id]


def test_members_of_several_groups_leave_together() -> None:
    groups = GroupCoordinator(SystemClock(), lambda _: 1)
    left = [groups.join(name, Subscription(["t"])) for name in ("a", "b", "a")]
    kept = groups.join("b", Subscription(["t"]))
    groups.leave(left)
    assert list(groups.names()) == ["b"]
    assert [one.member_id for one in groups.info("b").members] == [kept.member_id]


def test_the_members_of_a_session_that_ends_leave_together(owner: Owner) -> None:
    session = ClientSession("s")
    for _ in range(3):
        session.joined(owner.join_group("g", Subscription(["t"])))
    kept = owner.join_group("g", Subscription(["t"]))
    before = owner.heartbeat(kept, 1, 0, []).number
    session.end(owner)
    ClientSession("without members").end(None)  # type: ignore[arg-type] # makes no call
    assert owner.heartbeat(kept, 2, before, []).number == before + 1
    assert [one.member_id for one in owner.describe_group("g").members] == [kept.member_id]
