"""Decisions of a load, from plain values: where it continues, and what is missing."""

from __future__ import annotations

import pytest

from strandline.changelog.errors import InvalidRequest
from strandline.changelog.history import LOST, HistoryEpoch
from strandline.changelog.records import PartitionOffsets
from strandline.framework.offload.plan import Gap, begun, find_gaps, plan_round
from strandline.framework.offload.progress import PartitionProgress, Progress

A, B = HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b")


def bounds(start: int = 0, end: int = 60, **others: int) -> PartitionOffsets:
    return PartitionOffsets(start, end, end, "id", 1, epochs=(A, B), **others)


def at(offset: int, epoch: HistoryEpoch = A, settled_end: int = 0) -> Progress:
    position = PartitionProgress(offset, epoch.number, epoch.incarnation, settled_end)
    return Progress(topic="t", topic_id="id", commit=1, partitions={0: position})


def test_a_new_target_begins_where_the_log_begins_and_records_empty_partitions() -> None:
    now = {0: bounds(5), 1: bounds(60, 60)}
    step = plan_round(None, now, {0: 60, 1: 60}, 20)
    assert [span[:3] for span in step.spans] == [(0, 5, 25), (1, 60, 60)]
    assert step.gaps == []


def test_a_round_goes_on_at_the_position_up_to_its_limit_or_the_end_of_the_run() -> None:
    assert plan_round(at(40), {0: bounds()}, {0: 60}, 15).spans == [(0, 40, 55, A)]
    assert plan_round(at(55, B), {0: bounds()}, {0: 60}, 15).spans == [(0, 55, 60, B)]
    assert plan_round(at(60, B), {0: bounds(end=90)}, {0: 60}, 15).spans == []
    assert plan_round(at(70, B), {0: bounds(end=90)}, {0: 60}, 15).spans == []


def test_a_partition_that_was_added_begins_at_its_first_offset() -> None:
    now = {0: bounds(), 1: bounds()}
    assert plan_round(at(60, B), now, {0: 60, 1: 60}, 100).spans == [(1, 0, 60, A)]
    late = plan_round(at(60, B), {0: bounds(), 1: bounds(3)}, {0: 60, 1: 60}, 100)
    assert late.gaps == [Gap(1, 0, 3)]


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (at(50, A), "the log has only to 40"),
        (at(50, HistoryEpoch(1, 40, "c")), "another history"),
        (at(61, B), "the log only to 60"),
    ],
)
def test_a_position_of_another_history_is_refused(position: Progress, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{said}.*load into another folder"):
        plan_round(position, {0: bounds()}, {0: 60}, 100)


def test_a_position_among_offsets_that_a_repair_found_lost_goes_on_after_them() -> None:
    epochs = (A, HistoryEpoch(1, 40, LOST), HistoryEpoch(2, 90, "b"))
    now = PartitionOffsets(0, 95, 95, "id", 2, epochs=epochs)
    assert plan_round(at(60, A), {0: now}, {0: 95}, 100).spans[0][:3] == (0, 60, 95)


def test_tombstones_that_were_removed_before_they_were_loaded_are_a_gap() -> None:
    missed = Gap(0, 20, 30, tombstones=True)
    assert find_gaps(at(20), 0, bounds(purged_end=30)) == [missed]
    assert find_gaps(at(30), 0, bounds(purged_end=30)) == []
    assert find_gaps(at(20, settled_end=30), 0, bounds(purged_end=30)) == []
    assert str(missed) == "partition 0: tombstones from offset 20 to 29"


def test_a_first_load_misses_no_tombstone_that_was_removed_before_it() -> None:
    now = bounds(purged_end=30, clean_end=35)
    (span,) = plan_round(None, {0: now}, {0: 60}, 10).spans
    new = Progress(topic="t", topic_id="id")
    after = begun(new, span, now)
    assert after.settled_end == 35
    halfway = at(10, settled_end=after.settled_end)
    assert find_gaps(halfway, 0, now) == []
    assert find_gaps(halfway, 0, bounds(purged_end=36)) != []


def test_an_accepted_gap_of_tombstones_is_reported_once() -> None:
    now = bounds(purged_end=30)
    step = plan_round(at(20), {0: now}, {0: 60}, 5)
    assert len(step.gaps) == 1
    after = begun(at(20), step.spans[0], now)
    assert find_gaps(at(25, settled_end=after.settled_end), 0, now) == []
