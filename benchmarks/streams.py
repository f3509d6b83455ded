"""Streams by columns, exactly once, with fsync, against bare loops and Polars.

standard job   1 M and 10 M records of 100,000 users, a count for each, updates written; the peer
               is a loop over the log's own fetch and commit, which counts keys as columns and
               writes the changed ones to an output and a changelog in one transaction
batch task     the same, as a batch task with a counter
flights        336,776 flights thirty times: delays above 15 minutes by origin and carrier, in
               windows of an hour, final; the peer is one `group_by` of Polars in memory
statistics     count, sum, mean, max and var of a million keys; the peer likewise
forwarding     a batch task that only filters and sends; the peer fetches and appends the same
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, compare, folder
from benchmarks.standard_job import PARTITIONS, USERS, fill
from strandline import changelog
from strandline.changelog.client.producer import Producer
from strandline.changelog.records import CommittedOffset, TopicPartition, columns_schema
from strandline.framework.aggregates import Counter
from strandline.statestore.packing import pack_ints

COMMIT_S = 0.1
FETCH_BYTES = 16 << 20
TIMES = 30
"""Number of times that the flights are in the input."""
LATE_MINUTES = 15
STATISTICS = {
    "n": sl.count(),
    "total": sl.sum("x"),
    "mean": sl.mean("x"),
    "most": sl.max("x"),
    "var": sl.var("x"),
}


@dataclass(frozen=True)
class Flight:
    """A flight's departure delay."""

    carrier: str
    origin: str
    dep_delay: int | None
    at: datetime


def run(*, quick: bool = False) -> list[Figure]:
    """Measure all workloads; the targets hold for the full inputs."""
    sizes = [200_000] if quick else [1_000_000, 10_000_000]
    rounds = 1 if quick else 3
    figures = [figure for size in sizes for figure in _standard_job(size, rounds, quick=quick)]
    figures.append(_flights(2 if quick else TIMES, rounds, quick=quick))
    figures.append(_statistics(200_000 if quick else 10_000_000, rounds, quick=quick))
    figures.append(_forwarding(200_000 if quick else 4_000_000, rounds, quick=quick))
    return figures


# The standard job -------------------------------------------------------------------------------


def _standard_job(size: int, rounds: int, *, quick: bool) -> list[Figure]:
    with folder() as path:
        fill(path / "log", size)
        numbers = iter(range(1_000))

        def of(declare: Any) -> float:
            name = f"job-{next(numbers)}"
            with _app(name, path) as app:
                views = app.topic("views", key=str, value=int)
                declare(app, views, name)
                return _rate(app, size, until="idle")

        return [
            compare(
                f"standard job by columns, {size:,} records, {what}",
                partial(of, declare),
                lambda: _bare_loop(path, f"bare-{next(numbers)}", size),
                peer_name="a bare loop over columns",
                unit="records/s",
                target=None if quick else 0.57,
                rounds=rounds,
            )
            for what, declare in (("a stream", _as_stream), ("a batch task", _as_batch_task))
        ]


def _as_stream(app: sl.App, views: Any, name: str) -> None:
    counted = app.stream(views).group_by("key").agg(n=sl.count(), name="n")
    counted.to(f"{name}-counts", partitions=PARTITIONS)


def _as_batch_task(app: sl.App, views: Any, name: str) -> None:
    counts = app.topic(f"{name}-counts", key=str, value=int, partitions=PARTITIONS)
    seen: Counter[str] = app.counter("seen")

    @app.task(views, stores=[seen], batch=True)
    def count(batch: sl.Batch) -> None:
        frame = pl.DataFrame({"key": batch.keys, "value": seen.add_batch(batch.keys)})
        counts.send_batch(frame.unique("key", keep="last", maintain_order=True))


