"""Async handlers that wait: records a second beside the ideal, which is calls under way by duration.

An app handles records whose handler waits for a call, counts by key in a store and sends a record,
exactly once, with fsync. The call is `asyncio.sleep`, so what is measured is how many calls the
worker keeps under way, between commits and during them. The peer is the ideal: each call ends after
its duration, and the next one starts in its place at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, folder, of_pairs
from strandline import changelog


@dataclass(frozen=True)
class Calls:
    """Calls of one run."""

    partitions: int
    concurrency: int
    seconds: float
    """Duration of a call."""
    commit_interval_ms: int = 100

    @property
    def under_way(self) -> int:
        """Maximum number of calls at a time."""
        return self.partitions * self.concurrency

    @property
    def ideal(self) -> float:
        """Calls a second."""
        return self.under_way / self.seconds


RUNS = (
    Calls(64, 1, 0.01),
    Calls(1, 64, 0.01),
    Calls(4, 50, 0.05),
    Calls(4, 250, 0.1),
    Calls(64, 16, 0.1),
    Calls(64, 1, 0.01, commit_interval_ms=1_000),
    Calls(64, 16, 0.1, commit_interval_ms=1_000),
)
RUN_SECONDS = 8.0
"""Seconds of an ideal run."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure records a second (target: 0.8 × the ideal, up to 1,000 calls under way)."""
    rounds, seconds = (1, 1.0) if quick else (3, RUN_SECONDS)
    return [
        of_pairs(
            f"async: {calls.under_way:,} calls of {calls.seconds * 1000:.0f} ms under way"
            f" ({calls.partitions} partitions × {calls.concurrency},"
            f" commits every {calls.commit_interval_ms} ms)",
            [(_rate(calls, seconds), calls.ideal) for _ in range(rounds)],
            peer_name="ideal",
            unit="records/s",
            target=None if quick else 0.8,
        )
        for calls in RUNS
    ]


def _rate(calls: Calls, seconds: float) -> float:
    """Return the number of records handled a second."""
    records = int(seconds * calls.ideal)
    with folder() as path:
        with _app(path, calls) as app:
            app.prepare()
        with changelog.open(path) as log, log.producer() as producer:
            for n in range(records):
                at = n % calls.partitions
                producer.send("calls", b"\x01", f"user-{n % 100_000}", partition=at)
        with _app(path, calls) as app:
            watch = Stopwatch()
            handled = app.run(until="idle", progress=False)
            taken = watch.seconds
    assert handled == records, (handled, records)
    return records / taken


def _app(path: object, calls: Calls) -> sl.App:
    app = sl.App("asking", log=str(path), commit_interval_ms=calls.commit_interval_ms)
    asked = app.topic("calls", key=str, value=int, partitions=calls.partitions)
    answers = app.topic("answers", key=str, value=int, partitions=calls.partitions)
    counts = app.store("counts", key=str, value=int, default=0)

    @app.task(asked, stores=[counts], concurrency=calls.concurrency)
    async def ask(record: sl.Record[str, int]) -> None:
        await asyncio.sleep(calls.seconds)
        counts[record.key] += record.value
        answers.send(record.key, counts[record.key])

    return app
