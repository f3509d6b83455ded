"""An app does not run if it would leave behind pending timers of a task, or records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.framework.cli.plan import show

FAR_MS = 4_000_000_000_000


def reminding(log: Path, *, app: str = "app", task: str = "remind", timers: bool = True) -> Any:
    """Return an app with one task that sets a timer for each record, and a list of fired timers."""
    made = sl.App(app, log=log)
    words = made.topic("words", key=str, value=int)
    made.fired = []  # type: ignore[attr-defined]

    @made.task(words, name=task)
    def remind(record: sl.Record[str, int]) -> None:
        if timers and record.value:
            sl.set_timer(record.key, record.timestamp + 10)

    if timers:

        @made.on_timer(task)
        def fire(name: str) -> None:
            made.fired.append(name)  # type: ignore[attr-defined]

    return made, words


def run(app: Any) -> list[str]:
    with app:
        app.run(until="idle", progress=False)
    return app.fired  # type: ignore[no-any-return]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with an app that has run and has two pending timers."""
    app, words = reminding(tmp_path / "log")
    words.append([("a", 1, 1_000), ("b", 1, 1_001)])
    run(app)
    return tmp_path / "log"


def test_a_renamed_task_does_not_lose_its_timers(log: Path) -> None:
    renamed, _ = reminding(log, task="renamed")
    with renamed, pytest.raises(sl.InvalidConfig, match="2 pending timers of task 'remind'.*name="):
        renamed.run(until="idle", progress=False)
    app, words = reminding(log)
    words.append([("c", 0, 5_000)])
    assert run(app) == ["a", "b"]


def test_a_task_that_has_lost_its_timer_function_does_not_run(log: Path) -> None:
    app, _ = reminding(log, timers=False)
    with app, pytest.raises(sl.InvalidConfig, match="has no on_timer any more"):
        app.run(until="idle", progress=False)


def test_a_refused_run_has_handled_nothing(log: Path) -> None:
    renamed, words = reminding(log, task="renamed")
    with renamed:
        words.append([("c", 0, 5_000)])
        with pytest.raises(sl.InvalidConfig):
            renamed.run(until="idle", progress=False)
    assert run(reminding(log)[0]) == ["a", "b"]


def test_timers_may_be_dropped_and_exist_if_the_task_is_declared_again(log: Path) -> None:
    renamed, words = reminding(log, task="renamed")
    renamed.drop_task("remind")
    words.append([("c", 0, 5_000)])
    assert run(renamed) == []
    app, words = reminding(log)
    app.drop_task("renamed")
    words.append([("d", 0, 6_000)])
    assert run(app) == ["a", "b"]


def test_the_changelog_of_dropped_timers_may_be_deleted(log: Path) -> None:
    """Declared stores must not be lost; these timers are not needed any more."""
    renamed, words = reminding(log, task="renamed")
    renamed.drop_task("remind")
    words.append([("c", 0, 5_000)])
    assert run(renamed) == []
    with changelog.open(log) as opened:
        opened.delete_topic("app-remind-timers-changelog")
    renamed, _ = reminding(log, task="renamed")
    renamed.drop_task("remind")
    assert run(renamed) == []


def test_dropped_timers_can_be_deleted_for_good_as_orphans(log: Path) -> None:
    """A later task of the same name, which may be another one, does not fire them then."""
    renamed, words = reminding(log, task="renamed")
    renamed.drop_task("remind")
    with renamed:
        show(renamed, str(log), drop_orphans=True, yes=True, json=True)
    app, words = reminding(log)
    words.append([("c", 0, 5_000)])
    assert run(app) == []


def test_a_reset_deletes_the_timers_of_dropped_tasks(log: Path) -> None:
    renamed, _ = reminding(log, task="renamed")
    renamed.drop_task("remind")
    with renamed:
        renamed.run(until="idle", progress=False)
        renamed.reset()
        topics = {topic.name for topic in renamed.broker().topics()}
    assert "app-remind-timers-changelog" not in topics


def test_a_task_with_timers_cannot_be_dropped(tmp_path: Path) -> None:
    app, _ = reminding(tmp_path / "log")
    with pytest.raises(sl.InvalidConfig, match="declared and has timers"):
        app.drop_task("remind")


def test_a_task_whose_timers_have_all_fired_may_be_removed(log: Path) -> None:
    app, words = reminding(log)
    words.append([("c", 0, 5_000)])
    assert run(app) == ["a", "b"]
    assert run(reminding(log, task="renamed")[0]) == []


def test_timers_of_an_app_with_a_longer_name_are_ignored(tmp_path: Path) -> None:
    other, words = reminding(tmp_path / "log", app="app-eu")
    words.append([("a", 1, 1_000)])
    run(other)
    assert run(reminding(tmp_path / "log")[0]) == []


# Records in repartition topics -----------------------------------------------------------------

RECORDS = 100


def counting(log: Path, name: str | None) -> tuple[sl.App, Any, Any]:
    """Return an app that counts records by another key; through a topic of a name, or directly."""
    app = sl.App("app", log=log)
    sales = app.topic("sales", key=str, value=int, partitions=2)
    source = sales if name is None else app.repartition(sales, _by_digit, name=name, key_type=int)
    counts = app.counter("counts", key=int)

    @app.task(source, stores=[counts], name="count")
    def count(record: sl.Record[Any, int]) -> None:
        counts.add(record.value % 10)

    return app, sales, counts


def _by_digit(record: sl.Record[str, int]) -> int:
    return record.value % 10


@pytest.fixture
def half_way(tmp_path: Path) -> Path:
    """A log in which records are unhandled in a repartition topic."""
    app, sales, counts = counting(tmp_path / "log", "by-digit")
    with app:
        sales.append([(f"shop-{n % 7}", n) for n in range(RECORDS)])
        app.run(count=RECORDS + 10, progress=False)
        assert 0 < sum(app.query(counts).to_dict().values()) < RECORDS
    return tmp_path / "log"


@pytest.mark.parametrize("name", ["by-last-digit", None])
def test_unhandled_records_are_not_lost_when_nothing_reads_them(
    half_way: Path, name: str | None
) -> None:
    app, _, _ = counting(half_way, name)
    with (
        app,
        pytest.raises(sl.InvalidConfig, match="unhandled records in app-by-digit-repartition"),
    ):
        app.run(until="idle", progress=False)
    app, _, counts = counting(half_way, "by-digit")
    with app:
        app.run(until="idle", progress=False)
    app, _, counts = counting(half_way, name)
    with app:
        app.run(until="idle", progress=False)
        total = [app.query(counts, partition=n).to_dict() for n in range(2)]
    assert sum(number for one in total for number in one.values()) == RECORDS


def test_unhandled_records_that_are_deleted_stop_nothing(half_way: Path) -> None:
    with changelog.open(half_way) as log:
        log.delete_topic("app-by-digit-repartition")
    app, _, _ = counting(half_way, "by-last-digit")
    with app:
        app.run(until="idle", progress=False)
