"""Every stateless operator gives the rows that plain Python gives, for any rows."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.framework.streams.rows import StreamRow
from tests.streams.support import FIELDS, Rows, flight, flight_stream, frame_of, results, run

TEXTS = st.none() | st.sampled_from(["", "AA", "BA", "Zürich", "x y"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": TEXTS,
            "carrier": TEXTS,
            "origin": TEXTS,
            "delay": st.none() | st.integers(-1000, 1000),
            "speed": st.none() | st.floats(allow_nan=False, width=32),
            "tags": st.none() | st.lists(TEXTS, max_size=3),
            "timestamp": st.integers(0, 2**53),
        }
    ),
    max_size=12,
)


@dataclass(frozen=True)
class Late:
    carrier: str | None
    hours: float | None
    tags: list[str | None] | None = None


class Word(msgspec.Struct):
    word: str | None


def hours(row: Any) -> float | None:
    return None if row.delay is None else row.delay / 60


def is_late(row: Any) -> bool:
    return row.delay is not None and row["delay"] > 15


def words(row: Any) -> Iterator[Word]:
    for tag in row.tags or []:
        yield Word(tag)


def doubled(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("delay") > 0).with_columns(double=pl.col("delay") * 2)


def plus(left: Any, right: Any) -> Any:
    return None if left is None or right is None else left + right


class Step(NamedTuple):
    """One operator, and what it does to rows of plain Python."""

    name: str
    stream: Callable[[sl.Stream], sl.Stream]
    oracle: Callable[[Rows], Rows]


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


STEPS = [
    Step(
        "filter",
        lambda s: s.filter(sl.col("delay") > 15),
        lambda rows: [r for r in rows if r["delay"] is not None and r["delay"] > 15],
    ),
    Step(
        "filter by several",
        lambda s: s.filter((sl.col("delay") > 0) & ~sl.col("carrier").is_null()),
        lambda rows: [r for r in rows if (r["delay"] or 0) > 0 and r["carrier"] is not None],
    ),
    Step(
        "filter by a function",
        lambda s: s.filter(is_late),
        lambda rows: [r for r in rows if r["delay"] is not None and r["delay"] > 15],
    ),
    Step(
        "with_columns",
        lambda s: s.with_columns(route=sl.col("carrier") + "-" + sl.col("origin"), n=1),
        lambda rows: [
            {**r, "route": plus(plus(r["carrier"], "-"), r["origin"]), "n": 1} for r in rows
        ],
    ),
    Step(
        "with_columns that swaps",
        lambda s: s.with_columns(carrier="origin", origin="carrier"),
        lambda rows: [{**r, "carrier": r["origin"], "origin": r["carrier"]} for r in rows],
    ),
    Step(
        "with_columns by a function",
        lambda s: s.with_columns(hours=hours),
        lambda rows: [
            {**r, "hours": None if r["delay"] is None else r["delay"] / 60} for r in rows
        ],
    ),
    Step(
        "select of all",
        lambda s: s.select("tags", "carrier", "origin", "speed", delay=sl.col("delay") + 1),
        lambda rows: [
            {
                "tags": r["tags"],
                "carrier": r["carrier"],
                "origin": r["origin"],
                "speed": r["speed"],
                "delay": plus(r["delay"], 1),
                "key": r["key"],
                "timestamp": r["timestamp"],
            }
            for r in rows
        ],
    ),
    Step(
        "rename there and back",
        lambda s: s.rename({"speed": "v"}).rename({"v": "speed"}),
        lambda rows: rows,
    ),
    Step(
        "merge of branches",
        lambda s: (lambda b: b.late.merge(b.early, b.rest))(
            s.branch(late=sl.col("delay") > 15, early=lambda row: (row.delay or 0) < 0)
        ),
        lambda rows: [
            *(r for r in rows if (r["delay"] or 0) > 15),
            *(r for r in rows if (r["delay"] or 0) < 0),
            *(r for r in rows if 0 <= (r["delay"] or 0) <= 15),
        ],
    ),
    Step(
        "map_batches",
        lambda s: s.map_batches(lambda f: f.with_columns(pl.col("speed") * 2)),
        lambda rows: [{**r, "speed": None if r["speed"] is None else r["speed"] * 2} for r in rows],
    ),
    Step("peek", lambda s: s.peek(lambda row: None), lambda rows: rows),
]


@settings(max_examples=60)
@given(rows=ROWS, steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=5))
def test_any_sequence_of_operators_gives_the_rows_of_plain_python(
    rows: Rows, steps: list[Step]
) -> None:
    app, stream = flight_stream()
    expected = rows
    for step in steps:
        stream, expected = step.stream(stream), step.oracle(expected)
    found = results(app, stream, rows)
    assert found.to_dicts() == [{name: r[name] for name in stream.columns} for r in expected]
    assert dict(found.schema) == stream.schema


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_each_operator_gives_the_rows_of_plain_python(step: Step) -> None:
    rows = [flight(delay=20), flight(delay=None, carrier=None), flight(delay=-3, tags=[])]
    app, stream = flight_stream()
    found = results(app, step.stream(stream), rows)
    assert found.to_dicts() == [{n: r[n] for n in found.columns} for r in step.oracle(rows)]


@settings(max_examples=40)
@given(rows=ROWS)
def test_map_returns_rows_of_a_class_with_key_and_time_of_theirs(rows: Rows) -> None:
    app, stream = flight_stream()
    mapped = stream.map(lambda row: Late(row.carrier, hours(row), row.tags), schema=Late)
    assert mapped.columns == ["carrier", "hours", "tags", "key", "timestamp"]
    assert results(app, mapped, rows).to_dicts() == [
        {
            "carrier": r["carrier"],
            "hours": None if r["delay"] is None else r["delay"] / 60,
            "tags": r["tags"],
            "key": r["key"],
            "timestamp": r["timestamp"],
        }
        for r in rows
    ]


@pytest.mark.parametrize(
    "schema",
    [pa.schema([("n", pa.int64())]), pl.Schema({"n": pl.Int64()})],
    ids=["arrow", "polars"],
)
def test_map_takes_dicts_for_a_schema_of_columns(schema: Any) -> None:
    app, stream = flight_stream()
    mapped = stream.map(lambda row: {"n": len(row.tags)}, schema=schema)
    assert results(app, mapped, [flight(tags=["a", "b"])])["n"].to_list() == [2]


@settings(max_examples=40)
@given(rows=ROWS)
def test_flat_map_and_explode_give_a_row_for_each_item(rows: Rows) -> None:
    expected = [
        {"word": tag, "key": r["key"], "timestamp": r["timestamp"]}
        for r in rows
        for tag in r["tags"] or []
    ]
    app, stream = flight_stream()
    found = results(app, stream.flat_map(words, schema=Word), rows)
    assert found.to_dicts() == expected
    app, stream = flight_stream()
    exploded = stream.select("tags").explode("tags").rename({"tags": "word"})
    assert results(app, exploded, rows).to_dicts() == expected


@settings(max_examples=40)
@given(rows=ROWS)
def test_map_batches_may_change_the_number_of_rows(rows: Rows) -> None:
    app, stream = flight_stream()
    found = results(app, stream.map_batches(doubled), rows)
    assert found.to_dicts() == [
        {**r, "double": r["delay"] * 2} for r in rows if r["delay"] is not None and r["delay"] > 0
    ]


@settings(max_examples=40)
@given(rows=ROWS)
def test_drop_removes_columns_and_only_these(rows: Rows) -> None:
    app, stream = flight_stream()
    found = results(app, stream.drop("tags", "speed"), rows)
    assert found.to_dicts() == [without(r, "tags", "speed") for r in rows]


@settings(max_examples=40)
@given(rows=ROWS)
def test_each_row_is_in_the_first_branch_that_matches(rows: Rows) -> None:
    app, stream = flight_stream()
    parts = stream.with_columns(is_small=sl.col("speed") < 1).branch(
        big=sl.col("delay") > 100, positive=lambda row: (row.delay or 0) > 0, small="is_small"
    )
    for name, part in zip(("big", "positive", "small", "rest"), parts, strict=True):
        part.to(name)
    found = run(app.plan(), {"flights": frame_of(rows)})
    expected: dict[str, list[int]] = {}
    for r in rows:
        delay, speed = r["delay"] or 0, r["speed"]
        small = speed is not None and speed < 1
        arm = "big" if delay > 100 else "positive" if delay > 0 else "small" if small else "rest"
        expected.setdefault(arm, []).append(r["timestamp"])
    assert {name: frame["timestamp"].to_list() for name, frame in found.items()} == expected


def test_peek_and_foreach_see_each_row_once_with_attributes_and_items() -> None:
    app, stream = flight_stream()
    peeked: list[Any] = []
    ended: list[Any] = []

    def collect(row: Any) -> None:
        ended.append((row["origin"], row.timestamp, "origin" in row, len(row)))

    stream.peek(lambda row: peeked.append(dict(row))).foreach(collect)
    rows = [flight(delay=n, timestamp=n) for n in range(3)]
    run(app.plan(), {"flights": frame_of(rows)})
    assert peeked == rows
    assert ended == [("JFK", n, True, 7) for n in range(3)]


def test_a_row_names_the_columns_for_a_name_that_it_lacks() -> None:
    app, stream = flight_stream()
    stream.foreach(lambda row: row.dely)
    with pytest.raises(AttributeError, match="did you mean 'delay'"):
        run(app.plan(), {"flights": frame_of([flight()])})


def test_a_row_can_be_copied_and_compared() -> None:
    row = StreamRow({"a": 1})
    assert copy.deepcopy(row) == row != StreamRow({"a": 2})
    assert pickle.loads(pickle.dumps(row)) == row


def test_functions_are_not_called_without_rows() -> None:
    app, stream = flight_stream()
    calls: list[int] = []

    def counted(frame: pl.DataFrame) -> pl.DataFrame:
        calls.append(frame.height)
        return frame

    stream.filter(sl.col("delay") > 100).map_batches(counted, schema=stream_schema(stream)).to("o")
    assert run(app.plan(), {"flights": frame_of([flight(delay=1)])}) == {}
    assert run(app.plan(), {"flights": frame_of([])}) == {}
    assert calls == []


def stream_schema(stream: sl.Stream) -> pl.Schema:
    """Return the columns of a stream as `schema=`."""
    return pl.Schema({name: stream.schema[name] for name in FIELDS})


def test_an_error_of_a_function_propagates_unchanged() -> None:
    app, stream = flight_stream()
    failure = ZeroDivisionError("mine")

    def fail(row: Any) -> None:
        raise failure

    stream.foreach(fail)
    with pytest.raises(ZeroDivisionError) as caught:
        run(app.plan(), {"flights": frame_of([flight()])})
    assert caught.value is failure


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"carrier": "AA"}, r"lacks the columns \['hours', 'tags'\]"),
        (
            {"carrier": 5, "hours": 1.0, "tags": []},
            "field 'carrier' of the row is stored as string",
        ),
        ("text", "expected Late, got 'text'"),
        (None, "expected Late, got None"),
        ({"carrier": "A", "hours": 1.0, "tags": [], "x": 1}, r"unknown columns \['x'\]"),
    ],
)
def test_a_row_that_map_returns_must_have_the_schema(returned: Any, said: str) -> None:
    app, stream = flight_stream()
    stream.map(lambda row: returned, schema=Late).to("o")
    with pytest.raises(sl.InvalidRecord, match=said) as caught:
        run(app.plan(), {"flights": frame_of([flight()])})
    assert "test_operators.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop("delay"), "column 'delay' is missing"),
        (lambda f: f.with_columns(x=1), "column 'x' was not declared"),
        (lambda f: f.cast({"delay": pl.Float64}), "column 'delay' is Float64, declared as Int64"),
        (lambda f: f.lazy(), "returned LazyFrame"),
    ],
)
def test_a_frame_that_map_batches_returns_must_have_the_schema(change: Any, said: str) -> None:
    app, stream = flight_stream()
    stream.map_batches(change, schema=stream_schema(stream)).to("o")
    with pytest.raises(sl.InvalidRecord, match=said):
        run(app.plan(), {"flights": frame_of([flight()])})


def test_a_predicate_must_return_true_or_false() -> None:
    app, stream = flight_stream()
    stream.filter(lambda row: row.carrier).to("o")
    with pytest.raises(sl.InvalidRecord, match="returned 'AA'; a predicate returns True or False"):
        run(app.plan(), {"flights": frame_of([flight()])})


def test_a_flat_function_must_return_several_rows() -> None:
    app, stream = flight_stream()
    stream.flat_map(lambda row: {"word": "a"}, schema=Word).to("o")
    with pytest.raises(sl.InvalidRecord, match="flat_map takes a list of rows"):
        run(app.plan(), {"flights": frame_of([flight()])})
