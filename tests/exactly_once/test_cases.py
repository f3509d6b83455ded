"""`[0, 1, CRASH, 2]`: each case runs in memory and on a folder on disk with RocksDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.framework.testing import CRASH, TestDriver

Open = Callable[[sl.App], TestDriver]


@pytest.fixture(params=["memory", "folder"])
def driver_of(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    folder = None if request.param == "memory" else tmp_path
    return lambda app: TestDriver(app, folder=folder)


def summing(commit_records: int = 100) -> tuple[sl.App, Any, Any]:
    """Return an app that adds up values and sends the sum."""
    app = sl.App("sums", commit_records=commit_records)
    numbers, out = app.topic("numbers", value=int), app.topic("out", value=int)
    state = app.store("state", value=int, default=0)

    @app.task(numbers, stores=[state])
    def add(record: sl.Record[str, int]) -> None:
        state["sum"] += record.value
        out.send("sum", state["sum"])

    return app, out, state


@pytest.mark.parametrize("commit_records", [1, 2, 100])
@pytest.mark.parametrize(
    ("given", "sums"),
    [
        ([], []),
        ([CRASH], []),
        ([1], [1]),
        ([1, CRASH], [1]),
        ([CRASH, 1], [1]),
        ([0, 1, CRASH, 2], [0, 1, 3]),
        ([0, 1, CRASH, CRASH, 2], [0, 1, 3]),
        ([1, CRASH, 2, CRASH, 3, CRASH, 4], [1, 3, 6, 10]),
        ([1, 1, 1, 1, 1, CRASH, 1, 1, CRASH, 1], [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_each_record_counts_once(
    driver_of: Open, given: list[Any], sums: list[int], commit_records: int
) -> None:
    app, out, state = summing(commit_records)
    driver = driver_of(app).run(given)
    assert [record.value for record in driver.output(out)] == sums
    assert driver.store(state).get("sum", 0) == (sums[-1] if sums else 0)


def test_state_survives_many_crashes_and_checkpoints(driver_of: Open) -> None:
    app, out, state = summing()
    driver = driver_of(app)
    for n in range(1, 5):
        driver.run([n])
        driver.advance(60_000)
        driver.run([0, CRASH])
    assert driver.store(state) == {"sum": 10}
    assert [r.value for r in driver.output(out)] == [1, 1, 3, 3, 6, 6, 10, 10]


def test_deletions_survive_a_crash(driver_of: Open) -> None:
    app = sl.App("app", commit_records=1)
    words, seen = app.topic("words", value=int), app.store("seen", value=int)

    @app.task(words, stores=[seen])
    def toggle(record: sl.Record[str, int]) -> None:
        if record.key in seen:
            del seen[record.key]
        else:
            seen[record.key] = record.value

    driver = driver_of(app).run([("a", 1), ("b", 2), ("a", 3), CRASH, ("c", 4), ("b", 5), CRASH])
    assert driver.store(seen) == {"c": 4}


def test_a_pipeline_through_a_repartition_topic_survives_crashes(driver_of: Open) -> None:
    app = sl.App("app", commit_records=3)
    words = app.topic("words", value=str, partitions=2)
    by_value = app.repartition(words, lambda record: record.value, name="by-value", partitions=3)
    out, seen = app.topic("out", value=int), app.store("seen", value=int, default=0)

    @app.task(by_value, stores=[seen])
    def count(record: sl.Record[str, str]) -> None:
        seen[record.key] += 1
        out.send(record.key, seen[record.key])

    given = [(str(n), "xyz"[n % 3]) for n in range(12)]
    driver = driver_of(app).run([*given[:5], CRASH, *given[5:8], CRASH, *given[8:]])
    assert driver.store(seen) == {"x": 4, "y": 4, "z": 4}
    for key in "xyz":
        assert [r.value for r in driver.output(out) if r.key == key] == [1, 2, 3, 4]


def test_a_query_shows_the_committed_state_of_the_task(driver_of: Open) -> None:
    app, _, state = summing()
    driver = driver_of(app).run([1, 2, CRASH, 3])
    app.log = driver.owner
    view = app.query(state)
    assert view.to_dict() == {"sum": 6}
    assert (view["sum"], view.get("none", 7), "sum" in view) == (6, 7, True)
    driver.run([4])
    assert view.to_dict() == {"sum": 10}
