"""Async handlers that run at the same time: the results are those of one record after another."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.framework import testing
from strandline.framework.container import scheduler
from strandline.framework.container.gauges import RUNNING
from strandline.framework.container.scheduler import SliceScheduler
from strandline.framework.container.session import WorkerSession
from strandline.framework.testing import CRASH, TestDriver
from strandline.framework.topic import Topic
from tests.forms import by_form

NOTHING = contextlib.nullcontext()
Eventually = Callable[..., None]


class Gates:
    """Handlers wait at the gate of their record's value until it is opened."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._open: set[int] = set()
        self._is_open_for_all = False

    def open(self, *values: int) -> None:
        self._open.update(values)

    def open_all(self) -> None:
        self._is_open_for_all = True

    @property
    def waiting(self) -> set[int]:
        return set(self.begun) - set(self.ended)

    async def wait(self, value: int) -> None:
        self.begun.append(value)
        try:
            while not (self._is_open_for_all or value in self._open):
                await asyncio.sleep(0.001)
        finally:
            self.ended.append(value)


class Asking:
    """An app that counts and sends, after waiting at the gates."""

    def __init__(
        self, concurrency: int, *, partitions: int = 1, log: Any = None, **options: Any
    ) -> None:
        self.gates = Gates()
        self.app = sl.App("app", log=log, **options)
        self.words = self.app.topic("words", key=str, value=int, partitions=partitions)
        self.out = self.app.topic("out", key=str, value=int)
        self.counts = self.app.store("counts", key=str, value=int, default=0)
        self.within: Callable[[sl.Record[str, int]], None] = lambda record: None
        gates = self.gates

        @self.app.task(self.words, stores=[self.counts], concurrency=concurrency, on_error="skip")
        async def ask(record: sl.Record[str, int]) -> None:
            before = self.counts[record.key]
            await gates.wait(record.value)
            self.within(record)
            self.counts[record.key] = before + 1
            self.out.send(record.key, record.value)

    def committed(self) -> list[int]:
        return self.out.to_polars()["value"].to_list()


@contextlib.contextmanager
def running(app: sl.App, gates: Gates) -> Iterator[None]:
    """Run an app on a thread of its own, and stop it at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            app.run(progress=False)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    except BaseException:
        gates.open_all()
        raise
    finally:
        app.stop()
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    made = Asking(3, log=tmp_path / "log", commit_interval_ms=20)
    with made.app:
        yield made
        made.gates.open_all()


def abort_first_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first commit of a worker be aborted."""
    commit, aborted = WorkerSession.commit, threading.Event()

    def abort_once(session: WorkerSession, instances: Any) -> None:
        if not aborted.is_set():
            aborted.set()
            raise sl.TransactionAborted("for this test")
        commit(session, instances)

    monkeypatch.setattr(WorkerSession, "commit", abort_once)


def test_a_partition_has_as_many_running_handlers_as_declared(
    asking: Asking, eventually: Eventually
) -> None:
    asking.words.append([(str(n), n) for n in range(6)])
    with running(asking.app, asking.gates):
        eventually(lambda: asking.gates.waiting == {0, 1, 2}, what="three handlers")
        worker = asking.app.runner.worker
        assert worker is not None
        in_flight = [one for one in worker.metrics() if one.metric is RUNNING]
        assert [(one.labels, one.value) for one in in_flight] == [(("app", "ask"), 3)]
        asking.gates.open(0)
        eventually(lambda: asking.gates.waiting == {1, 2, 3}, what="the next handler")
        asking.gates.open_all()
        eventually(lambda: asking.committed() == list(range(6)), what="the results")


def test_results_are_in_the_order_of_the_records(asking: Asking, eventually: Eventually) -> None:
    asking.words.append([(str(n), n) for n in range(3)])
    with running(asking.app, asking.gates):
        eventually(lambda: len(asking.gates.begun) == 3, what="three handlers")
        asking.gates.open(2)
        eventually(lambda: 2 in asking.gates.ended, what="the last one")
        asking.gates.open(1)
        eventually(lambda: 1 in asking.gates.ended, what="the second one")
        assert asking.committed() == []
        asking.gates.open(0)
        eventually(lambda: asking.committed() == [0, 1, 2], what="all results")
    assert asking.gates.begun == [0, 1, 2]


