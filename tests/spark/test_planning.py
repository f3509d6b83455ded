"""Ranges of a read, shares of a limit, and losses, as functions of plain values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.errors import CorruptLog, FutureFormat, InvalidConfig, UnknownPartition
from strandline.changelog.history import HistoryEpoch
from strandline.changelog.records import PartitionOffsets, TopicPartition
from strandline.framework.spark.offsets import Position, QueryProgress, from_json, to_json
from strandline.framework.spark.planning import (
    OffsetRange,
    admit,
    advance,
    latest,
    lost_since,
    plan,
    resolve,
    share,
)

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


def ends(
    start: int = 0,
    stable: int = 100,
    *,
    topic_id: str = "id",
    epochs: tuple[tuple[Any, ...], ...] = ((0, 0),),
) -> PartitionOffsets:
    listed = tuple(HistoryEpoch(*epoch) for epoch in epochs)
    return PartitionOffsets(start, stable + 10, stable, topic_id, listed[-1].number, listed)


def at(offset: int, *, topic_id: str = "id", epoch: int = 0) -> Position:
    return Position(offset, topic_id, epoch)


# Offsets in Spark's checkpoint


positions = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 12)),
    st.builds(
        *(Position, st.integers(0, 2**62), st.just("id"), st.integers(0, 9)),
        st.sampled_from(["", "9c1e"]),
    ),
    max_size=9,
)


@given(positions)
def test_offsets_are_read_back_from_the_checkpoint(known: dict[TopicPartition, Position]) -> None:
    assert from_json(json.loads(json.dumps(to_json(QueryProgress(known))))) == QueryProgress(known)


@given(positions)
def test_equal_offsets_are_equal_as_text(known: dict[TopicPartition, Position]) -> None:
    backwards = dict(reversed(known.items()))
    assert json.dumps(to_json(QueryProgress(backwards))) == json.dumps(
        to_json(QueryProgress(known))
    )


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    with pytest.raises(FutureFormat, match="upgrade"):
        from_json({"version": 2, "topics": {}})


def test_a_checkpoint_of_another_source_is_refused() -> None:
    with pytest.raises(CorruptLog, match="another source"):
        from_json({"a": {"0": 23}})


# Beginning and end of a read


def test_a_batch_ends_at_the_last_stable_offset() -> None:
    now = {A: ends(5, 100)}
    found = plan(resolve("earliest", now, ""), latest(now), now)
    assert found.ranges == [OffsetRange("a", 0, "id", 5, 100)]
    assert found.losses == []


def test_a_users_offsets_are_kafkas() -> None:
    now = {A: ends(5, 100), B: ends(7, 70)}
    assert resolve({"a": {0: -2, 1: 30}}, now, "startingOffsets") == {A: at(5), B: at(30)}


def test_a_users_offsets_name_every_partition_and_no_other() -> None:
    with pytest.raises(InvalidConfig, match="missing: a-1"):
        resolve({"a": {0: 1}}, {A: ends(), B: ends()}, "startingOffsets")
    with pytest.raises(UnknownPartition, match="not subscribed: a-1, b-0"):
        resolve({"a": {0: 1, 1: 1}, "b": {0: 1}}, {A: ends()}, "startingOffsets")


def test_partitions_with_nothing_to_read_get_no_task() -> None:
    assert plan({A: at(100), B: at(50)}, {A: at(100), B: at(60)}, {A: ends(), B: ends()}) == (
        [OffsetRange("a", 1, "id", 50, 60)],
        [],
    )


def test_a_partition_added_later_is_read_from_its_beginning() -> None:
    found = plan({A: at(100)}, {A: at(100), B: at(60)}, {A: ends(), B: ends(3)})
    assert found == ([OffsetRange("a", 1, "id", 3, 60)], [])


# Losses


def test_records_deleted_before_they_were_read_are_a_loss() -> None:
    found = plan({A: at(10)}, {A: at(90)}, {A: ends(40, 100)})
    assert found.ranges == [OffsetRange("a", 0, "id", 40, 90)]
    assert found.losses == ["a-0 begins at 40: records from 10 on were deleted"]


def test_a_recreated_topic_is_a_loss_and_then_read_from_its_beginning() -> None:
    now = {A: ends(0, 30, topic_id="new")}
    assert lost_since({A: at(10)}, now) == [
        "a-0 was at offset 10, but its topic has been deleted and created again since"
    ]
    found = plan({A: at(10)}, {A: at(30, topic_id="new")}, now)
    assert found.ranges == [OffsetRange("a", 0, "new", 0, 30)]
    assert len(found.losses) == 1


def test_a_batch_planned_on_a_deleted_topic_cannot_be_reread() -> None:
    found = plan({A: at(10)}, {A: at(30)}, {A: ends(0, 100, topic_id="new")})
    assert found.ranges == []
    assert "gone" in found.losses[-1]


def test_a_log_that_lost_its_tail_is_detected() -> None:
    assert "ends at 100" in lost_since({A: at(120)}, {A: ends(0, 100)})[0]


def test_a_log_that_lost_its_tail_and_grew_again_is_detected() -> None:
    """KIP-320: the records read up to 80 in epoch 0 have been replaced from 60 on, in epoch 1."""
    now = {A: ends(0, 100, epochs=((0, 0), (1, 60)))}
    assert "which the log has only to 60" in lost_since({A: at(80)}, now)[0]
    found = plan({A: at(80)}, {A: at(100, epoch=1)}, now)
    assert found.ranges == [OffsetRange("a", 0, "id", 60, 100)]


BEFORE_THE_BACKUP, LATER, RESTORED = (0, 0, "one"), (1, 60, "two"), (1, 60, "three")


def test_an_offset_of_the_history_before_a_restore_is_detected_at_any_length_of_the_log() -> None:
    then = {A: ends(0, 80, epochs=(BEFORE_THE_BACKUP, LATER))}
    now = {A: ends(0, 100, epochs=(BEFORE_THE_BACKUP, RESTORED))}
    known = latest(then)
    assert known == {A: Position(80, "id", 1, "two")}
    assert "is of another history of the log" in lost_since(known, now)[0]
    found = plan(known, latest(now), now)
    assert found.ranges == [OffsetRange("a", 0, "id", 60, 100)]
    assert len(found.losses) == 1
    planned_then = plan({A: at(0)}, known, now)
    assert planned_then.ranges == [OffsetRange("a", 0, "id", 0, 60)]
    assert "is of another history of the log" in planned_then.losses[0]


def test_an_offset_from_before_the_backup_belongs_to_both_histories() -> None:
    known = latest({A: ends(0, 60, epochs=(BEFORE_THE_BACKUP,))})
    for later in (LATER, RESTORED):
        now = {A: ends(0, 100, epochs=(BEFORE_THE_BACKUP, later))}
        assert lost_since(known, now) == []
        assert plan(known, latest(now), now) == ([OffsetRange("a", 0, "id", 60, 100)], [])


def test_an_offset_without_an_incarnation_is_trusted_where_the_log_has_none() -> None:
    now = {A: ends(0, 100, epochs=((0, 0), (1, 60, "two")))}
    assert lost_since({A: at(60)}, now) == []
    assert "which the log has only to 60" in lost_since({A: at(61)}, now)[0]
    assert "which the log has only to 60" in lost_since({A: at(61, epoch=1)}, now)[0]


def test_a_new_leader_epoch_alone_is_neither_a_loss_nor_new_data() -> None:
    now = {A: ends(0, 100, epochs=((0, 0), (1, 100)))}
    before = {A: at(100)}
    assert lost_since(before, now) == []
    assert advance(before, latest(now), now) == before


# Shares of a limit


def test_a_limit_is_shared_in_proportion_to_pending_records() -> None:
    now = {A: ends(0, 100), B: ends(0, 300)}
    assert admit({A: at(20), B: at(0)}, latest(now), now, 38) == {A: at(28), B: at(30)}


def test_records_below_the_limit_are_read_whole() -> None:
    now = {A: ends(0, 100), B: ends(0, 300)}
    assert admit({A: at(90), B: at(290)}, latest(now), now, 20) == latest(now)


backlogs = st.lists(st.integers(0, 10**6), min_size=1, max_size=8).map(
    lambda sizes: {TopicPartition("a", p): size for p, size in enumerate(sizes)}
)


@given(st.integers(1, 10**5), backlogs)
def test_a_limit_is_used_up_and_never_exceeded(
    limit: int, backlog: dict[TopicPartition, int]
) -> None:
    shares = share(limit, backlog)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= shares[tp] <= backlog[tp] for tp in backlog)


@given(st.integers(8, 10**5), backlogs)
def test_no_partition_starves(limit: int, backlog: dict[TopicPartition, int]) -> None:
    shares = share(limit, backlog)
    assert all(shares[tp] > 0 for tp in backlog if backlog[tp])


@given(st.integers(1, 50), st.lists(st.integers(0, 200), min_size=1, max_size=4))
def test_limited_batches_cover_everything_once(limit: int, sizes: list[int]) -> None:
    now = {TopicPartition("a", p): ends(0, size) for p, size in enumerate(sizes)}
    before = resolve("earliest", now, "")
    seen: list[OffsetRange] = []
    while (after := advance(before, admit(before, latest(now), now, limit), now)) != before:
        seen += plan(before, after, now).ranges
        before = after
    for p, size in enumerate(sizes):
        covered = [o for r in seen if r.partition == p for o in range(r.start, r.end)]
        assert covered == list(range(size))