def _bare_loop(path: Path, name: str, size: int) -> float:
    """Count keys by columns, with the log's own fetch and commit; return records a second."""
    with changelog.open(path / "log") as log:
        for topic in (f"{name}-out", f"{name}-changelog"):
            log.create_topic(topic, PARTITIONS)
        broker, producer = log.broker, Producer(log.broker, transactional_id=name)
        places = [TopicPartition("views", number) for number in range(PARTITIONS)]
        ends = {tp: found.last_stable_offset for tp, found in broker.offsets(places).items()}
        states = [_BareState() for _ in places]
        at = dict.fromkeys(places, 0)

        def commit() -> None:
            batches = [
                (TopicPartition(f"{name}-{topic}", number), columns, 0)
                for number, state in enumerate(states)
                if (columns := state.changed()) is not None
                for topic in ("out", "changelog")
            ]
            for state in states:
                state.dirty.clear()
            producer.begin_transaction()
            producer.append_batches(batches)
            offsets = {tp: CommittedOffset(offset) for tp, offset in at.items()}
            producer.send_offsets_to_transaction(offsets, name)
            producer.commit_transaction()

        watch, last = Stopwatch(), Stopwatch()
        while waiting := {tp: offset for tp, offset in at.items() if offset < ends[tp]}:
            for tp, fetched in broker.fetch(waiting, max_bytes=FETCH_BYTES).items():
                for batch in fetched.batches:
                    states[tp.partition].add(batch.columns.column("key"))
                at[tp] = fetched.next_offset
            if last.seconds > COMMIT_S:
                commit()
                last = Stopwatch()
        commit()
        seconds = watch.seconds
        assert sum(int(state.counts.sum()) for state in states) == size
        return size / seconds


class _BareState:
    """Counts of one partition: keys map to slots, and an array has the counts."""

    def __init__(self) -> None:
        self.slots: dict[bytes, int] = {}
        self.names: list[bytes] = []
        self.counts = np.zeros(1 << 17, np.int64)
        self.dirty: list[Any] = []

    def add(self, keys: pa.Array) -> None:
        encoded = keys.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        slots = np.empty(len(distinct), np.int64)
        for index, key in enumerate(distinct):
            slot = self.slots.get(key)
            if slot is None:
                slot = self.slots[key] = len(self.names)
                self.names.append(key)
            slots[index] = slot
        self.counts[slots] += np.bincount(encoded.indices.to_numpy(), minlength=len(distinct))
        self.dirty.append(slots)

    def changed(self) -> pa.RecordBatch | None:
        if not self.dirty:
            return None
        slots = np.unique(np.concatenate(self.dirty))
        keys = pa.array([self.names[slot] for slot in slots.tolist()], pa.binary())
        times = pa.array(np.full(len(slots), 1_700_000_000_000))
        values = pack_ints(self.counts[slots].tolist())
        schema = columns_schema(pa.binary(), headers=False)
        return pa.RecordBatch.from_arrays([times, keys, values], schema=schema)


# Windows and statistics ---------------------------------------------------------------------------


def _flights(times: int, rounds: int, *, quick: bool) -> Figure:
    from examples.flights.data import read_flights

    once = read_flights().select("carrier", "origin", "dep_delay", at=pl.col("time_hour"))
    year = timedelta(days=365)
    frame = pl.concat(once.with_columns(pl.col("at") + number * year) for number in range(times))
    with folder() as path:
        _append(path, "flights", frame, Flight, key="carrier", timestamp="at")
        numbers = iter(range(1_000))

        def windows() -> float:
            name = f"late-{next(numbers)}"
            with _app(name, path) as app:
                topic = app.topic("flights", value=Flight, key="carrier", timestamp="at")
                out = (
                    app.stream(topic)
                    .filter(sl.col("dep_delay") > LATE_MINUTES)
                    .group_by("origin", "carrier")
                    .window(sl.tumbling("1h"))
                    .agg(n=sl.count(), mean=sl.mean("dep_delay"), name="hourly")
                    .to(name, partitions=PARTITIONS)
                )
                rate = _rate(app, len(frame), until="end")
                assert len(out.to_polars()) == len(_hourly(frame))
                return rate

        def polars() -> float:
            watch = Stopwatch()
            _hourly(frame)
            return len(frame) / watch.seconds

        return compare(
            f"late flights by hour, origin and carrier, {len(frame):,} records",
            windows,
            polars,
            peer_name="one group_by of Polars in memory",
            unit="records/s",
            target=None if quick else 0.5,
            rounds=rounds,
        )


def _hourly(frame: pl.DataFrame) -> pl.DataFrame:
    hour = pl.col("at").dt.truncate("1h").alias("hour")
    late = frame.filter(pl.col("dep_delay") > LATE_MINUTES)
    return late.group_by("origin", "carrier", hour).agg(n=pl.len(), mean=pl.col("dep_delay").mean())