def test_a_commit_does_not_wait_for_handlers(asking: Asking, eventually: Eventually) -> None:
    asking.words.append([(str(n), n) for n in range(3)])
    asking.gates.open(0, 2)
    with running(asking.app, asking.gates):
        eventually(lambda: asking.committed() == [0], what="the first result")
        [position] = asking.app.broker().committed("app", require_stable=False).values()
        assert position.offset == 1  # the second record, whose handler runs
        assert asking.gates.waiting == {1}
        asking.gates.open_all()
    assert asking.committed() == [0, 1, 2]
    assert asking.gates.begun == [0, 1, 2]


def test_a_slow_partition_does_not_hold_up_the_others(
    tmp_path: Path, eventually: Eventually
) -> None:
    asking = Asking(1, partitions=2, log=tmp_path / "log", commit_interval_ms=20)
    with asking.app:
        asking.words.append([(str(n), n) for n in range(20)])
        places = asking.words.to_polars()
        slow = places.filter(places["partition"] == 0)["value"][0]
        others = places.filter(places["partition"] == 1)["value"].to_list()
        asking.gates.open(*others)
        with running(asking.app, asking.gates):
            eventually(lambda: sorted(asking.committed()) == sorted(others), what="the others")
            eventually(lambda: asking.gates.waiting == {slow}, what="the slow one")
            asking.words.append([(key, 100 + n) for n, key in enumerate(map(str, range(20)))])
            asking.gates.open(*(100 + n for n in others))
            eventually(lambda: len(asking.committed()) == 2 * len(others), what="later ones")
            asking.gates.open_all()
            eventually(lambda: len(asking.committed()) == 40, what="all")


def test_records_of_a_key_run_one_after_another(asking: Asking, eventually: Eventually) -> None:
    asking.words.append([("a", 0), ("a", 1), ("b", 2), ("c", 3)])
    with running(asking.app, asking.gates):
        eventually(lambda: asking.gates.waiting == {0, 2}, what="one handler of each key")
        asking.gates.open_all()
        eventually(lambda: asking.committed() == [0, 1, 2, 3], what="the results")
        assert asking.app.query(asking.counts).to_dict() == {"a": 2, "b": 1, "c": 1}
    assert sorted(asking.gates.begun) == [0, 1, 2, 3]  # each once


def test_without_stores_records_of_a_key_run_at_the_same_time(
    tmp_path: Path, eventually: Eventually
) -> None:
    gates, app = Gates(), sl.App("app", log=tmp_path / "log")
    words, out = app.topic("words", key=str, value=int), app.topic("out", key=str, value=int)

    @app.task(words, concurrency=3)
    async def ask(record: sl.Record[str, int]) -> None:
        await gates.wait(record.value)
        out.send(record.key, record.value)

    with app:
        words.append([("a", n) for n in range(3)])
        with running(app, gates):
            eventually(lambda: gates.waiting == {0, 1, 2}, what="three handlers")
            gates.open_all()
            eventually(lambda: out.to_polars()["value"].to_list() == [0, 1, 2], what="the results")


# Isolation -----------------------------------------------------------------------------------


def shared(concurrency: int, use: Callable[[Any], int]) -> tuple[list[int], list[int], int]:
    """Let three handlers use one key at the same time: return outputs, calls, and the value."""
    app = sl.App("app")
    words, out = app.topic("words", key=str, value=int), app.topic("out", value=int)
    total = app.store("total", key=str, value=int, default=0)
    calls: list[int] = []

    @app.task(words, stores=[total], concurrency=concurrency)
    async def add(record: sl.Record[str, int]) -> None:
        calls.append(record.value)
        found = use(total)
        await asyncio.sleep(0)
        total["all"] = found + record.value
        out.send("k", found)

    with TestDriver(app) as driver:
        driver.run([(str(n), n) for n in (1, 2, 3)])
        counters = driver.worker.instances[0].counters
        assert counters.repeated == len(calls) - 3
        return [record.value for record in driver.output(out)], calls, driver.store(total)["all"]


