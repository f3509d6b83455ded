"""The plan of an app's streams: stages, columns between them, and how it is shown."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

import polars as pl
import pyarrow as pa
import pytest

import strandline as sl
from strandline.framework.streams.stage_rows import InternalTopic
from strandline.framework.streams.stages import topic_of
from strandline.framework.streams.stateful import OutputNode, Repartition
from tests.streams.support import FLIGHT, flight_stream, flights, new_app


def late_by_hour(stream: sl.Stream) -> sl.Stream:
    """Return the results of the usual aggregation."""
    return (
        stream.filter(sl.col("delay") > 15)
        .with_columns(route=sl.col("carrier") + "-" + sl.col("origin"))
        .group_by("origin", "carrier")
        .window(sl.tumbling("1h", grace="10m"))
        .agg(n=sl.count(), worst=sl.max("delay"), name="late-by-hour")
    )


def repartitions(app: sl.App) -> dict[str, tuple[str, ...]]:
    """Return the columns of each internal topic."""
    plan = app.plan()
    return {n.topic: plan.stored_columns(n) for n in plan.nodes if isinstance(n, Repartition)}


# Schemas and keys ------------------------------------------------------------------------------


def test_every_operator_knows_its_columns() -> None:
    _, stream = flight_stream()
    assert late_by_hour(stream).schema == {
        "origin": pl.String(),
        "carrier": pl.String(),
        "window_start": pl.Datetime("us", "UTC"),
        "window_end": pl.Datetime("us", "UTC"),
        "n": pl.Int64(),
        "worst": pl.Int64(),
        "timestamp": pl.Int64(),
    }


def test_results_are_written_by_group_and_window() -> None:
    app, stream = flight_stream()
    topic = late_by_hour(stream).to("late", emit="final", partitions=3)
    assert topic.key_kind == tuple[str, str, dt.datetime]
    assert topic.partitions == 3
    assert topic.schema.names == ["origin", "carrier", "window_start", "window_end", "n", "worst"]
    assert app.topic("late", key=topic.key_kind, value=topic.schema, partitions=3) is topic


def test_the_key_of_a_group_of_one_column_is_that_column() -> None:
    app, stream = flight_stream()
    topic = stream.group_by("origin").agg(n=sl.count(), name="x").to("counts")
    assert (topic.key_column, topic.schema.names) == ("origin", ["origin", "n"])


def test_a_key_outside_of_the_value_stays_outside() -> None:
    app, stream = flight_stream()
    counts = stream.group_by("key").agg(n=sl.count(), name="x").to("counts")
    assert (counts.key_kind, counts.key_column, counts.schema.names) == (str, None, ["n"])
    copied = stream.select("delay").to("copy")
    assert (copied.key_kind, copied.schema.names) == (str, ["delay"])
    renamed = stream.rename({"key": "id"}).select("id", "delay").to("renamed")
    assert (renamed.key_column, renamed.schema.names) == ("id", ["id", "delay"])


def test_fields_called_key_or_timestamp_have_other_columns() -> None:
    app = new_app()
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("key", pa.int64())])
    topic = app.topic("odd", value=schema, timestamp="timestamp")
    stream = app.stream(topic)
    assert stream.columns == ["key", "value_timestamp", "value_key", "timestamp"]
    stream.to(topic)
    [sink] = [node for node in app.plan().nodes if isinstance(node, OutputNode)]
    assert sink.fields == {"timestamp": "value_timestamp", "key": "value_key"}


@dataclass
class Count:
    origin: str
    n: int | None


def test_a_topic_is_declared_with_the_class_that_is_given() -> None:
    app, stream = flight_stream()
    counts = stream.group_by("origin").agg(n=sl.count(), name="x")
    assert counts.to("counts", schema=Count).kind is Count
    one = stream.select("origin", n=1).to("ones", schema=Count)  # a constant int is an int64
    assert one.kind is Count
    with pytest.raises(sl.InvalidConfig, match="schema=: the topic has no field 'm'"):
        counts.with_columns(m=1).to("others", schema=Count)


def test_values_of_one_type_are_a_column_and_fit_a_topic_of_that_type() -> None:
    app = new_app()
    stream = app.stream(app.topic("words", value=str))
    assert stream.schema == {"key": pl.String(), "value": pl.String(), "timestamp": pl.Int64()}
    out = app.topic("out", value=str)
    assert stream.to(out) is out
    with pytest.raises(sl.InvalidConfig, match="column 'value' is String, and the field is Int64"):
        stream.to(app.topic("numbers", value=int))


def test_a_stream_may_be_of_several_topics() -> None:
    app = new_app()
    stream = app.stream(flights(app, "a"), flights(app, "b"))
    stream.group_by("key").agg(n=sl.count(), name="x")
    [stage] = app.plan().stages
    assert stage.topics == ("a", "b")


def test_settings_of_a_source_are_kept_in_ms() -> None:
    app = new_app()
    late = flights(app, "late")
    stream = app.stream(
        flights(app), delay="10s", idle=None, close_idle="1m", late=late, on_error="skip"
    )
    options = stream.node.options
    assert (options.delay_ms, options.idle_ms, options.close_idle_ms) == (10_000, None, 60_000)
    assert (options.late, options.on_error) == (late, "skip")


# Repartitions ----------------------------------------------------------------------------------


def test_rows_go_through_an_internal_topic_only_for_another_key() -> None:
    app = new_app()
    stream = app.stream(flights(app, key="carrier"))
    stream.filter(sl.col("delay") > 1).select("carrier", "delay").group_by("carrier").agg(
        n=sl.count(), name="same"
    )
    assert repartitions(app) == {}
    changed = stream.with_columns(carrier=sl.col("carrier").str.to_lowercase())
    changed.group_by("carrier").agg(n=sl.count(), name="changed")
    chosen = stream.select(carrier=sl.col("carrier").str.to_lowercase())
    chosen.group_by("carrier").agg(n=sl.count(), name="chosen")
    assert repartitions(app) == {
        "air-changed-repartition": ("carrier",),
        "air-chosen-repartition": ("carrier",),
    }


@pytest.mark.parametrize(
    "plain", ["carrier", sl.col("carrier"), sl.col("carrier").alias("carrier")]
)
def test_a_column_that_is_selected_as_it_is_stays_the_key(plain: Any) -> None:
    app = new_app()
    stream = app.stream(flights(app, key="carrier"))
    stream.select(plain, sl.col("delay", "speed")).group_by("carrier").agg(n=sl.count(), name="x")
    assert repartitions(app) == {}


def test_functions_that_make_rows_may_change_their_key() -> None:
    app = new_app()
    stream = app.stream(flights(app, key="carrier"))
    for at, made in enumerate(
        (stream.map(dict, schema=FLIGHT), stream.map_batches(lambda frame: frame))
    ):
        made.group_by("carrier").agg(n=sl.count(), name=f"x{at}")
        assert made.to(f"o{at}").key_column == "carrier"
    assert list(repartitions(app)) == ["air-x0-repartition", "air-x1-repartition"]


def test_results_of_windows_are_still_placed_by_their_group() -> None:
    app = new_app()
    hourly = (
        app.stream(flights(app, key="carrier"))
        .group_by("carrier")
        .window(sl.tumbling("1h"))
        .agg(n=sl.count(), name="hourly")
    )
    hourly.group_by("carrier").window(sl.tumbling("1d")).agg(worst=sl.max("n"), name="daily")
    assert repartitions(app) == {}
    assert app.plan().stages[0].stores == ("hourly", "daily")


def test_only_columns_that_are_used_are_stored_between() -> None:
    app, stream = flight_stream()
    late_by_hour(stream).to("late")
    assert repartitions(app) == {"air-late-by-hour-repartition": ("carrier", "origin", "delay")}


def test_a_column_is_used_through_renames_filters_and_functions() -> None:
    app, stream = flight_stream()
    once = stream.drop_duplicates(on="origin", within="1h", name="once")
    renamed = once.rename({"speed": "v"}).filter(sl.col("v") > 1).drop("carrier")
    renamed.select("delay").to("o")
    assert repartitions(app) == {"air-once-repartition": ("key", "origin", "delay", "speed")}
    once.foreach(print)
    assert repartitions(app)["air-once-repartition"] == ("key", *FLIGHT.names)


def test_compared_columns_are_used() -> None:
    app, stream = flight_stream()
    origins = stream.drop_duplicates(on="origin", within="1h", name="a")
    origins.drop_duplicates(on=["origin", "delay"], within="1h", name="b").select("speed").to("o")
    assert repartitions(app) == {"air-a-repartition": ("key", "origin", "delay", "speed")}


def test_columns_of_expressions_are_computed_before_the_internal_topic() -> None:
    app, stream = flight_stream()
    figures = stream.group_by(sl.col("origin").str.slice(0, 1).alias("letter")).agg(
        worst=sl.max(sl.col("delay") * 60),
        best=sl.top("carrier", 2, by=sl.col("speed") * -1),
        name="x",
    )
    assert figures.columns == ["letter", "worst", "best", "timestamp"]
    stored = repartitions(app)["air-x-repartition"]
    assert stored == ("carrier", "letter", "__worst_column", "__best_by")


def test_a_reducer_keeps_all_columns_because_it_sees_whole_rows() -> None:
    app, stream = flight_stream()
    count = sl.reducer(0, lambda state, row: state + 1, returns=int)
    stream.group_by("origin").agg(n=count, name="x")
    assert set(repartitions(app)["air-x-repartition"]) == {"key", *FLIGHT.names}


def test_aggregations_of_one_named_group_share_its_topic() -> None:
    app, stream = flight_stream()
    grouped = stream.group_by("origin", name="by-origin")
    grouped.agg(n=sl.count(), name="a")
    grouped.window(sl.tumbling("1h")).agg(m=sl.max("speed"), name="b")
    assert repartitions(app) == {"air-by-origin-repartition": ("origin", "speed")}
    assert app.plan().stages[1].stores == ("a", "b")
    with pytest.raises(sl.InvalidConfig, match="compute expressions with with_columns"):
        grouped.agg(n=sl.max(sl.col("delay") + 1), name="c")


def test_two_groups_cannot_share_an_internal_topic_by_name() -> None:
    app, stream = flight_stream()
    stream.group_by("origin", name="x").agg(n=sl.count(), name="a")
    with pytest.raises(sl.InvalidConfig, match="internal topic 'air-x-repartition' already"):
        stream.group_by("carrier", name="x").agg(n=sl.count(), name="b")


def test_keys_that_a_serde_writes_are_repartitioned() -> None:
    app = new_app()
    stream = app.stream(flights(app, key=str, key_serde="json"))
    stream.group_by("key").agg(n=sl.count(), name="x")
    assert repartitions(app) == {"air-x-repartition": ("key",)}


def test_an_internal_topic_has_the_key_of_its_groups() -> None:
    app, stream = flight_stream()
    late_by_hour(stream)
    plan = app.plan()
    [node] = [node for node in plan.nodes if isinstance(node, Repartition)]
    topic = InternalTopic(app.session, node, plan.stored_columns(node)).topic
    assert topic.name == "air-late-by-hour-repartition"
    assert topic.key_kind is bytes
    assert {"carrier", "origin", "delay"} <= {*topic.schema.names}


# Stages ----------------------------------------------------------------------------------------


def example() -> sl.App:
    """Return an app with a branch, a merge, two internal topics and a topic between."""
    app, stream = flight_stream()
    late_by_hour(stream).to("late")
    parts = stream.branch(far=sl.col("speed") > 100, rest_of=sl.col("speed") > 50)
    joined = parts.far.merge(parts.rest)
    once = joined.drop_duplicates(on="carrier", within="1h", name="once")
    once.through("between").foreach(print)
    return app


def test_a_plan_is_cut_into_stages_at_topics() -> None:
    stages = example().plan().stages
    assert [(s.name, s.topics, s.stores, [*map(sink_name, s.sinks)]) for s in stages] == [
        (
            "late-by-hour-repartition",
            ("flights",),
            (),
            ["air-late-by-hour-repartition", "air-once-repartition"],
        ),
        ("late-by-hour", ("air-late-by-hour-repartition",), ("late-by-hour",), ["late"]),
        ("once", ("air-once-repartition",), ("once",), ["between"]),
        ("between-print", ("between",), (), ["print"]),
    ]


def sink_name(sink: Any) -> str:
    return topic_of(sink) if isinstance(sink, OutputNode | Repartition) else sink.detail


def test_stages_of_one_topic_have_different_names() -> None:
    app = new_app()
    for name in ("a", "b"):
        app.stream(flights(app, name)).to("out")
    app.stream(app.topic("a2", value=FLIGHT)).to("out")
    app.stream(flights(app, "a")).to("out")
    assert [s.name for s in app.plan().stages] == ["out", "out-from-b", "out-from-a2", "out-from-a"]
    app.stream(flights(app, "a")).to("out")
    assert app.plan().stages[-1].name == "out-from-a-2"


def test_the_name_of_a_stage_does_not_change_when_a_stateless_operator_is_added() -> None:
    for change in (lambda s: s, lambda s: s.filter(sl.col("delay") > 1).peek(print)):
        app, stream = flight_stream()
        late_by_hour(change(stream)).to("late")
        assert [s.name for s in app.plan().stages] == ["late-by-hour-repartition", "late-by-hour"]


def test_a_stage_may_read_what_it_writes() -> None:
    app, stream = flight_stream()
    again = stream.through("again")
    stream.merge(again).foreach(print)
    [stage] = app.plan().stages
    assert stage.topics == ("flights", "again")


def test_a_stream_without_an_end_is_in_no_stage() -> None:
    app, stream = flight_stream()
    stream.filter(sl.col("delay") > 1)
    assert app.plan().stages == ()
    assert app.describe()["streams"] == []


def test_a_pipeline_may_be_longer_than_python_s_stack() -> None:
    app, stream = flight_stream()
    node = stream.peek(print).node
    for _ in range(1500):
        node = stream._next(node).peek(print).node
    assert len(stream._next(node).plan.nodes) == 1502


# Showing ---------------------------------------------------------------------------------------


def test_a_plan_is_described_in_lines() -> None:
    app, stream = flight_stream()
    late_by_hour(stream).to("late")
    assert app.plan().describe() == [
        "stage late-by-hour-repartition",
        "  source flights",
        "  filter col(delay) > 15",
        "  with_columns (col(carrier) + - + col(origin)).alias(name=route)",
        (
            "  repartition by origin, carrier through air-late-by-hour-repartition"
            " (carrier, origin, delay)"
        ),
        "stage late-by-hour",
        "  source air-late-by-hour-repartition",
        (
            '  aggregate late-by-hour: by origin, carrier in tumbling("1h", grace="10m"):'
            " n=count(), worst=max(delay)"
        ),
        "  sink late by origin, carrier, window_start, final results",
    ]


def test_operators_that_do_not_follow_the_one_above_name_their_inputs() -> None:
    app, stream = flight_stream()
    parts = stream.branch(far=sl.col("speed") > 100)
    parts.far.to("far")
    parts.rest.to("near")
    assert app.plan().describe() == [
        "stage far",
        "  1. source flights",
        "  2. filter branch far",
        "  3. sink far by key",
        "  4. filter branch rest  <- 1",
        "  5. sink near by key",
    ]


def test_a_plan_is_described_as_plain_data() -> None:
    app, stream = flight_stream()
    stream.filter(sl.col("delay") > 15).select("delay").to("late")
    [stage] = app.describe()["streams"]
    assert {name: stage[name] for name in ("stage", "topics", "stores", "outputs")} == {
        "stage": "late",
        "topics": ["flights"],
        "stores": [],
        "outputs": ["late"],
    }
    operators = stage["operators"]
    assert [one["operator"] for one in operators] == ["source", "filter", "select", "sink"]
    assert [one["inputs"] for one in operators] == [[], [0], [1], [2]]
    assert operators[2]["columns"] == {"delay": "Int64", "key": "String", "timestamp": "Int64"}
    assert "tests/streams/test_plan.py:" in operators[1]["where"]


def test_a_plan_is_drawn_as_a_flowchart() -> None:
    app, stream = flight_stream()
    stream.filter(sl.col("carrier") != '"#1"').group_by("origin").agg(n=sl.count(), name="n")
    assert app.plan().mermaid() == (
        "flowchart TD\n"
        '  subgraph s1["stage n-repartition"]\n'
        '    n1(["source flights"])\n'
        '    n2["filter col(carrier) != #quot;#35;1#quot;"]\n'
        '    n3["repartition by origin through air-n-repartition"]\n'
        "  end\n"
        '  subgraph s2["stage n"]\n'
        '    n3r(["source air-n-repartition"])\n'
        '    n4[("aggregate n: by origin: n=count()")]\n'
        "  end\n"
        "  n1 --> n2\n"
        "  n2 --> n3\n"
        "  n3 -.-> n3r\n"
        "  n3r --> n4\n"
    )


SVG = "{http://www.w3.org/2000/svg}"


def test_a_plan_is_drawn_as_svg_with_a_box_for_each_operator() -> None:
    plan = example().plan()
    root = ET.fromstring(plan.svg())
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.count("source") == 4
    assert "stage late-by-hour" in texts
    titles = [title.text for title in root.iter(f"{SVG}title")]
    sources = sum(len(stage.sources) for stage in plan.stages)
    assert len(titles) == sources + sum(len(stage.nodes) for stage in plan.stages)
    assert "filter col(delay) > 15" in titles  # and so it was escaped


def test_boxes_of_a_drawing_are_inside_and_do_not_overlap() -> None:
    root = ET.fromstring(example().plan().svg())
    boxes = [
        tuple(float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("class") != "frame"
    ]
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for at, (x, y, w, h) in enumerate(boxes):
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
        for x2, y2, w2, h2 in boxes[:at]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_streams_and_plans_are_shown_in_notebooks() -> None:
    app, stream = flight_stream()
    late = stream.filter(sl.col("delay") > 15)
    assert "filter col(delay) &gt; 15" in late._repr_html_()
    bundle = late._repr_mimebundle_()
    assert bundle["text/plain"].startswith("<Stream filter col(delay) > 15: key, carrier")
    ET.fromstring(bundle["image/svg+xml"])
    late.to("late")
    assert app.plan()._repr_html_() == app.plan().svg()
    assert app.plan()._repr_mimebundle_()["text/plain"].startswith("stage late\n")


def test_an_empty_plan_can_be_shown() -> None:
    plan = new_app().plan()
    assert (plan.describe(), plan.data(), plan.mermaid()) == ([], [], "flowchart TD\n")
    ET.fromstring(plan.svg())
