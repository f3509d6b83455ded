"""Execution of stages: branches and merges, state between, results, and columns that are absent."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import strandline as sl
from strandline.framework.streams.executor import Executor
from tests.streams.support import (
    FIELDS,
    Passing,
    by_topic,
    flight,
    flight_stream,
    flights,
    frame_of,
    new_app,
    run,
)


class Silent(Passing):
    """Aggregation that emits later."""

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        super().process(frame)
        return None


def test_a_stream_that_is_used_several_times_is_computed_once() -> None:
    app, stream = flight_stream()
    calls: list[int] = []

    def counted(frame: pl.DataFrame) -> pl.DataFrame:
        calls.append(frame.height)
        return frame

    schema = pl.Schema({name: stream.schema[name] for name in FIELDS})
    shared = stream.map_batches(counted, schema=schema)
    shared.filter(sl.col("delay") > 1).to("some")
    shared.to("all")
    shared.merge(shared).to("twice")
    found = run(app.plan(), {"flights": frame_of([flight(delay=n) for n in range(4)])})
    assert calls == [4]
    assert {name: frame["delay"].to_list() for name, frame in found.items()} == {
        "some": [2, 3],
        "all": [0, 1, 2, 3],
        "twice": [0, 1, 2, 3, 0, 1, 2, 3],
    }


def test_topics_of_a_stage_may_have_rows_or_none() -> None:
    app = new_app()
    app.stream(flights(app, "a"), flights(app, "b")).filter(sl.col("delay") > 0).to("o")
    [stage] = app.plan().stages
    executor = Executor(stage, {})
    rows = frame_of([flight(delay=1), flight(delay=0)])
    assert by_topic(executor.run({"b": rows}))["o"]["delay"].to_list() == [1]
    both = executor.run({"a": rows.with_columns(delay=pl.lit(7, pl.Int64)), "b": rows})
    assert by_topic(both)["o"]["delay"].to_list() == [7, 7, 1]
    assert executor.run({}) == {}
    assert executor.run({"a": rows.clear()}) == {}


def test_a_topic_gets_key_value_and_time() -> None:
    app, stream = flight_stream()
    stream.select("delay").to("o")
    stream.with_columns(hidden=1).to("p", key="origin")
    found = run(app.plan(), {"flights": frame_of([flight()])})
    assert found["o"].to_dicts() == [{"key": "k", "delay": 5, "timestamp": 1000}]
    assert found["p"].columns == [
        "origin",
        "carrier",
        "delay",
        "speed",
        "tags",
        "hidden",
        "timestamp",
    ]


def test_rows_pass_an_internal_topic_without_columns_that_nothing_uses() -> None:
    app, stream = flight_stream()
    once = stream.drop_duplicates(on="origin", within="1h", name="once")
    once.rename({"speed": "v"}).drop("tags").select("delay", half=sl.col("v") / 2).to("o")
    passing = Passing()
    found = run(app.plan(), {"flights": frame_of([flight(speed=4.0)])}, once=passing)
    between = found["air-once-repartition"]
    columns = ["key", "origin", "delay", "speed", "timestamp", "__watermark", "__record"]
    assert between.columns == columns  # the last one is for late rows, and not written
    assert passing.seen[0].schema == stream.node.schema
    assert passing.seen[0]["carrier"].to_list() == [None]
    assert found["o"].to_dicts() == [{"key": "k", "delay": 5, "half": 2.0, "timestamp": 1000}]


def test_an_aggregation_gets_the_columns_of_its_expressions() -> None:
    app, stream = flight_stream()
    stream.group_by("key").agg(worst=sl.max(sl.col("delay") * 60), name="worst")
    silent = Silent()
    assert run(app.plan(), {"flights": frame_of([flight(delay=2)])}, worst=silent) == {}
    assert silent.seen[0]["__worst_column"].to_list() == [120]


def windowed(app: sl.App, stream: sl.Stream) -> tuple[Executor, pl.DataFrame]:
    """Return the execution of a stage with a windowed aggregation, and one result of it."""
    results = stream.group_by("key").window(sl.tumbling("1h")).agg(n=sl.count(), name="n")
    results.to("final")
    results.filter(sl.col("n") > 1).to("updates", emit="update")
    results.group_by("key").window(sl.tumbling("1d")).agg(most=sl.max("n"), name="daily").to(
        "daily"
    )
    [stage] = app.plan().stages
    daily = Silent()
    executor = Executor(stage, {"n": Silent(), "daily": daily})
    return executor, pl.DataFrame(
        [{"key": "k", "window_start": 0, "window_end": 1, "n": 2, "timestamp": 5}],
        schema=dict(results.node.schema),
        strict=False,
    )


def test_results_reach_the_ends_that_take_them() -> None:
    executor, result = windowed(*flight_stream())
    assert executor.run({"flights": frame_of([flight()])}) == {}
    assert list(by_topic(executor.emit("n", result, "update"))) == ["updates"]
    daily: Any = executor._operators["daily"]
    assert daily.seen == []
    assert list(by_topic(executor.emit("n", result, "final"))) == ["final"]
    assert [frame["n"].to_list() for frame in daily.seen] == [[2]]


def test_results_that_nothing_takes_are_not_passed_on() -> None:
    app, stream = flight_stream()
    seen: list[Any] = []
    counts = stream.group_by("key").window(sl.tumbling("1h")).agg(n=sl.count(), name="n")
    counts.peek(seen.append).to("final")
    executor = Executor(app.plan().stages[0], {"n": Silent()})
    result = pl.DataFrame(schema=dict(counts.node.schema)).clear(1)
    assert (executor.takes("n", "final"), executor.takes("n", "update")) == (True, False)
    assert executor.emit("n", result, "update") == {}
    assert seen == []
    assert list(by_topic(executor.emit("n", result, "final"))) == ["final"]
    assert len(seen) == 1


def test_an_operator_that_gives_no_rows_reaches_no_end() -> None:
    app, stream = flight_stream()
    stream.drop_duplicates(on="key", within="1h", name="once").to("o")

    class Dropping:
        def process(self, frame: pl.DataFrame, /) -> pl.DataFrame:
            return frame.clear()

    assert run(app.plan(), {"flights": frame_of([flight()])}, once=Dropping()) == {}


def test_an_aggregation_may_emit_updates_at_once() -> None:
    app, stream = flight_stream()
    stream.group_by("key").agg(n=sl.count(), name="n").to("counts")

    class Counting:
        def process(self, frame: pl.DataFrame, /) -> pl.DataFrame:
            return frame.group_by("key", maintain_order=True).agg(
                n=pl.len().cast(pl.Int64), timestamp=pl.col("timestamp").max()
            )

    rows = [flight(key="a"), flight(key="b"), flight(key="a", timestamp=2000)]
    found = run(app.plan(), {"flights": frame_of(rows)}, n=Counting())
    assert found["counts"].to_dicts() == [
        {"key": "a", "n": 2, "timestamp": 2000},
        {"key": "b", "n": 1, "timestamp": 1000},
    ]


def test_a_stage_that_reads_what_it_writes_passes_rows_once() -> None:
    app, stream = flight_stream()
    again = stream.filter(sl.col("delay") > 0).through("again")
    stream.merge(again).to("o")
    [stage] = app.plan().stages
    executor = Executor(stage, {})
    first = by_topic(executor.run({"flights": frame_of([flight(delay=1)])}))
    assert (first["again"].height, first["o"].height) == (1, 1)
    second = by_topic(executor.run({"again": frame_of([flight(delay=1)])}))
    assert {name: frame.height for name, frame in second.items()} == {"o": 1}


def test_a_frame_with_other_columns_is_refused() -> None:
    app, stream = flight_stream()
    stream.to("o")
    executor = Executor(app.plan().stages[0], {})
    with pytest.raises(
        sl.InvalidRecord, match="do not have the columns of the stream: column 'delay' is missing"
    ):
        executor.run({"flights": frame_of([flight()]).drop("delay")})


def test_an_error_of_an_expression_is_that_of_polars() -> None:
    app, stream = flight_stream()
    stream.with_columns(at=sl.col("carrier").cast(pl_int())).to("o")
    executor = Executor(app.plan().stages[0], {})
    with pytest.raises(pl.exceptions.InvalidOperationError):
        executor.run({"flights": frame_of([flight(carrier="no number")])})


def pl_int() -> Any:
    import narwhals as nw

    return nw.Int64
