"""Each partition is assigned to exactly one subscribed member, evenly, with as few moves as
possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.embedded.groups.assignors import (
    ASSIGNORS,
    PartitionCounts,
    PartitionsByMember,
    sticky,
)
from strandline.changelog.records import TopicPartition

TOPICS = ("t", "u", "v")
MEMBERS = tuple("abcdef")
wanted_by = st.dictionaries(
    st.sampled_from(MEMBERS), st.lists(st.sampled_from(TOPICS), unique=True, min_size=1), min_size=1
)
counted = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})


def every(counts: PartitionCounts) -> set[TopicPartition]:
    return {TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(wanted=wanted_by, counts=counted)
def test_each_partition_goes_to_exactly_one_subscribed_member(
    name: str, wanted: dict[str, list[str]], counts: dict[str, int]
) -> None:
    shares = ASSIGNORS[name](wanted, counts, {})
    assert set(shares) == set(wanted)
    got = [tp for share in shares.values() for tp in share]
    assert len(got) == len(set(got))
    assert set(got) == {
        tp for tp in every(counts) if any(tp.topic in topics for topics in wanted.values())
    }
    for member, share in shares.items():
        assert {tp.topic for tp in share} <= set(wanted[member])
    assert ASSIGNORS[name](dict(reversed(wanted.items())), counts, {}) == shares


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(members=st.sets(st.sampled_from(MEMBERS), min_size=1), count=st.integers(0, 30))
def test_partitions_of_one_topic_are_shared_evenly_up_to_one(
    name: str, members: set[str], count: int
) -> None:
    shares = ASSIGNORS[name]({member: ["t"] for member in members}, {"t": count}, {})
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@given(wanted=wanted_by, counts=counted)
def test_sticky_does_not_change_an_even_assignment(
    wanted: dict[str, list[str]], counts: dict[str, int]
) -> None:
    first = sticky(wanted, counts, {})
    assert sticky(wanted, counts, first) == first


@given(members=st.integers(1, 6), count=st.integers(0, 40))
def test_sticky_moves_only_partitions_for_a_new_member(members: int, count: int) -> None:
    wanted = {MEMBERS[n]: ["t"] for n in range(members)}
    before = sticky(wanted, {"t": count}, {})
    after = sticky(wanted | {"z": ["t"]}, {"t": count}, before)
    for member, share in before.items():
        assert after[member] <= share
    assert len(after["z"]) == count // (members + 1)


@given(members=st.integers(2, 6), count=st.integers(0, 40))
def test_sticky_moves_only_partitions_of_members_that_left(members: int, count: int) -> None:
    wanted = {MEMBERS[n]: ["t"] for n in range(members)}
    before = sticky(wanted, {"t": count}, {})
    gone = MEMBERS[0]
    after = sticky({m: t for m, t in wanted.items() if m != gone}, {"t": count}, before)
    for member, share in after.items():
        assert before[member] <= share


@given(members=st.integers(1, 6), count=st.integers(0, 12))
def test_sticky_balances_each_topic(members: int, count: int) -> None:
    wanted = {MEMBERS[n]: ["t", "u"] for n in range(members)}
    for after in (
        sticky(wanted, {"t": count, "u": count}, {}),
        sticky(wanted, {"t": count, "u": count}, {"a": every({"t": count, "u": count})}),
    ):
        for topic in ("t", "u"):
            sizes = [sum(tp.topic == topic for tp in share) for share in after.values()]
            assert max(sizes) - min(sizes) <= 1


def test_range_gives_the_same_numbers_of_all_topics_to_the_same_member() -> None:
    shares = ASSIGNORS["range"]({"a": ["t", "u"], "b": ["u", "t"]}, {"t": 5, "u": 5}, {})
    for share in shares.values():
        assert {tp.partition for tp in share if tp.topic == "t"} == {
            tp.partition for tp in share if tp.topic == "u"
        }


def test_a_partition_claimed_by_two_members_is_kept_by_one() -> None:
    both: PartitionsByMember = {"a": {TopicPartition("t", 0)}, "b": {TopicPartition("t", 0)}}
    shares = sticky({"a": ["t"], "b": ["t"]}, {"t": 2}, both)
    assert sorted(map(len, shares.values())) == [1, 1]
