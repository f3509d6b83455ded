"""Async handlers of several partitions run concurrently. An error in one lets the others finish."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.errors import (
    DiskFull,
    MemberFenced,
    RegistryUnavailable,
    TransactionAborted,
)
from strandline.framework.container import async_slice, commit, outage, scheduler
from strandline.framework.decoding import decode
from strandline.framework.testing import TestDriver
from tests.exactly_once.apps import expected, running_totals, totals_sent
from tests.forms import by_form

GIVEN = [(key, n) for n in range(5) for key in "abcd"]


class Once:
    """Raises an error at the first call during which another partition is within a handler."""

    def __init__(self, error: Exception) -> None:
        self.within = False
        self._error: Exception | None = error

    def __call__(self) -> None:
        error = self._error
        if self.within and error is not None:
            self._error = None
            raise error


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("seed", range(by_form(2, 8)))
def test_each_record_counts_once_after_crashes_while_handlers_run(
    seed: int, concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "SLICE_SECONDS", 0.0005)
    monkeypatch.setattr(async_slice, "GATHER_S", 0)
    chance = random.Random(seed)
    app, out, seen = running_totals(concurrency=concurrency, commit_records=3)
    chapters = 12
    with TestDriver(app) as driver:
        for _ in range(chapters):
            append(driver, GIVEN)
            for _ in range(chance.randrange(6)):
                driver.worker.cycle()
            if chance.random() < 0.6:
                driver.crash()
        append(driver, GIVEN)
        crash_within_a_handler(driver)
        driver.settle()
        counts, totals = expected(GIVEN * (chapters + 1))
        assert driver.store(seen) == counts
        assert totals_sent(driver, out) == totals


def crash_within_a_handler(driver: TestDriver) -> None:
    for _ in range(1_000):
        driver.worker.cycle()
        if driver.worker.is_busy:
            break
    assert driver.worker.is_busy
    driver.crash()


def append(driver: TestDriver, given: list[Any]) -> None:
    """Append records without handling them."""
    cycle, driver.worker.cycle = driver.worker.cycle, lambda **_: 0  # type: ignore[method-assign]
    driver._take(given)
    driver.worker.cycle = cycle  # type: ignore[method-assign]


@pytest.mark.parametrize("where", ["a handler", "decoding"])
def test_each_record_counts_once_if_another_partition_fails(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(outage, "FIRST_RETRY_PAUSE_S", 0.001)
    fail = Once(DiskFull("no room") if where == "a handler" else RegistryUnavailable("away"))
    app = sl.App("app")
    words = app.topic("words", value=int, partitions=2)
    seen = app.store("seen", value=list[int], default_factory=list)

    @app.task(words, stores=[seen])
    async def collect(record: sl.Record[str, int]) -> None:
        if record.partition == 0:
            fail.within = True
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        elif where == "a handler":
            await asyncio.sleep(0)
            fail()
        with seen.edit(record.key) as values:
            values.append(record.value)

    def decoding(topic: Any, batch: Any, tombstones: bool) -> Any:
        if where == "decoding" and batch.partition == 1:
            fail()
        return decode(topic, batch, tombstones)

    monkeypatch.setattr("strandline.framework.container.inputs.decode", decoding)
    with TestDriver(app) as driver:
        append(driver, [(words, *record) for record in GIVEN])
        driver.settle()
        assert driver.store(seen) == {key: list(range(5)) for key in "abcd"}


@pytest.mark.long
@pytest.mark.parametrize("error", [TransactionAborted("aborted"), MemberFenced("fenced")], ids=str)
def test_no_handler_fails_because_a_commit_is_undone_while_it_runs(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scheduler, "SLICE_SECONDS", 0.0005)
    monkeypatch.setattr(async_slice, "GATHER_S", 0)
    app = sl.App("app", commit_records=1)
    words = app.topic("words", value=int, partitions=4)
    sums = app.store("sums", value=int, default=0)

    @app.task(words, stores=[sums], concurrency=4, name="add")
    class Add:
        async def process(self, record: sl.Record[str, int]) -> None:
            for _ in range(record.value):
                await asyncio.sleep(0)
            sums[record.key] += record.value

        async def close(self) -> None:
            for _ in range(50):
                await asyncio.sleep(0)

    append_all, aborts = commit._append, [0]

    def appended(*given: Any) -> Any:
        done = append_all(*given)
        aborts[0] += 1
        if aborts[0] % 3 and aborts[0] < 60:
            raise error
        return done

    monkeypatch.setattr(commit, "_append", appended)
    with TestDriver(app) as driver:
        append(driver, [(words, key, n) for n in range(1, 41) for key in "abcdefgh"])
        driver.settle()
        assert driver.store(sums) == dict.fromkeys("abcdefgh", sum(range(1, 41)))
    assert "stops" not in caplog.text
    assert aborts[0] > 10
