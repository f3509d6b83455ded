"""Sizes of batches, by how long batches take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.framework.container.batch_size import MAX_BATCH_RECORDS, BatchSize
from strandline.framework.container.slices import SLICE_SECONDS


def sizes(seconds: Callable[[int], float], *, batches: int, waiting: int = 1 << 30) -> list[int]:
    """Return the sizes of batches that take so long, while so many records wait for each."""
    size, found = BatchSize(), []
    for _ in range(batches):
        handled = min(size.records, waiting)
        found.append(handled)
        size.took(seconds(handled), handled)
    return found


@pytest.mark.parametrize("seconds_each", [1e-6, 1e-3, 0.01])
def test_a_batch_of_a_backlog_takes_about_as_long_as_a_slice(seconds_each: float) -> None:
    found = sizes(lambda records: records * seconds_each, batches=20)
    assert found[-1] * seconds_each == pytest.approx(SLICE_SECONDS, rel=0.2)


def test_a_handler_that_takes_a_second_for_each_record_gets_one_at_a_time() -> None:
    assert sizes(float, batches=5)[1:] == [1, 1, 1, 1]


def test_a_batch_has_a_maximum_of_records() -> None:
    assert sizes(lambda _: 1e-6, batches=20)[-1] == MAX_BATCH_RECORDS


def test_batches_that_are_slow_for_another_reason_do_not_become_ever_smaller() -> None:
    """A batch of 20 records takes 80 ms while the machine is busy, and so does one of a record."""
    found = sizes(lambda _: 0.08, batches=200, waiting=20)
    assert min(found) >= 5
    assert sum(found) / len(found) >= 10


def test_batches_become_small_again_if_it_is_the_records_that_are_slow() -> None:
    found = sizes(lambda records: 0.02 + 0.01 * records, batches=50)
    assert max(found[20:]) * 0.01 < 4 * SLICE_SECONDS
