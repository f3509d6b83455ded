"""Processes that load while records are produced, killed at any moment: each record is there once.

STRANDLINE_KILLS=200 sets the number of kills for each format.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from random import Random

import pytest

import strandline as sl
from strandline.changelog.log import Log
from strandline.framework.offload.api import Format
from tests.forms import by_form, first_of
from tests.offload.kit import (
    FORMATS,
    HOUR_MS,
    PERIODS,
    SALE,
    append,
    by_pattern,
    committed,
    create,
    data_files,
    places,
    sales,
    stored,
)
from tests.offload.victim import compete, live

MOST_STEPS = 40
"""Maximum number of batches that a process reads before it is killed."""
LONGEST_S = 0.1
"""Longest time in seconds that it lives after that."""
BOUND_S = 120.0
PAUSE_S = 0.05
"""Seconds between two appends, so that the loads keep up."""
PARTITIONS = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Fork server that has imported everything, so that processes start quickly."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.offload.victim"])
    return context


@contextmanager
def producing(log: Log) -> Iterator[list[int]]:
    """Append rows without end, some in transactions that are aborted; yield their number."""
    count, stop = [0], threading.Event()

    def produce() -> None:
        producer = log.producer(transactional_id="producer")
        while not stop.wait(PAUSE_S):
            append(log, "t", sales(count[0], 60, every_ms=HOUR_MS // 20), PARTITIONS)
            count[0] += 60
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                row = {"user": -1, "amount": 0.0, "name": "aborted"}
                producer.send("t", row, partition=partition)
            producer.flush()
            producer.abort_transaction()
        producer.close()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join(BOUND_S)


@pytest.mark.parametrize("form", first_of(FORMATS, 1))
def test_killed_loads_leave_each_record_once(
    processes: ForkServerContext,
    log: Log,
    to: Path,
    form: Format,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kills = int(os.environ.get("STRANDLINE_KILLS", by_form("6", "40")))
    chance = Random(form)
    create(log, "t", PARTITIONS, schema=SALE)
    with producing(log) as count:
        for _ in range(kills):
            steps = processes.Semaphore(0)
            victim = processes.Process(target=live, args=(tmp_path / "log", to, form, steps))
            victim.start()
            try:
                for _ in range(chance.randrange(MOST_STEPS)):
                    assert steps.acquire(timeout=BOUND_S), "it loads nothing"
                victim.join(chance.random() * LONGEST_S)
                assert victim.is_alive(), f"it ended by itself: {victim.exitcode}"
            finally:
                victim.kill()
                victim.join(BOUND_S)
            if form == "parquet":
                seen = places(by_pattern(to)) if to.exists() else []
                assert len(set(seen)) == len(seen)
    killed_in = len(data_files(to))
    sl.offload("t", to, log=log, format=form, partition_by=PERIODS[1])
    found = stored(form, to)
    assert places(found) == committed(log, "t")
    assert sorted(found["user"].to_pylist()) == list(range(count[0]))
    with capsys.disabled():
        print(f"\n{form}: {kills} kills, {killed_in} files, {len(found):,} records", end=" ")
    assert killed_in > 0


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
def test_loads_beside_each_other_leave_each_record_once(
    processes: ForkServerContext, log: Log, to: Path, form: Format, tmp_path: Path
) -> None:
    create(log, "t", PARTITIONS, schema=SALE)
    append(log, "t", sales(0, 2_000, every_ms=HOUR_MS // 20), PARTITIONS)
    arguments = (tmp_path / "log", to, form, 2)
    beside = [processes.Process(target=compete, args=arguments) for _ in range(2)]
    with producing(log):
        for process in beside:
            process.start()
        for process in beside:
            process.join(BOUND_S)
    assert [process.exitcode for process in beside] == [0, 0]
    sl.offload("t", to, log=log, format=form, partition_by=PERIODS[1])
    assert places(stored(form, to)) == committed(log, "t")