USES: dict[str, Callable[[Any], int]] = {
    "get": lambda store: store["all"],
    "get_many": lambda store: store.get_many(["all"]).get("all", 0),
    "put_if_absent": lambda store: store.put_if_absent("all", 0) or 0,
    "range": lambda store: sum(value for _, value in store.range("a", "b")),
    "prefix": lambda store: sum(value for _, value in store.prefix("al")),
    "all": lambda store: sum(value for _, value in store.all()),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_handler_that_has_read_what_changed_is_called_again(use: Callable[[Any], int]) -> None:
    assert shared(1, use) == ([0, 1, 3], [1, 2, 3], 6)
    outputs, calls, value = shared(3, use)
    assert (outputs, value) == ([0, 1, 3], 6)
    assert calls == [1, 2, 3, 2, 3]


def test_an_error_of_a_handler_that_has_read_what_changed_does_not_count() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    total = app.store("total", key=str, value=int, default=0)

    @app.task(words, stores=[total], concurrency=2)
    async def add(record: sl.Record[str, int]) -> None:
        before = total["all"]
        await asyncio.sleep(0)
        if before != record.value:
            raise ValueError(before)
        total["all"] = before + 1

    with TestDriver(app) as driver:
        driver.run([(str(n), n) for n in range(4)])
        assert driver.store(total) == {"all": 4}


def test_a_failed_record_leaves_no_trace_among_others(asking: Asking) -> None:
    def within(record: sl.Record[str, int]) -> None:
        asking.counts["failed"] = 1
        asking.out.send("failed", -1)
        if record.value == 1:
            raise ValueError

    def counting(record: sl.Record[str, int]) -> None:
        if record.value == 1:
            within(record)

    asking.within = counting
    asking.gates.open_all()
    asking.words.append([(str(n), n) for n in range(4)])
    asking.app.run(until="idle", progress=False)
    assert asking.committed() == [0, 2, 3]
    assert asking.app.query(asking.counts).to_dict() == {"0": 1, "2": 1, "3": 1}


def test_a_task_that_fails_stops_at_its_record_and_drops_the_later_ones(tmp_path: Path) -> None:
    app = sl.App("app", log=tmp_path / "log")
    words, out = app.topic("words", key=str, value=int), app.topic("out", key=str, value=int)
    is_broken = True
    cancelled: list[int] = []

    @app.task(words, concurrency=4)
    async def ask(record: sl.Record[str, int]) -> None:
        if record.value == 2 and is_broken:
            raise ValueError("broken")
        try:
            await asyncio.sleep(3_600 if record.value == 3 and is_broken else 0)
        except asyncio.CancelledError:
            cancelled.append(record.value)
            raise
        out.send(record.key, record.value)

    with app:
        words.append([(str(n), n) for n in range(6)])
        with pytest.raises(sl.TaskFailed, match="words-0 @ 2"):
            app.run(until="idle", progress=False)
        assert out.to_polars()["value"].to_list() == [0, 1]
        assert set(cancelled) - {4, 5} == {3}  # these may have begun
        is_broken = False
        app.run(until="idle", progress=False)
        assert out.to_polars()["value"].to_list() == list(range(6))


def test_a_handler_sees_its_own_record_and_time(asking: Asking, eventually: Eventually) -> None:
    seen: list[tuple[int, int, int]] = []

    def within(record: sl.Record[str, int]) -> None:
        task = sl.current_task()
        seen.append((record.value, task.record.value, task.stream_time))

    asking.within = within
    asking.words.append([("a", 0, 1_000), ("b", 1, 3_000), ("c", 2, 2_000)])
    with running(asking.app, asking.gates):
        eventually(lambda: len(asking.gates.begun) == 3, what="three handlers")
        for value in (2, 1, 0):
            asking.gates.open(value)
            eventually(lambda value=value: value in asking.gates.ended, what="a handler")
        eventually(lambda: asking.committed() == [0, 1, 2], what="the results")
    assert seen == [(2, 2, 3_000), (1, 1, 3_000), (0, 0, 1_000)]


class Timed:
    """An app with timers whose concurrent handlers note their record and its stream time."""

    def __init__(self, log: Path) -> None:
        self.gates = Gates()
        self.seen: list[tuple[int, int]] = []
        self.app = sl.App("app", log=log, commit_interval_ms=20)
        self.words = self.app.topic("words", key=str, value=int)

        @self.app.task(self.words, name="note", concurrency=2)
        async def note(record: sl.Record[str, int]) -> None:
            self.seen.append((record.value, sl.current_task().stream_time))
            await self.gates.wait(record.value)

        @self.app.on_timer("note")
        def fire(name: str) -> None:
            """Do nothing."""


@pytest.mark.parametrize("concurrency", [1, 2, 3, 8])
def test_a_handler_sees_the_stream_time_up_to_its_record(concurrency: int) -> None:
    """Also if it waits for an earlier record of its key, or such a one comes before it."""
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    times = app.topic("times", key=str, value=int)
    counts = app.store("counts", key=str, value=int, default=0)

    @app.task(words, stores=[counts], concurrency=concurrency)
    async def note(record: sl.Record[str, int]) -> None:
        await asyncio.sleep(0.002)
        counts[record.key] += 1
        times.send(record.key, sl.current_task().stream_time)

    keys = [("a", 5_000), ("a", 5_100), ("b", 5_050), ("c", 6_000), ("a", 5_060), ("d", 1_000)]
    with TestDriver(app) as driver:
        driver.run([(key, n, timestamp) for n, (key, timestamp) in enumerate(keys)])
        seen = [record.value for record in driver.output(times)]
    assert seen == [5_000, 5_100, 5_100, 6_000, 6_000, 6_000]


def test_a_handler_of_a_late_record_sees_the_stream_time_of_an_earlier_run(tmp_path: Path) -> None:
    for value, timestamp in ((0, 5_000), (1, 2_000)):
        timed = Timed(tmp_path / "log")
        timed.gates.open_all()
        with timed.app:
            timed.words.append([("a", value, timestamp)])
            timed.app.run(until="idle", progress=False)
        assert timed.seen == [(value, 5_000)]


def test_a_repeated_handler_does_not_see_the_time_of_a_later_record(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort_first_commit(monkeypatch)
    timed = Timed(tmp_path / "log")
    timed.gates.open(0)
    timed.words.append([("a", 0, 1_000), ("b", 1, 9_000)])
    with timed.app, running(timed.app, timed.gates):
        eventually(lambda: len(timed.seen) == 4, what="the second attempts")
        timed.gates.open_all()
    assert timed.seen == [(0, 1_000), (1, 9_000)] * 2


@pytest.mark.parametrize("values", [[0, 1], [1, 0]], ids=["in its turn", "before its turn"])
def test_what_a_handler_leaves_running_cannot_write(tmp_path: Path, values: list[int]) -> None:
    app = sl.App("app", log=tmp_path / "log")
    words, out = app.topic("words", key=str, value=int), app.topic("out", key=str, value=int)
    counts = app.store("counts", key=str, value=int, default=0)
    late: list[asyncio.Task[None]] = []
    errors: list[str] = []

    async def write_late(use: Callable[[], None]) -> None:
        await asyncio.sleep(0.01)
        try:
            use()
        except sl.StrandlineError as error:
            errors.append(f"{type(error).__name__}: {error}")

    @app.task(words, stores=[counts], concurrency=2)
    async def ask(record: sl.Record[str, int]) -> None:
        if record.value == 0:
            uses: list[Callable[[], None]] = [
                lambda: counts.put("late", 1),
                lambda: counts.delete("late"),
                lambda: out.send("late", 1),
            ]
            late.extend(asyncio.create_task(write_late(use)) for use in uses)
        else:
            while not late:
                await asyncio.sleep(0)
            await asyncio.gather(*late)
        out.send(record.key, record.value)

    with app:
        words.append([(f"k{value}", value) for value in values])
        app.run(until="idle", progress=False)
        assert out.to_polars()["value"].to_list() == values
        assert app.query(counts).to_dict() == {}
    assert len(errors) == 3
    assert all("await everything that the handler starts" in error for error in errors)


@pytest.mark.parametrize("ends", ["stop", "crash"])
def test_what_runs_when_a_worker_ends_is_cancelled(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "MAX_CYCLES", 3)
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    started: list[asyncio.Task[None]] = []

    async def wait_forever() -> None:
        await asyncio.Event().wait()

    @app.task(words, concurrency=2)
    async def ask(record: sl.Record[str, int]) -> None:
        started.append(asyncio.create_task(wait_forever()))
        if ends == "crash":
            started.append(asyncio.current_task())  # type: ignore[arg-type]
            await wait_forever()

    with TestDriver(app) as driver:
        driver._take([("a", 0), ("b", 1)])
        if ends == "crash":
            driver.crash()
    assert len(started) >= 2
    assert all(task.cancelled() for task in started)


def test_a_cancellation_from_within_is_an_error_of_the_record(asking: Asking) -> None:
    def within(record: sl.Record[str, int]) -> None:
        if record.value == 1:
            raise asyncio.CancelledError

    asking.within = within
    asking.gates.open_all()
    asking.words.append([(str(n), n) for n in range(3)])
    asking.app.run(until="idle", progress=False)
    assert asking.committed() == [0, 2]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("waits", ["before", "never", "after", "caught"])
def test_a_handler_that_cancels_itself_is_an_error_of_its_record(
    concurrency: int, waits: str
) -> None:
    app = sl.App("app")
    words, out = app.topic("words", key=str, value=int), app.topic("out", key=str, value=int)

    @app.task(words, concurrency=concurrency, on_error="skip")
    async def cancel(record: sl.Record[str, int]) -> None:
        if waits == "before":
            await asyncio.sleep(0)
        out.send(record.key, record.value)
        task = asyncio.current_task()
        if task is not None and record.value == 2:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError) if waits == "caught" else NOTHING:
                if waits in ("after", "caught"):
                    await asyncio.sleep(0)

    with TestDriver(app) as driver:
        driver.run([(str(n), n) for n in range(6)])
        sent = [record.value for record in driver.output(out)]
    assert sent == ([0, 1, 2, 3, 4, 5] if waits == "caught" else [0, 1, 3, 4, 5])


# Ends ----------------------------------------------------------------------------------------


def test_a_stop_waits_for_running_handlers_and_begins_no_others(
    asking: Asking, eventually: Eventually
) -> None:
    asking.words.append([(str(n), n) for n in range(6)])
    with running(asking.app, asking.gates):
        eventually(lambda: asking.gates.waiting == {0, 1, 2}, what="three handlers")
        asking.app.stop()
        asking.gates.open_all()
    assert asking.committed() == [0, 1, 2]
    assert asking.gates.begun == [0, 1, 2]
    asking.app.run(until="idle", progress=False)
    assert asking.committed() == list(range(6))
    assert asking.gates.begun == list(range(6))


def test_a_stop_that_waits_for_long_is_logged(
    asking: Asking,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(scheduler, "SETTLE_LOG_S", 0.05)
    asking.words.append([("a", 1), ("b", 2)])
    with running(asking.app, asking.gates):
        eventually(lambda: asking.gates.waiting == {1, 2}, what="two handlers")
        asking.app.stop()
        eventually(lambda: "waits for the async handlers of 2 records" in caplog.text, what="log")
        asking.gates.open_all()
    assert caplog.text.count("waits for the async handlers") == 1


def test_a_worker_whose_handler_waits_for_long_keeps_its_partitions(
    tmp_path: Path, eventually: Eventually
) -> None:
    asking = Asking(1, log=tmp_path / "log", max_poll_interval_ms=300, session_timeout_ms=300)
    with asking.app:
        asking.words.append([("a", 0), ("b", 1)])
        with running(asking.app, asking.gates):
            eventually(lambda: asking.gates.begun == [0], what="the handler")
            begun = time.monotonic()
            eventually(lambda: time.monotonic() - begun > 1, what="three intervals")
            asking.gates.open_all()
            eventually(lambda: asking.committed() == [0, 1], what="the results")
        assert asking.gates.begun == [0, 1]


def test_a_count_limits_the_calls(asking: Asking) -> None:
    asking.gates.open_all()
    asking.words.append([(str(n), n) for n in range(6)])
    assert asking.app.run(count=4, progress=False) == 4
    assert asking.gates.begun == [0, 1, 2, 3]
    assert asking.committed() == [0, 1, 2, 3]


@pytest.mark.parametrize("turns", [0, 1], ids=["slices", "between"])
def test_a_count_is_exact_with_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    # The loop also runs between slices, when instances whose restore takes longer start.
    start = SliceScheduler.start

    def start_and_turn(self: SliceScheduler, instances: Any) -> None:
        start(self, instances)
        for _ in range(turns):
            self._loop.run(asyncio.sleep(0.002))

    monkeypatch.setattr(SliceScheduler, "start", start_and_turn)
    app = sl.App("app", log=tmp_path / "log")
    numbers = app.topic("numbers", key=str, value=int, partitions=16)
    handled: list[int] = []

    def hold_up_the_loop() -> None:
        time.sleep(0.003)  # slices end with more work to do then

    @app.task(numbers, concurrency=2)
    async def wait(record: sl.Record[str, int]) -> None:
        if record.value % 20 == 0:
            hold_up_the_loop()
        await asyncio.sleep((0, 0.001, 0.003, 0.012)[record.value % 4])
        handled.append(record.value)

    counts = [1 + 37 * n % 60 for n in range(24)]
    numbers.append([(str(n), n) for n in range(2 * sum(counts))])
    for count in counts:
        assert app.run(count=count, timeout=30, progress=False) == count
    assert len(set(handled)) == len(handled) == sum(counts)


def test_a_count_is_exact_with_plain_and_batch_tasks_beside(tmp_path: Path) -> None:
    """Records of running handlers count before they have taken effect."""
    app = sl.App("app", log=tmp_path / "log")
    slow, plain, batch = (app.topic(name, value=int) for name in ("slow", "plain", "batch"))

    @app.task(slow, concurrency=50)
    async def wait(record: sl.Record[str, int]) -> None:
        await asyncio.sleep(0.05)

    @app.task(plain)
    def work(record: sl.Record[str, int]) -> None:
        time.sleep(0.001)

    @app.task(batch, batch=True)
    def take(rows: sl.Batch) -> None:
        time.sleep(0.001)

    for topic in (slow, plain, batch):
        topic.append([(str(n), n) for n in range(200)])
    for _ in range(5):
        assert app.run(count=100, timeout=30, progress=False) == 100
    assert app.run(until="idle", progress=False) == 100


def test_running_handlers_are_dropped_when_a_commit_is_aborted(
    asking: Asking, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort_first_commit(monkeypatch)
    asking.gates.open(0, 2)
    asking.words.append([(str(n), n) for n in range(3)])
    with running(asking.app, asking.gates):
        eventually(lambda: asking.committed() == [0], what="the first result")
        eventually(lambda: asking.gates.begun == [0, 1, 2, 0, 1, 2], what="the second attempts")
        asking.gates.open_all()
        eventually(lambda: asking.committed() == [0, 1, 2], what="the results")
        assert asking.app.query(asking.counts).to_dict() == {"0": 1, "1": 1, "2": 1}


def test_a_record_that_the_log_refuses_is_found(tmp_path: Path) -> None:
    app = sl.App("app", log=tmp_path / "log")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=str, value=bytes, config={"max.message.bytes": "1000"})
    counts = app.counter("counts")

    @app.task(words, stores=[counts], concurrency=8, on_error="skip")
    async def ask(record: sl.Record[str, int]) -> None:
        await asyncio.sleep(0)
        counts.add(record.key)
        out.send(record.key, b"x" * (5_000 if record.value % 10 == 3 else 5))

    with app:
        words.append([(str(n), n) for n in range(40)])
        app.run(until="idle", progress=False)
        assert len(out.to_polars()) == 36
        assert sum(app.query(counts).to_dict().values()) == 36


# Declaration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [0, -1, 10_001, 1.5, True, "2"])
def test_a_concurrency_that_is_no_number_of_records_is_refused(concurrency: Any) -> None:
    app = sl.App("app")

    async def handle(record: Any) -> None: ...

    with pytest.raises(sl.InvalidConfig, match="task 'handle': concurrency"):
        app.task(app.topic("words"), concurrency=concurrency)(handle)


def test_a_plain_function_has_no_concurrency() -> None:
    app = sl.App("app")
    with pytest.raises(sl.InvalidConfig, match="task 't': concurrency=2 needs an async handler"):
        app.task(app.topic("words"), name="t", concurrency=2)(lambda record: None)


# As if one after another ---------------------------------------------------------------------

KEYS = ["a", "b", "c"]
OPERATION = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 3)),
    st.tuples(st.just("add"), st.sampled_from(KEYS)),
    st.tuples(st.just("set"), st.sampled_from(KEYS)),
    st.tuples(st.just("delete"), st.sampled_from(KEYS)),
    st.tuples(st.just("send"), st.sampled_from(KEYS)),
    st.tuples(st.just("scan"), st.sampled_from(KEYS)),
    st.tuples(st.just("timer"), st.integers(0, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 4)),
    st.tuples(st.just("fail"), st.none()),
)
SCRIPT = st.lists(OPERATION, max_size=5)
RECORD = st.tuples(st.sampled_from(KEYS), st.integers(-6, 10), SCRIPT)
ITEM = st.one_of(RECORD, RECORD, RECORD, st.just(CRASH))


