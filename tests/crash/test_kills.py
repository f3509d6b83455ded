"""Processes with RocksDB, killed at any moment: the promises hold in the next process.

STRANDLINE_KILLS=200 sets the number of kills.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import pytest

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.layout import STATE
from strandline.changelog.local_storage import LocalStorage
from strandline.statestore.checking.stores import check_stores
from strandline.statestore.engines.rocksdb import DATABASE
from tests.crash.victim import Process, live

SHORT, LONG = 0.4, 2.5
"""Longest lives in seconds, opening and restore included. Half of the lives are short."""
FIRST_WORDS = 50
STORES = 6
"""Number of partitions of all stores, that of the timers included."""
BOUND = 60.0
LIVES = 10
"""Number of lives in one folder before it is judged."""


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Fork server that has imported everything, so that processes start quickly."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.victim"])
    return context


def kill_one(processes: ForkServerContext, folder: Path, chance: Random, *, is_first: bool) -> None:
    """Start a process, and kill it some time later.

    The first one is killed after it has sent FIRST_WORDS words and has written all stores.
    """
    begun = processes.Event()
    victim = processes.Process(
        target=live,
        args=(folder / "log", folder / "acknowledged", begun),
        kwargs={"ingest": chance.random() < 0.5},
        daemon=True,
    )
    victim.start()
    try:
        assert begun.wait(BOUND)
        if is_first:
            _wait_for_stores(folder, victim)
        victim.join(chance.random() * chance.choice((SHORT, LONG)))
        assert victim.is_alive(), f"it ended by itself: {victim.exitcode}"
    finally:
        victim.kill()
        victim.join(BOUND)


def _wait_for_stores(folder: Path, victim: BaseProcess) -> None:
    deadline = time.monotonic() + BOUND
    while len(acknowledged(folder)) < FIRST_WORDS or num_written(folder) < STORES:
        assert time.monotonic() < deadline, "it sends nothing, or does not write its stores"
        victim.join(0.01)
        assert victim.is_alive(), f"it ended by itself: {victim.exitcode}"


def num_written(folder: Path) -> int:
    """Return the number of stores that have a database."""
    return sum(1 for _ in (folder / "log" / STATE).rglob(f"{DATABASE}/CURRENT"))


def acknowledged(folder: Path) -> set[int]:
    """Return the words that were acknowledged."""
    path = folder / "acknowledged"
    return {int(line) for line in path.read_bytes().split()} if path.exists() else set()


def judge(folder: Path) -> int:
    """Check log, stores and outputs left by killed processes. Return the number of words."""
    process = Process(folder / "log", background=False)
    try:
        process.runner.judge(finished=False)
        process.runner.work()
        process.runner.judge(finished=True)
        sent = sorted(process.words())
    finally:
        process.close()
    assert acknowledged(folder) <= set(sent)
    assert sent == list(range(1, len(sent) + 1))
    checked = check_log(LocalStorage(folder / "log"))
    check_stores(folder / "log", checked)
    found = [f for f in checked.report.findings if f.severity > Severity.NOTE]
    assert found == []
    assert checked.report.stores == STORES
    return len(sent)


def kills(processes: ForkServerContext, root: Path, rounds: int) -> Iterator[int]:
    """Run rounds of LIVES, each in its own folder. Yield the number of words of each."""
    for number in range(rounds):
        folder, chance = root / str(number), Random(number)
        folder.mkdir()
        for life in range(LIVES):
            kill_one(processes, folder, chance, is_first=not life)
        yield judge(folder)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_killed_processes_leave_a_log_and_stores_that_keep_every_promise(
    processes: ForkServerContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = int(os.environ.get("STRANDLINE_KILLS", "10"))
    words = list(kills(processes, tmp_path, -(-wanted // LIVES)))
    with capsys.disabled():
        print(f"\n{len(words) * LIVES} kills, {sum(words):,} words", end=" ")
    assert min(words) >= FIRST_WORDS
