"""Offsets at which tasks go on after they were renamed, moved or removed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.positions import store_number
from strandline.framework.task_positions import PartitionReader, positions_at

RECORDS = 10
FAILS_AT = 5
IN = TopicPartition("in", 0)
TALLY = store_number("n")


@dataclass
class Version:
    """One version of an app that counts records, and sends them to another topic."""

    tally: str | None = "tally"
    """Name of the task that counts; None if there is none."""
    audit: str | None = "audit"
    """Name of the task that sends; None if there is none."""
    fails: bool = False
    """True if the task that sends fails at a record."""
    store_of: str = "tally"
    """Task that has the store: tally or audit."""
    dropped: tuple[str, ...] = ()


def declared(log: Path, version: Version) -> tuple[sl.App, Any, Any, Any]:
    """Return an app with its input, its store and its output."""
    app = sl.App("app", log=log)
    given = app.topic("in", key=str, value=int)
    sent = app.topic("sent", key=str, value=int)
    n = app.counter("n")
    stores: dict[str, list[Any]] = {version.store_of: [n]}

    def count(record: sl.Record[str, int]) -> None:
        if version.store_of == "tally":
            n.add(record.key)

    def send(record: sl.Record[str, int]) -> None:
        if version.fails and record.value == FAILS_AT:
            raise ValueError("a bug")
        if version.store_of == "audit":
            n.add(record.key)
        sent.send(record.key, record.value)

    if version.tally is not None:
        app.task(given, name=version.tally, stores=stores.get("tally", ()))(count)
    if version.audit is not None:
        app.task(given, name=version.audit, stores=stores.get("audit", ()))(send)
    for name in version.dropped:
        app.drop_task(name)
    return app, given, n, sent


def run(log: Path, version: Version) -> tuple[dict[str, int], list[int]]:
    """Run a version until it is idle; return its counts, and the values that were sent."""
    app, _, n, sent = declared(log, version)
    with app:
        app.run(until="idle", progress=False)
        return app.query(n).to_dict(), sent.to_polars()["value"].to_list()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in which one task has handled everything, and another has failed on the way."""
    app, given, n, _ = declared(tmp_path / "log", Version(fails=True))
    with app:
        given.append([("k", value) for value in range(RECORDS)])
        with pytest.raises(sl.TaskFailed):
            app.run(until="idle", progress=False)
        assert app.query(n).to_dict() == {"k": RECORDS}
    return tmp_path / "log"


ALL = ({"k": RECORDS}, list(range(RECORDS)))


def test_a_task_goes_on_at_its_own_offset(log: Path) -> None:
    assert run(log, Version()) == ALL


def test_a_renamed_task_goes_on_at_the_offset_of_its_stores(log: Path) -> None:
    assert run(log, Version(tally="tally-all")) == ALL


def test_a_renamed_task_without_stores_is_refused_until_all_have_handled_the_same(
    log: Path,
) -> None:
    with pytest.raises(
        sl.InvalidConfig, match=r"'audit' at 5, 'tally' at 10.*'audit' does not read"
    ):
        run(log, Version(audit="send"))
    assert run(log, Version()) == ALL
    assert run(log, Version(audit="send")) == ALL


def test_a_new_task_beside_a_dropped_one_begins_at_the_committed_offset(log: Path) -> None:
    counts, sent = run(log, Version(audit="other", dropped=("audit",)))
    assert (counts, sent) == ({"k": RECORDS}, list(range(RECORDS)))


def test_a_removed_task_stops_nobody(log: Path) -> None:
    counts, sent = run(log, Version(audit=None))
    assert (counts, sent) == ({"k": RECORDS}, list(range(FAILS_AT)))


def test_a_store_that_moves_to_a_task_at_another_offset_is_refused(log: Path) -> None:
    moved = Version(store_of="audit")
    with pytest.raises(sl.InvalidConfig, match="'audit' has stores of several of them now"):
        run(log, moved)
    assert run(log, Version()) == ALL
    assert run(log, moved) == ALL


def test_a_refused_run_has_handled_nothing(log: Path) -> None:
    app, given, _, _ = declared(log, Version(audit="send"))
    with app:
        given.append([("k", RECORDS)])
        with pytest.raises(sl.InvalidConfig):
            app.run(until="idle", progress=False)
    assert run(log, Version()) == ({"k": RECORDS + 1}, list(range(RECORDS + 1)))


