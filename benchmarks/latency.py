"""Latency: a thousand records a second, one at a time, until a result of each is visible.

Another process owns the log and runs the app, with its default settings. This process produces, each
record when it is due, and consumes the results. The stream counts in windows of 20 ms and writes each
when it is over; its latency is from the record that ends a window to the window's result. The peer is
a task that handles single records and sends a result for each; its latency is that of the same
records. Both wait for the next commit, 50 ms on average.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import strandline as sl
from benchmarks.harness import Figure, folder, of_pairs
from strandline import changelog
from strandline.changelog.records import TopicPartition

RECORDS_PER_S = 1_000
WINDOW_MS = 20
ALLOWED_MS = 10.0
"""Milliseconds that the stream may take longer than the task."""
START_SECONDS = 60.0
BEGIN_MS = 1_700_000_000_000 // WINDOW_MS * WINDOW_MS
"""Time of the first record: the first of a window. Each next one is a millisecond later."""


@dataclass(frozen=True)
class View:
    """One record of the input."""

    user: str
    number: int
    at: datetime


@dataclass(frozen=True)
class LatencyResult:
    """Result of the task for one record."""

    user: str
    number: int


def run(*, quick: bool = False) -> list[Figure]:
    """Measure milliseconds (target: at most 10 ms more than the task, in the middle and at 99 %)."""
    seconds, rounds = (3, 1) if quick else (20, 3)
    pairs = [(_latencies(_windows, seconds), _latencies(_task, seconds)) for _ in range(rounds)]
    figures = []
    for name, percent in (("median", 50), ("99th percentile", 99)):
        values = [(_percentile(ours, percent), _percentile(peer, percent)) for ours, peer in pairs]
        peer = statistics.median(value for _, value in values)
        figures.append(
            of_pairs(
                f"latency of a window's final result, {name}, {RECORDS_PER_S:,} records/s",
                values,
                peer_name="of a task's result",
                unit="ms",
                target=None if quick else 1 + ALLOWED_MS / peer,
                at_most=True,
            )
        )
    return figures


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


# The app, in a process of its own -----------------------------------------------------------------


def _windows(app: sl.App, views: Any) -> None:
    windows = app.stream(views).group_by("user").window(sl.tumbling(f"{WINDOW_MS}ms"))
    windows.agg(n=sl.count(), number=sl.max("number"), name="per-window").to("out", partitions=1)


def _task(app: sl.App, views: Any) -> None:
    out = app.topic("out", value=LatencyResult, key="user", partitions=1)
    counts: sl.Counter[str] = app.counter("seen")

    @app.task(views, stores=[counts])
    def count(record: sl.Record[str, View]) -> None:
        counts.add(record.key)
        out.send(record.key, LatencyResult(record.key, record.value.number))


Declare = Callable[[sl.App, Any], None]


def _run_app(path: Path, declare: Declare, ready: Any, stop: Any) -> None:
    with sl.App("job", log=path / "log") as app:
        declare(app, _topic(app))
        app.prepare()
        worker = threading.Thread(target=app.run, kwargs={"progress": False}, daemon=True)
        worker.start()
        ready.set()
        stop.wait()
        app.stop()
        worker.join()


def _topic(app: sl.App) -> Any:
    return app.topic("views", value=View, key="user", timestamp="at", partitions=1)


@contextmanager
def _running(path: Path, declare: Declare) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_run_app, args=(path, declare, ready, stop))
    process.start()
    try:
        assert ready.wait(START_SECONDS), "the app did not start"
        yield
    finally:
        stop.set()
        process.join(START_SECONDS)
        if process.is_alive():
            process.kill()


# This process -------------------------------------------------------------------------------------


def _latencies(declare: Declare, seconds: int) -> list[float]:
    """Return the milliseconds of each record that ends a window, without those of the first second."""
    count = seconds * RECORDS_PER_S
    with folder() as path, _running(path, declare), changelog.open(path / "log") as log:
        sent: list[float] = []
        seen: dict[int, float] = {}
        producing = threading.Thread(target=_produce, args=(log, count, sent))
        producing.start()
        last = count - WINDOW_MS - 1
        with log.consumer() as consumer:
            consumer.assign([TopicPartition("out", 0)])
            until = time.perf_counter() + seconds + START_SECONDS
            while last not in seen and time.perf_counter() < until:
                batches = consumer.poll(1.0)
                now = time.perf_counter()
                for batch in batches:
                    numbers = batch.columns.column("value").field("number").to_pylist()
                    seen |= dict.fromkeys(numbers, now)
        producing.join()
    # The last record of a window is `number`, and the next one ends the window.
    ending = range(RECORDS_PER_S - 1, last + 1, WINDOW_MS)
    if declare is _windows:
        return [1_000 * (seen[number] - sent[number + 1]) for number in ending]
    return [1_000 * (seen[number] - sent[number]) for number in ending]


def _produce(log: Any, count: int, sent: list[float]) -> None:
    """Send each record when it is due."""
    begun = time.perf_counter()
    with log.producer(linger_ms=0) as producer:
        for number in range(count):
            at = datetime.fromtimestamp((BEGIN_MS + number) / 1_000, UTC)
            view = {"user": "ann", "number": number, "at": at}
            if (rest := begun + number / RECORDS_PER_S - time.perf_counter()) > 0:
                time.sleep(rest)
            sent.append(time.perf_counter())
            producer.send("views", view, key="ann", timestamp=BEGIN_MS + number)
