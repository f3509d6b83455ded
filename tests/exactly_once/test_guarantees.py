"""Each guarantee shows what it allows: the same chaos, told apart by its results.

The process dies between the two halves of a commit. exactly_once has only one half.
"""

from __future__ import annotations

from typing import Any

import pytest

from framework.testing import TestDriver
from tests.exactly_once.apps import running_totals, totals_sent


class Died(BaseException):
    """The process is gone."""


def dies_in_commit(guarantee: Any, call: str) -> tuple[dict[str, list[int]], dict[str, int]]:
    """One record is committed; for the next the process dies when it makes `call`."""
    app, out, seen = running_totals(partitions=1, processing_guarantee=guarantee)
    driver = TestDriver(app).run([("a", 1)])
    driver._take([("a", 2)])
    owner, real = driver.owner, getattr(driver.owner, call)

    def die(*args: Any, **options: Any) -> Any:
        raise Died

    setattr(owner, call, die)
    with pytest.raises(Died):
        driver.settle()
    setattr(owner, call, real)
    driver.crash().settle()
    return totals_sent(driver, out), driver.store(seen)


@pytest.mark.parametrize("call", ["append", "add_offsets", "end_transaction"])
def test_exactly_once_neither_loses_nor_repeats(call: str) -> None:
    assert dies_in_commit("exactly_once", call) == ({"a": [1, 2]}, {"a": 2})


def test_at_least_once_repeats_when_it_dies_before_its_offsets() -> None:
    assert dies_in_commit("at_least_once", "commit_offsets") == ({"a": [1, 2, 3]}, {"a": 3})


@pytest.mark.parametrize("call", ["append", "end_transaction"])
def test_at_least_once_loses_nothing(call: str) -> None:
    assert dies_in_commit("at_least_once", call) == ({"a": [1, 2]}, {"a": 2})


@pytest.mark.parametrize("call", ["append", "end_transaction"])
def test_at_most_once_loses_when_it_dies_behind_its_offsets(call: str) -> None:
    assert dies_in_commit("at_most_once", call) == ({"a": [1]}, {"a": 1})


def test_at_most_once_repeats_nothing() -> None:
    assert dies_in_commit("at_most_once", "commit_offsets") == ({"a": [1, 2]}, {"a": 2})


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_without_trouble_they_are_all_alike(guarantee: Any) -> None:
    app, out, seen = running_totals(processing_guarantee=guarantee)
    driver = TestDriver(app).run([("a", 1), ("b", 1), ("a", 1)]).run([("a", 1)])
    assert totals_sent(driver, out) == {"a": [1, 2, 3], "b": [1]}
    assert driver.store(seen) == {"a": 3, "b": 1}
