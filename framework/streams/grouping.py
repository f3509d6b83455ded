"""Groups of rows, their aggregates, and operators that need equal rows in one partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import InvalidConfig
from strandline.framework.handlers import check_reducers
from strandline.framework.streams.building import made, with_expressions
from strandline.framework.streams.durations import milliseconds_of
from strandline.framework.streams.expressions import (
    as_expression,
    check_columns,
    is_function,
    resolved,
)
from strandline.framework.streams.graph import StreamGraph, checked_name
from strandline.framework.streams.nodes import Node
from strandline.framework.streams.outputs import key_kind
from strandline.framework.streams.places import refusal
from strandline.framework.streams.schemas import INTERNAL, KEY, TIME, WATERMARK, Keying, check_names
from strandline.framework.streams.stateful import (
    WINDOW_START,
    DropDuplicates,
    GroupAggregate,
    Repartition,
    emission_of,
    taken_names,
    window_fields,
)
from strandline.framework.streams.windows import HoppingWindow, SessionWindow, SlidingWindow, Window
from strandline.statestore.aggregates import Aggregates
from strandline.statestore.aggregates.aggregate import Aggregate
from strandline.statestore.frames import repeated

if TYPE_CHECKING:
    import polars as pl


@dataclass
class Groups:
    """Rows grouped by columns."""

    graph: StreamGraph
    node: Node
    """Operator that gives the rows."""
    keys: tuple[str, ...]
    """Columns that identify a group."""
    name: str | None
    """Name that the groups were given; None if each aggregation has a name."""
    shared: Repartition | None = None
    """Internal topic of the groups' name, which all of their aggregations read."""

    def aggregated(
        self, window: Window | None, aggregates: Mapping[str, Any], name: str | None
    ) -> GroupAggregate:
        """Return the node that aggregates the groups, or their windows.

        Args:
            window: Definition of windows; None aggregates all rows of a group.
            aggregates: Aggregate by name, as the user gave them.
            name: Name of the aggregation; None takes that of the groups.

        Raises:
            InvalidConfig: There is no name, or an aggregate does not fit its column or the window.
        """
        node, kinds = _with_computed(self.node, aggregates)
        figures = _checked_aggregates(kinds, window)
        try:
            results = figures.result_schema(node.schema)
            figures.check_storable(node.schema)
        except InvalidConfig as error:
            raise refusal("agg", str(error)) from None
        fields = window_fields(window)
        _check_results(self.keys, taken_names(window), results)
        try:
            figures.check_keys(self.keys)
        except InvalidConfig as error:
            raise refusal("agg", str(error)) from None
        if self.name is not None and node is not self.node and not self._are_placed(node):
            raise refusal(
                "agg",
                "the rows of group_by(…, name=) are shared by its aggregations, so the columns of"
                " aggregates are names; compute expressions with with_columns(…) before group_by",
            )
        claimed = self.graph.claim(self.name if name is None else name, "agg")
        rows = self._placed(node, claimed)
        schema = {key: node.schema[key] for key in self.keys} | fields | dict(results)
        found = made(
            *(GroupAggregate, rows, {**schema, **_internal(rows)}, self._result_key(rows, window)),
            name=claimed,
            keys=self.keys,
            window=window,
            aggregates=figures,
            emit=emission_of(rows),
        )
        self.graph.end(found)
        return found

    def _placed(self, node: Node, name: str) -> Node:
        """Return rows by the key of the groups: `node`, or what an internal topic has of it."""
        if self._are_placed(node):
            return node
        if self.name is None:
            return repartitioned(self.graph, node, self.keys, name)
        if self.shared is None:
            self.shared = repartitioned(self.graph, node, self.keys, self.name)
        return self.shared

    def _are_placed(self, node: Node) -> bool:
        """Return True if all rows of a group are in one partition."""
        placed_by = node.keying.placed_by
        return bool(placed_by) and set(placed_by) <= set(self.keys)

    def _result_key(self, rows: Node, window: Window | None) -> Keying:
        """Return the key of results: that of the group, and the start of the window."""
        if window is not None:
            columns, in_value = (*self.keys, WINDOW_START), True
        else:
            columns, in_value = self.keys, self.node.keying.in_value or self.keys != (KEY,)
        return dataclasses.replace(rows.keying, columns=columns, in_value=in_value)


def grouped(graph: StreamGraph, node: Node, keys: Sequence[Any], name: str | None) -> Groups:
    """Return the rows of a node grouped by columns; see `Stream.group_by`."""
    _refuse_updates(node, "group_by")
    if not keys:
        raise refusal("group_by", "there is no key; name at least one column")
    functions = [key for key in keys if is_function(key)]
    if functions:
        raise refusal(
            "group_by",
            "a function cannot be a key; add a column with with_columns(name=function), whose"
            " return type is annotated, and group by its name",
        )
    if name is not None:
        checked_name(name, "group_by")
    expressions = [as_expression(key, "group_by") for key in keys]
    found = resolved(expressions, node.schema, "group_by")
    if TIME in found:
        raise refusal("group_by", f"{TIME!r} cannot be a key, as almost every row has its own")
    check_names(found, "group_by")
    plain = [key for key in keys if isinstance(key, str)]
    if len(plain) < len(keys):
        computed = [e for key, e in zip(keys, expressions, strict=True) if key not in plain]
        node = with_expressions(node, computed, resolved(computed, node.schema, "group_by"))
    key_kind(tuple(found), node.schema, "group_by")
    return Groups(graph, node, tuple(found), name)


