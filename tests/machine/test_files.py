"""As many open files as the system allows a process, and an error that names the limit beyond."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, resource, sys
from collections import Counter
folder, limit, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 1_024), limit))
import strandline as sl
from strandline.statestore.spec import StoreLimits

app = sl.App("app", log=folder, durability="os")
words = app.topic("words", value=int)
now = StoreLimits(checkpoint_interval_ms=0)
stores = [app.store(f"s{n}", value=int, default=0, limits=now) for n in range(count)]

@app.task(words, stores=stores)
def count_in_all(record):
    for store in stores:
        store[record.key] += 1

for _ in range(2):
    words.append([("a", 1), ("b", 1)])
    app.run("idle")
keys = words.to_polars()["key"].to_list()
print(len(keys), *(app.query(stores[n]).to_dict() == dict(Counter(keys)) for n in (0, -1)))
app.close()
"""
"""Count in many stores, and compare the first and the last one with the input."""


def run(
    repository: Path, folder: Path, *, limit: int, stores: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(limit), str(stores)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.long
@pytest.mark.slow
def test_two_hundred_stores_run_with_4096_open_files(tmp_path: Path, repository: Path) -> None:
    done = run(repository, tmp_path / "log", limit=4_096, stores=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 True True\n"


def test_the_limit_of_open_files_is_named_and_the_app_continues_with_a_higher_one(
    tmp_path: Path, repository: Path
) -> None:
    done = run(repository, tmp_path / "log", limit=100, stores=20)
    assert done.returncode != 0
    assert "TooManyFiles: cannot " in done.stderr
    assert "(limit 100, at most 100); raise it with `ulimit -n`" in done.stderr
    done = run(repository, tmp_path / "log", limit=1_024, stores=20)
    assert done.returncode == 0, done.stderr
    # The first process may have failed before or after it had appended its second records.
    assert done.stdout in ("6 True True\n", "8 True True\n")
