"""A short run of the battery, and tests that it finds broken promises.

`make battery` runs all of it (tests/crash/battery.py).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.changelog.embedded import document
from strandline.changelog.embedded.transaction_log import TransactionLog
from strandline.changelog.producer_state import ProducerStates
from strandline.changelog.storage import Storage
from strandline.framework.container.commit import COMMITS
from tests.crash.battery import PARTS, alone, gaps
from tests.crash.images import KILL, Score, Tried, judge
from tests.crash.lives import Share, filmed, image_at, visited, visited_by_recovery
from tests.crash.oracle import Promise
from tests.crash.points import POINTS, STEPS
from tests.crash.recoveries import known
from tests.crash.tally import SnapshotEngine
from tests.crash.twin import PowerStorage
from tests.crash.workload import Scene, WindowedScene

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("changelog", "statestore")
SHORT = {
    "stops": 193,
    "stops, os": 167,
    "torn": 20_011,
    "failures": 797,
    "windows": 257,
    "windows, failures": 401,
    "recoveries": 251,
    "recoveries, os": 499,
    "recoveries, all points": 353,
    "pairs": 193,
}
"""Stride of each part in this short run."""
LONGEST = {"torn", "windows, failures", "stops, os", "recoveries, os", "recoveries, all points"}
"""Parts of the long form only."""


@pytest.fixture(autouse=True)
def one_thing_after_another() -> Iterator[None]:
    with alone():
        yield


@pytest.mark.parametrize(
    "part",
    [pytest.param(p, marks=[pytest.mark.long] if p in LONGEST else []) for p in PARTS],
)
def test_no_death_breaks_a_promise(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    score = PARTS[part](Share(0, SHORT[part]))
    with capsys.disabled():
        print(f"\n{part}: {len(score.points)} points, {score.deaths.total()} deaths", end=" ")
    assert not score.broken, "\n".join(score.lines())
    assert len(score.points) > 1
    assert score.deaths.total() > 4


def test_every_operation_has_a_name_and_every_name_is_visited() -> None:
    met = {*visited("fsync"), *visited("os"), *visited(script=WindowedScene)}
    for base in known():
        met.update(visited_by_recovery(*base))
    assert met - POINTS == set(), "an operation without a name"
    assert POINTS - met == set(), "a name that nothing goes through"


def test_every_step_is_a_function_that_there_is() -> None:
    found = set()
    for module in (path for top in PACKAGES for path in (ROOT / top).rglob("*.py")):
        for node in ast.parse(module.read_text()).body:
            found.add(getattr(node, "name", ""))
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{getattr(one, 'name', '')}" for one in node.body}
    assert STEPS.keys() - found == {"SnapshotEngine.__init__"}  # it is the battery's own


def test_the_workload_is_always_the_same() -> None:
    assert visited() == visited()


def test_a_life_is_skipped_only_if_it_begins_like_another() -> None:
    image = image_at(visited(), "append.segment.append")
    score, tried = Score(), Tried()
    spared = []
    for written in (image.torn_at(10), image.torn_at(20), image):  # two torn, one whole
        judge(score, written, KILL, tried=tried)
        spared.append(score.spared)
    assert spared == [0, 1, 1]


# The battery can fail --------------------------------------------------------------------


def first_broken(
    point: str, storage: PowerStorage | None = None, script: type[Scene] = Scene
) -> set[Promise]:
    """Return the promises broken by the first case that breaks any: deaths after the named
    point."""
    numbers = {at for at, name in enumerate(visited(script=script), start=1) if name == point}
    score = Score()
    for image in filmed(numbers.__contains__, storage=storage, script=script):
        for death in image.any_death()[:3]:
            judge(score, image, death)
            if score.broken:
                return set(score.broken)
    return set()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "where", "point", "broken"),
    [
        ("fsync", f"topics/{4:032x}/.*log", "append.segment.fsync", "acknowledged"),
        ("fsync", "topics/", "prepare.transactions.append", "opens"),
        ("fsync", "config", "config.root.sync_dir", "opens"),
        ("sync_dir", "topics/", "roll.manifest.append", "identities"),
        ("sync_dir", "", "checkpoint.store.append", "opens"),
        ("sync_dir", "pins/", "drop.manifest.append", "pins"),
    ],
)
def test_the_battery_detects_a_disk_that_lies(
    kind: str, where: str, point: str, broken: Promise
) -> None:
    storage = PowerStorage()  # the log's fourth identifier belongs to its first topic
    storage.lies = lambda operation: (
        operation.kind == kind and bool(re.match(where, operation.path))
    )
    assert first_broken(point, storage) == {broken}


@pytest.mark.long
def test_the_battery_detects_a_commit_without_the_fsync_of_its_prepare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TransactionLog, "sync", lambda _: None)
    assert first_broken("settle.segment.fsync") == {"state"}


def test_the_battery_detects_retries_that_are_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda *_: None)
    assert first_broken("append.segment.fsync") == {"acknowledged"}


def test_the_battery_detects_outputs_outside_the_transaction_of_the_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COMMITS, "exactly_once", COMMITS["at_least_once"])  # type: ignore[misc]
    assert first_broken("offsets.offsets.append") == {"state"}


@pytest.mark.long
def test_the_battery_detects_windows_that_are_sent_before_their_state_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COMMITS, "exactly_once", COMMITS["at_least_once"])  # type: ignore[misc]
    assert first_broken("offsets.offsets.append", script=WindowedScene) <= {"outputs", "state"}


def test_the_battery_detects_a_store_that_leaves_out_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = SnapshotEngine.write

    def forgetful(engine: SnapshotEngine, keys: Any, values: Any, *rest: Any) -> None:
        write(engine, list(keys)[:-1], list(values)[:-1], *rest)

    monkeypatch.setattr(SnapshotEngine, "write", forgetful)
    assert first_broken("checkpoint.store.sync_dir") == {"state"}


def test_the_battery_detects_a_document_that_is_written_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(storage: Storage, path: str, content: bytes) -> None:
        storage.unlink(path)
        storage.create(path).append(content)

    monkeypatch.setattr(document, "replace", write)
    image = image_at(visited(), "roll.manifest.append")
    score = Score()
    for size in (1, 100):
        judge(score, image.torn_at(size), KILL)
    assert score.broken == {"check": 2}


def test_a_whole_run_names_the_points_that_it_leaves_out() -> None:
    score = Score(points=Counter(POINTS))
    score.visit("")  # a failure that had nothing to do
    assert gaps(score) == []
    del score.points["prepare.transactions.fsync"]
    score.visit("somewhere.else")
    assert gaps(score) == [
        "no stop or failure at prepare.transactions.fsync",
        "not in the table of points: somewhere.else",
    ]


def test_the_battery_detects_a_flipped_bit() -> None:
    image = image_at(visited(), "roll.manifest.rename")
    first, *others = image.storage.paths("topics", ".log")
    partition = first.rpartition("/")[0]
    for path in (first, *others):  # cleaning may have replaced any of the files
        if path.startswith(partition) and image.storage.open(path).size():
            image.storage.flip(path, 200)
    score = Score()
    judge(score, image, KILL)
    assert set(score.broken) == {"check"}