def _statistics(size: int, rounds: int, *, quick: bool) -> Figure:
    chance = np.random.default_rng(1)
    keys = chance.integers(size // 10, size=size)
    frame = pl.DataFrame({"key": keys, "x": chance.normal(size=size)})
    schema = pa.schema([("key", pa.int64()), ("x", pa.float64())])
    with folder() as path:
        _append(path, "numbers", frame, schema, key="key")
        numbers = iter(range(1_000))

        def stream() -> float:
            name = f"statistics-{next(numbers)}"
            with _app(name, path) as app:
                topic = app.topic("numbers", value=schema, key="key")
                app.stream(topic).group_by("key").agg(**STATISTICS, name="figures")
                return _rate(app, size, until="idle")

        def polars() -> float:
            x, watch = pl.col("x"), Stopwatch()
            frame.group_by("key").agg(
                n=pl.len(), total=x.sum(), mean=x.mean(), most=x.max(), var=x.var()
            )
            return size / watch.seconds

        return compare(
            f"count, sum, mean, max and var of {size // 10:,} keys, {size:,} records",
            stream,
            polars,
            peer_name="one group_by of Polars in memory",
            unit="records/s",
            target=None if quick else 0.3,
            rounds=rounds,
        )


def _forwarding(size: int, rounds: int, *, quick: bool) -> Figure:
    schema = pa.schema([("key", pa.int64()), ("x", pa.float64())])
    numbers_of = np.random.default_rng(1)
    frame = pl.DataFrame(
        {"key": numbers_of.integers(USERS, size=size), "x": numbers_of.normal(size=size)}
    )
    with folder() as path:
        _append(path, "numbers", frame, schema, key="key")
        numbers = iter(range(1_000))

        def task() -> float:
            name = f"forward-{next(numbers)}"
            with _app(name, path) as app:
                topic = app.topic("numbers", value=schema, key="key")
                out = app.topic(name, value=schema, key="key", partitions=PARTITIONS)

                @app.task(topic, batch=True)
                def forward(batch: sl.Batch) -> None:
                    out.send_batch(batch.to_polars().filter(pl.col("x") > -9).select("key", "x"))

                return _rate(app, size, until="idle")

        return compare(
            f"a batch task that filters and sends, {size:,} records",
            task,
            lambda: _copy(path, f"copy-{next(numbers)}", size),
            peer_name="fetch and append of the same batches",
            unit="records/s",
            target=None if quick else 0.5,
            rounds=rounds,
        )


def _copy(path: Path, name: str, size: int) -> float:
    """Fetch all batches of a topic and append them to another one; return records a second."""
    with changelog.open(path / "log") as log:
        schema = log.broker.topic("numbers").schema
        log.create_topic(name, PARTITIONS, schema=schema)
        producer = Producer(log.broker, transactional_id=name)
        places = [TopicPartition("numbers", number) for number in range(PARTITIONS)]
        ends = {tp: found.last_stable_offset for tp, found in log.broker.offsets(places).items()}
        at = dict.fromkeys(places, 0)
        watch = Stopwatch()
        while waiting := {tp: offset for tp, offset in at.items() if offset < ends[tp]}:
            fetched = log.broker.fetch(waiting, max_bytes=FETCH_BYTES)
            producer.begin_transaction()
            producer.append_batches(
                (TopicPartition(name, tp.partition), batch.columns, 1)
                for tp, found in fetched.items()
                for batch in found.batches
            )
            producer.commit_transaction()
            at |= {tp: found.next_offset for tp, found in fetched.items()}
        return size / watch.seconds


# Shared parts -------------------------------------------------------------------------------------


@contextmanager
def _app(name: str, path: Path) -> Iterator[sl.App]:
    with sl.App(name, log=str(path / "log")) as app:
        yield app


def _rate(app: sl.App, size: int, *, until: Any) -> float:
    """Run an app; return records a second of its input."""
    app.prepare()
    watch = Stopwatch()
    app.run(until=until, progress=False)
    return size / watch.seconds


def _append(path: Path, topic: str, frame: pl.DataFrame, value: Any, **settings: Any) -> None:
    with _app("input", path) as app:
        declared = app.topic(topic, value=value, partitions=PARTITIONS, **settings)
        for start in range(0, len(frame), 500_000):
            declared.append(frame[start : start + 500_000])
