"""A worker with slow handlers commits, sends heartbeats, and stops after the running record."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.framework.container import scheduler, slice_guard
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.slice_guard import SliceGuard
from strandline.framework.container.worker import Worker
from strandline.framework.testing import TestDriver

RECORDS = 300
"""Number of records, more than the first slice has."""
BOUND_S = 60.0

KINDS = ["plain", "two stores", "timers", "async", "class"]


class Slow:
    """An app whose handler calls `within` for each record before it counts it."""

    def __init__(self, kind: str, log: Any = None, *, partitions: int = 1) -> None:
        self.app = app = sl.App("app", log=log, commit_interval_ms=3_600_000)
        self.is_async = kind == "async"
        self.words = app.topic("words", key=str, value=int, partitions=partitions)
        self.seen, self.other = app.counter("seen"), app.counter("other")
        self.handled: list[int] = []
        self.within: Callable[[], None] = lambda: None
        stores = [self.seen, self.other] if kind == "two stores" else [self.seen]
        slow = self

        def plain(record: sl.Record[str, int]) -> None:
            slow.handle(record)

        async def awaited(record: sl.Record[str, int]) -> None:
            slow.handle(record)

        class Task:
            def process(self, record: sl.Record[str, int]) -> None:
                slow.handle(record)

        made: Any = {"async": awaited, "class": Task}.get(kind, plain)
        app.task(self.words, stores=stores, name="t", on_error="skip")(made)
        if kind == "timers":
            app.on_timer("t")(lambda name: None)

    def handle(self, record: sl.Record[str, int]) -> None:
        self.handled.append(record.value)
        self.within()
        if record.value < 0:
            raise ValueError
        self.seen.add(record.key)

    def fill(self) -> None:
        self.words.append([(str(n % 7), n) for n in range(RECORDS)])

    def counted(self) -> int:
        return sum(self.app.query(self.seen).to_dict().values())


@pytest.fixture(params=KINDS)
def slow(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Slow]:
    made = Slow(request.param, tmp_path / "log")
    with made.app:
        made.fill()
        yield made


def test_a_stop_ends_a_run_after_the_running_record(slow: Slow) -> None:
    slow.within = slow.app.stop
    assert slow.app.run(progress=False) == 1
    assert slow.handled == [0]
    assert slow.counted() == 1
    slow.within = lambda: None
    slow.app.run(until="idle", progress=False)
    assert slow.handled == list(range(RECORDS))


def test_a_stop_from_another_thread_ends_a_run_after_the_running_record(slow: Slow) -> None:
    is_within, stopped = threading.Event(), threading.Event()

    def within() -> None:
        is_within.set()
        assert stopped.wait(BOUND_S)

    def stop() -> None:
        assert is_within.wait(BOUND_S)
        slow.app.stop()
        stopped.set()

    slow.within = within
    thread = threading.Thread(target=stop)
    thread.start()
    assert slow.app.run(progress=False) == 1
    thread.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_the_running_record(slow: Slow, number: int) -> None:
    slow.within = lambda: os.kill(os.getpid(), number)
    assert slow.app.run(progress=False) == 1
    assert slow.handled == [0]
    assert slow.counted() == 1


def test_a_worker_checks_its_group_between_slow_records(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record takes until its slice is over, so all other work of the worker comes after it."""
    monkeypatch.setattr(slice_guard, "GUARD_S", 0.0)
    monkeypatch.setattr(scheduler, "SLICE_SECONDS", 0.0)  # for async handlers
    is_cut = threading.Event()
    cut, share = TaskInstance.cut, Worker._rebalance
    events: list[str] = []

    def cutting(instance: TaskInstance) -> None:
        cut(instance)
        is_cut.set()

    def sharing(worker: Worker) -> None:
        events.append("share")
        share(worker)

    def within() -> None:
        events.append("record")
        is_cut.clear()
        assert slow.is_async or is_cut.wait(BOUND_S)

    monkeypatch.setattr(TaskInstance, "cut", cutting)
    monkeypatch.setattr(Worker, "_rebalance", sharing)
    slow.within = within
    assert slow.app.run(count=5, progress=False) == 5
    records = [at for at, event in enumerate(events) if event == "record"]
    assert len(records) == 5
    assert all("share" in events[a:b] for a, b in pairwise(records))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_records_count_once_with_any_cuts_of_slices(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    slow = Slow(kind, partitions=3)
    driver = TestDriver(slow.app)

    def within() -> None:
        if chance.random() < 0.3:
            for instance in driver.worker.instances:
                instance.cut()

    slow.within = within
    values = [n if chance.random() < 0.8 else -n for n in range(1, 200)]
    driver.run([(str(n % 11), n) for n in values])
    assert sorted(slow.handled) == sorted(values)
    assert sum(driver.store(slow.seen).values()) == sum(n > 0 for n in values)


@pytest.mark.parametrize("clock", ["stream", "wall"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_stop_ends_a_run_after_the_running_timer(
    tmp_path: Any, clock: Any, is_async: bool
) -> None:
    app = sl.App("app", log=tmp_path / "log")
    words = app.topic("words", key=str, value=int)
    fired: list[Any] = []
    handled: list[int] = []

    def handle(record: sl.Record[str, int]) -> None:
        handled.append(record.value)
        if record.value == 0:
            for n in range(10):
                sl.set_timer(n, record.timestamp + 1, clock=clock)

    async def awaited(record: sl.Record[str, int]) -> None:
        handle(record)

    app.task(words, name="t")(awaited if is_async else handle)

    @app.on_timer("t")
    def fire(name: int) -> None:
        fired.append(name)
        if len(fired) == 1:
            app.stop()

    with app:
        words.append([("a", 0, 1_000), ("a", 1, 2_000)])
        app.run(until="idle", progress=False)
        assert fired == [0]
        assert handled == ([0] if clock == "stream" else [0, 1])
        app.run(until="idle", progress=False)
    assert fired == list(range(10))
    assert handled == [0, 1]


def test_a_guard_cuts_every_long_slice() -> None:
    cuts = threading.Semaphore(0)
    guard = SliceGuard(cuts.release, 0.0)
    try:
        for _ in range(50):
            guard.begin()
            assert cuts.acquire(timeout=BOUND_S)
            guard.end()
    finally:
        guard.close()
    assert guard._thread is not None
    assert not guard._thread.is_alive()


def test_a_guard_that_was_never_needed_has_no_thread() -> None:
    before = threading.active_count()
    guard = SliceGuard(lambda: None)
    guard.end()
    guard.close()
    assert threading.active_count() == before


@pytest.mark.long
@pytest.mark.parametrize("is_async", [False, True])
def test_a_backlog_of_slow_records_takes_longer_than_a_worker_may_take_for_a_call(
    tmp_path: Path, is_async: bool
) -> None:
    """Another member would get the partition if the worker did not call in between."""
    app = sl.App("app", log=tmp_path / "log", max_poll_interval_ms=500, session_timeout_ms=500)
    words, handled = app.topic("words", key=str, value=int), list[int]()
    counted = app.counter("counted")

    def handle(record: sl.Record[str, int]) -> None:
        handled.append(record.value)
        time.sleep(0.02)
        counted.add(record.key)

    async def awaited(record: sl.Record[str, int]) -> None:
        handle(record)

    app.task(words, stores=[counted], name="t")(awaited if is_async else handle)
    with app:
        words.append([("a", n) for n in range(100)])
        app.run(until="idle", timeout=BOUND_S, progress=False)
        assert handled == list(range(100))
        assert app.query(counted).to_dict() == {"a": 100}


def test_a_batch_task_that_is_slow_for_each_record_makes_progress_on_a_backlog(
    tmp_path: Path,
) -> None:
    """A first batch of all records would take longer than the worker may spend on a call."""
    app = sl.App("app", log=tmp_path / "log", max_poll_interval_ms=1_000, session_timeout_ms=1_000)
    words, sizes = app.topic("words", key=str, value=int), list[int]()
    counted = app.counter("counted")

    @app.task(words, stores=[counted], batch=True)
    def count(batch: sl.Batch) -> None:
        sizes.append(len(batch))
        time.sleep(0.001 * len(batch))
        counted.add_batch(batch.keys)

    with app:
        words.append([("a", n) for n in range(3_000)])
        app.run(until="idle", timeout=60, progress=False)
        assert app.query(counted).to_dict() == {"a": 3_000}
    assert sizes[0] == 256
