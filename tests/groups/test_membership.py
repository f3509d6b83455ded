"""A membership: partitions that went away, and came back, before their owner had reported them."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import pytest

from strandline.changelog.client.membership import Membership, rebalance
from strandline.changelog.clock import ManualClock
from strandline.changelog.groups import Assignment, GroupMember, Subscription
from strandline.changelog.records import TopicPartition

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class Coordinator:
    """Part of a broker that assigns partitions."""

    def __init__(self) -> None:
        self.number = 0
        self.assigned: list[TopicPartition] = []
        self.reports: list[tuple[int, set[TopicPartition]]] = []

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        return GroupMember(group, "m")

    def leave_group(self, *members: GroupMember) -> None:
        pass

    def assign(self, *partitions: TopicPartition) -> None:
        self.number, self.assigned = self.number + 1, list(partitions)

    def heartbeat(
        self, member: Any, call: int, seen: int, owned: Collection[TopicPartition], timeout: float
    ) -> Assignment:
        self.reports.append((seen, set(owned)))
        return Assignment(self.number, self.assigned)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def membership(coordinator: Coordinator) -> Membership:
    broker: Any = coordinator
    made = Membership(broker, "g", Subscription(("t",)), ManualClock(), max_poll_interval_ms=60_000)
    made._stop.set()  # the tests send the heartbeats
    for thread in threading.enumerate():
        if thread.name == "strandline-group":
            thread.join(60)
    return made


@pytest.mark.parametrize("back", [True, False])
def test_a_partition_that_was_away_since_the_last_look_is_not_taken(
    coordinator: Coordinator, membership: Membership, back: bool
) -> None:
    """Another member may have had it, and have committed, since its offset was read."""
    coordinator.assign(ONE, TWO)
    membership.beat(0.0)
    assigned = membership.allowed()
    for partitions in ([ONE], [ONE, TWO] if back else [ONE]):
        coordinator.assign(*partitions)
        membership.beat(0.0)
    taken: list[Any] = []

    def rebalanced(assigned: frozenset[TopicPartition]) -> bool:
        return rebalance(
            membership, frozenset(), assigned, release=lambda _: True, take=taken.append
        )

    assert not rebalanced(assigned)
    assert taken == []
    assert coordinator.reports[-1][1] == set()
    looked = membership.allowed()
    assert looked == ({ONE, TWO} if back else {ONE})
    assert rebalanced(looked)
    assert taken == [looked]


def test_a_partition_is_reported_before_it_is_taken(
    coordinator: Coordinator, membership: Membership
) -> None:
    """From then on the group waits for its release."""
    coordinator.assign(ONE)
    membership.beat(0.0)
    reported: list[set[TopicPartition]] = []

    def take(new: frozenset[TopicPartition]) -> None:
        reported.append(coordinator.reports[-1][1])

    assert rebalance(
        membership, frozenset(), membership.allowed(), release=lambda _: True, take=take
    )
    assert reported == [{ONE}]


def test_an_owned_partition_that_is_revoked_remains_reported_until_it_is_released(
    coordinator: Coordinator, membership: Membership
) -> None:
    coordinator.assign(ONE, TWO)
    membership.beat(0.0)
    assert membership.holds(membership.allowed())
    coordinator.assign(ONE)
    membership.beat(0.0)
    membership.beat(0.0)
    assert coordinator.reports[-1] == (2, {ONE, TWO})
    assert membership.holds({ONE, TWO})  # nothing new
    assert membership.holds({ONE})
    assert coordinator.reports[-1] == (2, {ONE})
