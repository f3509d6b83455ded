"""Running on a folder on disk: RocksDB, limits, signals, notebooks, killed processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.errors import LogLocked
from strandline.framework.container.running import in_thread
from strandline.statestore.engines.folders import open_when_free

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Flight:
    carrier: str
    delay: float | None
    at: int


class Counting:
    """An app that counts words and sends the counts."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.app = sl.App("app", log=str(folder), durability="os", **options)
        self.words = self.app.topic("words", value=int, partitions=2)
        self.out = self.app.topic("out", value=int)
        self.seen = self.app.store("seen", value=int, default=0)
        self.app.task(self.words, stores=[self.seen], name="count")(self.count)

    def count(self, record: sl.Record[str, int]) -> None:
        self.seen[record.key] += 1
        self.out.send(record.key, self.seen[record.key])

    def totals(self) -> dict[str, int]:
        return self.app.query(self.seen).to_dict()


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    made = Counting(tmp_path / "log")
    yield made
    made.app.close()


WORDS = [(key, n) for n in range(10) for key in "abc"]


def test_runs_until_idle_handle_all_records_each_time(counting: Counting) -> None:
    counting.words.append(WORDS)
    assert counting.app.run(until="idle") == 30
    assert counting.totals() == {"a": 10, "b": 10, "c": 10}
    counting.words.append([("a", 1)])
    assert counting.app.run(until="idle") == 1
    assert counting.totals()["a"] == 11
    assert counting.app.run(until="idle") == 0


def test_count_is_exact(counting: Counting) -> None:
    counting.words.append(WORDS)
    assert counting.app.run(count=7) == 7
    assert sum(counting.totals().values()) == 7
    assert counting.app.run(count=5) == 5
    assert counting.app.run("idle") == 18


def test_timeout_ends_a_run_that_has_nothing_to_do(counting: Counting) -> None:
    assert counting.app.run(timeout=0.05) == 0


def test_stop_from_another_thread_commits(counting: Counting) -> None:
    counting.words.append(WORDS)
    seen = threading.Event()
    left = iter(WORDS[1:])
    count = counting.count

    def noticing(record: sl.Record[str, int]) -> None:
        count(record)
        if next(left, None) is None:
            seen.set()

    counting.app.declared.tasks["count"].handler = noticing
    thread = threading.Thread(target=counting.app.run)
    thread.start()
    assert seen.wait(10)
    counting.app.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert sum(counting.totals().values()) == 30


def test_an_app_does_not_run_twice_at_once(counting: Counting) -> None:
    errors: list[Exception] = []

    def again(record: sl.Record[str, int]) -> None:
        try:
            counting.app.run("idle")
        except sl.InvalidRequest as error:
            errors.append(error)

    counting.app.declared.tasks["count"].handler = again
    counting.words.append([("a", 1)])
    counting.app.run("idle")
    assert "running already" in str(errors[0])


async def test_inside_a_running_event_loop_both_ways_work(counting: Counting) -> None:
    counting.words.append(WORDS)
    assert counting.app.run(count=10) == 10
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    assert await counting.app.run_async(until="idle") == 20
    ticking.cancel()
    assert ticks > 1
    assert sum(counting.totals().values()) == 30


async def test_cancelling_run_async_stops_the_app(counting: Counting) -> None:
    running = asyncio.create_task(counting.app.run_async())
    while counting.app.runner.worker is None:
        await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert counting.app.runner.worker is None


async def test_cancelling_run_async_before_its_worker_exists_stops_the_app(
    counting: Counting,
) -> None:
    running = asyncio.create_task(counting.app.run_async())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert counting.app.runner.worker is None


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts raise KeyboardInterrupt, also in a shell's background job, which ignores them."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.mark.parametrize("starting", [True, False])
def test_an_interrupt_while_a_run_is_awaited_in_another_thread_stops_the_run(
    starting: bool, eventually: Callable[..., None], interruptible: None
) -> None:
    stopped, main = threading.Event(), threading.get_ident()

    def is_waiting() -> bool:
        stack = traceback.extract_stack(sys._current_frames()[main])
        callers = [frame.name for frame in stack]
        return callers[-1] == "wait" and "start" not in callers[callers.index("in_thread") :]

    def call() -> None:
        if not starting:
            eventually(is_waiting, what="the caller waiting")
        signal.pthread_kill(main, signal.SIGINT)
        assert stopped.wait(30)

    with pytest.raises(KeyboardInterrupt):
        in_thread(call, stopped.set)
    assert stopped.is_set()


def test_a_failed_task_raises_at_the_end(counting: Counting) -> None:
    def fail(record: sl.Record[str, int]) -> None:
        raise ValueError("no")

    counting.app.declared.tasks["count"].handler = fail
    counting.words.append((key, 1) for key in "abcdefgh")
    with pytest.raises(sl.TaskFailed, match="ValueError: no") as caught:
        counting.app.run(timeout=30)
    assert any("and: task 'count' failed" in note for note in caught.value.__notes__)


