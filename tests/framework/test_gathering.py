"""Records that come one at a time to batch tasks: how they come together before each commit.

The clock moves only while a handler works, and while the worker pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.client.producer import Producer
from strandline.framework.container import batch_instance, instance
from strandline.framework.container.feeder import MAX_EARLY_S, MAX_LINGER_S, Feeder
from strandline.framework.testing import TestDriver

BATCH_MS = 6
"""Time that a batch takes, however small it is."""


class Trickle:
    """An app that gets a record for each ms in which its worker pauses or handles."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, batch: bool = True, **settings: Any
    ) -> None:
        self.sizes: list[int] = []
        """Number of records of each call of the handler."""
        self.pauses: list[float] = []
        """Seconds of each pause."""
        self.began_at: list[int] = []
        """Time in ms of each call of the handler."""
        self.committed_at: list[int] = []
        """Time in ms of each commit."""
        app = sl.App("app", **settings)
        self._words = app.topic("words", key=str, value=int, partitions=1)
        app.task(self._words, batch=batch)(self._batch_handler() if batch else self._handler())
        self.driver = TestDriver(app, now_ms=0)
        commit, worker = self.driver.worker.commit, self.driver.worker

        def noted() -> bool:
            self.committed_at.append(self.now_ms)
            return commit()

        monkeypatch.setattr(worker, "commit", noted)
        monkeypatch.setattr(Feeder, "_sleep", staticmethod(self._pause))
        handling = SimpleNamespace(perf_counter=self.driver.clock.monotonic)
        for module in (instance, batch_instance):
            monkeypatch.setattr(module, "time", handling)

    @property
    def now_ms(self) -> int:
        return self.driver.clock.now_ms()

    def cycle(self, times: int = 1) -> None:
        for _ in range(times):
            self.driver.worker.cycle(wait=0.1)

    def send(self, count: int) -> None:
        """Append records, each as a batch of its own."""
        with Producer(self.driver.owner, clock=self.driver.clock) as producer:
            for _ in range(count):
                producer.send("words", b"\x01", "a")
                producer.flush()

    def _batch_handler(self) -> Callable[[sl.Batch], None]:
        def handle(batch: sl.Batch) -> None:
            self._work(len(batch))

        return handle

    def _handler(self) -> Callable[[sl.Record[str, int]], None]:
        def handle(record: sl.Record[str, int]) -> None:
            self._work(1)

        return handle

    def _work(self, count: int) -> None:
        self.sizes.append(count)
        self.began_at.append(self.now_ms)
        self._pass_ms(BATCH_MS)

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._pass_ms(round(seconds * 1_000))

    def _pass_ms(self, ms: int) -> None:
        self.driver.clock.advance(ms)
        self.send(ms)


def test_records_that_come_while_the_worker_pauses_share_the_next_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trickle = Trickle(monkeypatch)
    trickle.send(1)
    trickle.cycle(2)
    assert trickle.pauses
    assert trickle.sizes[1] >= 20


def test_the_last_batch_before_a_commit_ends_when_the_commit_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trickle = Trickle(monkeypatch)
    trickle.send(1)
    trickle.cycle(12)
    assert len(trickle.committed_at) >= 4
    gaps = [b - a for a, b in pairwise(trickle.committed_at)]
    assert all(100 - 1_000 * MAX_EARLY_S <= gap < 100 + BATCH_MS for gap in gaps)
    # Records that come in the last batch before a commit wait for the next commit, and no others do.
    last = [max(at for at in trickle.began_at if at < end) for end in trickle.committed_at]
    assert [end - at for at, end in zip(last, trickle.committed_at, strict=True)] == (
        [BATCH_MS] * len(last)
    )


def test_a_trickle_takes_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    trickle = Trickle(monkeypatch)
    trickle.send(1)
    while trickle.now_ms < 1_000:
        trickle.cycle()
    assert len(trickle.sizes) <= 3 * len(trickle.committed_at)


def test_no_pause_is_longer_than_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if commits are rare, because a handler may call the outside."""
    trickle = Trickle(monkeypatch, commit_interval_ms=60_000)
    trickle.send(1)
    trickle.cycle(4)
    gaps = [b - a for a, b in pairwise(trickle.began_at)]
    assert gaps
    assert max(gaps) <= 1_000 * MAX_LINGER_S


def test_a_pause_is_a_part_of_the_time_for_which_a_fetch_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait ends at the next commit, timer or window."""
    trickle, waits, fetch = Trickle(monkeypatch), [], Feeder._fetch

    def noted(feeder: Feeder, group: Any, positions: Any, wait: float) -> Any:
        waits.append(wait)
        return fetch(feeder, group, positions, wait)

    monkeypatch.setattr(Feeder, "_fetch", noted)
    trickle.send(1)
    trickle.cycle(2)
    [pause] = trickle.pauses[1:] or trickle.pauses
    assert waits[-1] == pytest.approx(0.1 - pause, abs=0.001)


def test_a_batch_that_does_not_fit_before_the_commit_is_left_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker then commits early, by less than a batch takes."""
    trickle = Trickle(monkeypatch, commit_interval_ms=BATCH_MS + 2)
    trickle.send(1)
    trickle.cycle()
    assert trickle.committed_at == [BATCH_MS]


def test_a_task_of_single_records_gets_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trickle = Trickle(monkeypatch, batch=False)
    trickle.send(1)
    trickle.cycle(3)
    assert trickle.pauses == []


def test_a_backlog_is_handled_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    trickle = Trickle(monkeypatch)
    feeder = trickle.driver.worker._feeder
    monkeypatch.setattr(feeder, "_options", replace(feeder._options, fetch_bytes=1))
    trickle.send(3)  # a fetch brings one batch then
    trickle.cycle(2)
    assert (trickle.sizes, trickle.pauses) == ([1, 1], [])
