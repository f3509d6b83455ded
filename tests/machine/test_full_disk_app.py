"""No space under a running app: it waits, logs why, and continues by itself, counting each record
once."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import DiskFull
from strandline.framework.container import outage
from strandline.framework.container.outage import Outage
from strandline.framework.testing import TestDriver
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.engines.rocksdb import RocksEngine
from strandline.statestore.spec import StoreLimits
from tests.exactly_once.apps import expected, running_totals, totals_sent
from tests.forms import by_form
from tests.log.power import PowerStorage
from tests.machine.quota import Quota

GIVEN = [(key, 1) for key in "abacabad"]
AT_ONCE = StoreLimits(checkpoint_interval_ms=0)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(outage, "LONGEST_PAUSE_S", 0.001)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[sl.App], TestDriver]]:
    """Function that creates drivers of apps on a PowerStorage, closed after the test."""
    drivers: list[TestDriver] = []

    def make(app: sl.App) -> TestDriver:
        drivers.append(TestDriver(app))
        return drivers[-1]

    monkeypatch.setattr("strandline.framework.testing.MemoryStorage", PowerStorage)
    yield make
    for driver in drivers:
        driver.close()


def refuse(driver: TestDriver, quota: Quota | None) -> None:
    driver._storage.hook = quota  # type: ignore[union-attr]


def put(driver: TestDriver, given: list[tuple[str, int]]) -> None:
    """Append records without handling them."""
    worker, driver.worker = driver.worker, IdleWorker()  # type: ignore[assignment]
    driver._take(given)
    driver.worker = worker


class IdleWorker:
    is_busy = False

    def cycle(self) -> int:
        return 0


# Any step -----------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
@pytest.mark.parametrize("times", by_form([3], [1, 3, 20]))
def test_an_app_survives_a_disk_that_is_full_at_any_step_of_a_commit(
    times: int, guarantee: Any, made: Callable[[sl.App], TestDriver]
) -> None:
    for room in range(100):
        app, out, seen = running_totals(commit_records=4, processing_guarantee=guarantee)
        driver = made(app).run(GIVEN)
        put(driver, GIVEN)
        quota = Quota(room, times)
        refuse(driver, quota)
        driver.settle()
        refuse(driver, None)
        driver.run(GIVEN)
        counts, totals = expected(GIVEN * 3)
        found, sent = driver.store(seen), totals_sent(driver, out)
        if guarantee == "exactly_once":
            assert found == counts
            assert sent == totals
        elif guarantee == "at_least_once":
            assert all(found[key] >= counts[key] for key in counts)
        else:
            assert all(found[key] <= counts[key] for key in counts)
        assert driver.worker.waits_for is None
        if not quota.refused:
            assert (found, sent) == (counts, totals)
            assert room > 5
            return
    raise AssertionError("the app never came through without a refusal")


def test_a_run_with_a_count_counts_committed_records(made: Callable[[sl.App], TestDriver]) -> None:
    app, _, seen = running_totals(commit_records=3)
    driver = made(app)
    put(driver, GIVEN)
    refuse(driver, Quota(0, 2))
    assert driver.worker.run(count=6) == 6
    assert sum(driver.store(seen).values()) == 6


@pytest.mark.parametrize("refusals", [1, 4])
def test_a_checkpoint_without_room_counts_nothing_twice(
    refusals: int, monkeypatch: pytest.MonkeyPatch, made: Callable[[sl.App], TestDriver]
) -> None:
    app = sl.App("app", commit_records=3)
    words = app.topic("words", value=int)
    seen = app.store("seen", value=int, default=0, limits=AT_ONCE)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1

    left = [refusals]
    write = MemoryEngine.write

    def without_room(engine: MemoryEngine, *args: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise DiskFull("cannot write the state: No space left on device")
        write(engine, *args)

    driver = made(app)
    monkeypatch.setattr(MemoryEngine, "write", without_room)
    put(driver, GIVEN)
    driver.settle()
    assert left == [0]
    assert driver.store(seen) == expected(GIVEN)[0]


@pytest.mark.parametrize("refusals", [1, 3])
@pytest.mark.parametrize("act", ["_write_batch", "_ingest", "_open"])
def test_rocksdb_without_room_is_reopened_and_reads_the_changelog(
    act: str, refusals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = sl.App("app", commit_records=3)
    words = app.topic("words", value=int)
    seen = app.store("seen", value=int, default=0, limits=AT_ONCE)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1

    left = [0]
    real = getattr(RocksEngine, act)

    def without_room(engine: RocksEngine, *args: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise DiskFull("cannot write the state: No space left on device")
        real(engine, *args)

    if act == "_ingest":
        monkeypatch.setitem(RocksEngine.__init__.__kwdefaults__, "sst_from", 1)
    monkeypatch.setattr(RocksEngine, act, without_room)
    with TestDriver(app, folder=tmp_path) as driver:
        put(driver, GIVEN)
        if act == "_open":  # reached after a checkpoint that found no room
            write = RocksEngine.write

            def once(engine: RocksEngine, *args: Any) -> None:
                monkeypatch.setattr(RocksEngine, "write", write)
                left[0] = refusals
                raise DiskFull("cannot write the state: No space left on device")

            monkeypatch.setattr(RocksEngine, "write", once)
        else:
            left[0] = refusals
        driver.settle()
        assert left == [0]
        assert driver.store(seen) == expected(GIVEN)[0]
        driver.crash().settle()
        assert driver.store(seen) == expected(GIVEN)[0]


# Waiting ------------------------------------------------------------------------------


def test_a_stop_ends_the_wait_at_once_and_the_next_run_continues(
    made: Callable[[sl.App], TestDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 600.0)
    app, out, seen = running_totals()
    driver = made(app)
    put(driver, GIVEN)
    refuse(driver, Quota())
    raised: list[BaseException] = []

    def run() -> None:
        try:
            driver.worker.run(until="idle")
        except DiskFull as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    waits(lambda: driver.worker.waits_for is not None)
    begun = time.monotonic()
    driver.worker.stop()
    thread.join(10)
    assert raised
    assert time.monotonic() - begun < 2
    refuse(driver, None)
    driver.crash().settle()
    assert (driver.store(seen), totals_sent(driver, out)) == expected(GIVEN)


def waits(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_a_run_with_a_timeout_logs_why_it_ends(made: Callable[[sl.App], TestDriver]) -> None:
    app, out, seen = running_totals()
    driver = made(app)
    put(driver, GIVEN)
    refuse(driver, Quota())

    def time_passes(_: object) -> bool:
        driver.clock.advance(1_000)
        return True

    driver.worker._committer.outage.pause = lambda ended: time_passes(ended) and not ended()  # type: ignore[method-assign]
    with pytest.raises(DiskFull, match="No space left"):
        driver.worker.run(until="idle", timeout=5)
    refuse(driver, None)
    driver.crash().settle()
    assert (driver.store(seen), totals_sent(driver, out)) == expected(GIVEN)


def test_a_full_disk_is_logged_once_then_every_minute_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    waiting = Outage(clock)
    with caplog.at_level(logging.WARNING, "strandline"):
        for _ in range(130):
            waiting.disk_full(DiskFull("cannot append to x.log"))
            clock.advance(1_000)
        waiting.end()
        waiting.end()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all("cannot append to x.log" in line for line in said[:3])
    assert "after 130 s" in said[3]


def test_pauses_grow_up_to_a_bound_and_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "LONGEST_PAUSE_S", 5.0)
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.1)
    slept: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds: slept.append(seconds))
    waiting = Outage(ManualClock())
    lengths = []
    for _ in range(8):
        slept.clear()
        assert waiting.pause(lambda: False)
        lengths.append(round(sum(slept), 1))
    assert lengths == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    waiting.disk_full(DiskFull("x"))
    waiting.end()
    slept.clear()
    waiting.pause(lambda: False)
    assert sum(slept) == pytest.approx(0.1)
    assert max(slept) <= 0.1


# A full disk in a process -------------------------------------------------------------

PROGRAM = """
import json, resource, sys, threading, time
import strandline as sl
from strandline.statestore.spec import StoreLimits

