"""An app whose internal topic was deleted does not continue at its committed offsets without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog import moving
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InternalTopicLost, UnknownTopic
from strandline.changelog.log import Log
from strandline.framework.cli.reset import carry_out, chosen, plan_for
from strandline.statestore.declaration import TopicIds
from strandline.statestore.recorded import DeclarationLog, declarations_topic
from tests.forms import few_on_kafka
from tests.systems import System

CHANGELOG = "shop-totals-changelog"


class Counting:
    """An app that counts the records of each key."""

    def __init__(self, log: Any, state: Path, prefix: str = "") -> None:
        self.app = sl.App(prefix + "shop", log=log, state_dir=state)
        self.sales = self.app.topic(prefix + "sales", key=str, value=int, partitions=2)
        self.totals = self.app.store("totals", key=str, value=int, default=0)

        @self.app.task(self.sales, stores=[self.totals], name="tally")
        def tally(record: sl.Record[str, int]) -> None:
            self.totals[record.key] += 1

    def run(self) -> dict[str, int]:
        self.app.run(until="idle", progress=False)
        return self.app.query(self.totals).to_dict()


def files(folder: Path) -> set[Path]:
    """Return the data files of the stores in a state folder."""
    return set(folder.rglob("*.sst"))


def delete(log: Log, topic: str, *, again: bool) -> None:
    partitions = log.broker.topic(topic).partitions
    log.delete_topic(topic)
    if again:
        log.create_topic(topic, partitions, config={"cleanup.policy": "compact"})


@pytest.mark.parametrize("again", few_on_kafka([False, True]), ids=["deleted", "created again"])
def test_an_app_whose_changelog_was_deleted_does_not_start(system: System, again: bool) -> None:
    log = system.open(durability="os")
    topic = f"{system.prefix}{CHANGELOG}"
    shop = Counting(log, system.state, system.prefix)
    shop.sales.append([(f"k{n % 10}", n) for n in range(100)])
    expected = {f"k{n}": 10 for n in range(10)}
    assert shop.run() == expected
    assert shop.run() == expected
    delete(log, topic, again=again)

    for _ in range(2):  # the second start finds what the first one has left
        shop.sales.append([("k0", 1)])
        shop = Counting(log, system.state, system.prefix)
        kept = files(system.state)
        assert kept
        with pytest.raises(InternalTopicLost, match=f"strandline reset {system.prefix}shop"):
            shop.run()
        with pytest.raises(InternalTopicLost):
            shop.app.query(shop.totals).to_dict()
        named = {info.name for info in log.broker.topics()}
        assert (topic in named) == again, "a refused start creates no empty topic"
        with sl.connect(log) as client:
            lost = InternalTopicLost if again else sl.InvalidRequest
            with pytest.raises(lost):
                client.store(shop.totals).to_dict()
            with pytest.raises(lost):
                client.store(f"{shop.app.name}/totals").to_dict()
        assert files(system.state) == kept, "the last copy of the state"

    plan = plan_for(log.broker, shop.app.name, "unused")
    only_state = chosen(plan, offsets=False, state=False, changelogs=True)
    carry_out(log.broker, only_state, yes=True, json=True)
    assert Counting(log, system.state, system.prefix).run() == {"k0": 2}
    delete(log, topic, again=again)
    shop = Counting(log, system.state, system.prefix)
    shop.app.reset()
    assert shop.run() == expected | {"k0": 12}


def test_a_topic_that_a_broker_has_created_again_is_lost_however_it_looks(tmp_path: Path) -> None:
    """A broker that creates what is asked for chooses the number of partitions itself."""
    with changelog.open(tmp_path / "log") as log:
        shop = Counting(log, tmp_path / "state")
        shop.sales.append([("a", 1)])
        shop.run()
        log.delete_topic(CHANGELOG)
        log.create_topic(CHANGELOG, 1)
        with pytest.raises(InternalTopicLost, match="strandline reset shop"):
            Counting(log, tmp_path / "state").run()
        assert log.topic(CHANGELOG).config == {}


def test_rows_between_two_tasks_are_handled_if_only_the_changelogs_are_reset(
    tmp_path: Path,
) -> None:
    with changelog.open(tmp_path / "log") as log:
        app = sl.App("shop", log=log.broker)
        sales = app.topic("sales", key=str, value=int)
        sent = app.topic("sent", key=str, value=int)
        totals = app.counter("totals")

        @app.task(sales, stores=[totals])
        def count(record: sl.Record[str, int]) -> None:
            totals.add(record.key)

        @app.task(app.repartition(sales, lambda record: str(record.value % 3), name="by"))
        def send(record: sl.Record[str, int]) -> None:
            sent.send(record.key, record.value)

        sales.append([("k", n) for n in range(100)])
        app.run(count=210, progress=False)
        assert len(sent.to_polars()) < 100
        delete(log, CHANGELOG, again=False)
        plan = plan_for(log.broker, "shop", "unused")
        some = chosen(plan, offsets=False, state=False, changelogs=True)
        carry_out(log.broker, some, yes=True, json=True)
        app.run(until="idle", progress=False)
        assert sorted(sent.to_polars()["value"].to_list()) == list(range(100))


def test_an_app_without_committed_offsets_makes_its_state_again(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        shop = Counting(log, tmp_path / "state")
        shop.sales.append([("a", 1), ("b", 1), ("a", 1)])
        assert shop.run() == {"a": 2, "b": 1}
        delete(log, CHANGELOG, again=False)
        log.broker.commit_offsets("shop", dict.fromkeys(log.broker.committed("shop")))
        assert Counting(log, tmp_path / "state").run() == {"a": 2, "b": 1}
        delete(log, CHANGELOG, again=True)
        with pytest.raises(InternalTopicLost):
            Counting(log, tmp_path / "state").run()


def test_a_log_of_an_earlier_version_records_the_topic_at_the_next_start(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        shop = Counting(log, tmp_path / "state")
        shop.sales.append([("a", 1)])
        shop.run()
        recorded = DeclarationLog(log.broker, "shop", SystemClock())
        now = recorded.read().stores[CHANGELOG]
        ids = [log.broker.topic(name).topic_id for name in (CHANGELOG, declarations_topic("shop"))]
        assert now.changelog_id == TopicIds(*ids)
        before = msgspec.structs.replace(now, changelog_id=None)
        recorded.change(lambda _: {CHANGELOG: before.to_bytes()})
        assert Counting(log, tmp_path / "state").run() == {"a": 1}
        assert recorded.read().stores[CHANGELOG] == now


def test_the_topic_that_is_recorded_in_another_log_means_nothing(tmp_path: Path) -> None:
    """As after a move, or a copy by another tool."""
    with changelog.open(tmp_path / "log") as log, changelog.open(tmp_path / "copy") as copy:
        shop = Counting(log, tmp_path / "state")
        shop.sales.append([("a", 1)])
        shop.run()
        names = ["sales", CHANGELOG, declarations_topic("shop")]
        here, there = moving.MovedLog("log", log.broker), moving.MovedLog("copy", copy.broker)
        moving.move(here, there, moving.Selection(names, ["shop"]), progress=lambda *_: None)
        delete(copy, CHANGELOG, again=False)
        with pytest.raises(InternalTopicLost):
            Counting(copy, tmp_path / "copied state").run()
        moving.move(here, there, moving.Selection([CHANGELOG], []), progress=lambda *_: None)
        assert Counting(copy, tmp_path / "copied state").run() == {"a": 1}
        delete(copy, CHANGELOG, again=True)
        with pytest.raises(InternalTopicLost):
            Counting(copy, tmp_path / "copied state").run()


KINDS = ["task", "batch", "stream"]


def declared(kind: str, log: Log, state: Path, at_last: Callable[[], None], **how: Any) -> Any:
    """Return an app with the store `totals`, its input, and its output; 99 is the last value."""
    app = sl.App("shop", log=log, state_dir=state, commit_interval_ms=3_600_000, **how)
    sales = app.topic("sales", key=str, value=int)
    out = app.topic("out", key=str, value=int)

    def seen(values: list[int]) -> None:
        if 99 in values:
            at_last()

    if kind == "task":
        totals = app.store("totals", key=str, value=int, default=0)

        @app.task(sales, stores=[totals])
        def tally(record: sl.Record[str, int]) -> None:
            totals[record.key] += 1
            out.send(record.key, totals[record.key])
            seen([record.value])

    elif kind == "batch":
        counts = app.counter("totals", key=str)

        @app.task(sales, stores=[counts], batch=True)
        def tally_all(batch: sl.Batch) -> None:
            for key in batch.keys.to_pylist():
                counts.add(key)
                out.send(key, 1)
            seen(batch.values.to_pylist())

    else:

        def passed(row: dict[str, Any]) -> dict[str, Any]:
            seen([row["value"]])
            return {"number": row["value"]}

        rows = app.stream(sales).map(passed, schema=pl.Schema({"number": pl.Int64}))
        rows.group_by("key", name="totals").agg(n=sl.count()).to("late")
    return app, sales


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_running_app_ends_before_it_commits_to_another_changelog(
    tmp_path: Path, kind: str, guarantee: str
) -> None:
    with changelog.open(tmp_path / "log") as log:
        before: list[Any] = []

        def replace() -> None:
            if not before:
                before.extend((log.broker.committed("shop"), outputs_of(log)))
                delete(log, CHANGELOG, again=True)

        how = {"processing_guarantee": guarantee}
        app, sales = declared(kind, log, tmp_path / "state", replace, **how)
        sales.append([("k", n) for n in range(50)])
        app.run(until="idle", progress=False)
        sales.append([("k", n) for n in range(50, 100)])
        with pytest.raises(InternalTopicLost):
            app.run(until="idle", progress=False)
        committed, outputs = before
        assert outputs_of(log) == outputs
        if guarantee != "at_most_once":
            assert log.broker.committed("shop") == committed
        app, sales = declared(kind, log, tmp_path / "state", replace, **how)
        with pytest.raises(InternalTopicLost):
            app.run(until="idle", progress=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_app_whose_changelog_is_deleted_ends(tmp_path: Path, kind: str) -> None:
    with changelog.open(tmp_path / "log") as log:

        def delete_once() -> None:
            if log.broker.topic(CHANGELOG):
                log.delete_topic(CHANGELOG)

        app, sales = declared(kind, log, tmp_path / "state", delete_once)
        sales.append([("k", n) for n in range(50)])
        app.run(until="idle", progress=False)
        sales.append([("k", n) for n in range(50, 100)])
        with pytest.raises(UnknownTopic, match="totals-changelog"):
            app.run(until="idle", progress=False)
        app, _ = declared(kind, log, tmp_path / "state", delete_once)
        with pytest.raises(InternalTopicLost):
            app.run(until="idle", progress=False)


def test_a_worker_that_joins_again_opens_no_store_of_another_changelog(tmp_path: Path) -> None:
    """Its files would be wiped to begin with the new topic."""
    with changelog.open(tmp_path / "log") as log:

        def replace_and_fence() -> None:
            delete(log, CHANGELOG, again=True)
            log.broker.init_producer("shop-0")  # fences the worker

        app, sales = declared("task", log, tmp_path / "state", replace_and_fence)
        sales.append([("k", n) for n in range(50)])
        app.run(until="idle", progress=False)
        kept = files(tmp_path / "state")
        sales.append([("k", n) for n in range(50, 100)])
        with pytest.raises(InternalTopicLost):
            app.run(until="idle", progress=False, timeout=30)
        assert kept
        assert files(tmp_path / "state") >= kept


def outputs_of(log: Log) -> list[Any]:
    """Return the committed records of the output topic."""
    name = next((t.name for t in log.broker.topics() if t.name in ("out", "late")), None)
    return [] if name is None else log.read(name)["value"].to_pylist()


@pytest.mark.long_on_kafka
def test_state_without_committed_offsets_is_named(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a group that a cluster has forgotten."""
    log = system.open(durability="os")
    shop = Counting(log, system.state, system.prefix)
    shop.sales.append([("k", n) for n in range(3)])
    for _ in range(2):
        shop = Counting(log, system.state, system.prefix)
        assert shop.run() == {"k": 3}
    assert "has no committed offsets" not in caplog.text
    committed = log.broker.committed(f"{system.prefix}shop")
    log.broker.commit_offsets(f"{system.prefix}shop", dict.fromkeys(committed))
    shop = Counting(log, system.state, system.prefix)
    assert shop.run() == {"k": 6}
    assert "task 'tally' has state, but app" in caplog.text
