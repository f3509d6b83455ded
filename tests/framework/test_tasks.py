"""Tasks: the values that handlers get, the calls that they may make, and those only allowed
outside."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import strandline as sl
from strandline.framework.testing import TestDriver


@dataclass(frozen=True)
class Flight:
    carrier: str
    origin: str
    delay: float | None
    at: int = 0


@dataclass(frozen=True)
class Event:
    key: str
    x: int
    s: str
    at: int


class Total(msgspec.Struct, frozen=True):
    n: int = 0
    worst: float | None = None


def flights_app() -> tuple[sl.App, Any, Any, Any]:
    app = sl.App("flights")
    flights = app.topic("flights", value=Flight, key="carrier", timestamp="at", partitions=4)
    worst = app.topic("worst", key=str, value=Total)
    totals = app.store("totals", key=str, value=Total, default=Total())

    @app.task(flights, stores=[totals])
    def tally(record: sl.Record[str, Flight]) -> None:
        old, delay = totals[record.key], record.value.delay
        known = [d for d in (old.worst, delay) if d is not None]
        totals[record.key] = new = Total(old.n + 1, max(known, default=None))
        worst.send(record.key, new)

    return app, flights, worst, totals


def test_handlers_read_and_write_typed_values() -> None:
    app, _, worst, totals = flights_app()
    rows = [Flight("AA", "JFK", 4.0, 7), Flight("BA", "LHR", None, 8), Flight("AA", "LGA", 9.5, 9)]
    driver = TestDriver(app).run(rows)
    assert driver.store(totals) == {"AA": Total(2, 9.5), "BA": Total(1, None)}
    sent = [(r.key, r.value, r.timestamp) for r in driver.output(worst)]
    assert sorted(sent, key=lambda row: row[2]) == [
        ("AA", Total(1, 4.0), 7),
        ("BA", Total(1, None), 8),
        ("AA", Total(2, 9.5), 9),
    ]


def test_decorators_return_what_they_decorate() -> None:
    app = sl.App("app")

    def handler(record: sl.Record[str, Any]) -> None:
        """Do nothing."""

    assert app.task(app.topic("in"))(handler) is handler


def test_handles_used_outside_of_a_handler_name_the_alternative() -> None:
    app, flights, worst, totals = flights_app()
    with pytest.raises(sl.NotInTask, match=r"topic\.append.*app\.producer\(\).*app\.query"):
        worst.send("AA", Total())
    with pytest.raises(sl.NotInTask, match=r"app\.query\(totals\)"):
        totals["AA"]
    with pytest.raises(sl.NotInTask):
        totals["AA"] = Total()
    with pytest.raises(sl.NotInTask, match="set_timer"):
        sl.set_timer("x", 1)
    with pytest.raises(sl.NotInTask):
        sl.current_task()
    with pytest.raises(sl.NotInTask, match="belongs to no task"):
        app.store("loose").get("x")


def test_handles_do_not_leak_into_threads() -> None:
    app = sl.App("app")
    words, seen = app.topic("words", value=str), app.store("seen", value=int)
    errors: list[BaseException] = []

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, str]) -> None:
        def other() -> None:
            try:
                seen["x"] = 1
            except sl.NotInTask as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    TestDriver(app).run(["a"])
    assert len(errors) == 1


def test_append_inside_of_a_handler_is_refused() -> None:
    app = sl.App("app")
    words = app.topic("words", value=str)
    app.task(words)(lambda record: words.append([("a", "b")]))
    with pytest.raises(sl.TaskFailed, match=r"use words\.send"):
        TestDriver(app).run(["a"])


def test_tombstones_are_passed_only_on_request() -> None:
    seen: dict[bool, list[Any]] = {True: [], False: []}
    app = sl.App("app")
    words = app.topic("words", value=str)
    app.task(words, name="all", tombstones=True)(lambda r: seen[True].append(r.value))
    app.task(words, name="some")(lambda r: seen[False].append(r.value))
    TestDriver(app).run([("a", "x"), ("a", None), ("b", "y")])
    assert seen == {True: ["x", None, "y"], False: ["x", "y"]}


def test_a_class_has_an_instance_per_partition() -> None:
    app = sl.App("app")
    words, seen = (
        app.topic("words", value=int, partitions=2),
        app.store("seen", value=int, default=0),
    )
    life: list[tuple[str, int]] = []

    @app.task(words, stores=[seen], window_ms=1_000)
    class Count:
        def init(self, context: sl.TaskContext) -> None:
            self.partition = context.partition
            life.append(("init", self.partition))
            seen.put("started", seen.get("started", 0) + 1) if self.partition == 0 else None

        def process(self, record: sl.Record[str, int]) -> None:
            assert sl.current_task().partition == self.partition == record.partition
            seen[record.key] += record.value

        def window(self) -> None:
            life.append(("window", self.partition))

        def close(self) -> None:
            life.append(("close", self.partition))

    driver = TestDriver(app).run([("a", 1), ("b", 2), ("c", 3), ("a", 4)])
    assert driver.store(seen) == {"a": 5, "b": 2, "c": 3, "started": 1}
    driver.advance(1_000)
    driver.close()
    assert life == [(event, p) for event in ("init", "window", "close") for p in (0, 1)]


def test_async_records_of_one_partition_keep_their_order_and_partitions_overlap() -> None:
    app = sl.App("app")
    words = app.topic("words", value=int, partitions=2)
    seen = app.store("seen", value=list[int], default_factory=list)
    arrived: set[int] = set()

    @app.task(words, stores=[seen])
    async def collect(record: sl.Record[str, int]) -> None:
        arrived.add(record.partition)
        for _ in range(1_000):
            if len(arrived) == 2:
                break
            await asyncio.sleep(0)
        assert len(arrived) == 2, "the other partition was not let in"
        with seen.edit(record.key) as values:
            values.append(record.value)

    driver = TestDriver(app)
    _append(driver, words, [(key, n) for n in range(20) for key in "abcd"])
    driver.settle()
    assert driver.store(seen) == {key: list(range(20)) for key in "abcd"}


def _append(driver: TestDriver, topic: Any, records: list[tuple[Any, ...]]) -> None:
    """Append records to a topic without running the worker."""
    cycle, driver.worker.cycle = driver.worker.cycle, lambda **_: 0  # type: ignore[method-assign,assignment]
    driver._take([(topic, *record) for record in records])
    driver.worker.cycle = cycle  # type: ignore[method-assign]


def test_several_inputs_are_handled_by_time() -> None:
    app = sl.App("app")
    left, right = app.topic("left", value=str), app.topic("right", value=str)
    seen: list[str] = []
    app.task([left, right], name="join")(lambda record: seen.append(record.value))
    driver = TestDriver(app)
    _append(driver, left, [("k", "l1", 10), ("k", "l3", 30), ("k", "l5", 50)])
    _append(driver, right, [("k", "r2", 20), ("k", "r4", 40)])
    driver.settle()
    assert seen == ["l1", "r2", "l3", "r4", "l5"]


def test_mutable_values_are_copied_when_they_are_sent() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=dict[str, int])
    shared: dict[str, int] = {}

    @app.task(words)
    def send(record: sl.Record[str, int]) -> None:
        shared["n"] = record.value
        out.send("k", shared)
        shared["n"] = -1

    driver = TestDriver(app).run([1, 2])
    assert [r.value for r in driver.output(out)] == [{"n": 1}, {"n": 2}]


def test_headers_timestamps_and_tombstones_are_sent() -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", key=int, value=float)

    @app.task(words)
    def send(record: sl.Record[str, int]) -> None:
        out.send(1, 1, headers=[("a", b"b"), ("c", None)])
        out.send(2, None, timestamp=5)
        out.send(None, 2.5)

    driver = TestDriver(app).run([("k", 1, 77)])
    rows = [(r.key, r.value, r.timestamp, tuple(r.headers)) for r in driver.output(out)]
    assert rows == [
        (1, 1.0, 77, (("a", b"b"), ("c", None))),
        (2, None, 5, ()),
        (None, 2.5, 77, ()),
    ]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (1, 1, "expected str, got 1"),
        ("k", "x", "expected int, got 'x'"),
        ("k", True, "expected int, got True"),
        ("\ud800", 1, "not valid text"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_by_send(key: Any, value: Any, says: str) -> None:
    app = sl.App("app")
    words, out = app.topic("words", value=int), app.topic("out", value=int)

    @app.task(words)
    def send(record: sl.Record[str, int]) -> None:
        out.send(key, value)

    with pytest.raises(sl.TaskFailed, match=rf"topic 'out'.*{says}.*test_tasks.py:\d+"):
        TestDriver(app).run([1])


def test_a_value_that_only_the_column_refuses_is_found_by_repeating_the_records() -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)
    out = app.topic("out", value=Flight, key="carrier")

    @app.task(words, on_error="skip")
    def send(record: sl.Record[str, int]) -> None:
        out.send(None, Flight("AA", "x", None, at=record.value if record.value != 3 else 2**70))

    driver = TestDriver(app).run([1, 2, 3, 4])
    assert [r.value.at for r in driver.output(out)] == [1, 2, 4]


def test_several_tasks_form_a_pipeline_through_topics() -> None:
    app = sl.App("app")
    flights = app.topic("flights", value=Flight, key="carrier", partitions=2)
    by_origin = app.repartition(flights, key="origin", partitions=3)
    by_pair = app.repartition(flights, lambda r: f"{r.value.carrier}/{r.value.origin}", name="pair")
    origins, pairs = app.counter("origins"), app.counter("pairs")
    app.task(by_origin, stores=[origins], name="o")(lambda r: origins.add(r.key))
    app.task(by_pair, stores=[pairs], name="p")(lambda r: pairs.add(r.key))
    rows = [Flight(c, o, 1.0) for c in ("AA", "BA") for o in ("JFK", "LHR", "LHR")]
    driver = TestDriver(app).run(rows)
    assert driver.store(origins) == {"JFK": 2, "LHR": 4}
    assert driver.store(pairs) == {"AA/JFK": 1, "AA/LHR": 2, "BA/JFK": 1, "BA/LHR": 2}


def test_aggregates_fold_rows() -> None:
    app = sl.App("app")
    flights = app.topic("flights", value=Flight, key="carrier")
    figures = app.aggregates("figures", n=sl.count(), worst=sl.max("delay"), mean=sl.mean("delay"))
    app.task(flights, stores=[figures], name="t")(lambda r: figures.add(r.key, r.value))
    driver = TestDriver(app).run(
        [Flight("AA", "x", 4.0), Flight("AA", "x", None), Flight("AA", "x", 8.0)]
    )
    result = driver.store(figures)["AA"]
    assert (result.n, result.worst, result.mean) == (3, 8.0, 6.0)


def test_aggregates_that_cannot_be_merged_say_so() -> None:
    app = sl.App("app")
    merged = app.aggregates("a", n=sl.count(), words=sl.reducer("", max, max))
    alone = app.aggregates("b", n=sl.count(), words=sl.reducer("", max))
    assert merged.merge is not None
    assert alone.merge is None


def test_the_whole_interface_of_a_store_works_inside_a_handler() -> None:
    app = sl.App("app")
    words, store = app.topic("words", value=int), app.store("s", key=str, value=int)

    @app.task(words, stores=[store])
    def use(record: sl.Record[str, int]) -> None:
        store["a"], store["b"], store["c"] = 1, 2, 3
        assert "a" in store
        assert store.get("z") is None
        assert store.get("z", 9) == 9
        assert store.put_if_absent("a", 5) == 1
        assert store.get_many(["a", "z"]) == {"a": 1}
        assert list(store.range("b")) == [("b", 2), ("c", 3)]
        assert list(store.reverse()) == [("c", 3), ("b", 2), ("a", 1)]
        assert list(store.prefix("a")) == [("a", 1)]
        del store["a"]
        store.delete("b")
        assert dict(store.all()) == {"c": 3}
        for wrong in (len, bool, iter):
            with pytest.raises(TypeError):
                wrong(store)  # type: ignore[operator]

    assert TestDriver(app).run([1]).store(store) == {"c": 3}


def test_two_tasks_on_one_topic_do_not_disturb_each_other() -> None:
    app = sl.App("app")
    words = app.topic("words", value=int)
    good, bad = app.counter("good"), app.counter("bad")
    app.task(words, stores=[good], name="good")(lambda r: good.add("n"))

    @app.task(words, stores=[bad], name="bad")
    def fails_at_three(record: sl.Record[str, int]) -> None:
        assert record.value != 3 or fixed
        bad.add("n")

    fixed = False
    driver = TestDriver(app)
    with pytest.raises(sl.TaskFailed):
        driver.run([1, 2, 3, 4])
    assert driver.store(good) == {"n": 4}
    assert driver.store(bad) == {"n": 2}
    fixed = True
    driver.crash().settle()
    assert driver.store(good) == {"n": 4}
    assert driver.store(bad) == {"n": 4}


def test_every_kind_of_aggregate_is_kept_a_record_at_a_time() -> None:
    app = sl.App("app")
    events = app.topic("events", value=Event, key="key", timestamp="at")
    figures = app.aggregates(
        "figures",
        spread=sl.var("x"),
        deviation=sl.std("x"),
        first=sl.first("x"),
        last=sl.last("x"),
        some=sl.any("s"),
        different=sl.n_unique("x"),
        about=sl.n_unique("x", approx=True),
        median=sl.quantile("x", 0.5),
        values=sl.collect("x", limit=3),
        best=sl.top("s", 2, by="x"),
        words=sl.reducer("", lambda old, row: old + row.s, lambda old, new: old + new),
    )
    app.task(events, stores=[figures], name="t")(lambda r: figures.add(r.key, r.value))
    rows = [(2, "a", 20), (4, "b", 10), (9, "c", 30), (4, "d", 30)]
    driver = TestDriver(app).run(Event("k", x, s, 1_700_000_000_000 + at) for x, s, at in rows)
    result = driver.store(figures)["k"]
    assert result.spread == pytest.approx(8.9166667)
    assert result.deviation == pytest.approx(8.9166667**0.5)
    assert (result.first, result.last, result.some) == (4, 4, "a")
    assert (result.different, result.about, result.median) == (3, 3, 4.0)
    assert (result.values, result.best, result.words) == ([4, 2, 9], ["c", "b"], "abcd")
