"""Streams without a log: an app, its rows as plain Python, and the execution of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage
from strandline.framework.streams.executor import Ends, Executor, StatefulOperator
from strandline.framework.streams.plan import Plan
from strandline.framework.streams.stages import Sink, topic_of
from strandline.framework.streams.stateful import OutputNode, Repartition
from strandline.framework.topic import Topic

Rows = list[dict[str, Any]]

FLIGHT = pa.schema(
    [
        ("carrier", pa.string()),
        ("origin", pa.string()),
        ("delay", pa.int64()),
        ("speed", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
FIELDS = ["carrier", "origin", "delay", "speed", "tags"]
SCHEMA = pl.Schema(
    {
        "key": pl.String(),
        "carrier": pl.String(),
        "origin": pl.String(),
        "delay": pl.Int64(),
        "speed": pl.Float64(),
        "tags": pl.List(pl.String()),
        "timestamp": pl.Int64(),
    }
)


def new_app(name: str = "air") -> sl.App:
    """Return an app on a log in memory."""
    return sl.App(name, log=Owner(MemoryStorage(), clock=ManualClock(), background=False))


def flights(app: sl.App, name: str = "flights", **settings: Any) -> Topic[Any, Any]:
    """Return the declared topic of flights."""
    return app.topic(name, value=FLIGHT, **settings)


def flight_stream() -> tuple[sl.App, sl.Stream]:
    """Return an app and its stream of flights, whose key is no column."""
    app = new_app()
    return app, app.stream(flights(app))


def frame_of(rows: Rows, schema: Mapping[str, pl.DataType] = SCHEMA) -> pl.DataFrame:
    """Return rows as a frame with the columns of the topic of flights."""
    return pl.DataFrame(rows, schema=dict(schema))


def flight(**fields: Any) -> dict[str, Any]:
    """Return a row of the topic of flights."""
    row = {"key": "k", "carrier": "AA", "origin": "JFK", "delay": 5, "speed": 1.5, "tags": ["x"]}
    return {**row, "timestamp": 1000, **fields}


class Passing:
    """Operator with state that passes all rows on, and keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[pl.DataFrame] = []

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        self.seen.append(frame)
        return frame


def run(
    plan: Plan, frames: Mapping[str, pl.DataFrame], **operators: StatefulOperator
) -> dict[str, pl.DataFrame]:
    """Run all stages of a plan once. Return what reaches each topic, and each function's name."""
    topics = dict(frames)
    for stage in plan.stages:
        topics |= by_topic(Executor(stage, operators).run(topics))
    return {name: frame for name, frame in topics.items() if name not in frames}


def by_topic(ends: Ends) -> dict[str, pl.DataFrame]:
    """Return the rows of ends by the name of the topic, or of the function."""
    return {end_name(sink): frame for sink, frame in ends.items()}


def end_name(sink: Sink) -> str:
    return topic_of(sink) if isinstance(sink, OutputNode | Repartition) else sink.detail


def results(app: sl.App, stream: sl.Stream, rows: Rows, *frames: Sequence[Any]) -> pl.DataFrame:
    """Return the rows that a stream gives for rows of the topic of flights."""
    stream.foreach(collected)
    found = run(app.plan(), {"flights": frame_of(rows)})
    return found.get("collected", pl.DataFrame(schema=stream.schema))


def collected(row: Any) -> None:
    """Do nothing, as the end of a stream."""
