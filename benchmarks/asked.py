"""Run the standard job while a client queries one key after another, against the job alone.

The worker is this process, and owns the log. The client is another process with one connection. It
queries the counts of users drawn uniformly, as fast as it gets answers, from before the job begins
until it has ended. In the run without queries the same process is connected and waits. The measured
cost includes the worker's interpreter time per answer and the client's share of the machine's
cores.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, compare, folder
from benchmarks.standard_job import USERS, app_on, fill

START_SECONDS = 60.0
MIN_ANSWERS = 20
"""Minimum number of answers for a valid measurement."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure records per second of the job, with a client that queries and with one that waits."""
    count, rounds = (200_000, 2) if quick else (1_000_000, 5)
    return [
        compare(
            f"asked: standard job, {count:,} records, one client asking",
            partial(_rate, count, asks=True),
            partial(_rate, count, asks=False),
            peer_name="nobody asking",
            unit="records/s",
            rounds=rounds,
            warm_up=False,
        )
    ]


def _rate(count: int, *, asks: bool) -> float:
    with folder() as path:
        fill(path / "log", count)
        with app_on(path / "log") as app:
            app.prepare()
            with _client(path / "log", asks=asks):
                watch = Stopwatch()
                handled = app.run(until="idle", progress=False)
                rate = handled / watch.seconds
            assert handled == count, (handled, count)
    return rate


@contextmanager
def _client(path: Path, *, asks: bool) -> Iterator[None]:
    """Run a client in a process of its own. It is connected when the block begins."""
    context = multiprocessing.get_context("spawn")
    answered, stop = context.Queue(), context.Event()
    process = context.Process(target=_ask, args=(path, answered, stop, asks))
    process.start()
    try:
        answered.get(timeout=START_SECONDS)
        yield
        stop.set()
        answers = answered.get(timeout=START_SECONDS)
        assert not asks or answers >= MIN_ANSWERS, answers
    finally:
        stop.set()
        process.join(START_SECONDS)
        if process.is_alive():
            process.kill()


def _ask(path: Path, answered: Any, stop: Any, asks: bool) -> None:
    chance, answers = random.Random(0), 0
    with sl.connect(path) as connection:
        store = connection.store("standard/per-user", key=str, value=int)
        answered.put(None)
        while asks and not stop.is_set():
            store.get(f"user-{chance.randrange(USERS):05}")
            answers += 1
        stop.wait()
    answered.put(answers)
