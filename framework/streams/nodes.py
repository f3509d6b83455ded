"""Nodes of a plan: a source, and the operators that are expressions over columns.

A node is immutable, knows its inputs and the schema of its rows, and is equal to itself alone, so
that a stream that is used several times is one node with several consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from strandline.framework.streams.expressions import columns_read, shown
from strandline.framework.streams.schemas import INTERNAL, Keying
from strandline.framework.task import OnError
from strandline.framework.topic import Topic

if TYPE_CHECKING:
    import narwhals as nw
    import polars as pl

Emit = Literal["update", "final"]
"""Results that a consumer of an aggregation takes: at each commit, or once when they are final."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """One operator of a plan."""

    label: ClassVar[str]
    """Name of the kind of operator."""
    inputs: tuple[Node, ...] = ()
    schema: pl.Schema
    """Columns of the rows that the operator gives, with `timestamp` and internal ones."""
    keying: Keying
    where: str
    """File and line of the declaration."""

    @property
    def detail(self) -> str:
        """Description of the operator's arguments."""
        return ""

    def describe(self) -> str:
        """Return the operator with its arguments on one line."""
        return f"{self.label} {self.detail}".rstrip()

    def columns_needed(self, needed: set[str]) -> set[str]:
        """Return the columns of the input that are used to give `needed` ones of the output.

        By default all, because a Python function may read any of them.
        """
        return {name for node in self.inputs for name in node.schema}

    @property
    def visible(self) -> dict[str, pl.DataType]:
        """Columns that users see."""
        return {name: t for name, t in self.schema.items() if not name.startswith(INTERNAL)}


@dataclass(frozen=True)
class StreamOptions:
    """Settings of a source, as `App.stream` describes them."""

    delay_ms: int = 0
    idle_ms: int | None = 30_000
    """Milliseconds of silence after which a partition does not hold the watermark back."""
    close_idle_ms: int | None = None
    """Milliseconds of silence after which windows are closed; None for never."""
    late: Topic[Any, Any] | None = None
    """Topic of late records."""
    on_error: OnError = "fail"


@dataclass(frozen=True, eq=False, kw_only=True)
class TopicSource(Node):
    """Rows of a topic."""

    label = "source"
    topic: Topic[Any, Any]
    fields: Mapping[str, str]
    """Column of the stream by field of the topic's value."""
    options: StreamOptions = field(default_factory=StreamOptions)

    @property
    def detail(self) -> str:
        """Name of the topic."""
        return self.topic.name


class ExpressionNode(Node):
    """Operator that a lazy query computes, so that several in a row become one query."""

    def lazily(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return a query for the rows that the operator gives for those of `frame`, in order."""
        raise NotImplementedError

    def columns_needed(self, needed: set[str]) -> set[str]:
        """Return the columns of the input that the query reads for `needed` ones."""
        return columns_read(self.lazily, self.inputs[0].schema, needed)


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(ExpressionNode):
    """Rows for which an expression is true."""

    label = "filter"
    predicate: nw.Expr
    arm: str | None = None
    """Name of the branch, if the filter is one."""

    @property
    def detail(self) -> str:
        """Predicate as a user would write it."""
        return shown(self.predicate) if self.arm is None else f"branch {self.arm}"

    def lazily(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows for which the predicate is true."""
        return _native(frame, lambda rows: rows.filter(self.predicate))


@dataclass(frozen=True, eq=False, kw_only=True)
class Select(ExpressionNode):
    """Chosen or computed columns instead of those of the input."""

    label = "select"
    expressions: tuple[nw.Expr, ...]

    @property
    def detail(self) -> str:
        """Expressions as a user would write them."""
        texts = map(shown, self.expressions)
        return ", ".join(text for text in texts if not text.startswith(f"col({INTERNAL}"))

    def lazily(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return the chosen columns, in the order of the schema."""
        # A `select` of constants alone would return one row, so columns are added first.
        added = _native(frame, lambda rows: rows.with_columns(*self.expressions))
        return added.select(list(self.schema))


@dataclass(frozen=True, eq=False, kw_only=True)
class WithColumns(ExpressionNode):
    """The columns of the input, with computed ones added or replaced."""

    label = "with_columns"
    expressions: tuple[nw.Expr, ...]

    @property
    def detail(self) -> str:
        """Expressions as a user would write them."""
        return ", ".join(map(shown, self.expressions))

    def lazily(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows with the computed columns."""
        return _native(frame, lambda rows: rows.with_columns(*self.expressions))


@dataclass(frozen=True, eq=False, kw_only=True)
class Drop(ExpressionNode):
    """The columns of the input without some."""

    label = "drop"
    names: tuple[str, ...]

    @property
    def detail(self) -> str:
        """Names of the columns."""
        return ", ".join(self.names)

    def lazily(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows without the columns."""
        return frame.drop(self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rename(ExpressionNode):
    """The columns of the input, some with other names."""

    label = "rename"
    names: Mapping[str, str]
    """New name by old name."""

    @property
    def detail(self) -> str:
        """Pairs of old and new name."""
        return ", ".join(f"{old} to {new}" for old, new in self.names.items())

    def lazily(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows with the new names."""
        return frame.rename(self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class Explode(ExpressionNode):
    """One row for each item of a list column; none for an empty list or a null."""

    label = "explode"
    column: str

    @property
    def detail(self) -> str:
        """Name of the column."""
        return self.column

    def lazily(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return a row for each item, in the order of rows and items."""
        import polars as pl

        # Polars makes a row of null for an empty list.
        return frame.filter(pl.col(self.column).list.len() > 0).explode(
            self.column, empty_as_null=False
        )

    def columns_needed(self, needed: set[str]) -> set[str]:
        """Return the needed columns and the list, which decides how many rows there are."""
        return {*needed, self.column}


@dataclass(frozen=True, eq=False, kw_only=True)
class MergedStreams(Node):
    """Rows of several streams with the same columns, in the order of their records."""

    label = "merge"

    def columns_needed(self, needed: set[str]) -> set[str]:
        """Return the needed columns, of each input."""
        return needed


def _native(frame: pl.LazyFrame, step: Callable[[Any], Any]) -> pl.LazyFrame:
    """Return what a step with narwhals gives for a lazy frame."""
    import narwhals as nw

    made: pl.LazyFrame = step(nw.from_native(frame)).to_native()
    return made
