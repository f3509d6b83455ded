"""Execution of a stage on frames: what reaches each end and each operator with state.

Operators that are expressions become one lazy query as long as each has one consumer. Everything
else works on whole frames. Nothing is kept between calls: state is the business of the operators
that are passed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from strandline.changelog.errors import InvalidRecord
from strandline.framework.streams.functions import Foreach, FunctionNode, call_for_rows
from strandline.framework.streams.nodes import Emit, ExpressionNode, MergedStreams, Node
from strandline.framework.streams.rows import schema_differences
from strandline.framework.streams.schemas import INTERNAL, ROW, TIME, WATERMARK
from strandline.framework.streams.stages import Sink, Stage, StageSource, topic_of
from strandline.framework.streams.stateful import (
    GroupAggregate,
    OutputNode,
    Repartition,
    StatefulNode,
)
from strandline.statestore.frames import arranged, nulls

if TYPE_CHECKING:
    import polars as pl

Ends = dict[Sink, "pl.DataFrame"]
"""Rows that reach the ends of a stage; an end without rows is missing."""


class StatefulOperator(Protocol):
    """Running form of an operator that keeps state."""

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Take rows, and return the rows to pass on at once, with the columns of the operator.

        An aggregation returns updates, or None if it emits at a commit or when windows close; such
        results are passed on by `Executor.emit`.
        """
        ...


@dataclass(frozen=True)
class _Passed:
    """Rows of a node, and the results that they are, if they come from an aggregation."""

    frame: pl.DataFrame | pl.LazyFrame
    emit: Emit | None


