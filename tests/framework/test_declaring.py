"""Mistakes in declarations are refused with an explanation before anything is changed."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import SchemaMismatch
from strandline.changelog.memory_storage import MemoryStorage
from strandline.framework.task import place_of
from strandline.framework.testing import TestDriver


@dataclass(frozen=True)
class Flight:
    carrier: str
    delay: float | None = None


@pytest.fixture
def app() -> sl.App:
    return sl.App("app", log=Owner(MemoryStorage(), clock=ManualClock(), background=False))


def nothing(record: object) -> None:
    """Do nothing, as a handler."""


def test_a_store_has_one_task(app: sl.App) -> None:
    words, totals = app.topic("words", value=str), app.store("totals")
    app.task(words, stores=[totals], name="one")(nothing)
    with pytest.raises(sl.InvalidConfig, match="belongs to task 'one' already"):
        app.task(words, stores=[totals], name="two")(nothing)


def test_a_store_name_can_be_used_once(app: sl.App) -> None:
    app.store("totals")
    with pytest.raises(sl.InvalidConfig, match="declared twice"):
        app.store("totals")


def test_a_topic_declared_twice_alike_is_the_same_handle(app: sl.App) -> None:
    assert app.topic("words", value=str) is app.topic("words", value=str)


@pytest.mark.parametrize("other", [{"value": int}, {"value": str, "key": int}])
def test_a_topic_declared_twice_differently_is_refused(app: sl.App, other: dict) -> None:
    app.topic("words", value=str)
    with pytest.raises(sl.InvalidConfig, match="declared twice with different types"):
        app.topic("words", **other)


def test_the_place_of_a_handler_is_found_without_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counter:
        """A handler of records."""

        def process(self, record: object) -> None:
            """Do nothing."""

    def refuse(*_: object, **__: object) -> object:
        raise SystemError("AST constructor recursion depth mismatch (before=63, after=55)")

    line = inspect.getsourcelines(Counter.process)[1]
    monkeypatch.setattr(ast, "parse", refuse)
    monkeypatch.setattr(inspect, "getsourcelines", refuse)
    assert place_of(Counter) == place_of(Counter.process) == f"{__file__}:{line}"
    assert place_of(partial(nothing)).startswith("functools.partial(")


def test_two_tasks_of_one_name_are_refused_with_both_places(app: sl.App) -> None:
    words = app.topic("words", value=str)
    app.task(words)(nothing)
    with pytest.raises(sl.InvalidConfig, match=r"test_declaring.py:\d+ and .*give one of them"):
        app.task(words)(nothing)


def test_reserved_names_are_refused(app: sl.App) -> None:
    with pytest.raises(sl.StrandlineError, match="__"):
        app.topic("__mine", value=str)
    with pytest.raises(sl.InvalidConfig, match="reserved"):
        app.store("my-changelog")
    with pytest.raises(sl.InvalidConfig, match="cannot be an app's name"):
        sl.App("a/b")


def test_a_key_that_names_no_column_is_refused(app: sl.App) -> None:
    with pytest.raises(sl.InvalidConfig, match=r"key='origin'.*\['carrier', 'delay'\]"):
        app.topic("flights", value=Flight, key="origin")
    with pytest.raises(sl.InvalidConfig, match="pass the type: key=str"):
        app.topic("words", value=str, key="word")


def test_an_app_without_tasks_does_not_run(app: sl.App) -> None:
    with pytest.raises(sl.InvalidConfig, match="has no tasks"):
        app.run("idle")


def test_settings_are_checked() -> None:
    with pytest.raises(sl.InvalidConfig, match="processing_guarantee"):
        sl.App("app", processing_guarantee="sometimes")  # type: ignore[arg-type]
    with pytest.raises(
        sl.InvalidConfig, match="commit_interval_ms must be a whole number from 1 to"
    ):
        sl.App("app", commit_interval_ms=0)


def test_on_error_and_window_are_checked(app: sl.App) -> None:
    words = app.topic("words", value=str)
    with pytest.raises(sl.InvalidConfig, match="on_error"):
        app.task(words, on_error="ignore")(nothing)  # type: ignore[arg-type]
    with pytest.raises(sl.InvalidConfig, match="window"):
        app.task(words, window_ms=10)(nothing)
    with pytest.raises(sl.InvalidConfig, match="no method process"):
        app.task(words)(type("Empty", (), {}))


def test_inputs_must_be_copartitioned(app: sl.App) -> None:
    one, two = app.topic("one", partitions=1), app.topic("two", partitions=2)
    app.task([one, two])(nothing)
    with pytest.raises(sl.InvalidConfig, match="different numbers of partitions"):
        app.run("idle")


def test_an_existing_topic_must_be_as_declared(app: sl.App) -> None:
    app.broker().create_topic("words", 3)
    app.task(app.topic("words", partitions=4))(nothing)
    with pytest.raises(sl.InvalidConfig, match="has 3 partitions, but is declared with 4"):
        app.run("idle")


def test_a_topic_of_bytes_is_not_taken_for_a_typed_one(app: sl.App) -> None:
    app.broker().create_topic("flights", 1)
    app.task(app.topic("flights", value=Flight))(nothing)
    with pytest.raises(sl.InvalidRecord, match="holds bytes, but is declared with struct"):
        app.run("idle")


def test_a_changelog_must_have_the_inputs_partitions(app: sl.App) -> None:
    app.broker().create_topic("app-totals-changelog", 3, config={"cleanup.policy": "compact"})
    app.task(app.topic("words", partitions=2), stores=[app.store("totals")])(nothing)
    with pytest.raises(sl.InvalidConfig, match="has 3 partitions, but the input"):
        app.run("idle")


def test_a_topic_that_gained_a_field_is_extended(app: sl.App) -> None:
    import pyarrow as pa

    app.broker().create_topic(
        "flights", 1, schema=pa.schema([pa.field("carrier", pa.string(), nullable=False)])
    )
    app.topic("flights", value=Flight)
    app.prepare()
    schema = app.broker().topic("flights").schema
    assert schema is not None
    assert schema.names == ["carrier", "delay"]


def test_dead_letters_of_unlike_inputs_are_refused(app: sl.App) -> None:
    with pytest.raises(sl.InvalidConfig, match="stored alike"):
        app.task([app.topic("f", value=Flight), app.topic("w")], on_error="dead_letter")(nothing)


def test_the_driver_reports_state_that_is_keyed_differently_than_the_input(app: sl.App) -> None:
    words, seen = (
        app.topic("words", value=str, partitions=4),
        app.store("seen", value=int, default=0),
    )

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, str]) -> None:
        seen[record.value] += 1

    driver = TestDriver(app).run([(str(n), "same") for n in range(20)])
    with pytest.raises(sl.InvalidRequest, match="several partitions.*repartition"):
        driver.store(seen)


def test_describe_is_plain_data(app: sl.App) -> None:
    app.task(app.topic("flights", value=Flight, key="carrier"), stores=[app.store("n")])(nothing)
    described = app.describe()
    assert described["tasks"][0]["inputs"] == ["flights"]
    assert described["topics"][0]["columns"] == ["carrier", "delay"]
    assert described["internal_topics"] == ["app-n-changelog", "app-declarations"]


def test_a_store_that_begins_empty_next_to_a_continuing_task_is_logged(
    app: sl.App, caplog: pytest.LogCaptureFixture
) -> None:
    words, totals = app.topic("words", key=str, value=int), app.store("totals", key=str, value=int)

    @app.task(words, stores=[totals])
    def count(record: sl.Record[str, int]) -> None:
        totals[record.key] = record.value

    words.append([("a", 1)])
    app.run(until="idle")
    assert "begins empty" not in caplog.text, "it is the app's first start"
    app.run(until="idle")
    assert "begins empty" not in caplog.text
    for topic in app.declared.internal_topics():
        app.broker().delete_topic(topic)
    app.run(until="idle")
    [logged] = [one for one in caplog.records if "begins empty" in one.getMessage()]
    assert logged.levelname == "WARNING"
    assert "'totals'" in logged.getMessage()
    assert "task 'count'" in logged.getMessage()
    app.reset()
    caplog.clear()
    app.run(until="idle")
    assert "begins empty" not in caplog.text


def test_a_store_of_another_app_is_refused() -> None:
    mine, other = sl.App("mine"), sl.App("other")
    words, theirs = mine.topic("words"), other.store("totals", value=int)
    mine.store("totals", value=int)  # a store of the same name is another store
    with pytest.raises(sl.InvalidConfig, match="store 'totals' belongs to app 'other'"):
        mine.task(words, name="t", stores=[theirs])(lambda record: None)
    assert theirs.task is None


def test_a_task_declared_while_the_app_runs_is_refused() -> None:
    app = sl.App("app", log="unused")
    words = app.topic("words", value=int)
    app.declared.is_running = lambda: True
    with pytest.raises(sl.InvalidConfig, match=r"declared while app 'app' is running"):
        app.task(words, name="t")(lambda record: None)


def test_a_send_to_a_topic_of_another_app_names_the_app() -> None:
    mine, other = sl.App("mine"), sl.App("other")
    words, theirs = mine.topic("words", value=int), other.topic("out", value=int)
    mine.task(words, name="t")(lambda record: theirs.send("k", 1))
    with (
        TestDriver(mine) as driver,
        pytest.raises(sl.TaskFailed, match="topic 'out' belongs to app 'other'"),
    ):
        driver.run([("a", 1)])


def test_letters_of_another_form_are_named_with_the_way_out(tmp_path: Path) -> None:
    def app(value: Any, name: str) -> sl.App:
        made = sl.App("app", log=tmp_path / "log")
        made.task(made.topic(name, value=value), name="see", on_error="dead_letter")(nothing)
        return made

    with app(Flight, "flights") as first:
        first.run(until="idle")
    refused = pytest.raises(SchemaMismatch, match="topics delete app-see-dead-letter")
    with app(bytes, "raw") as second, refused:
        second.run(until="idle")
