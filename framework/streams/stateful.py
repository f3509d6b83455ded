"""Operators that keep state or pass rows on to another stage: they end the lazy part of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.framework.streams.nodes import Emit, Node
from strandline.framework.streams.schemas import TIME, WATERMARK
from strandline.framework.streams.windows import SessionWindow, Window
from strandline.framework.topic import Topic
from strandline.statestore.aggregates import Aggregates
from strandline.statestore.aggregates.aggregate import Aggregate
from strandline.statestore.aggregates.numeric import Max, Min

if TYPE_CHECKING:
    import polars as pl

WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_COUNT = "window_count"
SESSION_FIELDS: Mapping[str, Aggregate] = {
    WINDOW_START: Min(WINDOW_START),
    WINDOW_END: Max(WINDOW_END),
    WINDOW_COUNT: Max(WINDOW_COUNT),
}
"""Fields of a session's state besides its aggregates: start and end (exclusive) in ms since the
epoch, and in the first session of a group the number of its sessions. Merged sessions keep the
least start and the greatest end."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StatefulNode(Node):
    """Operator that keeps state under its name."""

    name: str
    """Name of the operator, and of its store."""
    emit: Emit | None = None
    """Results that are taken of an aggregation before this operator."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupAggregate(StatefulNode):
    """Aggregates of the rows of each group, and of each window of it."""

    label = "aggregate"
    keys: tuple[str, ...]
    window: Window | None
    aggregates: Aggregates

    @property
    def detail(self) -> str:
        """Keys, window and aggregates as a user would write them."""
        window = "" if self.window is None else f" in {self.window}"
        figures = ", ".join(f"{n}={one}" for n, one in self.aggregates.aggregates.items())
        return f"{self.name}: by {', '.join(self.keys)}{window}: {figures}"

    def columns_needed(self, needed: set[str]) -> set[str]:
        """Return the keys, the aggregated columns and the time."""
        figures = self.aggregates.aggregates.values()
        if any(reads_whole_rows(one) for one in figures):
            return set(self.inputs[0].schema)
        return {*self.keys, TIME, WATERMARK, *(column for one in figures for column in one.columns)}


@dataclass(frozen=True, eq=False, kw_only=True)
class DropDuplicates(StatefulNode):
    """The first row of those with equal columns within a time."""

    label = "drop_duplicates"
    on: tuple[str, ...]
    within_ms: int

    @property
    def detail(self) -> str:
        """Columns and time."""
        return f"{self.name}: on {', '.join(self.on)} within {self.within_ms} ms"

    def columns_needed(self, needed: set[str]) -> set[str]:
        """Return the needed columns, the compared ones and the time."""
        return {*needed, *self.on, TIME, WATERMARK}


@dataclass(frozen=True, eq=False, kw_only=True)
class Repartition(Node):
    """Rows that go through an internal topic, because they are to be grouped by another key.

    The topic has the columns that are used after it; `Plan.stored_columns` returns them. The rest
    are null when rows are read from it.
    """

    label = "repartition"
    name: str
    """Name of the operator that needs the other key."""
    topic: str
    """Name of the internal topic."""
    keys: tuple[str, ...]
    emit: Emit | None = None
    """Results that are taken of an aggregation before this operator."""

    @property
    def detail(self) -> str:
        """Keys and internal topic."""
        return f"by {', '.join(self.keys)} through {self.topic}"

    def columns_needed(self, needed: set[str]) -> set[str]:
        """Return the columns that are used after the topic, the keys and the time."""
        return {*needed, *self.keys, TIME}


@dataclass(frozen=True, eq=False, kw_only=True)
class OutputNode(Node):
    """Rows that are written to a topic."""

    topic: Topic[Any, Any]
    key: tuple[str, ...]
    """Columns of the input that are the key of the records."""
    fields: Mapping[str, str]
    """Column of the input by field of the topic's value; a field without one is null."""
    emit: Emit | None = None
    """Results that are taken of an aggregation."""

    @property
    def detail(self) -> str:
        """Topic and key."""
        emit = f", {self.emit}s" if self.emit == "update" else ", final results"
        return f"{self.topic.name} by {', '.join(self.key)}{emit if self.emit else ''}"

    def columns_needed(self, needed: set[str]) -> set[str]:
        """Return the columns of key and value, and the time."""
        return {*self.key, *self.fields.values(), TIME}


@dataclass(frozen=True, eq=False, kw_only=True)
class TopicSink(OutputNode):
    """End of a stream in a topic."""

    label = "sink"


@dataclass(frozen=True, eq=False, kw_only=True)
class Through(OutputNode):
    """Rows that are written to a topic and read from it again."""

    label = "through"


Boundary = Repartition | Through
"""Operators whose rows are written by one stage and read by another."""


def reads_whole_rows(one: Aggregate) -> bool:
    """Return True if an aggregate is computed by a function, which may read any column."""
    return one.column is None and one.kind == "reducer"


def window_fields(window: Window | None) -> dict[str, pl.DataType]:
    """Return the columns that a window adds to results, by name."""
    import polars as pl

    from strandline.framework.streams.windows import TimeWindow

    if window is None:
        return {}
    dtype = pl.Datetime("us", "UTC") if isinstance(window, TimeWindow) else pl.Int64()
    return {WINDOW_START: dtype, WINDOW_END: dtype}


def taken_names(window: Window | None) -> tuple[str, ...]:
    """Return the names that neither keys nor aggregates of a window can have."""
    names = dict.fromkeys(window_fields(window))
    return (*names, WINDOW_COUNT) if isinstance(window, SessionWindow) else tuple(names)


def aggregations_of(node: Node) -> list[GroupAggregate]:
    """Return the aggregations whose results a node gives; none if it gives rows."""
    if isinstance(node, GroupAggregate):
        return [node]
    if isinstance(node, StatefulNode | Repartition | OutputNode):
        return []
    return [found for source in node.inputs for found in aggregations_of(source)]


def emission_of(node: Node) -> Emit | None:
    """Return the results that a consumer takes of the aggregations before it, by default.

    None if the rows before it are no results. Final results if there are windows, else updates.
    """
    found = aggregations_of(node)
    if not found:
        return None
    return "update" if found[0].window is None else "final"