def test_reset_forgets_state_and_positions_but_not_topics(counting: Counting) -> None:
    counting.words.append(WORDS)
    counting.app.run("idle")
    counting.app.reset()
    assert counting.totals() == {}
    assert counting.app.run("idle") == 30
    assert counting.totals() == {"a": 10, "b": 10, "c": 10}
    assert len(counting.out.to_polars()) == 60


def test_a_reset_with_a_store_still_open_does_nothing(counting: Counting, tmp_path: Path) -> None:
    counting.words.append(WORDS)
    counting.app.run("idle")
    with (
        closing(open_when_free(tmp_path / "log" / "state" / "app" / "seen" / "0")),
        pytest.raises(LogLocked, match="seen/0 open; stop that worker"),
    ):
        counting.app.reset()
    assert counting.totals() == {"a": 10, "b": 10, "c": 10}
    assert counting.app.run("idle") == 0
    counting.app.reset()
    assert counting.totals() == {}


def test_restore_reports_its_progress(counting: Counting, tmp_path: Path) -> None:
    from strandline.framework.container.restore import RestoreProgress

    counting.words.append(WORDS)
    counting.app.run("idle")
    said: list[RestoreProgress] = []
    counting.app.run("idle", progress=said.append)
    assert said[-1].done
    assert said[-1].partitions == 2


def test_append_accepts_records_frames_and_tables(tmp_path: Path) -> None:
    with sl.App("app", log=str(tmp_path / "log"), durability="os") as app:
        flights = app.topic("flights", value=Flight, key="carrier", timestamp="at", partitions=2)
        rows = [Flight("AA", 1.5, 10), Flight("BA", None, 20)]
        assert flights.append(rows) == 2
        frame = pl.DataFrame({"carrier": ["CA"], "delay": [2.0], "at": [30]})
        assert flights.append(frame) == 1
        assert flights.append(frame.to_pandas()) == 1
        assert flights.append(frame.to_arrow().cast(flights.schema)) == 1
        got = flights.to_polars().sort("timestamp", "offset")
        assert got["carrier"].to_list() == ["AA", "BA", "CA", "CA", "CA"]
        assert got["key"].to_list() == got["carrier"].to_list()
        assert got["timestamp"].dt.epoch("ms").to_list() == [10, 20, 30, 30, 30]
        assert got["delay"].to_list() == [1.5, None, 2.0, 2.0, 2.0]
        with pytest.raises(sl.InvalidRecord, match="dealy"):
            flights.append(pa.table({"carrier": ["x"], "dealy": [1.0], "at": [1]}))


def test_append_names_the_record_that_it_refuses(tmp_path: Path) -> None:
    with sl.App("app", log=str(tmp_path / "log"), durability="os") as app:
        words = app.topic("words", value=int)
        with pytest.raises(sl.InvalidRecord, match="expected int, got 'x'"):
            words.append([("a", 1), ("b", "x")])
        with pytest.raises(sl.InvalidRecord, match="a record is"):
            words.append([1])
        assert len(words.to_polars()) == 0


KILLED = """
import sys
import strandline as sl
app = sl.App("app", log=sys.argv[1], commit_interval_ms=5)
words = app.topic("words", value=int, partitions=2)
out = app.topic("out", value=int)
seen = app.store("seen", value=int, default=0)
n = 0
@app.task(words, stores=[seen])
def count(record):
    global n
    n += 1
    seen[record.key] += 1
    out.send(record.key, seen[record.key])
    if n == 2_000:
        print("half", flush=True)
app.run()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_continues_without_a_gap_or_a_repeat(how: int, tmp_path: Path) -> None:
    counting = Counting(tmp_path / "log")
    counting.words.append((key, n) for n in range(1_500) for key in "abc")
    counting.app.close()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        env=environment,
    )
    bound = threading.Timer(60, process.kill)
    bound.start()
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        process.send_signal(how)
        status = process.wait(30)
    bound.cancel()
    assert status == (-how if how == signal.SIGKILL else 0)
    again = Counting(tmp_path / "log")
    again.app.run("idle")
    assert again.totals() == dict.fromkeys("abc", 1_500)
    sent = again.out.to_polars()
    for key in "abc":
        assert sent.filter(pl.col("key") == key)["value"].to_list() == list(range(1, 1_501))
    again.app.close()


def test_after_a_run_that_ended_in_order_nothing_is_restored(tmp_path: Path) -> None:
    restored: list[int] = []
    for expected in (10, 20):
        app = sl.App("resting", log=str(tmp_path / "log"))
        words = app.topic("words", key=str, value=int)
        counts = app.store("counts", key=str, value=int, default=0)

        @app.task(words, stores=[counts])
        def count(record: sl.Record[str, int], counts: sl.Store[str, int] = counts) -> None:
            counts[record.key] += 1

        words.append([(f"k{n}", n) for n in range(10)])
        app.run(until="idle", progress=lambda done: restored.append(done.records))
        assert sum(app.query(counts).to_dict().values()) == expected
        app.close()
    assert sum(restored) == 0
