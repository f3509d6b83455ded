"""Mistakes in a stream are refused when it is declared, with the place, the reason and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from tests.streams.support import FLIGHT, flight_stream, flights, new_app


async def coroutine(row: Any) -> None: ...


def generator(row: Any) -> Any:
    yield row


def bad_type(row: Any) -> set[int]:
    return {row.delay}


def fails_when_empty(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(first=pl.lit(frame["delay"][0]))


Declare = Callable[[sl.Stream], object]

MISTAKES: list[tuple[str, Declare, str]] = [
    (
        "unknown column",
        lambda s: s.filter(sl.col("dely") > 15),
        (
            "filter: there is no column 'dely'; did you mean 'delay'? The columns are ['key',"
            " 'carrier', 'origin', 'delay', 'speed', 'tags', 'timestamp']"
        ),
    ),
    (
        "unknown column by name",
        lambda s: s.select("carier"),
        "select: there is no column 'carier'; did you mean 'carrier'?",
    ),
    (
        "unknown column of group_by",
        lambda s: s.group_by("orgin"),
        "group_by: there is no column 'orgin'; did you mean 'origin'?",
    ),
    (
        "unknown column of an aggregate",
        lambda s: s.group_by("origin").agg(n=sl.sum("dely"), name="x"),
        "agg: sum(dely): there is no column 'dely'; did you mean 'delay'?",
    ),
    ("unknown column of drop", lambda s: s.drop("no"), "drop: there is no column 'no'"),
    (
        "unknown column of rename",
        lambda s: s.rename({"no": "x"}),
        "rename: there is no column 'no'",
    ),
    ("unknown column of explode", lambda s: s.explode("no"), "explode: there is no column 'no'"),
    (
        "wrong types",
        lambda s: s.with_columns(x=sl.col("delay") + "x"),
        "with_columns: arithmetic on ",  # the rest is Polars' and differs by its version
    ),
    (
        "no bool",
        lambda s: s.filter(sl.col("delay")),
        "filter: col(delay) is not true or false for a row, but delay Int64; compare it, as",
    ),
    (
        "aggregation in a column",
        lambda s: s.with_columns(m=sl.col("delay").mean()),
        (
            "col(delay).mean().alias(name=m) depends on other rows of the batch, whose size is"
            " arbitrary; compute it per group with group_by(…).agg(…, name=)"
        ),
    ),
    (
        "order of rows in a column",
        lambda s: s.with_columns(m=sl.col("delay").cum_sum()),
        "with_columns: this depends on other rows of the batch",
    ),
    (
        "rank in a filter",
        lambda s: s.filter(sl.when(sl.col("delay").rank() < 1000).then(True).otherwise(False)),
        " depends on other rows",
    ),
    (
        "a group in a column",
        lambda s: s.select(x=sl.col("delay").sum().over("carrier")),
        "depends on other rows of the batch",
    ),
    (
        "an expression of Polars",
        lambda s: s.filter(pl.col("delay") > 1),
        (
            "filter: this is an expression of Polars; write sl.col(…), which is narwhals', or use"
            " map_batches(fn)"
        ),
    ),
    (
        "no expression",
        lambda s: s.select(x=object),
        "select: the type of column 'x' is not known; annotate what object returns",
    ),
    (
        "a list",
        lambda s: s.filter([1]),
        "filter: expected an expression, as sl.col('x') > 1, or the name of a column, got [1] (list)",
    ),
    ("no columns to select", lambda s: s.select(), "select: there is no column; name at least one"),
    ("nothing to add", lambda s: s.with_columns(), "with_columns: there is no column; give"),
    ("nothing to drop", lambda s: s.drop(), "drop: there is no column to remove"),
    (
        "a function without type",
        lambda s: s.with_columns(x=lambda row: 1),
        (
            "with_columns: the type of column 'x' is not known; annotate what <lambda> returns, as `def"
            " f(row) -> float | None`, or use map(fn, schema=)"
        ),
    ),
    (
        "a function of a type that is no column",
        lambda s: s.with_columns(x=bad_type),
        "with_columns: field 'x' of Columns cannot be a column: no Arrow type stands for set",
    ),
    (
        "a function without name",
        lambda s: s.select(bad_type),
        "select: the column of function bad_type needs a name: select(name=function)",
    ),
    ("an async function", lambda s: s.filter(coroutine), "filter: the function is async"),
    ("a generator", lambda s: s.map(generator, schema=FLIGHT), "map: the function has `yield`"),
    ("an async flat_map", lambda s: s.flat_map(coroutine, schema=FLIGHT), "coroutine is async"),
    (
        "an async map_batches",
        lambda s: s.map_batches(coroutine),
        "map_batches: the function is async",
    ),
    ("an async foreach", lambda s: s.foreach(coroutine), "foreach: coroutine is async"),
    ("a generator in peek", lambda s: s.peek(generator), "peek: the function has `yield`"),
    ("no function", lambda s: s.map(5, schema=FLIGHT), "map: the function cannot be called: 5"),
    (
        "a branch by a generator",
        lambda s: s.branch(a=generator),
        "branch: the function has `yield`",
    ),
    (
        "a branch called rest",
        lambda s: s.branch(rest="x"),
        "branch: a branch cannot be called 'rest'",
    ),
    ("no branch", lambda s: s.branch(), "branch: there is no predicate"),
    (
        "a branch that is no bool",
        lambda s: s.branch(a=sl.col("delay") + 1),
        "branch: a: col(delay) + 1 is not true or false",
    ),
    (
        "no schema",
        lambda s: s.map(bad_type, schema=int),
        (
            "map: schema=<class 'int'> is no schema; give a dataclass, a msgspec.Struct, a"
            " pyarrow.Schema or a polars.Schema"
        ),
    ),
    (
        "a column that no topic can hold",
        lambda s: s.map(bad_type, schema=pl.Schema({"x": pl.Null()})),
        "map: column 'x' is Null, which a topic cannot hold; cast it",
    ),
    (
        "a frame function that needs rows",
        lambda s: s.map_batches(fails_when_empty),
        (
            "map_batches: fails_when_empty fails for an empty frame, by which its columns are found"
            " (IndexError: "
        ),
    ),
    (
        "a frame function that returns no frame",
        lambda s: s.map_batches(lambda frame: frame.height),
        "map_batches: <lambda> returned int; it must return a polars frame",
    ),
    (
        "a frame without time",
        lambda s: s.map_batches(lambda frame: frame.select("delay")),
        (
            "map_batches: the returned frame has no column 'timestamp', the time of each row; return"
            " it as it was"
        ),
    ),
    ("reserved names", lambda s: s.with_columns(__x=1), "the column name '__x' is reserved"),
    ("reserved new names", lambda s: s.rename({"delay": "__x"}), "column name '__x' is reserved"),
    (
        "another key column",
        lambda s: s.with_columns(key="carrier"),
        "with_columns: the column 'key' is the key of the records, which stays; use group_by(…)",
    ),
    (
        "a time that is text",
        lambda s: s.with_columns(timestamp="carrier"),
        (
            "with_columns: the column 'timestamp' is the time of a record in ms since the epoch, an"
            " Int64, and cannot be String"
        ),
    ),
    ("dropped time", lambda s: s.drop("timestamp"), "drop: 'timestamp' is the time of the records"),
    ("renamed time", lambda s: s.rename({"timestamp": "t"}), "rename: 'timestamp' is the time of"),
    (
        "two columns of one name",
        lambda s: s.rename({"delay": "speed"}),
        "rename: there would be two columns called ['speed']; drop one before",
    ),
    (
        "explode of no list",
        lambda s: s.explode("delay"),
        "explode: column 'delay' is Int64; only lists can be exploded",
    ),
    (
        "merge of other columns",
        lambda s: s.merge(s.select("carrier")),
        "merge: merged streams have the same columns, and of another one column 'origin' is missing",
    ),
    (
        "merge of other types",
        lambda s: s.merge(s.with_columns(delay=sl.col("speed"))),
        "column 'delay' is Float64, declared as Int64",
    ),
    ("merge of no stream", lambda s: s.merge("s"), "merge: expected streams of the same app"),
    (
        "an aggregation without name",
        lambda s: s.group_by("origin").agg(n=sl.count()),
        (
            "agg: an operator that keeps state needs a name, after which its store and its internal"
            " topics are called; add name='…'"
        ),
    ),
    (
        "a bad name",
        lambda s: s.group_by("origin").agg(n=sl.count(), name="a b"),
        "agg: name='a b' is no valid name",
    ),
    (
        "a reserved name",
        lambda s: s.group_by("origin", name="x-changelog"),
        "group_by: name='x-changelog': names with this ending are reserved",
    ),
    ("no key", lambda s: s.group_by(), "group_by: there is no key; name at least one column"),
    (
        "a function as key",
        lambda s: s.group_by(bad_type),
        "group_by: a function cannot be a key; add a column with with_columns(name=function)",
    ),
    (
        "a key that is a list",
        lambda s: s.group_by("tags"),
        "group_by: column 'tags' is List(String), which cannot be a key",
    ),
    ("time as key", lambda s: s.group_by("timestamp"), "group_by: 'timestamp' cannot be a key"),
    (
        "no aggregate",
        lambda s: s.group_by("origin").agg(n=5, name="x"),
        "agg: n= is an aggregate, as sl.count(), got 5",
    ),
    (
        "no aggregates",
        lambda s: s.group_by("origin").agg(name="x"),
        "agg: aggregates need at least one name, as n=count()",
    ),
    (
        "an aggregate of unsuitable values",
        lambda s: s.group_by("origin").agg(n=sl.mean("carrier"), name="x"),
        "agg: mean(carrier): column 'carrier' is String, and mean takes numbers or decimals",
    ),
    (
        "an aggregate called as a key",
        lambda s: s.group_by("origin").agg(origin=sl.count(), name="x"),
        "agg: the results would have two columns 'origin'",
    ),
    (
        "an aggregate called as a window",
        lambda s: (
            s.group_by("origin").window(sl.tumbling("1h")).agg(window_start=sl.count(), name="x")
        ),
        "agg: the results would have two columns 'window_start'",
    ),
    (
        "an aggregate called as a field of sessions",
        lambda s: (
            s.group_by("origin").window(sl.session("1h")).agg(window_count=sl.count(), name="x")
        ),
        "agg: the results would have two columns 'window_count'",
    ),
    (
        "no window",
        lambda s: s.group_by("origin").window("1h"),
        "window: expected windows, as sl.tumbling('1h'), got '1h'",
    ),
    (
        "a reducer that cannot merge",
        lambda s: (
            s.group_by("origin")
            .window(sl.session("1h"))
            .agg(n=sl.reducer(0, lambda state, row: state + 1, returns=int), name="x")
        ),
        'n cannot be merged, and session("1h", grace="1h") merges states; give merge= to sl.reducer',
    ),
    (
        "an aggregation of updates",
        lambda s: s.group_by("origin").agg(n=sl.count(), name="x").group_by("n"),
        "group_by: the rows are updates of an aggregation, and an update would be counted again",
    ),
    (
        "a negative time",
        lambda s: s.drop_duplicates(on="origin", within=-1, name="x"),
        "drop_duplicates: within=-1: the duration must be greater than 0",
    ),
    (
        "a wrong time",
        lambda s: s.drop_duplicates(on="origin", within="1 hour", name="x"),
        "drop_duplicates: within='1 hour' is no duration",
    ),
    (
        "duplicates without name",
        lambda s: s.drop_duplicates(on="origin", within="1h"),
        "drop_duplicates: an operator that keeps state needs a name",
    ),
    ("duplicates of nothing", lambda s: s.drop_duplicates(on=[], within=1, name="x"), "with on="),
    (
        "emit of rows",
        lambda s: s.to("o", emit="final"),
        "to: emit='final' is for results of agg(…)",
    ),
    ("a wrong emit", lambda s: s.to("o", emit="both"), "to: emit='both' is neither"),
    (
        "final results without windows",
        lambda s: s.group_by("origin").agg(n=sl.count(), name="x").to("o", emit="final"),
        "to: emit='final' needs windows, because a group without one can always get another row",
    ),
    (
        "no topic",
        lambda s: s.to(5),
        "to: expected a topic of app.topic(…) or a topic's name, got 5",
    ),
    ("a wrong topic name", lambda s: s.to("a b"), "to: a topic cannot be called 'a b'"),
    ("an unknown key", lambda s: s.to("o", key="orgin"), "to: there is no column 'orgin'; did you"),
    ("time as the key of a topic", lambda s: s.to("o", key="timestamp"), "cannot be the key"),
    (
        "no value",
        lambda s: s.select("key").to("o"),
        "to: there is no column to write to 'o'; keep at least one",
    ),
]


@pytest.mark.parametrize(
    ("declare", "said"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_mistake_is_refused_where_it_is_made(declare: Declare, said: str) -> None:
    app, stream = flight_stream()
    with pytest.raises(sl.InvalidConfig) as caught:
        declare(stream)
    assert said in str(caught.value)
    assert "tests/streams/test_refused.py:" in str(caught.value)
    assert app.plan().fingerprints() == [] or "to: emit" in said or "group_by: the rows" in said


def test_two_operators_cannot_have_one_name() -> None:
    app, stream = flight_stream()
    grouped = stream.group_by("origin", name="by-origin")
    grouped.agg(n=sl.count())
    with pytest.raises(sl.InvalidConfig, match="there is an operator called 'by-origin' already"):
        grouped.agg(n=sl.count())
    with pytest.raises(sl.InvalidConfig, match="declared at tests/streams/test_refused.py:"):
        stream.drop_duplicates(on="origin", within="1h", name="by-origin")


def test_an_operator_cannot_have_the_name_of_a_store() -> None:
    app, stream = flight_stream()
    app.store("totals")
    with pytest.raises(sl.InvalidConfig, match="there is a store called 'totals' already"):
        stream.group_by("origin").agg(n=sl.count(), name="totals")


def test_a_key_column_that_was_removed_is_missed_at_the_end() -> None:
    app = new_app()
    stream = app.stream(flights(app, key="carrier"))
    for lost in (stream.drop("carrier"), stream.with_columns(carrier="origin")):
        with pytest.raises(sl.InvalidConfig, match="name the columns of the new key with key="):
            lost.to("o")


SOURCES: list[tuple[str, dict[str, Any], str]] = [
    ("a wrong delay", {"delay": "x"}, "app.stream: delay='x' is no duration"),
    ("a negative delay", {"delay": -1}, "app.stream: delay=-1: the duration must be from 0"),
    ("a negative idle", {"idle": -5}, "app.stream: idle=-5: the duration must be greater than 0"),
    ("close_idle of zero", {"close_idle": 0}, "app.stream: close_idle=0: the duration must be"),
    ("an unknown policy", {"on_error": "ignore"}, "app.stream: on_error='ignore' is none of fail"),
    ("an unknown topic", {"late": "late"}, "app.stream: late='late' is no topic of the app"),
]


@pytest.mark.parametrize(
    ("settings", "said"), [s[1:] for s in SOURCES], ids=[s[0] for s in SOURCES]
)
def test_a_wrong_setting_of_a_source_is_refused(settings: dict[str, Any], said: str) -> None:
    app = new_app()
    with pytest.raises(sl.InvalidConfig) as caught:
        app.stream(flights(app), **settings)
    assert said in str(caught.value)


def test_topics_without_columns_are_refused() -> None:
    app = new_app()
    with pytest.raises(sl.InvalidConfig, match="are Any, which has no columns; declare app.topic"):
        app.stream(app.topic("anything"))
    with pytest.raises(sl.InvalidConfig, match="the keys of topic 'k' are dict, which no column"):
        app.stream(app.topic("k", key=dict, value=str))
    with pytest.raises(sl.InvalidConfig, match="expected a topic as app.topic"):
        app.stream("words")
    with pytest.raises(sl.InvalidConfig, match="there is no topic; give one"):
        app.stream()
    with pytest.raises(sl.InvalidConfig, match="belongs to app 'other'"):
        app.stream(flights(new_app("other")))
    topic = flights(app)
    with pytest.raises(sl.InvalidConfig, match="a topic is named twice"):
        app.stream(topic, topic)
    with pytest.raises(sl.InvalidConfig, match="column 'carrier' is missing"):
        app.stream(topic, app.topic("words", value=str))


def test_a_topic_whose_fields_differ_is_refused_with_each_difference() -> None:
    app, stream = flight_stream()
    other = app.topic(
        "other",
        value=pa.schema(
            [
                pa.field("carrier", pa.string(), nullable=False),
                pa.field("number", pa.int64(), nullable=False),
                pa.field("seen", pa.int64()),
                pa.field("delay", pa.float64()),
            ]
        ),
    )
    with pytest.raises(sl.InvalidConfig) as caught:
        stream.drop("tags", "speed").to(other)
    text = str(caught.value)
    assert "topic 'other': the stream lacks the column 'number' (Int64)" in text
    assert "the topic has no field 'origin' (String)" in text
    assert "column 'delay' is Int64, and the field is Float64" in text
    assert "'seen'" not in text  # because it may be null


def test_the_key_of_a_topic_must_be_that_of_the_stream() -> None:
    app, stream = flight_stream()
    by_number = app.topic("by-number", key=int, value=FLIGHT)
    with pytest.raises(sl.InvalidConfig, match=r"the key of topic 'by-number' is <class 'int'>"):
        stream.to(by_number)
    stream.to(by_number, key="delay")
    by_column = app.topic("by-column", key="origin", value=FLIGHT)
    with pytest.raises(sl.InvalidConfig, match="is its column 'origin', so key="):
        stream.to(by_column, key="carrier")
    stream.to(by_column)
    with pytest.raises(sl.InvalidConfig, match="leave out partitions= and schema= here"):
        stream.to(by_column, partitions=3)
    with pytest.raises(sl.InvalidConfig, match="belongs to app 'other'"):
        stream.to(flights(new_app("other")))


def test_results_cannot_be_merged_with_rows() -> None:
    app, stream = flight_stream()
    counts = stream.group_by("origin").agg(n=sl.count(), name="n")
    again = stream.select("origin", n=sl.lit(1)).map_batches(
        lambda frame: frame.select("origin", pl.col("n").cast(pl.Int64), "timestamp")
    )
    with pytest.raises(sl.InvalidConfig, match="cannot be merged with rows"):
        again.merge(counts)


def test_streams_are_declared_before_the_app_runs() -> None:
    app, stream = flight_stream()
    app.declared.is_running = lambda: True
    with pytest.raises(sl.InvalidConfig, match="declare all streams before app.run"):
        stream.to("o")


@pytest.mark.parametrize(
    ("setting", "other_topic"),
    [
        ({"on_error": "skip"}, True),
        ({"idle": "1m"}, True),
        ({"close_idle": "1m"}, True),
        ({"delay": "1m"}, False),
    ],
)
def test_settings_of_merged_streams_that_exclude_each_other(
    setting: dict[str, Any], other_topic: bool
) -> None:
    app = new_app()
    topic = flights(app)
    stream = app.stream(flights(app, "others") if other_topic else topic, **setting)
    [name] = setting
    with pytest.raises(sl.InvalidConfig, match=rf"merge: {name}= of app.stream"):
        app.stream(topic).merge(stream)


def test_merged_streams_of_two_topics_may_have_delays_of_their_own() -> None:
    app = new_app()
    late = app.stream(flights(app, "others"), delay="1m")
    assert app.stream(flights(app)).merge(late).columns == late.columns


@pytest.mark.parametrize("name", ["a b", "x.y", "1st", ""])
def test_names_that_results_cannot_have(name: str) -> None:
    _, stream = flight_stream()

    def double(row: Any) -> int:
        return int(row.delay) * 2

    with pytest.raises(sl.InvalidConfig, match="agg: an aggregate cannot be called"):
        stream.group_by("key").agg(**{name: sl.count()}, name="agg")
    with pytest.raises(sl.InvalidConfig, match="with_columns: the column of a function cannot be"):
        stream.with_columns(**{name: double})
    assert stream.branch(**{f"{name}!": lambda _: True})[f"{name}!"].columns == stream.columns


def test_updates_of_sessions_that_are_merged_with_other_results() -> None:
    _, stream = flight_stream()
    groups = stream.group_by("key")
    days = groups.window(sl.tumbling("1d")).agg(n=sl.count(), name="days")
    sessions = groups.window(sl.session("1h")).agg(n=sl.count(), name="sessions")
    with pytest.raises(sl.InvalidConfig, match="sessions that were merged"):
        days.merge(sessions).to("out", emit="update")


@pytest.mark.parametrize(
    ("key", "value"), [(str, int), (int, str), ("carrier", FLIGHT), (str, FLIGHT)]
)
def test_a_topic_of_late_records_with_other_types(key: Any, value: Any) -> None:
    app = new_app()
    late = app.topic("late", key=key, value=value)
    if value is FLIGHT:  # the bytes of the keys are the same
        assert app.stream(flights(app), late=late).columns
    else:
        with pytest.raises(sl.InvalidConfig, match="late='late' has other types than 'flights'"):
            app.stream(flights(app), late=late)


def test_late_records_of_any_type_may_be_kept_as_bytes() -> None:
    app = new_app()
    words = app.topic("words", key=str, value=int)
    assert app.stream(words, late=app.topic("late", key=bytes, value=bytes)).columns
