"""Ranges are divided into tasks of about the same size; every offset is read once, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.extents import Extent
from strandline.changelog.records import TopicPartition
from strandline.framework.spark.planning import OffsetRange
from strandline.framework.spark.tasks import (
    RECORD_BYTES,
    Task,
    combine,
    divide,
    ends_within,
    size_of,
    task_count,
)

MIB = 1 << 20


def whole(partition: int, end: int, start: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, "id", start, end)


def even(partition: int, offsets: int, size: int, step: int = 10) -> list[Extent]:
    return [Extent(at, size * step // offsets) for at in range(0, offsets, step)]


def extents(*sizes: tuple[int, int]) -> dict[TopicPartition, list[Extent]]:
    """Return extents of partitions, each of so many offsets and bytes."""
    return {TopicPartition("t", p): even(p, *given) for p, given in enumerate(sizes)}


def offsets_of(tasks: list[Task]) -> list[tuple[int, int]]:
    return [(r.partition, o) for task in tasks for r in task for o in range(r.start, r.end)]


def test_small_partitions_are_read_together() -> None:
    known = extents(*[(100, 1000)] * 64)
    found = divide([whole(p, 100) for p in range(64)], known, 4)
    assert [[r.partition for r in task] for task in found] == [
        list(range(first, first + 16)) for first in range(0, 64, 16)
    ]


def test_a_large_partition_is_divided() -> None:
    found = divide([whole(0, 1000)], extents((1000, 10**6)), 4)
    assert [(r.start, r.end) for task in found for r in task] == [
        (0, 250),
        (250, 500),
        (500, 750),
        (750, 1000),
    ]


def test_a_partition_is_divided_by_bytes_and_not_by_offsets() -> None:
    known = {TopicPartition("t", 0): [Extent(0, 1000), Extent(900, 3000)]}
    (first,), (second,) = divide([whole(0, 1000)], known, 2)
    assert 900 < first.end == second.start < 950


def test_a_partition_of_unknown_size_is_divided_by_offsets() -> None:
    found = divide([whole(0, 1000)], {}, 2)
    assert [(r.start, r.end) for task in found for r in task] == [(0, 500), (500, 1000)]
    assert size_of(whole(0, 1000), {}) == 1000 * RECORD_BYTES


def test_records_that_the_log_has_lost_meanwhile_are_still_planned() -> None:
    """Extents may begin after a range's start: a pin has records that the log has not."""
    known = {TopicPartition("t", 0): [Extent(600, 100), Extent(800, 100)]}
    assert offsets_of(divide([whole(0, 1000)], known, 3)) == [(0, o) for o in range(1000)]


ranges = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 10**6)), min_size=1, max_size=9)


@given(ranges, st.integers(1, 40))
def test_every_offset_is_in_one_task_and_in_order(sizes: list[tuple[int, int]], count: int) -> None:
    wanted = [whole(p, offsets) for p, (offsets, _) in enumerate(sizes)]
    expected = [(p, o) for p, (offsets, _) in enumerate(sizes) for o in range(offsets)]
    known = extents(*sizes)
    found = divide(wanted, known, count)
    assert offsets_of(found) == expected
    assert len(found) <= count
    assert offsets_of(combined := combine(wanted, known, count)) == expected
    assert len(combined) <= count
    assert [r for task in combined for r in task] == wanted


@given(st.integers(1, 300), st.integers(100, 10_000))
def test_tasks_have_about_the_same_size(count: int, offsets: int) -> None:
    found = divide([whole(0, offsets)], {}, count)
    lengths = [sum(r.end - r.start for r in task) for task in found]
    assert max(lengths) <= offsets / count * 1.2 + 2


@given(ranges, st.integers(1, 10**7))
def test_a_limit_of_bytes_advances_and_is_about_kept(
    sizes: list[tuple[int, int]], limit: int
) -> None:
    wanted = [whole(p, offsets) for p, (offsets, _) in enumerate(sizes)]
    known = extents(*sizes)
    ends = ends_within(wanted, known, limit)
    assert any(ends.values())
    assert all(0 <= ends[r.topic_partition] <= r.end for r in wanted)
    read = sum(size_of(r, known) * ends[r.topic_partition] / r.end for r in wanted)
    one_each = sum(size_of(r, known) / r.end for r in wanted)
    assert read <= limit + len(sizes) + one_each + sum(
        size // offsets * 11 for offsets, size in sizes
    )


@given(ranges, st.integers(10**4, 10**6))
def test_repeated_limits_read_everything_once(sizes: list[tuple[int, int]], limit: int) -> None:
    known, left = extents(*sizes), [whole(p, offsets) for p, (offsets, _) in enumerate(sizes)]
    for _ in range(sum(offsets for offsets, _ in sizes)):
        ends = ends_within(left, known, limit)
        left = [replace(r, start=ends[r.topic_partition]) for r in left]
        left = [r for r in left if r.start < r.end]
        if not left:
            break
    assert left == []


@pytest.mark.parametrize(
    ("mib", "least", "cores", "expected"),
    [
        (0, 1, 8, 1),
        (10, 1, 8, 1),
        (100, 1, 2, 4),
        (100, 1, 32, 4),
        (1000, 1, 32, 32),
        (100, 20, 2, 20),
        (3200, 1, 3, 102),
        (3300, 1, 3, 105),
    ],
)
def test_the_number_of_tasks(mib: int, least: int, cores: int, expected: int) -> None:
    assert task_count(mib * MIB, max_bytes=32 * MIB, least=least, cores=cores) == expected
