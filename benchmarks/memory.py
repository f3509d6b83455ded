"""Measure anonymous memory of the standard job after many records, against after a tenth of them.

The keys are the same, so the state has about the same size (a count of 200 takes a byte more than
one of 20). Growth beyond that is kept per record, or with time. Each run is a process of its own,
which owns the log and runs the app. When every record has been handled and committed, and the
garbage is collected, it reads `Anonymous` of /proc/self/smaps_rollup with the app still at work,
its stores and the log open. Files that the kernel caches are not included.

Two more figures separate the causes: the highest value on the way, and the value at the end after
the allocators (glibc's, Arrow's) have returned their free pages.

Needs Linux. The input is produced beforehand, by this process.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import strandline as sl
from benchmarks.anonymous import anonymous_mib, give_back
from benchmarks.harness import Figure, compare, folder, of_pairs
from benchmarks.standard_job import app_on, fill

INPUT_BATCH_RECORDS = 100_000
"""Number of records produced at a time, the same for both inputs: batches are read whole."""
SAMPLE_SECONDS = 0.25
STALLED_SECONDS = 300


class Usage(NamedTuple):
    """Anonymous memory in MiB."""

    at_end: float
    highest: float
    used: float
    """MiB at the end, without free pages."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure MiB at 20,000,000 records and at 2,000,000 (target: at most 1.1 times as much).

    Quick, with 1,000,000 and 200,000 records, it only shows that the workload runs, because caches
    are still filling then.
    """
    few, many = (200_000, 1_000_000) if quick else (2_000_000, 20_000_000)
    usages: dict[int, list[Usage]] = {few: [], many: []}

    def at_end(count: int) -> float:
        usages[count].append(_usage(count))
        return usages[count][-1].at_end

    figure = compare(
        f"memory at {many:,} records",
        lambda: at_end(many),
        lambda: at_end(few),
        peer_name=f"at {few:,}",
        unit="MiB",
        target=1.1,
        at_most=True,
        rounds=1 if quick else 3,
        warm_up=False,
    )
    pairs = list(zip(usages[many], usages[few], strict=True))
    return [
        figure,
        _same_runs(figure, "highest on the way", [(m.highest, f.highest) for m, f in pairs]),
        _same_runs(figure, "without free pages", [(m.used, f.used) for m, f in pairs]),
    ]


def _same_runs(figure: Figure, what: str, pairs: list[tuple[float, float]]) -> Figure:
    """Return a comparison of the same runs by another value."""
    return of_pairs(
        f"{figure.name}, {what}",
        pairs,
        peer_name=figure.peer_name,
        unit=figure.unit,
        at_most=True,
    )


def _usage(count: int) -> Usage:
    with folder() as path:
        fill(path, count, at_once=INPUT_BATCH_RECORDS)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(_run_and_measure, path, count).result()


# The measured process ----------------------------------------------------------------


def _run_and_measure(path: Path, count: int) -> Usage:
    with app_on(path) as app:
        worker = threading.Thread(target=app.run, kwargs={"progress": False})
        worker.start()
        try:
            highest = _watch(lambda: _handled(app), count, worker)
            gc.collect()
            at_end = anonymous_mib()
            give_back()
            used = anonymous_mib()
        finally:
            app.stop()
            worker.join()
    return Usage(at_end, max(highest, at_end), used)


def _watch(handled: Callable[[], int], count: int, worker: threading.Thread) -> float:
    """Wait until `count` records are handled. Return the highest value on the way."""
    highest = 0.0
    before, stalled = 0, 0.0
    while (now := handled()) < count:
        assert worker.is_alive(), f"the app has ended at {now:,} of {count:,} records"
        stalled = 0.0 if now > before else stalled + SAMPLE_SECONDS
        assert stalled < STALLED_SECONDS, f"the app stands still at {now:,} of {count:,} records"
        before = now
        highest = max(highest, anonymous_mib())
        worker.join(SAMPLE_SECONDS)
    return highest


def _handled(app: sl.App) -> int:
    """Return the number of committed input records: `fill` uses no transactions, so offsets count
    them."""
    committed = app.broker().committed(app.name, require_stable=False)
    return sum(position.offset for position in committed.values())
