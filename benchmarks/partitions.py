"""Growth with the number of partitions: start of an app, a commit that touches 16, an idle second.

An app counts keys of a topic in a store, exactly once, with fsync, in a process that owns the log
and all partitions. Each commit handles one record in each of 16 partitions, which are the same in
all commits. The peer is the same app with 16 partitions. The idle app is observed for some seconds
after all its work is committed; its peer is one second of one core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, folder, of_pairs
from strandline import changelog
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition, columns_schema

FEW_PARTITIONS, TOUCHED_PARTITIONS = 16, 16
BOUND_SECONDS = 300.0


@dataclass(frozen=True)
class PartitionsRun:
    """Measurements of one app."""

    first_start: float
    """Seconds of the first start, which creates topics and stores."""
    later_start: float
    """Seconds of a later start."""
    commit: float
    """Milliseconds from an append of 16 records to their committed offsets, the median."""
    idle: float
    """Part of a core that the idle app uses."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure an app with 1,024 partitions (targets: start 5 s, idle 1 % of a core)."""
    many, rounds, commits, seconds = (128, 1, 5, 2.0) if quick else (1_024, 3, 20, 10.0)
    pairs = [
        (_measured(many, commits, seconds), _measured(FEW_PARTITIONS, commits, seconds))
        for _ in range(rounds)
    ]
    peer = f"{FEW_PARTITIONS} partitions"

    def figure(name: str, of: Callable[[PartitionsRun], float], unit: str) -> Figure:
        values = [(of(ours), of(theirs)) for ours, theirs in pairs]
        return of_pairs(f"{many:,} partitions: {name}", values, peer_name=peer, unit=unit)

    starts = [(ours.later_start, 1.0) for ours, _ in pairs]
    idle = [(ours.idle, 1.0) for ours, _ in pairs]
    return [
        figure("first start", lambda one: one.first_start, "s"),
        of_pairs(
            f"{many:,} partitions: start",
            starts,
            peer_name="a second",
            unit="s",
            target=None if quick else 5.0,
            at_most=True,
        ),
        figure(
            f"commit of {TOUCHED_PARTITIONS} records in {TOUCHED_PARTITIONS} partitions",
            lambda one: one.commit,
            "ms",
        ),
        of_pairs(
            f"{many:,} partitions: idle",
            idle,
            peer_name="a core",
            unit="cores",
            target=None if quick else 0.01,
            at_most=True,
        ),
    ]


def _measured(partitions: int, commits: int, seconds: float) -> PartitionsRun:
    with folder() as path:
        watch = Stopwatch()
        with running(path, partitions) as log:
            first_start = watch.seconds
            commit(log, [b"key"], 1)
        watch = Stopwatch()
        with running(path, partitions) as log:
            later_start = watch.seconds
            milliseconds = sorted(commit(log, [b"key"], end) for end in range(2, 2 + commits))
            before, watch = time.process_time(), Stopwatch()
            threading.Event().wait(seconds)
            idle = (time.process_time() - before) / watch.seconds
    return PartitionsRun(first_start, later_start, milliseconds[len(milliseconds) // 2], idle)


@contextmanager
def running(path: Path, partitions: int, *, ttl_ms: int | None = None) -> Iterator[Log]:
    """Open the log and run the app; the block begins when all its partitions are at work."""
    with changelog.open(path / "log", role="own") as log:
        app = _app(log, path, partitions, ttl_ms)
        thread = threading.Thread(target=lambda: app.run(progress=False))
        thread.start()
        try:
            _until(lambda: app.runner.worker is not None and _at_work(app) == partitions)
            yield log
        finally:
            app.stop()
            thread.join(BOUND_SECONDS)
            app.close()


def _at_work(app: sl.App) -> int:
    worker = app.runner.worker
    return 0 if worker is None else len(worker.instances)


def _app(log: Log, path: Path, partitions: int, ttl_ms: int | None) -> sl.App:
    app = sl.App("many", log=log, state_dir=path / "state")
    views = app.topic("views", key=str, value=int, partitions=partitions)
    counts = app.store("counts", key=str, value=int, default=0, ttl_ms=ttl_ms)

    @app.task(views, stores=[counts])
    def count(record: sl.Record[str, int]) -> None:
        counts[record.key] += record.value

    return app


def commit(log: Log, keys: list[bytes], end: int, *, touched: int = TOUCHED_PARTITIONS) -> float:
    """Append a record of each key to the first partitions, up to the offset `end` (exclusive).

    Returns the milliseconds until they are committed.
    """
    schema = columns_schema(pa.binary(), headers=False)
    now = time.time_ns() // 1_000_000
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([now] * len(keys)),
            pa.array(keys, pa.binary()),
            pa.array([msgspec.msgpack.encode(1)] * len(keys), pa.binary()),
        ],
        schema=schema,
    )
    inputs = [TopicPartition("views", n) for n in range(touched)]
    with log.producer() as producer:
        watch = Stopwatch()
        producer.append_batches((tp, columns, 0) for tp in inputs)
        _until(lambda: _committed(log, inputs) == {end})
    return watch.seconds * 1_000


def _committed(log: Log, inputs: list[TopicPartition]) -> set[int]:
    found = log.broker.committed("many", inputs, require_stable=False)
    return {at.offset for at in found.values()} if len(found) == len(inputs) else set()


def _until(condition: Callable[[], bool]) -> None:
    """Wait, with a bound, for a condition."""
    pause, watch = threading.Event(), Stopwatch()
    while not condition():
        assert watch.seconds < BOUND_SECONDS
        pause.wait(0.001)
