"""Growth with the size of the state: one record of a random key among many keys, and among few.

An app counts records by key in a store, exactly once, with fsync, in one partition. First it gets
one record of each key, in random order. Then it is closed and opened again, and gets records of
keys drawn at random, which is what is measured: reading, look-up, change, changelog, commit and
checkpoint. The peer is the same app with 100,000 keys, which fit into its cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, folder, of_pairs
from strandline import changelog
from strandline.changelog.clock import SystemClock

FEW_KEYS = 100_000
CHUNK_RECORDS = 500_000
"""Number of records that are produced at a time."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure microseconds a record with 1 and 10 million keys (target: 3 × that of 100,000)."""
    sizes, records, rounds = (
        ([500_000], 100_000, 1) if quick else ([1_000_000, 10_000_000], 500_000, 3)
    )
    figures = []
    with _filled(FEW_KEYS) as few:
        for size in sizes:
            with _filled(size) as many:
                pairs = [
                    (_micros(many, size, records, seed), _micros(few, FEW_KEYS, records, seed))
                    for seed in range(rounds)
                ]
            figures.append(
                of_pairs(
                    f"state of {size:,} keys: a record of a random key",
                    pairs,
                    peer_name=f"{FEW_KEYS:,} keys",
                    unit="µs",
                    target=None if quick else 3.0,
                    at_most=True,
                )
            )
    return figures


@contextmanager
def _filled(keys: int) -> Iterator[Path]:
    """Create an app's log and state with `keys` keys."""
    with folder() as path:
        numbers = np.random.default_rng(1).permutation(keys)
        for start in range(0, keys, 20 * CHUNK_RECORDS):
            _produce(path, numbers[start : start + 20 * CHUNK_RECORDS])
            with _app(path) as app:
                app.run(until="idle", progress=False)
        yield path


def _micros(path: Path, keys: int, records: int, seed: int) -> float:
    """Handle records of random keys, and return the microseconds that each has taken."""
    _produce(path, np.random.default_rng(seed).integers(keys, size=records))
    with _app(path) as app:
        watch = Stopwatch()
        handled = app.run(until="idle", progress=False)
        seconds = watch.seconds
    assert handled == records, (handled, records)
    return seconds / records * 1e6


def _app(path: Path) -> sl.App:
    app = sl.App("sizes", log=str(path / "log"), state_dir=path / "state")
    views = app.topic("views", key=str, value=int, partitions=1)
    counts = app.store("counts", key=str, value=int, default=0)

    @app.task(views, stores=[counts])
    def count(record: sl.Record[str, int]) -> None:
        counts[record.key] += record.value

    return app


def _produce(path: Path, numbers: npt.NDArray[np.int64]) -> None:
    """Append one record of each key number."""
    with _app(path) as app:
        app.prepare()
    with changelog.open(path / "log") as log, log.producer() as producer:
        now = SystemClock().now_ms()
        for start in range(0, len(numbers), CHUNK_RECORDS):
            keys = [
                b"user-%08d" % number for number in numbers[start : start + CHUNK_RECORDS].tolist()
            ]
            producer.append_columns("views", keys, [b"\x01"] * len(keys), [now] * len(keys))
