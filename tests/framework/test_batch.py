"""Batch tasks: what a handler gets, sends and keeps, and what happens when it raises."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.changelog.errors import InvalidConfig, InvalidRecord, SchemaMismatch
from strandline.framework.container import batch_size
from strandline.framework.testing import CRASH, TestDriver


@dataclass(frozen=True)
class Flight:
    carrier: str
    delay: float | None
    at: int = 0


def rows(count: int) -> list[tuple[str, int]]:
    return [(f"k{n % 5}", n) for n in range(count)]


def collecting(*, partitions: int = 1, **task: Any) -> tuple[sl.App, Any, list[sl.Batch]]:
    """Return an app whose batch handler only keeps what it gets."""
    app = sl.App("app")
    words = app.topic("words", key=str, value=int, partitions=partitions)
    got: list[sl.Batch] = []

    @app.task(words, batch=True, **task)
    def keep(batch: sl.Batch) -> None:
        got.append(batch)

    return app, words, got


# Content ------------------------------------------------------------------------------


def test_a_batch_has_the_records_as_columns() -> None:
    app, _, got = collecting()
    TestDriver(app).run([("a", 1, 7), ("b", 2, 5), (None, 3, 9)])
    [batch] = got
    assert (batch.topic, batch.partition, len(batch)) == ("words", 0, 3)
    assert batch.keys.to_pylist() == ["a", "b", None]
    assert batch.values.equals(pa.array([1, 2, 3]))
    assert batch.timestamps.to_pylist() == [7, 5, 9]
    assert batch.offsets.to_pylist() == [0, 1, 2]
    assert batch.times().tolist() == [7, 5, 9]
    assert repr(batch) == "Batch(words-0, 0 to 3)"


def test_a_batch_of_a_typed_topic_has_its_columns() -> None:
    app = sl.App("app")
    flights = app.topic("flights", value=Flight, key="carrier", timestamp="at")
    got: list[sl.Batch] = []
    app.task(flights, batch=True, name="t")(got.append)
    TestDriver(app).run([Flight("AA", 1.5, 7), Flight("BA", None, 8)])
    frame = pl.concat(batch.to_polars() for batch in got)
    assert frame.columns == ["partition", "offset", "timestamp", "key", "carrier", "delay", "at"]
    assert frame["delay"].to_list() == [1.5, None]
    assert frame["timestamp"].dtype == pl.Datetime("ms", "UTC")
    assert [r.value for batch in got for r in batch.records()] == [
        Flight("AA", 1.5, 7),
        Flight("BA", None, 8),
    ]


def test_a_batch_is_shown_as_the_topic_is(tmp_path: Path) -> None:
    app, words, got = collecting()
    app.log = tmp_path / "log"
    with app:
        words.append([("a", 1), ("b", 2)])
        app.run(until="idle")
        assert got[0].to_polars().equals(words.to_polars())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (str, ["x", "é"]),
        (int, [1, -(2**40)]),
        (float, [1.5, -0.0]),
        (bytes, [b"x", b""]),
        (bool, [True, False]),
        (Any, [{"a": 1}, {"a": 2}]),
        (list[int], [[1], [2, 3]]),
    ],
)
def test_values_of_each_type_are_a_column(kind: Any, values: list[Any]) -> None:
    app = sl.App("app")
    topic = app.topic("topic", key=int, value=kind)
    out = app.topic("out", key=int, value=kind)

    @app.task(topic, batch=True)
    def copy(batch: sl.Batch) -> None:
        out.send_batch(pa.table({"key": batch.keys, "value": batch.values}))

    driver = TestDriver(app).run(list(enumerate(values)))
    assert [(r.key, r.value) for r in driver.output(out)] == list(enumerate(values))


def test_values_without_a_common_type_are_named_and_can_be_read_one_by_one() -> None:
    app = sl.App("app")
    topic = app.topic("topic", key=str, value=Any)
    got: list[Any] = []

    @app.task(topic, batch=True)
    def read(batch: sl.Batch) -> None:
        if len(batch) > 1:
            with pytest.raises(InvalidRecord, match=r"values of a batch .* use batch\.records\(\)"):
                batch.values  # noqa: B018
        got.extend(record.value for record in batch.records())

    TestDriver(app).run([("a", 1), ("b", "x"), ("c", {"d": 1})])
    assert got == [1, "x", {"d": 1}]


def test_tombstones_are_left_out_unless_they_are_asked_for() -> None:
    for tombstones in (False, True):
        app, _, got = collecting(tombstones=tombstones)
        driver = TestDriver(app).run([("a", 1), ("b", None), ("c", 3), ("d", None)])
        values = [value for batch in got for value in batch.values.to_pylist()]
        offsets = [at for batch in got for at in batch.offsets.to_pylist()]
        assert values == ([1, None, 3, None] if tombstones else [1, 3])
        assert offsets == ([0, 1, 2, 3] if tombstones else [0, 2])
        assert driver.worker.instances[0].inputs[0].position == 4


def test_small_batches_of_the_log_are_joined() -> None:
    app, words, got = collecting()
    driver = TestDriver(app)
    cycle, driver.worker.cycle = driver.worker.cycle, lambda **_: 0  # type: ignore[method-assign]
    driver._take(rows(100))  # a batch of the log each
    driver.worker.cycle = cycle  # type: ignore[method-assign]
    driver.settle()
    assert [len(batch) for batch in got] == [100]


def test_a_batch_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "FIRST_BATCH_RECORDS", 16)
    monkeypatch.setattr(batch_size, "MAX_BATCH_RECORDS", 64)
    app, _, got = collecting()
    frame = pl.DataFrame({"key": ["a"] * 1_000, "value": range(1_000)})
    TestDriver(app).run(frame)
    assert [value for batch in got for value in batch.values.to_pylist()] == list(range(1_000))
    assert [len(got[0]), max(len(batch) for batch in got)] == [16, 64]


# Sending ------------------------------------------------------------------------------


def test_rows_of_a_frame_are_records_of_the_output() -> None:
    app = sl.App("app")
    flights = app.topic("flights", value=Flight, key="carrier", timestamp="at")
    late = app.topic("late", value=Flight, key="carrier", timestamp="at", partitions=3)

    @app.task(flights, batch=True)
    def forward(batch: sl.Batch) -> None:
        frame = batch.to_polars().filter(pl.col("delay") > 10)
        sent = late.send_batch(frame.select("carrier", "delay", "at"))
        assert sent == len(frame)

    driver = TestDriver(app).run([Flight("AA", 1.0, 7), Flight("BA", 11.0, 8)])
    [record] = driver.output(late)
    assert (record.key, record.value, record.timestamp) == ("BA", Flight("BA", 11.0, 8), 8)


def test_the_time_of_rows_without_one_is_the_latest_of_the_batch() -> None:
    app, words, _ = collecting()
    out = app.topic("out", key=str, value=int)

    @app.task(words, batch=True)
    def send(batch: sl.Batch) -> None:
        frame = pl.DataFrame({"key": ["x"], "value": [1]})
        out.send_batch(frame)
        out.send_batch(frame, timestamp=dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC))
        out.send_batch(frame.with_columns(timestamp=pl.lit(3, pl.Int64)))
        out.send("y", 2)

    driver = TestDriver(app).run([("a", 1, 9)])
    assert [(r.key, r.timestamp) for r in driver.output(out)] == [
        ("x", 9),
        ("x", 1_000),
        ("x", 3),
        ("y", 9),
    ]


def test_single_records_and_columns_keep_their_order() -> None:
    app, words, _ = collecting()
    out = app.topic("out", key=str, value=int)

    @app.task(words)
    def send(record: sl.Record[str, int]) -> None:
        n = record.value
        out.send("k", n)
        out.send_batch(pa.table({"key": ["k", "k"], "value": [n + 1, n + 2]}))
        out.send("k", n + 3, headers=[("at", b"%d" % n)])

    driver = TestDriver(app).run([("a", 0), ("a", 10)])
    sent = [(record.value, record.headers) for record in driver.output(out)]
    expected = [(0, ()), (1, ()), (2, ()), (3, (("at", b"0"),))]
    assert sent == [*expected, *((n + 10, h and (("at", b"10"),)) for n, h in expected)]


def test_a_null_value_is_a_tombstone() -> None:
    app, words, _ = collecting()
    out = app.topic("out", key=str, value=int)

    @app.task(words, batch=True)
    def send(batch: sl.Batch) -> None:
        out.send_batch(pl.DataFrame({"key": ["a", "b"], "value": [1, None]}))

    driver = TestDriver(app).run([("a", 1)])
    assert [(r.key, r.value) for r in driver.output(out)] == [("a", 1), ("b", None)]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"key": ["a"], "value": ["text"]}, r"column 'value' \(string\) cannot be stored.*int"),
        ({"key": [1], "value": [1]}, r"column 'key' \(int64\) cannot be stored.*str"),
        ({"key": ["a"], "valeu": [1]}, "did you mean 'value'"),
    ],
)
def test_columns_of_another_type_are_refused_with_their_name(frame: Any, message: str) -> None:
    app, words, _ = collecting()
    out = app.topic("out", key=str, value=int)
    errors: list[str] = []

    @app.task(words, batch=True)
    def send(batch: sl.Batch) -> None:
        with pytest.raises((InvalidRecord, SchemaMismatch), match=message) as caught:
            out.send_batch(pa.table(frame))
        errors.append(str(caught.value))

    driver = TestDriver(app).run([("a", 1)])
    assert errors
    assert driver.output(out) == []


def test_columns_can_only_be_sent_inside_a_handler() -> None:
    _, words, _ = collecting()
    with pytest.raises(sl.NotInTask, match="send was called outside of a handler"):
        words.send_batch(pl.DataFrame({"key": ["a"], "value": [1]}))


# State --------------------------------------------------------------------------------


def counting(*, on_error: Any = "fail", **options: Any) -> tuple[sl.App, Any, Any, Any]:
    """Return an app that counts keys batch by batch, and refuses negative values."""
    app = sl.App("app", **options)
    words = app.topic("words", key=str, value=int, partitions=2)
    out = app.topic("out", key=str, value=int)
    seen = app.counter("seen")

    @app.task(words, stores=[seen], batch=True, on_error=on_error, name="count")
    def count(batch: sl.Batch) -> None:
        for key in batch.keys.to_pylist():
            seen.add(key)
        out.send_batch(pa.table({"key": batch.keys, "value": batch.values}))
        if np.any(batch.values.to_numpy() < 0):
            raise ValueError("a negative value")

    return app, words, out, seen


@pytest.mark.long
@given(bad=st.sets(st.integers(0, 59)), policy=st.sampled_from(["skip", "dead_letter"]))
@settings(max_examples=25)
def test_each_bad_record_alone_is_treated_by_the_policy(bad: set[int], policy: str) -> None:
    app, _, out, seen = counting(on_error=policy)
    good = {n for n in range(60) if n not in bad}
    records = [(f"k{n % 5}", n + 1 if n in good else -n - 1) for n in range(60)]
    driver = TestDriver(app).run(records)
    assert sorted(record.value for record in driver.output(out)) == sorted(n + 1 for n in good)
    counted = driver.store(seen)
    assert counted == {k: v for k in counted if (v := sum(f"k{n % 5}" == k for n in good))}
    if policy == "dead_letter":
        letters = driver.output(app.declared.topics["app-count-dead-letter"])
        values = [msgspec.msgpack.decode(letter.value) for letter in letters]
        assert sorted(-value - 1 for value in values) == sorted(bad)


def test_a_task_fails_at_the_bad_record_after_all_before_it() -> None:
    app, words, out, _ = counting()
    driver = TestDriver(app)
    records = [("a", 1), ("a", 2), ("a", -3), ("a", 4)]
    with pytest.raises(sl.TaskFailed, match=r"record words-\d @ 2 with key 'a'.*a negative value"):
        driver.run(records)
    assert [record.value for record in driver.output(out)] == [1, 2]


def test_a_record_that_cannot_be_decoded_is_one_dead_letter() -> None:
    app, words, out, _ = counting(on_error="dead_letter")
    driver = TestDriver(app)
    other = sl.App("other", log=driver.owner)
    with other.producer() as producer:
        for value in (b"\x01", b"\xc1", b"\x02"):
            producer.send("words", value, "a")
    driver.settle()
    assert [record.value for record in driver.output(out)] == [1, 2]
    [letter] = driver.output(app.declared.topics["app-count-dead-letter"])
    assert letter.value == b"\xc1"


@pytest.mark.parametrize("commit_records", [1, 3, 1_000])
def test_each_record_counts_once_whatever_crashes(commit_records: int) -> None:
    records = rows(40)
    for at in range(0, 41, 5):
        app, _, out, seen = counting(commit_records=commit_records)
        driver = TestDriver(app).run([*records[:at], CRASH, *records[at:], CRASH])
        assert sorted(record.value for record in driver.output(out)) == list(range(40))
        assert driver.store(seen) == {f"k{n}": 8 for n in range(5)}


def test_an_aborted_commit_is_handled_again_as_one() -> None:
    app, _, out, seen = counting(commit_records=1_000)
    driver = TestDriver(app)
    session, failed = driver.worker._session, []
    commit = session.commit

    def once(instances: Any) -> None:
        if not failed:
            failed.append(True)
            raise sl.TransactionAborted("once")
        commit(instances)

    session.commit = once  # type: ignore[method-assign]
    driver.run(rows(20))
    assert failed
    assert sorted(record.value for record in driver.output(out)) == list(range(20))
    assert sum(driver.store(seen).values()) == 20


def test_a_run_with_a_count_handles_that_many_records(tmp_path: Path) -> None:
    app, words, out, _ = counting(log=tmp_path / "log")
    with app:
        words.append(rows(50))
        assert app.run(count=20, progress=False) == 20
        assert len(out.to_polars()) == 20
        assert app.run(until="idle", progress=False) == 30


# Classes, several inputs, declarations ------------------------------------------------


def test_a_class_may_handle_batches_with_windows() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    calls: list[str] = []

    @app.task(words, batch=True, window_ms=10)
    class Sum:
        def init(self, context: sl.TaskContext) -> None:
            self.total = 0
            calls.append("init")

        def process(self, batch: sl.Batch) -> None:
            self.total += sum(batch.values.to_pylist())
            assert sl.current_task().stream_time == max(batch.times())

        def window(self) -> None:
            out.send("total", self.total)

        def close(self) -> None:
            calls.append("close")

    with TestDriver(app) as driver:
        driver.run([("a", 1), ("a", 2)]).advance(10)
        assert [record.value for record in driver.output(out)] == [3]
    assert calls == ["init", "close"]


def test_a_task_of_several_topics_gets_batches_of_one_topic_each() -> None:
    app = sl.App("app")
    one, other = (app.topic(name, key=str, value=int) for name in ("one", "other"))
    got: list[tuple[str, list[int]]] = []

    @app.task([one, other], batch=True)
    def keep(batch: sl.Batch) -> None:
        got.append((batch.topic, batch.values.to_pylist()))

    TestDriver(app).run([(one, "a", 1, 5), (other, "a", 2, 3), (one, "a", 3, 9)])
    found = {topic: [n for name, ns in got for n in ns if name == topic] for topic, _ in got}
    assert found == {"one": [1, 3], "other": [2]}


def test_what_batch_tasks_cannot_have_is_refused() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)

    async def waits(batch: sl.Batch) -> None: ...

    with pytest.raises(InvalidConfig, match="with batch=True is a plain function"):
        app.task(words, batch=True)(waits)

    @app.task(words, batch=True)
    def plain(batch: sl.Batch) -> None: ...

    with pytest.raises(InvalidConfig, match="with batch=True has no timers"):
        app.on_timer(plain)(lambda name: None)


def test_a_handler_that_has_not_run_fails_its_records() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    app.task(words, batch=True, name="t")(lambda batch: (n for n in batch.values))
    with pytest.raises(sl.TaskFailed, match="the handler has not run"):
        TestDriver(app).run([("a", 1)])


# Appending tables ---------------------------------------------------------------------


def test_a_table_is_stored_as_single_records_are(tmp_path: Path) -> None:
    """Text in a column `value` is not the stored form of a str, which is MessagePack."""
    app = sl.App("app", log=tmp_path / "log")
    with app:
        for kind, values in ((str, ["x", "é"]), (int, [1, 2]), (float, [0.5, 1.0])):
            topic = app.topic(f"of-{kind.__name__}", key=str, value=kind)
            topic.append(list(zip("ab", values, strict=True)))
            topic.append(pl.DataFrame({"key": ["a", "b"], "value": values}))
            assert topic.to_polars()["value"].to_list() == values * 2


# Stores by columns --------------------------------------------------------------------


class Total(msgspec.Struct, frozen=True):
    n: int = 0
    worst: float | None = None


def run_once(app: sl.App, topic: Any, stores: list[Any], handler: Any) -> TestDriver:
    app.task(topic, stores=stores, batch=True, name="t")(handler)
    return TestDriver(app).run([("a", 1), ("b", 2), ("a", 3)])


KEYS = ["a", "b", "a"]


@pytest.mark.parametrize(
    "form", [list, pa.array, pl.Series, np.array], ids=["list", "arrow", "polars", "numpy"]
)
def test_columns_of_keys_and_values_come_in_any_form(form: Any) -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    store = app.store("store", key=str, value=int)
    got: list[Any] = []

    def handle(batch: sl.Batch) -> None:
        store.put_batch(form(KEYS), form([1, 2, 3]))
        got.append(store.get_batch(form(["a", "x", "b"])).to_pylist())
        store.delete_batch(form(["b"]))

    driver = run_once(app, words, [store], handle)
    assert got == [[3, None, 2]] * len(got)
    assert driver.store(store) == {"a": 3}


def test_values_with_fields_are_structs_or_frames() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    store = app.store("store", key=tuple[str, int], value=Total, default=Total())
    got: list[Any] = []

    def handle(batch: sl.Batch) -> None:
        keys = pl.DataFrame({"k": ["a", "b"], "n": [1, 2]})
        store.put_batch(keys, pl.DataFrame({"n": [1, 2], "worst": [None, 0.5]}))
        store.put_batch([("c", 3)], [Total(3, 1.5)])
        got.extend(store.get_batch([("b", 2), ("z", 9)]).to_pylist())
        assert store["a", 1] == Total(1, None)

    driver = run_once(app, words, [store], handle)
    assert driver.store(store) == {
        ("a", 1): Total(1),
        ("b", 2): Total(2, 0.5),
        ("c", 3): Total(3, 1.5),
    }
    assert got[:2] == [{"n": 2, "worst": 0.5}, {"n": 0, "worst": None}]


def test_values_without_a_column_type_are_lists_of_objects() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    store = app.store("store", key=str, value=dict)

    def handle(batch: sl.Batch) -> None:
        store.put_batch(["a", "b"], [{"n": 1}, {"n": [2]}])
        assert store.get_batch(["b", "x"]) == [{"n": [2]}, None]

    assert run_once(app, words, [store], handle).store(store) == {"a": {"n": 1}, "b": {"n": [2]}}


def test_counters_and_aggregates_take_whole_columns() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int, partitions=2)
    seen = app.counter("seen")
    figures = app.aggregates("figures", n=sl.count(), total=sl.sum("value"), mean=sl.mean("value"))

    @app.task(words, stores=[seen, figures], batch=True)
    def count(batch: sl.Batch) -> None:
        counts = seen.add_batch(batch.keys)
        assert len(counts) == len(batch)
        shown = figures.add_batch(batch.keys, batch.to_polars())
        assert shown.columns == ["key", "n", "total", "mean"]
        assert figures.get_batch(shown["key"]).equals(shown.drop("key"))
        seen.add_batch(batch.keys, by=batch.values)

    driver = TestDriver(app).run([*rows(20), CRASH, *rows(20)])
    mine = [n for n in range(20) if n % 5 == 2] * 2
    assert driver.store(seen)["k2"] == len(mine) + sum(mine)
    result = driver.store(figures)["k2"]
    assert (result.n, result.total, result.mean) == (8, sum(mine), sum(mine) / 8)


def test_aggregates_that_are_lists_take_whole_columns() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int, partitions=2)
    distinct, most, every = sl.n_unique("value"), sl.top("value", 2), sl.collect("value", limit=3)
    figures = app.aggregates("figures", distinct=distinct, most=most, every=every)

    @app.task(words, stores=[figures], batch=True)
    def count(batch: sl.Batch) -> None:
        shown = figures.add_batch(batch.keys, batch.to_polars())
        assert figures.get_batch(shown["key"]).to_dicts() == shown.drop("key").to_dicts()

    driver = TestDriver(app).run([*rows(20), CRASH, *rows(20)])
    mine = [n for n in range(20) if n % 5 == 2]
    result = driver.store(figures)["k2"]
    assert result.distinct == len(mine)
    assert result.most == [max(mine)] * 2
    assert result.every == mine[:3]


def test_aggregates_of_a_store_refuse_times() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    figures = app.aggregates("figures", latest=sl.max("timestamp"))

    @app.task(words, stores=[figures], batch=True)
    def count(batch: sl.Batch) -> None:
        figures.add_batch(batch.keys, batch.to_polars())

    with pytest.raises(sl.TaskFailed, match="hold numbers and text, so cast the column first"):
        TestDriver(app).run([("a", 1)])


def test_a_sum_that_exceeds_64_bits_is_one_dead_letter() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    seen = app.counter("seen")

    @app.task(words, stores=[seen], batch=True, on_error="dead_letter", name="t")
    def count(batch: sl.Batch) -> None:
        seen.add_batch(batch.keys, by=batch.values)

    driver = TestDriver(app).run([("a", 2**62), ("b", 1), ("a", 2**62), ("a", 5)])
    assert driver.store(seen) == {"a": 2**62 + 5, "b": 1}
    [letter] = driver.output(app.declared.topics["app-t-dead-letter"])
    assert b"64 bits" in dict(letter.headers)["error.message"]


def test_columns_are_refused_in_a_task_of_single_records() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int)
    seen = app.counter("seen")

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen.add_batch([record.key])

    with pytest.raises(sl.TaskFailed, match="columns are for tasks with batch=True"):
        TestDriver(app).run([("a", 1)])


def test_a_store_goes_from_single_records_to_batches_and_back(tmp_path: Path) -> None:
    def version(*, batch: bool) -> tuple[sl.App, Any, Any]:
        app = sl.App("app", log=tmp_path / "log")
        words = app.topic("words", key=str, value=int, partitions=2)
        seen = app.counter("seen")

        def one(record: sl.Record[str, int]) -> None:
            seen.add(record.key)

        def many(given: sl.Batch) -> None:
            seen.add_batch(given.keys)

        app.task(words, stores=[seen], name="count", batch=batch)(many if batch else one)
        return app, words, seen

    for number, batch in enumerate((False, True, False, True), start=1):
        app, words, seen = version(batch=batch)
        with app:
            words.append(rows(20))
            app.run(until="idle", progress=False)
            assert app.query(seen).to_dict() == {f"k{n}": 4 * number for n in range(5)}


@pytest.mark.parametrize("keys", [[()], [("a",), ("a", "b")]], ids=["empty", "of two lengths"])
def test_tuples_that_are_no_column_are_refused_and_none_is_left_out(
    keys: list[tuple[str, ...]],
) -> None:
    app = sl.App("app")
    topic = app.topic("in", key=str, value=int)
    counts = app.counter("counts", key=tuple[str, ...])

    @app.task(topic, stores=[counts], batch=True)
    def count(batch: sl.Batch) -> None:
        for call in (counts.add_batch, counts.get_batch, counts.delete_batch):
            with pytest.raises(InvalidRecord, match="tuples of one length, which is not 0; got"):
                call(keys)
        counts.add_batch([("a", "b")] * 2)

    with TestDriver(app) as driver:
        driver.run([("k", 1)])
        assert driver.store(counts) == {("a", "b"): 2}


def test_a_query_of_the_driver_goes_by_its_clock() -> None:
    app = sl.App("app")
    topic = app.topic("in", key=str, value=int)
    last = app.store("last", key=str, value=int, ttl_ms=60_000)

    @app.task(topic, stores=[last])
    def keep(record: sl.Record[str, int]) -> None:
        last[record.key] = record.value

    with TestDriver(app) as driver:
        driver.run([("k", 1)])
        assert driver.query(last).to_dict() == driver.store(last) == {"k": 1}
        driver.advance(70_000)
        assert driver.query(last).to_dict() == driver.store(last) == {}
