"""Sizes of batches, by how long batches take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.framework.container.batch_size import BATCH_SECONDS, MAX_BATCH_RECORDS, BatchSize


def sizes(seconds: Callable[[int], float], *, batches: int, waiting: int = 1 << 30) -> list[int]:
    """Return the sizes of batches that take so long, while so many records wait for each."""
    size, found = BatchSize(), []
    for _ in range(batches):
        handled = min(size.records, waiting)
        found.append(handled)
        size.took(seconds(handled), handled)
    return found


@pytest.mark.parametrize("seconds_each", [1e-6, 1e-3, 0.01])
def test_a_batch_of_a_backlog_takes_about_a_tenth_of_a_second(seconds_each: float) -> None:
    found = sizes(lambda records: records * seconds_each, batches=20)
    assert found[-1] * seconds_each == pytest.approx(BATCH_SECONDS, rel=0.2)


def test_what_a_batch_takes_besides_its_records_is_a_part_of_that() -> None:
    found = sizes(lambda records: 0.01 + 0.001 * records, batches=20)
    assert found[-1] == pytest.approx(90, rel=0.2)


def test_a_handler_that_takes_a_second_for_each_record_gets_one_at_a_time() -> None:
    assert sizes(float, batches=50)[1:] == [1] * 49


def test_a_batch_has_a_maximum_of_records() -> None:
    assert sizes(lambda _: 1e-6, batches=20)[-1] == MAX_BATCH_RECORDS


def test_batches_do_not_become_small_because_the_machine_is_busy() -> None:
    """A batch of a record would take 80 ms then."""
    found = sizes(lambda records: 0.08 + 8e-6 * records, batches=50)
    assert min(found[5:]) >= 4_000
    assert max(found) * 8e-6 < 0.2


def test_a_trickle_is_not_divided_because_the_machine_is_busy() -> None:
    found = sizes(lambda _: 0.08, batches=200, waiting=20)
    assert min(found) >= 10
    assert found.count(20) >= 150


def test_batches_are_as_before_once_the_machine_is_busy_no_more() -> None:
    size = BatchSize()
    for busy in [1] * 20 + [16] * 20 + [1] * 20:
        size.took(busy * (0.005 + 1e-6 * size.records), size.records)
    assert size.records == pytest.approx(95_000, rel=0.2)


def test_batches_become_small_if_it_is_the_records_that_are_slow() -> None:
    """A service that a handler calls for each record answers in 10 ms instead of in one."""
    size = BatchSize()
    for each in [0.001] * 20 + [0.01] * 20:
        size.took(each * size.records, size.records)
    assert size.records == pytest.approx(10, abs=1)


def test_one_stall_does_not_let_batches_take_seconds() -> None:
    size, longest = BatchSize(), 0.0
    for number in range(60):
        seconds = 0.01 * size.records
        longest = max(longest, seconds if number > 20 else 0)
        size.took(seconds + (5 if number == 20 else 0), size.records)
    assert longest <= 1
    assert size.records == pytest.approx(10, abs=1)


@pytest.mark.parametrize("own", [0.02, 0.04, 0.1])
def test_one_record_at_a_time_is_left_again_if_the_batch_itself_takes_long(own: float) -> None:
    """As after a batch that was cut at its first row, and for functions of whole batches."""
    size = BatchSize(1)
    for _ in range(20):
        size.took(own + 1e-6 * size.records, size.records)
    assert size.records > 1_000
    size.cut_short(1)
    for _ in range(20):
        size.took(own + 1e-6 * size.records, size.records)
    assert size.records > 1_000


def test_a_cut_batch_is_followed_by_one_of_half_the_rows_that_were_done() -> None:
    size = BatchSize()
    size.cut_short(100)
    assert size.records == 50
