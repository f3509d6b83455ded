"""Two apps whose internal topics have the same name, because both names have hyphens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.framework import store_declarations
from strandline.framework.cli import main
from strandline.statestore.ownership import InternalTopics, check_unowned

Declare = Callable[[sl.App], Any]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[changelog.Log]:
    with changelog.open(tmp_path / "log", durability="os") as opened:
        opened.create_topic("sales")
        yield opened


def counting(log: changelog.Log, app: str, store: str, task: str = "tally") -> sl.App:
    """Return an app that counts the records of each key in a store."""
    made = sl.App(app, log=log)
    sales = made.topic("sales", value=int)
    counts = made.store(store, value=int, default=0)

    @made.task(sales, stores=[counts], name=task)
    def tally(record: sl.Record[str, int]) -> None:
        counts[record.key] += record.value

    return made


def counted(log: changelog.Log, app: str, store: str) -> sl.App:
    """Return such an app that has run, and is closed."""
    made = counting(log, app, store)
    made.run(until="idle")
    made.close()
    return made


def append(log: changelog.Log, *records: tuple[str, int]) -> None:
    sl.App("source", log=log).topic("sales", value=int).append(records)


@pytest.fixture
def reset(tmp_path: Path) -> Callable[..., None]:
    """Run `strandline reset`."""

    def run(*arguments: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["reset", *arguments, "--yes", "--log", str(tmp_path / "log")])
        assert ended.value.code in (0, None)

    return run


def test_an_app_with_the_changelog_of_another_one_is_refused(log: changelog.Log) -> None:
    append(log, ("york", 1))
    counted(log, "shop", "eu-x")
    other = counting(log, "shop-eu", "x")
    with pytest.raises(sl.InvalidConfig, match=r"app 'shop', whose store 'eu-x'.*another name"):
        other.run(until="idle")
    for read in (lambda: other.query("x"), lambda: sl.connect(log).store("shop-eu/x")):
        with pytest.raises(sl.InvalidRequest, match="of store 'eu-x' of app 'shop'"):
            read()
    append(log, ("york", 2))
    again = counting(log, "shop", "eu-x")
    assert again.run(until="idle") == 1
    assert again.query("eu-x").to_dict() == {"york": 3}


def repartitioning(name: str) -> Declare:
    def declare(app: sl.App) -> Any:
        sales = app.topic("sales", value=int)
        by_value = app.repartition(sales, lambda record: str(record.value), name=name)
        app.task(by_value, name="last")(lambda record: None)

    return declare


def with_dead_letters(name: str) -> Declare:
    def declare(app: sl.App) -> Any:
        task = app.task(app.topic("sales", value=int), name=name, on_error="dead_letter")
        task(lambda record: None)

    return declare


def with_timers(name: str) -> Declare:
    def declare(app: sl.App) -> Any:
        app.task(app.topic("sales", value=int), name=name)(lambda record: None)
        app.on_timer(name)(lambda timer: None)

    return declare


@pytest.mark.parametrize("kind", [repartitioning, with_dead_letters, with_timers])
def test_each_internal_topic_belongs_to_one_app(
    log: changelog.Log, kind: Callable[[str], Declare]
) -> None:
    append(log, ("york", 1))
    first, second = sl.App("shop", log=log), sl.App("shop-eu", log=log)
    kind("eu-x")(first)
    kind("x")(second)
    first.run(until="idle")
    with pytest.raises(sl.InvalidConfig, match="app 'shop', whose .* 'eu-x'"):
        second.run(until="idle")
    assert first.run(until="idle") == 0


def test_of_two_apps_that_start_at_once_none_keeps_the_topic(
    log: changelog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(log, "shop", "eu-x")
    calls: list[str] = []

    def not_seen_at_first(app: str, *rest: Any) -> None:
        calls.append(app)
        if len(calls) > 1:
            check_unowned(app, *rest)

    monkeypatch.setattr(store_declarations, "check_unowned", not_seen_at_first)
    with pytest.raises(sl.InvalidConfig, match="has recorded it"):
        counting(log, "shop-eu", "x").run(until="idle")
    internal = InternalTopics(log.broker, SystemClock())
    assert internal.recorded("shop-eu-x-changelog") == ["shop"]


@pytest.mark.parametrize("name", ["shop-x-changelog", "shop-declarations"])
def test_an_app_has_no_topic_with_the_name_of_an_internal_one(
    log: changelog.Log, name: str
) -> None:
    append(log, ("york", 1))
    app = counting(log, "shop", "x")
    with pytest.raises(sl.InvalidConfig, match="internal to app 'shop'"):
        app.topic(name, value=int).append([("york", 99)])
    with pytest.raises(sl.InvalidConfig, match="internal to app 'shop'"):
        app.run(until="idle")
    again = counting(log, "shop", "x")
    again.run(until="idle")
    assert again.query("x").to_dict() == {"york": 1}


def test_an_app_without_a_name_in_common_is_not_looked_up(log: changelog.Log) -> None:
    append(log, ("york", 1))
    counted(log, "shop", "x")
    app = counting(log, "shop-eu", "y")
    app.run(until="idle")
    assert app.query("y").to_dict() == {"york": 1}


def test_a_reset_by_a_refused_app_deletes_nothing_of_the_other_one(log: changelog.Log) -> None:
    append(log, ("york", 1))
    counted(log, "shop", "eu-x")
    counting(log, "shop-eu", "x").reset()
    assert sl.connect(log).store("shop/eu-x").to_dict() == {"york": 1}


def test_the_other_app_starts_after_a_reset(log: changelog.Log, reset: Callable[..., None]) -> None:
    append(log, ("york", 1))
    counted(log, "shop", "eu-x")
    reset("shop")
    other = counting(log, "shop-eu", "x")
    other.run(until="idle")
    assert other.query("x").to_dict() == {"york": 1}


def test_a_reset_leaves_an_app_with_a_longer_name_and_no_offsets(
    log: changelog.Log, reset: Callable[..., None]
) -> None:
    append(log, ("york", 1))
    counted(log, "shop", "x")
    counted(log, "shop-eu", "y")
    reset("shop-eu", "--offsets")
    reset("shop")
    names = {topic.name for topic in log.topics()}
    assert {"shop-eu-y-changelog", "shop-eu-declarations"} <= names
    assert not {"shop-x-changelog", "shop-declarations"} & names


def test_a_reset_deletes_a_changelog_that_begins_like_the_name_of_a_group(
    log: changelog.Log, reset: Callable[..., None]
) -> None:
    append(log, ("york", 1))
    counted(log, "shop", "eu-x")
    log.broker.commit_offsets("shop-eu", log.broker.committed("shop"))
    reset("shop")
    again = counting(log, "shop", "eu-x")
    again.run(until="idle")
    assert again.query("eu-x").to_dict() == {"york": 1}


def test_a_reader_of_the_topic_of_another_app_does_not_own_it(log: changelog.Log) -> None:
    append(log, ("york", 1))
    owner, reader = sl.App("shop-eu", log=log), sl.App("shop", log=log)
    repartitioning("x")(owner)
    owner.run(until="idle")
    topic = reader.topic("shop-eu-x-repartition", value=int)
    reader.task(topic, name="read")(lambda record: None)
    assert reader.run(until="idle") == 1
    reader.reset()
    assert owner.run(until="idle") == 0
    assert "shop-eu-x-repartition" in {topic.name for topic in log.topics()}
