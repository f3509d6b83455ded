"""Out of memory: it is reported as such, not as damage or a fault of the record, and work
continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.changelog.errors import CorruptLog, OutOfMemory
from strandline.changelog.local_storage import LocalStorage
from strandline.framework import decoding
from strandline.framework.container import commit
from strandline.framework.testing import TestDriver
from tests.exactly_once.apps import expected, running_totals, totals_sent
from tests.exactly_once.flaky import Flaky
from tests.log.kit import Client, World

GIVEN = [(key, 1) for key in "abacabad"]
ARROWS = pa.lib.ArrowMemoryError


@pytest.mark.parametrize("error", [MemoryError, ARROWS])
def test_a_batch_that_cannot_be_decoded_for_lack_of_memory_is_not_called_damaged(
    error: type[MemoryError], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.owner.create_topic("t")
    Client(world).append(*[b"x"] * 100)

    def none_left(*_: object) -> None:
        raise error("malloc of size 12345 failed")

    with monkeypatch.context() as patched:
        patched.setattr(pa.ipc, "read_record_batch", none_left)
        with pytest.raises(
            OutOfMemory, match=r"decode 100 records .*malloc of size 12345"
        ) as caught:
            world.values()
    assert not isinstance(caught.value, CorruptLog)
    assert world.values() == [b"x"] * 100


def test_a_read_that_is_too_large_names_the_file_and_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(LocalStorage(tmp_path))
    world.owner.create_topic("t")
    Client(world).append(b"x" * 100_000)

    def none_left(size: int) -> None:
        raise ARROWS(f"malloc of size {size} failed")

    with monkeypatch.context() as patched:
        patched.setattr(pa, "allocate_buffer", none_left)
        with pytest.raises(OutOfMemory, match=r"read 100\d+ bytes of .*\.log"):
            world.values()
    assert world.values() == [b"x" * 100_000]
    world.owner.close()


# Apps ---------------------------------------------------------------------------------


def none_left(*_: object, **__: object) -> None:
    raise ARROWS("malloc of size 12345 failed")


@pytest.mark.parametrize("where", ["_changes", "_outputs", "_append", "_apply", "checkpoint"])
def test_a_commit_without_memory_stops_the_app_and_the_next_run_continues(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, out, seen = running_totals()
    with TestDriver(app) as driver:
        driver.run(GIVEN)
        driver._take(GIVEN)
        with monkeypatch.context() as patched:
            if where == "checkpoint":
                patched.setattr(
                    "strandline.framework.container.committer.checkpoint_if_due", none_left
                )
            else:
                patched.setattr(commit, where, none_left)
            with pytest.raises(MemoryError):
                driver.settle()
        driver.crash().run(GIVEN)
        assert (driver.store(seen), totals_sent(driver, out)) == expected(GIVEN * 3)


@pytest.mark.parametrize("call", ["append", "add_offsets", "end_transaction"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_log_without_memory_stops_the_app_and_the_next_run_continues(
    call: str, when: str
) -> None:
    app, out, seen = running_totals()
    with TestDriver(app) as driver:
        driver.run(GIVEN)
        driver._take(GIVEN)
        error = MemoryError("none left")
        Flaky(driver.owner).will({call: [error if when == "before" else ("after", error)]})
        with pytest.raises(MemoryError):
            driver.settle()
        driver.crash().run(GIVEN)
        assert (driver.store(seen), totals_sent(driver, out)) == expected(GIVEN * 3)


@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
@pytest.mark.parametrize("where", ["handler", "decoding"])
def test_no_policy_skips_a_record_for_lack_of_memory(
    policy: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)
    seen = app.store("seen", value=int, default=0)
    fails = [where == "handler"]

    @app.task(words, stores=[seen], on_error=policy)
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1
        if fails[0] and record.key == "c":
            raise MemoryError

    with TestDriver(app) as driver:
        with monkeypatch.context() as patched:
            if where == "decoding":
                patched.setattr(decoding, "_headers", none_left)
            with pytest.raises(MemoryError):
                driver.run(GIVEN)
        fails[0] = False
        driver.crash().settle()
        assert driver.store(seen) == expected(GIVEN)[0]


PROGRAM = """
import resource, sys
import strandline as sl
from strandline.changelog.errors import OutOfMemory

app = sl.App("app", log=sys.argv[1])
blobs = app.topic("blobs", value=bytes, config={"max.message.bytes": str(200 << 20)})
sizes = app.store("sizes", value=int, default=0)
HARD = resource.getrlimit(resource.RLIMIT_AS)[1]

@app.task(blobs, stores=[sizes], on_error="skip")
def measure(record):
    if record.key == "small" and sys.argv[2] == "limited":  # now, as threads need memory too
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (90 << 20), HARD))
    sizes[record.key] = len(record.value)

if sys.argv[2] == "fill":
    blobs.append([("small", b"x")])
    blobs.append([("large", b"x" * (160 << 20))])
else:
    try:
        app.run("idle")
    except OutOfMemory as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_AS, (HARD, HARD))
    print(sorted(app.query(sizes).to_dict().items()))
app.close()
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce RLIMIT_AS")
def test_a_record_too_large_for_the_limit_stops_the_app_until_it_is_raised(
    tmp_path: Path, repository: Path
) -> None:
    said = []
    for step in ("fill", "limited", "again"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), step],
            cwd=repository,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said += done.stdout.splitlines()
    assert said[0].startswith("no memory to ")
    assert said[-1] == str([("large", 160 << 20), ("small", 1)])
