"""Memory under a budget: an app with many partitions, whose state is several times as large.

128 partitions get records of random keys with values of a kilobyte, which the task keeps. The peer
is the memory that the app was given (`App(memory=)`). Besides it a process has Python, its libraries
and an open database for each partition, which a run over 1,000 records measures.

Each run is a process of its own, which owns the log and runs the app. Needs Linux.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import polars as pl

import strandline as sl
from benchmarks.anonymous import anonymous_mib
from benchmarks.harness import Figure, folder, of_pairs

PARTITIONS = 128
VALUE_BYTES = 1_000
CHUNK_RECORDS = 50_000
"""Number of records appended at a time."""
FEW_RECORDS = 1_000
"""Number of records that open all stores and hardly need memory."""
SAMPLE_S = 0.1


def run(*, quick: bool = False) -> list[Figure]:
    """Measure the highest memory in MiB (target: at most 1.25 times the budget)."""
    count, rounds = (20_000, 1) if quick else (1_000_000, 2)
    return [
        of_pairs(
            f"highest memory, {PARTITIONS} partitions, {count:,} keys of {VALUE_BYTES:,} bytes",
            [
                (_highest(count, mib) - _highest(FEW_RECORDS, mib), float(mib))
                for _ in range(rounds)
            ],
            peer_name=f"memory={mib} MiB",
            unit="MiB",
            target=None if quick else 1.25,
            at_most=True,
        )
        for mib in (128, 256, 1_024)
    ]


def _highest(count: int, mib: int) -> float:
    context = get_context("spawn")
    with folder() as path:
        with ProcessPoolExecutor(1, mp_context=context) as process:
            process.submit(_fill, path, count, mib).result()
        with ProcessPoolExecutor(1, mp_context=context) as process:
            return process.submit(_run_and_measure, path, mib).result()


def _app(path: Path, mib: int) -> tuple[sl.App, sl.Topic[str, bytes]]:
    app = sl.App("keep", log=path / "log", state_dir=path / "state", memory=mib << 20)
    words = app.topic("words", key=str, value=bytes, partitions=PARTITIONS)
    kept = app.store("kept", key=str, value=bytes)

    @app.task(words, stores=[kept])
    def keep(record: sl.Record[str, bytes]) -> None:
        kept.put(record.key, record.value)

    return app, words


def _fill(path: Path, count: int, mib: int) -> None:
    """Append records. The app has handled some before, so that its topics and stores are there."""
    app, words = _app(path, mib)
    with app:
        _append(words, FEW_RECORDS)
        app.run(until="idle", progress=False)
        for begin in range(0, count, CHUNK_RECORDS):
            _append(words, min(CHUNK_RECORDS, count - begin))


def _append(words: sl.Topic[str, bytes], count: int) -> None:
    keys = [f"key-{random.randrange(10**9):09}" for _ in range(count)]
    words.append(pl.DataFrame({"key": keys, "value": [random.randbytes(VALUE_BYTES)] * count}))


# The measured process ----------------------------------------------------------------


def _run_and_measure(path: Path, mib: int) -> float:
    """Return the highest MiB while the app runs, above those before."""
    app, _ = _app(path, mib)
    with app:
        app.broker()
        before = highest = anonymous_mib()
        worker = threading.Thread(
            target=app.run, kwargs={"until": "idle", "progress": False}, daemon=True
        )
        worker.start()
        while worker.is_alive():
            highest = max(highest, anonymous_mib())
            worker.join(SAMPLE_S)
    return highest - before
