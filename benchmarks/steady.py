"""Memory over time: an app that handles 4,000 records a second for 26 minutes, with a small state.

It counts the records of 100,000 users and sends each count, as the standard job does. Its anonymous
memory at the end is compared with that after a quarter of the time: growth beyond caches that have
a limit would go on for ever.

Three processes take part: one owns the log and runs the app, which is measured, one appends, and
this one looks. Needs Linux.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import strandline as sl
from benchmarks.anonymous import anonymous_mib
from benchmarks.harness import Figure, folder, of_pairs
from strandline import changelog

RECORDS_PER_S = 4_000
APPENDS_PER_S = 10
USERS = 100_000
PARTITIONS = 4


def run(*, quick: bool = False) -> list[Figure]:
    """Measure MiB after 26 minutes (target: at most 1.1 times as much as after a quarter)."""
    seconds = 20 if quick else 26 * 60
    with folder() as path:
        context = get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=context) as processes:
            measured = processes.submit(_run_and_measure, path, seconds)
            producing = processes.submit(_produce, path, 2 * seconds)
            quarter, end, handled = measured.result()
            producing.result()
    rate = handled / seconds
    return [
        of_pairs(
            f"memory after {seconds / 60:.0f} minutes of {rate:,.0f} records/s",
            [(end, quarter)],
            peer_name="after a quarter of them",
            unit="MiB",
            target=None if quick else 1.1,
            at_most=True,
        )
    ]


# The measured process ----------------------------------------------------------------


def _run_and_measure(path: Path, seconds: float) -> tuple[float, float, int]:
    """Return MiB after a quarter of the time and at the end, and the number of records handled."""
    app = sl.App("count", log=path / "log", state_dir=path / "state")
    users = app.topic("users", key=str, value=int, partitions=PARTITIONS)
    counts = app.topic("counts", key=str, value=int, partitions=PARTITIONS)
    seen = app.store("seen", key=str, value=int, default=0)
    handled = 0

    @app.task(users, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        nonlocal handled
        handled += 1
        seen[record.key] += 1
        counts.send(record.key, seen[record.key])

    with app:
        app.broker()
        (path / "ready").touch()
        worker = threading.Thread(target=app.run, kwargs={"progress": False}, daemon=True)
        worker.start()
        until, samples = time.monotonic() + seconds, []
        while time.monotonic() < until:
            worker.join(seconds / 80)
            assert worker.is_alive(), "the app has ended"
            samples.append(anonymous_mib())
        (path / "done").touch()
        time.sleep(1)  # the last append has ended
        app.stop()
        worker.join()
    # The median of some samples, because a commit or the cleaner may be at work in one.
    quarter = sorted(samples[16:24])[4]
    return quarter, sorted(samples[-8:])[4], handled


# The process that appends ------------------------------------------------------------


def _produce(path: Path, seconds: float) -> None:
    while not (path / "ready").exists():
        time.sleep(0.05)
    with changelog.open(path / "log", role="attach_or_spawn") as log:
        app = sl.App("produce", log=log)
        users = app.topic("users", key=str, value=int, partitions=PARTITIONS)
        chance, begun = random.Random(1), time.monotonic()
        batch = RECORDS_PER_S // APPENDS_PER_S
        for number in range(int(seconds * APPENDS_PER_S)):
            time.sleep(max(0.0, begun + number / APPENDS_PER_S - time.monotonic()))
            if (path / "done").exists():
                return
            users.append([(f"user-{chance.randrange(USERS):06}", at) for at in range(batch)])
