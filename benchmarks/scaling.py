"""Run the standard job with 50 µs of work a record: two workers on two cores, against one.

The workers are processes that share the app's partitions. The log is owned by this process, as by a
supervisor. The work is SHA-256 over as many bytes as take 50 µs here. Workers start and have their
partitions before the input is appended. The time runs from there until all of it is committed.
Libraries may use one thread each, so one worker does not profit from the second core. The owner,
whose work is small, shares the cores with the workers in both runs.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, compare, folder
from benchmarks.standard_job import PARTITIONS, USERS
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition

WORK_SECONDS = 50e-6
BOUND_SECONDS = 300.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "ARROW_IO_THREADS": "1"}


def run(*, quick: bool = False) -> list[Figure]:
    """Measure records per second (target: two workers 1.7 times as fast as one)."""
    count, rounds = (20_000, 2) if quick else (150_000, 5)
    size = _bytes_of_work()
    return [
        compare(
            f"scaling: 2 workers, {WORK_SECONDS * 1e6:.0f} µs a record",
            partial(_rate, 2, count, size),
            partial(_rate, 1, count, size),
            peer_name="1 worker",
            unit="records/s",
            target=1.7,
            rounds=rounds,
            warm_up=False,
        )
    ]


def _bytes_of_work() -> int:
    """Return the number of bytes that take WORK_SECONDS to hash."""
    data, times = bytes(1 << 16), 2_000
    watch = Stopwatch()
    for _ in range(times):
        hashlib.sha256(data).digest()
    return int(len(data) * WORK_SECONDS * times / watch.seconds)


def _rate(workers: int, count: int, size: int) -> float:
    with folder() as path, changelog.open(path / "log", role="own") as log:
        _app(log, b"").prepare()
        with _at_work(workers, path / "log", size, log):
            watch = Stopwatch()
            _append(log, count)
            _until(lambda: _is_committed(log, count))
            return count / watch.seconds


@contextmanager
def _at_work(workers: int, path: Path, size: int, log: Log) -> Iterator[None]:
    """Run `workers` processes, which own all partitions when the block begins."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, args=(path, size)) for _ in range(workers)]
    try:
        for process in processes:
            process.start()
        _until(lambda: _owned(log) == [PARTITIONS // workers] * workers)
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(30)


def _work(path: Path, size: int) -> None:
    """Run one worker until SIGTERM."""
    os.environ.update(ONE_THREAD)
    import pyarrow as pa

    pa.set_cpu_count(1)
    with changelog.open(path) as log:
        _app(log, bytes(size), state=path / "state").run(progress=False)


def _app(log: Log, data: bytes, state: Path | None = None) -> sl.App:
    """Return the standard job with some work for each record."""
    app = sl.App("standard", log=log.broker, state_dir=state)
    views = app.topic("views", key=str, value=int, partitions=PARTITIONS)
    updates = app.topic("counts", key=str, value=int, partitions=PARTITIONS)
    counts = app.store("per-user", key=str, value=int)

    @app.task(views, stores=[counts])
    def count(record: sl.Record[str, int]) -> None:
        hashlib.sha256(data).digest()
        seen = counts.get(record.key, 0) + 1
        counts[record.key] = seen
        updates.send(record.key, seen)

    return app


def _append(log: Log, count: int) -> None:
    chance = random.Random(0)
    now = SystemClock().now_ms()
    keys = [b"user-%05d" % chance.randrange(USERS) for _ in range(count)]
    with log.producer() as producer:
        producer.append_columns("views", keys, [b"\x01"] * count, [now] * count)


def _owned(log: Log) -> list[int]:
    return sorted(len(member.held) for member in log.broker.describe_group("standard").members)


def _is_committed(log: Log, count: int) -> bool:
    every = [TopicPartition("views", number) for number in range(PARTITIONS)]
    committed = log.broker.committed("standard", every, require_stable=False)
    return sum(offset.offset for offset in committed.values()) == count


def _until(condition: Callable[[], bool]) -> None:
    watch, pause = Stopwatch(), threading.Event()
    while not condition():
        assert watch.seconds < BOUND_SECONDS, "it does not come to an end"
        pause.wait(0.01)
