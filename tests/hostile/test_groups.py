"""Joining a group takes time in proportion to the names of the member, and their number is
bounded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.groups.assignors import sticky
from strandline.changelog.embedded.groups.groups import GroupCoordinator
from strandline.changelog.errors import InvalidConfig
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
