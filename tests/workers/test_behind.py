"""Reports of a worker while the log does not answer: the outage, its duration, and no outdated
lag."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import OwnerUnavailable, UnknownTopic
from strandline.changelog.records import PartitionOffsets, TopicPartition
from strandline.framework.supervisor import lag
from strandline.framework.supervisor.lag import SILENT_SECONDS, LagMonitor
from strandline.framework.supervisor.report import WorkerReport
from strandline.framework.supervisor.reporter import Reporter

Eventually = Callable[..., None]
SALES = TopicPartition("sales", 0)
LONG = int(SILENT_SECONDS * 1000) + 1


class Log:
    """A log whose partitions end at 10. It answers, raises, or lets callers wait."""

    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []
        self.error: Exception | None = None
        self.kept = 0
        """Number of calls that had to wait."""
        self.answers = threading.Event()
        self.answers.set()

    def offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Any]:
        self.asked.append(list(partitions))
        self.kept += not self.answers.is_set()
        assert self.answers.wait(30)
        if self.error is not None:
            raise self.error
        return {tp: PartitionOffsets(0, 10, 10, "id", 0) for tp in partitions}


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.answers.set()


@pytest.fixture
def held() -> dict[TopicPartition, int | None]:
    return {SALES: 4}


@pytest.fixture
def asking(
    log: Log,
    held: Mapping[TopicPartition, int | None],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LagMonitor]:
    monkeypatch.setattr(lag, "ASK_SECONDS", 0.001)
    made = LagMonitor(log, lambda: held, [TopicPartition("probe", 0)], clock)  # type: ignore[arg-type]
    yield made
    made.close()


def test_a_log_that_lets_callers_wait_counts_as_silent_and_the_lag_is_unknown(
    log: Log, asking: LagMonitor, clock: ManualClock, eventually: Eventually
) -> None:
    eventually(lambda: asking.lag() == {"sales": 6})
    log.answers.clear()
    eventually(lambda: log.kept)
    clock.advance(LONG)
    assert asking.silent() == pytest.approx(LONG / 1000)
    assert asking.lag() == {}
    log.answers.set()
    eventually(lambda: asking.silent() == 0 and asking.lag() == {"sales": 6})


def test_a_log_that_raises_counts_as_silent_since_the_first_error(
    log: Log, asking: LagMonitor, clock: ManualClock, eventually: Eventually
) -> None:
    log.error = OwnerUnavailable("away")
    for _ in range(3):
        before = len(log.asked)
        eventually(lambda before=before: len(log.asked) > before + 1)
        clock.advance(LONG)
    assert asking.silent() >= 3 * LONG / 1000
    log.error = UnknownTopic("gone")
    eventually(lambda: asking.silent() == 0, what="an answer, which the worker meets too")


def test_a_worker_without_partitions_calls_the_log_too(
    log: Log, held: dict[TopicPartition, int | None], asking: LagMonitor, eventually: Eventually
) -> None:
    held.clear()
    eventually(lambda: log.asked[-1:] == [[TopicPartition("probe", 0)]])
    held[SALES] = None
    eventually(lambda: len(log.asked) > 5)
    assert [SALES] not in log.asked[-2:]


def test_a_log_that_takes_long_to_open_is_waited_for(clock: ManualClock) -> None:
    mine, its = socket.socketpair()
    with contextlib.closing(mine):
        reporter = Reporter(its.detach())
        reporter._clock = clock  # type: ignore[assignment]
        with reporter.opening():
            assert reporter._now() == WorkerReport("starting")
            clock.advance(LONG)
            waits = reporter._now()
            assert waits.state == "waiting for the log"
            assert waits.silent == pytest.approx(LONG / 1000)
        assert reporter._now() == WorkerReport("starting")
        reporter._socket.close()