class Scripted:
    """An app whose records carry what their handler does."""

    def __init__(self, scripts: list[Any], concurrency: int | None) -> None:
        self.app = app = sl.App("app", commit_records=5)
        self.words = app.topic("words", key=str, value=int)
        self.out: Topic[str, str] = app.topic("out", key=str, value=str)
        self.counts = app.store("counts", key=str, value=int, default=0)
        self._scripts = scripts

        async def scripted(record: sl.Record[str, int]) -> None:
            for operation, argument in scripts[record.value]:
                if operation == "wait":
                    for _ in range(argument):
                        await asyncio.sleep(0)
                else:
                    self._do(record, operation, argument)

        def plain(record: sl.Record[str, int]) -> None:
            for operation, argument in scripts[record.value]:
                if operation != "wait":
                    self._do(record, operation, argument)

        handler: Any = plain if concurrency is None else scripted
        settings: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
        app.task(self.words, stores=[self.counts], name="t", on_error="skip", **settings)(handler)
        app.on_timer("t")(self._fire)

    def _do(self, record: sl.Record[str, int], operation: str, argument: Any) -> None:
        counts = self.counts
        match operation:
            case "add":
                counts[argument] += 1
            case "set":
                counts[argument] = record.value
            case "delete":
                counts.delete(argument)
            case "send":
                time = sl.current_task().stream_time
                self.out.send(argument, f"{record.value} at {time}: {counts.get(argument)}")
            case "scan":
                self.out.send(argument, f"{record.value}: {list(counts.range(argument))}")
            case "timer":
                sl.set_timer(argument, record.timestamp + argument)
            case "cancel":
                sl.cancel_timer(argument)
            case "fail":
                raise ValueError

    def _fire(self, name: int) -> None:
        time = sl.current_task().stream_time
        self.out.send("timer", f"{name} at {time}: {list(self.counts.all())}")
        self.counts[KEYS[name % 3]] += 100

    def results(self, items: list[Any]) -> tuple[list[Any], dict[str, int]]:
        with TestDriver(self.app) as driver:
            driver.run(items)
            driver.end()
            sent = [
                (record.key, record.value, record.timestamp) for record in driver.output(self.out)
            ]
            return sent, driver.store(self.counts)


@settings(max_examples=by_form(20, 150))
@given(items=st.lists(ITEM, max_size=14), concurrency=st.integers(1, 6))
def test_state_output_and_timers_are_as_if_one_record_came_after_another(
    items: list[Any], concurrency: int
) -> None:
    scripts: list[Any] = []
    given: list[Any] = []
    time = 1_000_000_000_000
    for item in items:
        if item is CRASH:
            given.append(CRASH)
            continue
        key, after, script = item
        time += after
        given.append((key, len(scripts), time))
        scripts.append(script)
    expected = Scripted(scripts, None).results(given)
    assert Scripted(scripts, concurrency).results(given) == expected
