"""Timers: each record sets one, and each fires a thousand records later, beside a count.

The app with timers sets a timer by the record's key in stream time, and its timer handler counts it.
The peer is an app that counts by key in a store. Both run exactly once, with fsync, in one partition.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, folder, of_pairs
from strandline import changelog
from strandline.changelog.clock import SystemClock

KEYS, LATER = 100_000, 1_000


def run(*, quick: bool = False) -> list[Figure]:
    """Measure microseconds a record with a timer that is set and fires (target: 2 × a count)."""
    records, rounds = (50_000, 1) if quick else (500_000, 5)
    with folder() as path:
        _produce(path, records)
        pairs = [
            (_micros(path, n, _timers, records), _micros(path, n, _counts, records))
            for n in range(rounds)
        ]
    return [
        of_pairs(
            "timers: a record that sets one, which fires",
            pairs,
            peer_name="a count",
            unit="µs",
            target=None if quick else 2.0,
            at_most=True,
        )
    ]


def _produce(path: Path, records: int) -> None:
    with changelog.open(path / "log") as log:
        log.create_topic("views", partitions=1)
        with log.producer() as producer:
            keys = [f"user-{number % KEYS:06}".encode() for number in range(records)]
            first = SystemClock().now_ms() - records  # late enough to be kept
            times = [first + number for number in range(records)]
            producer.append_columns("views", keys, [b"\x01"] * records, times)


def _micros(path: Path, number: int, declare: Callable[[sl.App], None], records: int) -> float:
    """Return the microseconds that a new app takes for each record."""
    name = f"{declare.__name__.strip('_')}-{number}"
    with sl.App(name, log=str(path / "log"), state_dir=path / name) as app:
        declare(app)
        watch = Stopwatch()
        handled = app.run(until="idle", progress=False)
        seconds = watch.seconds
    assert handled == records, (handled, records)
    return seconds / records * 1e6


def _timers(app: sl.App) -> None:
    views = app.topic("views", key=str, value=int)
    fired = app.store("fired", key=str, value=int, default=0)

    @app.task(views, stores=[fired], name="t")
    def later(record: sl.Record[str, int]) -> None:
        sl.set_timer(record.key, record.timestamp + LATER)

    @app.on_timer("t")
    def fire(name: str) -> None:
        fired[name] += 1


def _counts(app: sl.App) -> None:
    views = app.topic("views", key=str, value=int)
    counts = app.store("counts", key=str, value=int, default=0)

    @app.task(views, stores=[counts], name="t")
    def count(record: sl.Record[str, int]) -> None:
        counts[record.key] += 1
