"""Failures while partitions are opened: a task never works on half of them."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.client.producer import Producer
from strandline.changelog.errors import (
    CoordinatorLoading,
    DiskFull,
    OwnerUnavailable,
    RequestTimedOut,
)
from strandline.changelog.records import TopicPartition
from strandline.framework import patience
from strandline.framework.container import outage
from strandline.framework.container.group_membership import SoleMember
from strandline.framework.testing import TestDriver


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(outage, "FIRST_RETRY_PAUSE_S", 0.001)


@pytest.mark.parametrize("error", [OwnerUnavailable("away"), DiskFull("no room")])
def test_tasks_that_read_the_same_topic_work_together_or_not_at_all(
    error: Exception,
) -> None:
    """A single task would commit past records that the other one has not handled."""
    app = sl.App("app")
    words = app.topic("words", value=int)
    first = app.store("first", value=int, default=0)
    second = app.store("second", value=int, default=0)
    fails: list[Exception] = []

    @app.task(words, stores=[first])
    def count(record: sl.Record[str, int]) -> None:
        first[record.key] += 1

    @app.task(words, stores=[second])
    class Asking:
        def __init__(self) -> None:
            if fails:
                raise fails.pop()

        def process(self, record: sl.Record[str, int]) -> None:
            second[record.key] += 1

    with TestDriver(app) as driver:
        driver.run([("a", 1)])
        driver.worker._committer._drop()
        fails.append(error)
        cycle, driver.worker.cycle = driver.worker.cycle, lambda **_: 0  # type: ignore[method-assign]
        driver._take([("a", 2)])
        driver.worker.cycle = cycle  # type: ignore[method-assign]
        driver.settle()
        assert not fails
        driver.crash().run([("a", 3)])
        assert (driver.store(first), driver.store(second)) == ({"a": 3}, {"a": 3})


def test_a_restored_partition_begins_with_its_init_even_if_others_cannot_be_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = sl.App("app")
    words = app.topic("words", value=int, partitions=2)
    begun: list[int] = []

    @app.task(words)
    class Beginning:
        def init(self, context: Any) -> None:
            begun.append(context.partition)

        def process(self, record: sl.Record[str, int]) -> None:
            assert record.partition in begun

    with TestDriver(app) as driver:
        driver.worker._committer._drop()
        begun.clear()
        tasks = driver.worker._tasks
        tasks.open([TopicPartition("words", 0)])
        with monkeypatch.context() as failing:

            def bring_back(_: Any) -> Any:
                raise RequestTimedOut("no end of it")

            failing.setattr(tasks._openings, "_run", bring_back)
            tasks.open([TopicPartition("words", 1)])
        driver.settle().run([(key, 1) for key in "abcd"])
        assert sorted(begun) == [0, 1]


def test_offsets_withheld_by_an_open_transaction_are_requested_until_the_opening_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.5)
    app = sl.App("app")
    app.task(app.topic("words", value=int), name="count")(lambda record: None)
    with TestDriver(app) as driver:
        driver.worker._committer._drop()
        tasks, asked = driver.worker._tasks, 0

        def committed(*_: Any) -> Any:
            nonlocal asked
            asked += 1
            # set when the partitions are assigned to others
            tasks._openings._openings[0].abandoned = asked == 2
            raise CoordinatorLoading("a transaction is open")

        monkeypatch.setattr(driver.owner, "committed", committed)
        tasks.open([TopicPartition("words", 0)])
        tasks.drop()
        assert asked == 2


class Told(SoleMember):
    """A group membership that records the owned partitions reported to it."""

    may = frozenset({TopicPartition("words", 0)})

    def __init__(self) -> None:
        super().__init__("app", self.may)
        self.told: list[frozenset[TopicPartition]] = []

    def allowed(self) -> frozenset[TopicPartition]:
        return self.may

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        if self.told[-1:] != [told := frozenset(partitions)]:
            self.told.append(told)
        return True


def test_a_worker_that_dropped_all_partitions_reports_that_it_owns_none_once_they_are_revoked() -> (
    None
):
    """Otherwise the new owners would wait for ever."""
    app = sl.App("app")
    app.task(app.topic("words", value=int), name="count")(lambda record: None)
    with TestDriver(app) as driver:
        place = driver.worker._session.membership = Told()
        driver.worker.cycle()
        driver.worker._committer._drop()
        place.may = frozenset()
        driver.worker.cycle()
        driver.worker.cycle()
        assert place.told == [{("words", 0)}, frozenset()]


def test_a_worker_is_not_idle_if_another_sent_it_something_just_before_it_was_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = sl.App("app")
    words = app.topic("words", value=int, partitions=2)
    app.task(words, name="count")(lambda record: None)
    with TestDriver(app) as driver:
        driver.worker._session.membership = Told()
        driver.worker.cycle()
        driver.worker.cycle()
        ask = driver.owner.committed

        def committed(*args: Any, **options: Any) -> Any:
            """Return the offsets, after the other worker has committed with its last output."""
            with Producer(driver.owner) as other:
                other.append("words", [{"key": b"a", "value": b"\x01"}], partition=0)
            return ask(*args, **options)

        with monkeypatch.context() as sending:
            sending.setattr(driver.owner, "committed", committed)
            assert not driver.worker.is_idle
        driver.settle()
        assert driver.worker.is_idle


def test_an_interrupted_init_is_repeated_and_does_not_block_other_partitions(
    tmp_path: Path,
) -> None:
    app = sl.App("app", log=tmp_path)
    words = app.topic("words", value=int, partitions=2)
    begun = app.store("begun", value=int, default=0)
    fails = [DiskFull("no room")]

    @app.task(words, stores=[begun])
    class Counting:
        def init(self, context: sl.TaskContext) -> None:
            begun[str(context.partition)] += 1
            if fails:
                raise fails.pop()

        def process(self, record: sl.Record[str, int]) -> None: ...

    app.run(until="idle", timeout=60, progress=False)
    assert not fails
    assert app.query(begun).to_dict() == {"0": 1, "1": 1}


def test_a_partition_that_cannot_be_restored_yet_does_not_block_others(
    tmp_path: Path,
) -> None:
    log = changelog.open(tmp_path / "log")
    app = sl.App("app", log=log, state_dir=tmp_path / "state")
    words = app.topic("words", value=int, partitions=2)
    seen = app.store("seen", value=int, default=0)
    handled: list[int] = []

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        handled.append(record.partition)
        seen[record.key] += 1

    letters = [(letter, 1) for letter in "abcdefgh"]
    with log, log.producer(transactional_id="dead") as dead:
        app.prepare()
        dead.begin_transaction()
        dead.append("app-seen-changelog", [{"key": b"Qdead", "value": b"x"}], partition=0)
        words.append(letters)
        app.run(until="idle", timeout=60, progress=False)
        shutil.rmtree(tmp_path / "state")
        words.append(letters)
        others = handled.count(1)
        handled.clear()
        assert app.run(count=others, timeout=60, progress=False) == others
        assert handled == [1] * others
        dead.abort_transaction()
        app.run(until="idle", timeout=60, progress=False)
        assert app.query(seen).to_dict() == dict.fromkeys("abcdefgh", 2)