folder, guarantee = sys.argv[1:]
app = sl.App("app", log=folder, processing_guarantee=guarantee, commit_interval_ms=20)
words = app.topic("words", value=int, partitions=2)
out = app.topic("out", value=int)
seen = app.store("seen", value=int, default=0, limits=StoreLimits(checkpoint_interval_ms=50))

go = threading.Event()

@app.task(words, stores=[seen])
def count(record):
    assert go.wait(60)
    seen[record.key] += 1
    out.send(record.key, seen[record.key])

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

def disk(limit):  # from here on a file may grow up to there: what every write meets on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.01)

def handled(n):
    return lambda: sum(app.query(seen).to_dict().values()) >= n

KEYS = "abcdefgh"
running = threading.Thread(target=app.run, daemon=True)
running.start()
until(lambda: app.runner.worker is not None and app.runner.worker.instances)
total = 0
for limit in (0, 300, 5_000, 40_000):
    go.clear()
    words.append([(key, n) for n in range(250) for key in KEYS])
    total += 250 * len(KEYS)
    disk(limit)
    go.set()
    until(lambda: app.runner.worker.waits_for is not None)
    disk(hard)
    until(handled(total))
app.stop()
running.join(30)
assert not running.is_alive()
print(json.dumps([app.query(seen).to_dict(), out.to_polars().group_by("key").agg("value").rows()]))
app.close()
"""


def test_an_app_survives_a_full_disk(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), "exactly_once"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the app waits for room" in done.stderr
    assert "there is room again" in done.stderr
    state, sent = json.loads(done.stdout)
    assert state == dict.fromkeys("abcdefgh", 1_000)
    each_once = list(range(1, 1_001))
    assert {key: sorted(totals) for key, totals in sent} == dict.fromkeys(state, each_once)