def test_an_app_that_is_refused_for_one_partition_handles_no_other(tmp_path: Path) -> None:
    many = 24

    def version(*, renamed: bool = False, fails: bool = False) -> tuple[sl.App, Any, Any]:
        app = sl.App("app", log=tmp_path, commit_interval_ms=1, durability="os")
        given = app.topic("in", key=int, value=int, partitions=many)
        n = app.counter("n", key=int)

        @app.task(given, stores=[] if renamed else [n], name="tally")
        def tally(record: sl.Record[int, int]) -> None:
            if not renamed:
                n.add(record.partition)

        @app.task(given, name="send" if renamed else "audit")
        def audit(record: sl.Record[int, int]) -> None:
            if fails and record.partition == many - 1:
                raise ValueError("a bug")

        return app, given, n

    rows = [(key, 0) for key in range(20 * many)]
    app, given, _ = version(fails=True)
    with app:
        given.append(rows)
        with pytest.raises(sl.TaskFailed):
            app.run(until="idle", progress=False)
    app, given, _ = version(renamed=True)
    with app:
        given.append(rows)
        with pytest.raises(sl.InvalidConfig, match=f"different offsets of partition in-{many - 1}"):
            app.run(until="idle", progress=False)
    app, given, n = version()
    with app:
        app.run(until="idle", progress=False)
        assert sum(app.query(n).to_dict().values()) == 2 * len(rows)


def test_a_pending_window_is_that_of_the_renamed_task(tmp_path: Path) -> None:
    def windowed(name: str) -> tuple[sl.App, Any, Any]:
        app = sl.App("app", log=tmp_path / "log")
        given, out = (app.topic(topic, key=str, value=int) for topic in ("in", "out"))
        seen = app.counter("seen")

        @app.task(given, name=name, stores=[seen], window_ms=60_000)
        class Rate:
            def process(self, record: sl.Record[str, int]) -> None:
                seen.add(record.key)

            def window(self) -> None:
                for key, number in seen.all():
                    out.send(key, number)
                    del seen[key]

        return app, given, out

    app, given, _ = windowed("rate")
    with app:
        given.append([("k", 1)] * 3)
        assert app.run(count=3, progress=False) == 3
    app, _, out = windowed("rate-by-key")
    with app:
        app.run(until="end", progress=False)
        assert out.to_polars()["value"].to_list() == [3]


# By the metadata alone --------------------------------------------------------------------


def at(tasks: str, stores: str | None = None) -> CommittedOffset:
    recorded = "" if stores is None else f',"stores":{stores}'
    return CommittedOffset(5, f'{{"tasks":{tasks}{recorded}}}')


def positions(
    committed: CommittedOffset,
    readers: dict[str, Collection[str]],
    has_state: Callable[[str], bool] = lambda _task: False,
) -> dict[str, int]:
    given = [PartitionReader(task, stores) for task, stores in readers.items()]
    return positions_at("app", IN, committed, given, (), has_state)


def test_tasks_at_one_offset_may_have_any_names() -> None:
    assert positions(CommittedOffset(5), {"a": ["n"], "b": []}) == {"a": 5, "b": 5}


def test_a_task_of_two_earlier_ones_at_different_offsets_is_refused() -> None:
    found = at('{"a":5,"b":7}', f'{{"a":[{store_number("m")}],"b":[{TALLY}]}}')
    with pytest.raises(sl.InvalidConfig, match="'a' has stores of several"):
        positions(found, {"a": ["m", "n"]})
    assert positions(found, {"c": ["m"], "d": ["n"]}) == {"c": 5, "d": 7}


def test_a_task_that_was_divided_goes_on_at_its_offset() -> None:
    found = at('{"a":7,"b":5}', f'{{"a":[{store_number("m")},{TALLY}],"b":[]}}')
    assert positions(found, {"a": ["m"], "b": [], "c": ["n"]}) == {"a": 7, "b": 5, "c": 7}


def test_without_recorded_stores_a_task_that_is_gone_is_refused() -> None:
    """As earlier versions have committed it."""
    with pytest.raises(sl.InvalidConfig, match="'b' does not read it any more"):
        positions(at('{"a":5,"b":7}'), {"a": []})
    assert positions(at('{"a":5,"b":7}'), {"a": [], "b": [], "c": []}) == {"a": 5, "b": 7, "c": 5}


def test_without_recorded_stores_a_new_task_with_state_is_refused() -> None:
    found, readers = at('{"a":5,"b":7}'), {"a": [], "b": [], "c": ["n"]}
    with pytest.raises(sl.InvalidConfig, match="'c', which is new, has stores with state"):
        positions(found, readers, lambda task: task == "c")
    assert positions(found, readers)["c"] == 5
