"""Streams: what users write to select, change, group and write the rows of topics.

Each call returns a new stream and changes none, so that a stream may be used several times. Nothing
runs while streams are declared, but every operator is checked: it knows its columns and their types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.framework.handlers import check_handler
from strandline.framework.streams import building, grouping
from strandline.framework.streams.expressions import check_columns
from strandline.framework.streams.functions import FlatMap, Foreach, MapRows, Peek, name_of
from strandline.framework.streams.graph import StreamGraph
from strandline.framework.streams.nodes import Drop, Emit, Explode, Node, Rename
from strandline.framework.streams.outputs import OutputSettings, output
from strandline.framework.streams.places import refusal, user_place
from strandline.framework.streams.schemas import TIME, check_names
from strandline.framework.streams.sources import merged, topic_rows
from strandline.framework.streams.stateful import OutputNode, Through, TopicSink, emission_of
from strandline.framework.streams.windows import Window
from strandline.framework.topic import Topic
from strandline.statestore.aggregates.aggregate import Aggregate
from strandline.statestore.frames import repeated

if TYPE_CHECKING:
    import narwhals as nw
    import polars as pl

    from strandline.framework.streams.durations import Given
    from strandline.framework.streams.plan import Plan

Predicate = Any
"""An expression that is true or false, the name of a bool column, or a function of a row."""


class Stream:
    """Rows of one or several topics, declared by `App.stream`.

    A row has the columns of the topic's value, `timestamp` (ms since the epoch), and `key` if the
    key is no column of the value. Operators that keep rows as they are keep both.

        late = (
            app.stream(flights)
            .filter(sl.col("dep_delay") > 15)
            .with_columns(route=sl.col("origin") + "-" + sl.col("dest"))
            .group_by("origin", "carrier")
            .window(sl.tumbling("1h", grace="10m"))
            .agg(n=sl.count(), worst=sl.max("dep_delay"), name="late-by-hour")
        )
        late.to("late", emit="final")

    >>> import strandline as sl, pyarrow as pa
    >>> app = sl.App("airport")
    >>> flights = app.topic("flights", value=pa.schema([("carrier", pa.string()), ("delay", pa.int64())]))
    >>> late = app.stream(flights).filter(sl.col("delay") > 15).select("carrier")
    >>> late.columns
    ['carrier', 'key', 'timestamp']
    """

    def __init__(self, graph: StreamGraph, node: Node) -> None:
        self.graph = graph
        self.node = node
        """Operator that gives the rows."""

    # Looking ---------------------------------------------------------------------------------

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """Names and Polars types of the columns."""
        return self.node.visible

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.node.visible)

    @property
    def plan(self) -> Plan:
        """Plan of the operators up to this stream."""
        from strandline.framework.streams.plan import Plan

        return Plan((self.node,), self.graph.session.app)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.node.describe()}: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        return self.plan.svg()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "image/svg+xml": self.plan.svg()}

    # Rows and columns ------------------------------------------------------------------------

    def filter(self, predicate: Predicate) -> Stream:
        """Keep the rows for which a predicate is true; a null is not.

        Args:
            predicate: An expression, as `sl.col("delay") > 15`, the name of a bool column, or a
                function that gets a row and returns True or False.

        Returns:
            The stream of the kept rows.

        Raises:
            InvalidConfig: A column is unknown, or the predicate is not true or false for each row.
        """
        return self._next(building.filtered(self.node, predicate))

    def select(self, *columns: str | nw.Expr, **named: Any) -> Stream:
        """Give the rows other columns; `timestamp`, and `key` outside of the value, always stay.

        Args:
            *columns: Names of columns, or expressions.
            **named: Expression, constant, or annotated function of a row, by the column's name.

        Returns:
            The stream with these columns.

        Raises:
            InvalidConfig: A column is unknown, or a value would depend on other rows.
        """
        return self._next(building.selected(self.node, columns, named))

    def with_columns(self, *columns: nw.Expr, **named: Any) -> Stream:
        """Add columns to the rows, or replace them.

        Args:
            *columns: Expressions.
            **named: Expression, the name of a column, a constant that is no text, or a function of
                a row whose return type is annotated, by the column's name.

        Returns:
            The stream with the columns.

        Raises:
            InvalidConfig: A column is unknown, or a value would depend on other rows.
        """
        return self._next(building.extended(self.node, columns, named))

    def drop(self, *names: str) -> Stream:
        """Remove columns from the rows.

        Args:
            *names: Names of the columns; `timestamp` cannot be removed.

        Returns:
            The stream of the other columns.

        Raises:
            InvalidConfig: There is no such column.
        """
        check_columns(names, self.schema, "drop")
        self._refuse_time(names, "drop")
        if not names:
            raise refusal("drop", "there is no column to remove; name at least one")
        kept = {n: dtype for n, dtype in self.node.schema.items() if n not in names}
        keying = self.node.keying.without(names)
        return self._next(building.made(Drop, self.node, kept, keying, names=names))

    def rename(self, names: Mapping[str, str]) -> Stream:
        """Give columns other names.

        Args:
            names: New name by old name. A `key` that is no column of the value becomes one.

        Returns:
            The stream with the new names.

        Raises:
            InvalidConfig: There is no such column, or there would be two of one name.
        """
        check_columns(names, self.schema, "rename")
        check_names(names.values(), "rename")
        self._refuse_time(names, "rename")
        renamed = [names.get(name, name) for name in self.node.schema]
        if twice := repeated(renamed):
            raise refusal("rename", f"there would be two columns called {twice}; drop one before")
        schema = dict(zip(renamed, self.node.schema.values(), strict=True))
        keying = self.node.keying.renamed(names)
        return self._next(building.made(Rename, self.node, schema, keying, names=dict(names)))

    def explode(self, name: str) -> Stream:
        """Make one row of each item of a list column; none of an empty list or a null.

        Args:
            name: Name of the column, which has the items then.

        Returns:
            The stream of the items, with the other columns of their rows.

        Raises:
            InvalidConfig: There is no such column, or it has no lists.
        """
        import polars as pl

        check_columns([name], self.schema, "explode")
        dtype = self.schema[name]
        if not isinstance(dtype, pl.List):
            raise refusal("explode", f"column {name!r} is {dtype}; only lists can be exploded")
        schema: dict[str, Any] = {**self.node.schema, name: dtype.inner}
        keying = self.node.keying.without([name])
        return self._next(building.made(Explode, self.node, schema, keying, column=name))

    # Functions -------------------------------------------------------------------------------

    def map(self, fn: Callable[[Any], Any], *, schema: Any) -> Stream:
        """Replace each row by what a function returns for it. Key and time stay those of the row.

        Args:
            fn: Function that gets a row, whose columns are attributes and items, and returns an
                object of the class `schema`, or a dict with its columns.
            schema: A dataclass, a msgspec.Struct, a pyarrow.Schema or a Polars schema.

        Returns:
            The stream of the returned rows.

        Raises:
            InvalidConfig: The function is async or has `yield`, or the schema is not valid.
        """
        check_handler(f"{user_place()}: map: the function", fn, may_be_async=False)
        return self._next(building.mapped(MapRows, self.node, fn, schema))

    def flat_map(self, fn: Callable[[Any], Any], *, schema: Any) -> Stream:
        """Replace each row by the rows that a function returns or yields for it.

        Args:
            fn: Function that gets a row, and returns a list of rows or yields rows, each as in
                `map`.
            schema: Columns of the returned rows, as in `map`.

        Returns:
            The stream of the returned rows, with key and time of the row that they were made from.

        Raises:
            InvalidConfig: The function is async, or the schema is not valid.
        """
        building.check_flat_function(fn)
        return self._next(building.mapped(FlatMap, self.node, fn, schema))

    def map_batches(
        self, fn: Callable[[pl.DataFrame], pl.DataFrame], *, schema: Any = None
    ) -> Stream:
        """Replace the rows by the frame that a function returns for a frame of them.

        The frames have any number of rows, so the rows of the result must not depend on which rows
        come together.

        Args:
            fn: Function of a Polars frame that returns one. It must keep `timestamp`, and may keep
                `key`.
            schema: Columns besides these two, as in `map`. By default they are found by calling
                the function with an empty frame.

        Returns:
            The stream of the returned rows.

        Raises:
            InvalidConfig: The function is async or has `yield`, fails for an empty frame, or
                returns no frame or one without `timestamp`.
        """
        return self._next(building.mapped_in_batches(self.node, fn, schema))

    def peek(self, fn: Callable[[Any], object]) -> Stream:
        """Call a function for each row, and pass the rows on as they are.

        A row may be processed again after a crash, and the function is then called again.

        Args:
            fn: Function that gets a row; its result is ignored.

        Returns:
            The stream of the same rows.

        Raises:
            InvalidConfig: The function is async or has `yield`.
        """
        check_handler(f"{user_place()}: peek: the function", fn, may_be_async=False)
        node = self.node
        return self._next(building.made(Peek, node, node.schema, node.keying, function=fn))

    # Several streams -------------------------------------------------------------------------

    def branch(self, **predicates: Predicate) -> Branches:
        """Split the rows: each goes to the first branch whose predicate is true for it.

        Args:
            **predicates: Expression or function of a row, as in `filter`, by the branch's name.

        Returns:
            An object with one stream for each name, and the stream `rest` of all other rows.

        Raises:
            InvalidConfig: A predicate is not valid, or a branch is called `rest`.
        """
        arms = building.branches(self.node, predicates)
        return Branches({name: self._next(node) for name, node in arms.items()})

    def merge(self, *others: Stream) -> Stream:
        """Put the rows of other streams with the same columns beside those of this one.

        Args:
            *others: Streams of the same app.

        Returns:
            The stream of all rows. Those of one partition of an input stay in order.

        Raises:
            InvalidConfig: A stream has other columns, or belongs to another app.
        """
        given: Sequence[Any] = others
        for other in given:
            if not isinstance(other, Stream) or other.graph is not self.graph:
                raise refusal("merge", f"expected streams of the same app, got {other!r:.200}")
        inputs = [self.node, *(other.node for other in others)]
        if len({emission_of(node) for node in inputs}) > 1:
            raise refusal(
                "merge",
                "results of an aggregation cannot be merged with rows, nor final results with"
                " updates; write them to a topic with .through(…) before",
            )
        return self._next(merged(inputs, "merge"))

    # Grouping --------------------------------------------------------------------------------

    def group_by(self, *keys: str | nw.Expr, name: str | None = None) -> GroupedStream:
        """Group the rows by columns, to aggregate them.

        Rows that are in the partition of another key go through the internal topic
        `<app>-<name>-repartition`, with the columns that are used after it.

        Args:
            *keys: Names of columns, or expressions.
            name: Name of the internal topic, and of the aggregation if `agg` gets none.

        Returns:
            The groups: call `agg`, or `window` before.

        Raises:
            InvalidConfig: A column is unknown or cannot be a key, or the rows are updates of an
                earlier aggregation.
        """
        return GroupedStream(self, grouping.grouped(self.graph, self.node, keys, name))

    def drop_duplicates(
        self, *, on: str | Sequence[str], within: Given, name: str | None = None
    ) -> Stream:
        """Drop rows that equal an earlier one in some columns, for some time after that one.

        Args:
            on: Columns that are equal in duplicates.
            within: Time for which a row is remembered, as "1h", a timedelta, or milliseconds.
            name: Name of the operator and of its state.

        Returns:
            The stream of the first rows.

        Raises:
            InvalidConfig: There is no such column, the time is not valid, or there is no name.
        """
        return self._next(grouping.deduplicated(self.graph, self.node, on, within, name))

    # Ends ------------------------------------------------------------------------------------

    def foreach(self, fn: Callable[[Any], object]) -> None:
        """Call a function for each row, as the end of the stream.

        A row may be processed again after a crash, and the function is then called again.

        Args:
            fn: Function that gets a row; its result is ignored.

        Raises:
            InvalidConfig: The function is async or has `yield`.
        """
        check_handler(f"{user_place()}: foreach: {name_of(fn)}", fn, may_be_async=False)
        node, emit = self.node, emission_of(self.node)
        self.graph.end(
            building.made(Foreach, node, node.schema, node.keying, function=fn, emit=emit)
        )

    def to(
        self,
        topic: Topic[Any, Any] | str,
        *,
        key: str | Sequence[str] | None = None,
        emit: Emit | None = None,
        partitions: int | None = None,
        schema: Any = None,
    ) -> Topic[Any, Any]:
        """Write the rows to a topic.

        Args:
            topic: A declared topic, whose fields must be the stream's columns, or the name of a
                topic, which is then declared with these columns.
            key: Columns of the records' key: one is a key of its type, several are a tuple. By
                default the key of the stream: that of its topic, or of its groups and windows.
            emit: "update" writes a row at each commit for each group that changed, "final" once
                for each window when it is closed. By default "final" if there are windows, else
                "update". Only for results of an aggregation.
            partitions: Number of partitions of a topic that is declared here.
            schema: Type of the values of a topic that is declared here; the columns must fit it.

        Returns:
            The topic.

        Raises:
            InvalidConfig: The columns do not fit the topic; each difference is named.
        """
        settings = OutputSettings(key, partitions, schema)
        return self._output(TopicSink, topic, settings, emit).topic

    def through(
        self,
        topic: Topic[Any, Any] | str,
        *,
        key: str | Sequence[str] | None = None,
        emit: Emit | None = None,
        partitions: int | None = None,
        schema: Any = None,
    ) -> Stream:
        """Write the rows to a topic, and continue with the rows of that topic.

        Args:
            topic: A declared topic, or the name of one, as in `to`.
            key: Columns of the records' key, as in `to`.
            emit: "update" or "final", as in `to`.
            partitions: Number of partitions of a topic that is declared here.
            schema: Type of the values of a topic that is declared here.

        Returns:
            The stream of the topic's rows.

        Raises:
            InvalidConfig: The columns do not fit the topic.
        """
        return self._next(
            self._output(Through, topic, OutputSettings(key, partitions, schema), emit)
        )

    def _output(
        self,
        kind: type[OutputNode],
        to: Topic[Any, Any] | str,
        settings: OutputSettings,
        emit: Emit | None,
    ) -> OutputNode:
        operator = "to" if kind is TopicSink else "through"
        node = self.node
        emit = building.checked_emit(emit, node, operator)
        found = output(self.graph, node, to, settings, operator)
        schema, keying = node.schema, node.keying
        if kind is Through:
            _, schema, keying = topic_rows(found.topic, operator)
        made = building.made(
            *(kind, node, schema, keying),
            topic=found.topic,
            key=found.key,
            fields=found.fields,
            emit=emit,
        )
        self.graph.end(made)
        return made

    def _next(self, node: Node) -> Stream:
        return Stream(self.graph, node)

    def _refuse_time(self, names: Any, operator: str) -> None:
        if TIME in names:
            raise refusal(
                operator,
                f"{TIME!r} is the time of the records, which windows and outputs need; copy it, as"
                f" with_columns(at={TIME!r}), and it stays out of topics by itself",
            )


class GroupedStream:
    """Rows grouped by columns, as `Stream.group_by` returns them."""

    def __init__(self, stream: Stream, groups: grouping.Groups) -> None:
        self.stream = stream
        """Stream whose rows are grouped."""
        self.groups = groups

    def __repr__(self) -> str:
        return f"GroupedStream({', '.join(self.groups.keys)})"

    def window(self, window: Window) -> WindowedStream:
        """Divide each group into windows.

        Args:
            window: Definition: `sl.tumbling(…)`, `sl.hopping(…)`, `sl.sliding(…)`,
                `sl.session(…)` or `sl.count_window(…)`.

        Returns:
            The windows: call `agg`.

        Raises:
            InvalidConfig: It is no definition of windows.
        """
        if not isinstance(window, Window):
            raise refusal("window", f"expected windows, as sl.tumbling('1h'), got {window!r:.100}")
        return WindowedStream(self, window)

    def agg(self, *, name: str | None = None, **aggregates: Aggregate) -> Stream:
        """Aggregate the rows of each group.

        Args:
            name: Name of the aggregation and of its state, by default that of `group_by`.
            **aggregates: Aggregate by the name of its column, as `n=sl.count()`. The column of an
                aggregate may be an expression: `sl.max(sl.col("delay") * 60)`.

        Returns:
            The stream of results, with a row for each group that changed: the columns of the key,
            the aggregates, and `timestamp`. Its key is that of the group.

        Raises:
            InvalidConfig: There is no name, or an aggregate does not fit its column.
        """
        return Stream(self.stream.graph, self.groups.aggregated(None, aggregates, name))


class WindowedStream:
    """Windows of groups, as `GroupedStream.window` returns them."""

    def __init__(self, grouped: GroupedStream, window: Window) -> None:
        self.grouped = grouped
        self.window = window

    def __repr__(self) -> str:
        return f"WindowedStream({', '.join(self.grouped.groups.keys)} in {self.window})"

    def agg(self, *, name: str | None = None, **aggregates: Aggregate) -> Stream:
        """Aggregate the rows of each window of each group.

        Args:
            name: Name of the aggregation and of its state, by default that of `group_by`.
            **aggregates: Aggregate by the name of its column, as in `GroupedStream.agg`.

        Returns:
            The stream of results: the columns of the group's key, `window_start`, `window_end`,
            the aggregates, and `timestamp`. Its key is that of the group, and the window's start.

        Raises:
            InvalidConfig: There is no name, or an aggregate does not fit its column or the window.
        """
        found = self.grouped.groups.aggregated(self.window, aggregates, name)
        return Stream(self.grouped.stream.graph, found)


class Branches:
    """Streams of `Stream.branch`, by name; `rest` has the rows that no branch took."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self._streams = dict(streams)

    def __getattr__(self, name: str) -> Stream:
        if name.startswith("_") or name not in self._streams:
            raise AttributeError(f"there is no branch {name!r}; there are {[*self._streams]}")
        return self._streams[name]

    def __getitem__(self, name: str) -> Stream:
        return self._streams[name]

    def __iter__(self) -> Any:
        """Return an iterator of the streams, in the order of declaration; `rest` is the last."""
        return iter(self._streams.values())

    def __repr__(self) -> str:
        return f"Branches({', '.join(self._streams)})"