def deduplicated(
    graph: StreamGraph, node: Node, on: Any, within: Any, name: str | None
) -> DropDuplicates:
    """Return the node that drops duplicates; see `Stream.drop_duplicates`."""
    operator = DropDuplicates.label
    _refuse_updates(node, operator)
    columns = (on,) if isinstance(on, str) else tuple(on)
    check_columns(columns, node.visible, operator)
    if not columns:
        raise refusal(operator, "there is no column; name at least one with on=")
    key_kind(columns, node.schema, operator)
    try:
        within_ms = milliseconds_of(within, "within")
    except InvalidConfig as error:
        raise refusal(operator, str(error)) from None
    claimed = graph.claim(name, operator)
    # Equal rows are in one partition if all that places them is among the compared columns.
    if not node.keying.placed_by or not set(node.keying.placed_by) <= set(columns):
        node = repartitioned(graph, node, columns, claimed)
    found = made(
        *(DropDuplicates, node, node.schema, node.keying),
        name=claimed,
        on=columns,
        within_ms=within_ms,
        emit=emission_of(node),
    )
    graph.end(found)
    return found


def repartitioned(graph: StreamGraph, node: Node, keys: tuple[str, ...], name: str) -> Repartition:
    """Return the node that places rows by other columns, through an internal topic.

    What the key of an output is by default does not change by that.
    """
    keying = dataclasses.replace(node.keying, placed_by=keys, is_repartitioned=True)
    return made(
        *(Repartition, node, node.schema, keying),
        name=name,
        topic=graph.internal_topic(name, "group_by"),
        keys=keys,
        emit=emission_of(node),
    )


def _with_computed(node: Node, given: Mapping[str, Any]) -> tuple[Node, dict[str, Aggregate]]:
    """Return rows with the columns that aggregates compute, and aggregates of names of columns."""
    expressions: dict[str, Any] = {}
    kinds: dict[str, Aggregate] = {}
    for name, one in given.items():
        if not isinstance(one, Aggregate):
            raise refusal("agg", f"{name}= is an aggregate, as sl.count(), got {one!r:.100}")
        computed = {
            field.name: getattr(one, field.name)
            for field in dataclasses.fields(one)
            if field.name in ("column", "by") and _is_expression(getattr(one, field.name))
        }
        columns = {at: f"{INTERNAL}{name}_{at}" for at in computed}
        expressions |= {columns[at]: expression for at, expression in computed.items()}
        kinds[name] = dataclasses.replace(one, **columns) if columns else one
    if not expressions:
        return node, kinds
    aliased = [expression.alias(column) for column, expression in expressions.items()]
    found = resolved(aliased, node.schema, "agg")
    return with_expressions(node, aliased, found), kinds


def _checked_aggregates(kinds: Mapping[str, Aggregate], window: Window | None) -> Aggregates:
    try:
        check_reducers(kinds)
        figures = Aggregates(**kinds)
    except InvalidConfig as error:
        raise refusal("agg", str(error)) from None
    if isinstance(window, HoppingWindow | SlidingWindow | SessionWindow) and not figures.can_merge:
        names = [name for name, one in kinds.items() if not one.can_merge]
        raise refusal(
            "agg",
            f"{', '.join(names)} cannot be merged, and {window} merges states; give merge= to"
            " sl.reducer, or use tumbling windows",
        )
    return figures


def _check_results(
    keys: Sequence[str], fields: Iterable[str], results: Mapping[str, pl.DataType]
) -> None:
    """Raise InvalidConfig if two columns of the results or the state would have one name."""
    taken = [*keys, *fields, TIME]
    if twice := repeated([*taken, *results]):
        raise refusal(
            "agg",
            f"the results would have two columns {twice[0]!r}; they have {taken} and the"
            " aggregates, so choose another name",
        )
    check_names(results, "agg")


def _refuse_updates(node: Node, operator: str) -> None:
    if emission_of(node) == "update":
        raise refusal(
            operator,
            "the rows are updates of an aggregation, and an update would be counted again each"
            " time it changes; add a window before that aggregation, whose results are final",
        )


def _internal(rows: Node) -> dict[str, pl.DataType]:
    """Return the columns besides results that an aggregation has: the time, and the watermark."""
    return {name: rows.schema[name] for name in (TIME, WATERMARK)}


def _is_expression(given: Any) -> bool:
    import narwhals as nw

    return isinstance(given, nw.Expr)