class Executor:
    """Execution of one stage.

    Args:
        stage: Stage to run.
        operators: Running operator by the name of each operator with state.
        numbered: True if rows for internal topics have the number of their record, which is not
            written.
    """

    def __init__(
        self,
        stage: Stage,
        operators: Mapping[str, StatefulOperator],
        *,
        numbered: bool = False,
    ) -> None:
        self.stage = stage
        self._operators = operators
        self._numbered = numbered
        self._consumers = _consumers_in(stage)
        self._wanted: dict[Node, frozenset[Emit]] = {
            node: frozenset(_results_wanted(node, self._consumers))
            for node in stage.nodes
            if isinstance(node, GroupAggregate)
        }
        self._lazy = {node for node, readers in self._consumers.items() if _is_lazy(readers)}

    def run(self, frames: Mapping[str, pl.DataFrame]) -> Ends:
        """Pass rows of the stage's topics through it.

        Args:
            frames: Rows by the name of their topic, with the columns of the source in any order. A
                topic without rows may be missing.

        Returns:
            The rows that reach each end. A frame for a topic has the columns of key and value and
            `timestamp`.

        Raises:
            InvalidRecord: A frame has other columns, or a function returned something else than
                declared. Exceptions of functions and expressions propagate unchanged.
        """
        rows: dict[Node, _Passed] = {}
        for source in self.stage.sources:
            frame = frames.get(topic_of(source))
            if frame is not None and not frame.is_empty():
                rows[source] = _Passed(self._source_frame(source, frame), None)
        return self._pass_on(rows)

    def emit(self, name: str, frame: pl.DataFrame, emit: Emit | None = None) -> Ends:
        """Pass results of an operator with state on to what follows it.

        Args:
            name: Name of the operator.
            frame: Results, with the columns of the operator.
            emit: "update" or "final" for results of an aggregation, else None.

        Returns:
            The rows that reach each end that takes such results.
        """
        node = next(n for n in self.stage.nodes if isinstance(n, StatefulNode) and n.name == name)
        if frame.is_empty() or not self.takes(name, emit):
            return {}
        return self._pass_on({node: _Passed(frame, emit)})

    def takes(self, name: str, emit: Emit | None) -> bool:
        """Return True if something after an operator takes results of this kind."""
        wanted = [found for node, found in self._wanted.items() if _named(node) == name]
        return emit is None or any(emit in found for found in wanted)

    def _pass_on(self, rows: dict[Node, _Passed]) -> Ends:
        """Pass rows of some nodes on to all that follow them."""
        ends: Ends = {}
        begun = set(rows)
        for node in self.stage.nodes:
            # A topic that the stage both writes and reads is two things, and is read later.
            if node in begun and not isinstance(node, Sink):
                continue
            inputs = [rows[source] for source in node.inputs if source in rows]
            if not inputs:
                continue
            if isinstance(node, Sink):
                ends.update(self._end(node, inputs[0]))
            elif (made := self._made(node, inputs)) is not None:
                rows[node] = made
        return ends

    def _made(self, node: Node, inputs: list[_Passed]) -> _Passed | None:
        """Return the rows that a node gives; None if there are none."""
        if isinstance(node, StatefulNode):
            return self._processed(node, inputs[0])
        if isinstance(node, ExpressionNode):
            query = node.lazily(inputs[0].frame.lazy())
            return self._kept(node, query, inputs[0].emit)
        frames = [_collected(rows.frame) for rows in inputs]
        if isinstance(node, MergedStreams):
            return self._kept(node, _concatenated(node, frames), inputs[0].emit)
        assert isinstance(node, FunctionNode)
        return self._kept(node, node.eagerly(frames[0]), inputs[0].emit)

    def _kept(
        self, node: Node, frame: pl.DataFrame | pl.LazyFrame, emit: Emit | None
    ) -> _Passed | None:
        """Return rows as what follows needs them; None if it is known that there are none."""
        if node in self._lazy:
            return _Passed(frame, emit)
        made = _collected(frame)
        return None if made.is_empty() else _Passed(made, emit)

    def _processed(self, node: StatefulNode, rows: _Passed) -> _Passed | None:
        if rows.emit != node.emit:
            return None
        frame = _collected(rows.frame)
        if frame[TIME].null_count():
            raise InvalidRecord(
                f"{node.name}: the {TIME!r} of a row is null; filter such rows out, or give them a"
                " time"
            )
        made = self._operators[node.name].process(frame)
        emit: Emit | None = "update" if isinstance(node, GroupAggregate) else None
        if made is None or made.is_empty() or not self.takes(node.name, emit):
            return None
        return _Passed(made, emit)

    def _end(self, node: Sink, rows: _Passed) -> Iterator[tuple[Sink, pl.DataFrame]]:
        """Yield a sink with its rows, if it takes results of this kind."""
        if rows.emit != node.emit:
            return
        frame = _collected(rows.frame)
        if isinstance(node, Foreach):
            call_for_rows(node, frame)
        yield node, arranged(frame, self._written(node))

    def _written(self, node: Sink) -> list[str]:
        """Return the columns that a sink takes."""
        if isinstance(node, Repartition):
            own = [ROW] if self._numbered and ROW in node.schema else []
            return [*self.stage.stored[node], TIME, WATERMARK, *own]
        if isinstance(node, OutputNode):
            return list(dict.fromkeys([*node.key, *node.fields.values(), TIME]))
        return list(node.visible)

    def _source_frame(self, source: StageSource, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows of a topic with all columns of the source."""
        stored = self.stage.stored[source] if isinstance(source, Repartition) else None
        schema = source.schema
        own = [name for name in (TIME, WATERMARK, ROW) if name in schema]
        names = schema if stored is None else (*stored, *own)
        wanted = {n: schema[n] for n in names if n in frame.columns or not n.startswith(INTERNAL)}
        differences = schema_differences(frame.schema, wanted)
        if differences:
            raise InvalidRecord(
                f"the rows of topic {topic_of(source)!r} do not have the columns of the stream:"
                f" {'; '.join(differences)}"
            )
        rows = arranged(frame, wanted)
        # Columns that no operator uses are not stored, but operators such as `drop` name them.
        absent = [nulls(n, dtype, len(rows)) for n, dtype in schema.items() if n not in wanted]
        return arranged(rows.hstack(absent), schema) if absent else rows


def _consumers_in(stage: Stage) -> dict[Node, list[Node]]:
    """Return the nodes of a stage that read the rows of each node of it."""
    found: dict[Node, list[Node]] = {node: [] for node in (*stage.sources, *stage.nodes)}
    for node in stage.nodes:
        for source in dict.fromkeys(node.inputs):
            found[source].append(node)
    return found


def _is_lazy(readers: list[Node]) -> bool:
    """Return True if the rows that a node gives are only a part of the query of the next one."""
    return len(readers) == 1 and isinstance(readers[0], ExpressionNode)


def _results_wanted(node: Node, consumers: Mapping[Node, list[Node]]) -> Iterator[Emit]:
    """Yield the kinds of results that the ends after an aggregation take."""
    waiting, seen = list(consumers[node]), set[Node]()
    while waiting:
        reader = waiting.pop()
        if reader in seen:
            continue
        seen.add(reader)
        if isinstance(reader, Sink | StatefulNode):
            if reader.emit is not None:
                yield reader.emit
        else:
            waiting += consumers[reader]


def _named(node: Node) -> str:
    return node.name if isinstance(node, StatefulNode) else ""


def _collected(frame: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    import polars as pl

    return frame.collect() if isinstance(frame, pl.LazyFrame) else frame


def _concatenated(node: Node, frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of several frames, with the columns in the order of the node.

    Rows of one batch are in the order of their records again, whichever branch they come from, so
    that what takes them in the order of arrival does not depend on the size of the batch.
    """
    import polars as pl

    columns = list(node.schema)
    rows = pl.concat([frame.select(columns) for frame in frames])
    return rows.sort(ROW, maintain_order=True) if len(frames) > 1 and ROW in columns else rows
