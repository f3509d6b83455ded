"""Partitions that all have many records take turns, and commits come on time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, groupby, islice
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage
from strandline.framework.container import manager, opening, scheduler, slice_guard

PARTITIONS = 4
SLICES = 3
"""Number of slices in the records of a partition."""
SLICE = 4


class Slow:
    """An app whose handler takes 30 ms by the clock, so that a commit is due after 4 records."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        log = Owner(MemoryStorage(), clock=self.clock, background=False)
        self.app = sl.App("app", log=log, clock=self.clock)
        self.words = self.app.topic("words", key=str, value=int, partitions=PARTITIONS)
        self.handled: list[int] = []
        self.uncommitted: list[int] = []
        self.app.task(self.words, name="slow")(self.handle)

    def handle(self, record: sl.Record[str, int]) -> None:
        committed = sum(at.offset for at in self.app.broker().committed("app").values())
        self.uncommitted.append(len(self.handled) - committed)
        self.handled.append(record.partition)
        self.clock.advance(30)

    def fill(self) -> None:
        keys = map(str, count())
        for partition in range(PARTITIONS):
            fitting = (key for key in keys if partition_for(key.encode(), PARTITIONS) == partition)
            self.words.append([(key, 0) for key in islice(fitting, SLICES * SLICE)])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(scheduler, "FIRST_SLICE_RECORDS", SLICE)
    monkeypatch.setattr(scheduler, "MAX_SLICE_RECORDS", SLICE)
    monkeypatch.setattr(slice_guard, "GUARD_S", 1e6)  # a busy machine ends no slice
    monkeypatch.setattr(manager, "Openings", _at_once)  # and no partition is late
    made = Slow()
    made.fill()
    yield made
    made.app.close()


def test_each_partition_has_a_slice_before_any_has_the_next(slow: Slow) -> None:
    slow.app.run(until="idle")
    slices = [partition for partition, _ in groupby(slow.handled)]
    rounds = [slices[at : at + PARTITIONS] for at in range(0, len(slices), PARTITIONS)]
    assert [sorted(partitions) for partitions in rounds] == [[*range(PARTITIONS)]] * SLICES


def test_a_commit_that_is_due_does_not_wait_for_the_other_partitions(slow: Slow) -> None:
    slow.app.run(until="idle")
    assert max(slow.uncommitted) < SLICE


def test_a_count_is_exact_and_neglects_no_partition(slow: Slow) -> None:
    for _ in range(PARTITIONS):
        assert slow.app.run(count=SLICE - 1) == SLICE - 1
    slow.app.run(until="idle")
    assert sorted(slow.handled) == sorted([*range(PARTITIONS)] * SLICES * SLICE)


def _at_once(*args: Any, **options: Any) -> opening.Openings:
    return opening.Openings(*args, **{**options, "in_background": False})
