"""The state of an aggregation as its store has it, and the windows and figures in it.

The recorded declaration of the store is enough to read it, without the code of its app: its
definition has the keys with their types, the window, and the types of the state and of the results,
and its figures are the kinds of the aggregates. Only the functions of a reducer are not recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.changelog.decoding import json_decoder
from strandline.changelog.depth import check_json
from strandline.changelog.errors import (
    UNREADABLE,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    KeyInSeveralPartitions,
)
from strandline.changelog.times import sought_ms
from strandline.framework.streams.operators.group_keys import PANE, PLACE, SINCE, key_layout
from strandline.framework.streams.operators.groups import kept_aggregates, state_inputs
from strandline.framework.streams.operators.merging import (
    hopping_parts,
    sliding_parts,
    window_columns,
)
from strandline.framework.streams.schemas import INTERNAL
from strandline.framework.streams.stateful import WINDOW_END, WINDOW_START, GroupAggregate
from strandline.framework.streams.type_names import type_name, type_of_name
from strandline.framework.streams.window_declarations import recorded_window
from strandline.framework.streams.windows import (
    MAX_TIME_MS,
    CountWindow,
    HoppingWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    Window,
)
from strandline.statestore.aggregates import Aggregates, recorded
from strandline.statestore.aggregates.reducer import Reducer
from strandline.statestore.aggregates.stored_states import figure_of_type, stored_type
from strandline.statestore.declaration import Declaration

if TYPE_CHECKING:
    import polars as pl

MAX_SESSIONS = 1 << 62
"""Number of open sessions that no group has."""
MAX_LOOKUPS = 1_000
"""Number of keys up to which the windows of a group are looked up; a range of more is scanned."""

Overlapping = HoppingWindow | SlidingWindow
"""Windows whose state is kept as panes, and merged when they are read."""

Group = tuple[Any, ...]
"""Key of a group, also of one column."""
Types = Mapping[str, "pl.DataType"]
Bound = tuple[Any, ...] | None
"""First elements of a key, as the end of a range; None for no limit."""


def closed_of(name: str) -> str:
    """Return the name of the store that has the last closed window of an aggregation."""
    return f"{name}-closed"


def typed_figures(node: GroupAggregate) -> dict[str, Any]:
    """Return what a definition has besides the fingerprint: the types of state and results."""
    state = kept_aggregates(node).state_schema(state_inputs(node))
    results = {name: node.schema[name] for name in node.aggregates.aggregates}
    return {"state": _named(state), "results": _named(results)}


@dataclass(frozen=True)
class WindowRange:
    """Windows whose start is in [start, end): ms since the epoch, or numbers of rows."""

    start: int | None = None
    """First start; None for no limit."""
    end: int | None = None
    """End of the starts (exclusive); None for no limit."""


@dataclass(frozen=True)
class StoredGroups:
    """Layout of the store of one aggregation."""

    name: str
    """Name of the store, for errors."""
    keys: Types
    """Columns that identify a group."""
    window: Window | None
    aggregates: Aggregates
    state: Types
    """Fields of the state."""
    results: Types
    """Figures."""

    @classmethod
    def of_node(cls, node: GroupAggregate) -> StoredGroups:
        """Return the layout of an aggregation that this program declares."""
        rows = node.inputs[0].schema
        return cls(
            node.name,
            {key: rows[key] for key in node.keys},
            node.window,
            node.aggregates,
            dict(kept_aggregates(node).state_schema(state_inputs(node))),
            {name: node.schema[name] for name in node.aggregates.aggregates},
        )

    @classmethod
    def of_declaration(cls, name: str, declaration: Declaration | None) -> StoredGroups | None:
        """Return the layout by a store's recorded declaration; None if it is no aggregation.

        Args:
            name: Name of the store, for errors.
            declaration: Recorded declaration; None if there is none.

        Raises:
            InvalidConfig: The declaration was recorded by a version that this one cannot read.
        """
        if declaration is None or declaration.definition is None or declaration.figures is None:
            return None
        try:
            check_json(declaration.definition.encode())
            given = _decode(declaration.definition)
            results = _types(given.results)
            figures = {
                figure: _with_result(recorded(*one), results[figure])
                for figure, one in declaration.figures.items()
                if figure in results  # sessions have further fields
            }
            window = None if given.window is None else recorded_window(given.window)
            state = _types(given.state)
            return cls(name, _types(given.keys), window, Aggregates(**figures), state, results)
        except (*UNREADABLE, KeyError, InvalidConfig) as error:
            raise InvalidConfig(
                f"the definition of store {name!r} was recorded by another version of Strandline"
                f" and cannot be read as columns ({error}); use the version that runs the app"
            ) from error

    @cached_property
    def columns(self) -> dict[str, pl.DataType]:
        """Columns of the rows: keys, start and end of the window, figures."""
        import polars as pl

        bounds: dict[str, pl.DataType] = {}
        if self.window is not None:
            is_count = isinstance(self.window, CountWindow)
            kind = pl.Int64() if is_count else pl.Datetime("us", "UTC")
            bounds = {WINDOW_START: kind, WINDOW_END: kind}
        return {**self.keys, **bounds, **self.results}

    @property
    def is_merged(self) -> bool:
        """True if a window is merged from several states when it is read."""
        return isinstance(self.window, Overlapping)

    @property
    def is_by_group(self) -> bool:
        """True if keys of the store begin with the key of the group, and not with a time."""
        return not self._layout[0].startswith(INTERNAL)

    def check_readable(self) -> None:
        """Raise InvalidConfig if windows must be merged by functions that are not known here."""
        if self.is_merged and not self.aggregates.can_merge:
            names = [n for n, one in self.aggregates.aggregates.items() if not one.can_merge]
            raise InvalidConfig(
                f"store {self.name!r}: {self.window} keeps parts of windows, and only the app's own"
                f" functions can merge those of {', '.join(names)} (sl.reducer); read it in a"
                " program that has the app, with app.query(name), or read the final results from"
                " the topic that the stream writes"
            )

    # Ranges ------------------------------------------------------------------------------------

    def range(self, start: Any, end: Any) -> WindowRange:
        """Return a range of windows as a user gives it.

        Args:
            start: First start: a datetime or ms since the epoch; for count windows the number of a
                row. None for no limit.
            end: End of the starts (exclusive), like `start`.

        Raises:
            InvalidRequest: The stream has no windows, or the end is before the start.
            InvalidRecord: A bound is of another type, or no time.
        """
        if self.window is None:
            raise InvalidRequest(
                f"store {self.name!r} has no windows: it is an aggregation of all rows of a group;"
                " read a group with store[key], or all with to_polars()"
            )
        found = WindowRange(self._bound(start), self._bound(end))
        if found.start is not None and found.end is not None and found.end < found.start:
            raise InvalidRequest(
                f"the range of windows from {start!r} to {end!r} ends before it starts; exchange"
                " the two"
            )
        return found

    def _bound(self, given: Any) -> int | None:
        if given is None:
            return None
        if not isinstance(self.window, CountWindow):
            # Windows begin at whole milliseconds, so the first ms at or after a bound is meant.
            return max(-MAX_TIME_MS, min(sought_ms(given), MAX_TIME_MS))
        if type(given) is not int:
            raise InvalidRecord(
                f"windows of store {self.name!r} begin at numbers of rows, got {given!r:.80}; give"
                " an int"
            )
        return given

    def bounds(self, of: WindowRange, group: Group | None) -> tuple[Bound, Bound]:
        """Return the range of the store's keys with the state of windows, [lower, upper).

        Args:
            of: Range of the windows.
            group: Key of a group; None for all groups.
        """
        if self.window is None or isinstance(self.window, SessionWindow):
            # The keys begin with those of groups, so all groups, or all sessions of one, are read.
            return (None, None) if group is None else ((*group, 0), (*group, MAX_SESSIONS))
        # The last pane of a window may begin later than the window, by less than its size.
        after = self.window.size_ms if isinstance(self.window, Overlapping) else 0
        lower = None if of.start is None else (of.start,)
        upper = None if of.end is None else (of.end + after,)
        return lower, upper

    def lookups(self, first: int, last: int) -> list[tuple[int, ...]] | None:
        """Return the beginnings of all keys that a group may have in a range of panes.

        Args:
            first: Start of the first pane of any group.
            last: Start of the last one.

        Returns:
            The first elements of the keys; None if they are unknown or more than MAX_LOOKUPS.
        """
        import polars as pl

        if isinstance(self.window, TumblingWindow):
            found: list[tuple[int, ...]] = []
            at = first
            while at <= last and len(found) <= MAX_LOOKUPS:
                found.append((at,))
                at = self.window.end_of(at)
            return found if len(found) <= MAX_LOOKUPS else None
        if not isinstance(self.window, HoppingWindow):
            return None
        step = self.window.pane_ms
        if (last - first) // step * (self.window.size_ms // self.window.every_ms) > MAX_LOOKUPS:
            return None
        panes = pl.Series(range(first, last + 1, step), dtype=pl.Int64)
        windows = self.window.windows_of_panes(panes)
        return list(zip(panes[windows["row"]].to_list(), windows["start"].to_list(), strict=True))

    # Figures of one state ----------------------------------------------------------------------

    def typed(self, figures: Any) -> Any:
        """Return figures of a state with the types of the results: times, decimals and so on.

        The results of reducers stay as their functions have made them.

        Args:
            figures: Figures as `Aggregates.result` returns them.

        Raises:
            InvalidRecord: A figure is of another type.
        """
        import polars as pl

        try:
            found = {
                name: figure_of_type(getattr(figures, name), self.results[name])
                for name in self._stored_otherwise
            }
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise InvalidRecord(
                f"figures of store {self.name!r} are not of the types of its results: {error}"
            ) from error
        return msgspec.structs.replace(figures, **found) if found else figures

    @cached_property
    def _stored_otherwise(self) -> list[str]:
        """Results that a state has as values of another type."""
        ones = self.aggregates.aggregates
        return [
            name
            for name, dtype in self.results.items()
            if stored_type(dtype) != dtype and not isinstance(ones[name], Reducer)
        ]

    # Rows --------------------------------------------------------------------------------------

    def group_of(self, key: Any) -> Group:
        """Return the key of the group of a key of the store, as a tuple."""
        items = key if isinstance(key, tuple) else (key,)
        at = self._layout.index(next(iter(self.keys)))
        return items[at : at + len(self.keys)]

    def group_kind(self, declared: Any) -> Any:
        """Return the type of the keys of groups.

        Args:
            declared: Type of the keys of the store.
        """
        if len(self._layout) == 1:
            return declared
        kinds = self.group_of(tuple(declared.__args__))
        return kinds[0] if len(kinds) == 1 else tuple[kinds]  # type: ignore[valid-type]

    def states(
        self, keys: Sequence[Any], states: Sequence[Any], closed: int | None
    ) -> pl.DataFrame:
        """Return the states of windows, or without windows of groups, of one partition.

        Args:
            keys: Keys of the store, in its order.
            states: States, objects whose attributes are the fields.
            closed: Last closed window, as the store `closed_of` has it; None if there is none.

        Returns:
            Columns for `rows`.

        Raises:
            InvalidConfig: Windows cannot be merged without the functions of the app.
            InvalidRecord: A key or a state is of another type than declared.
        """
        found = self._windows(self._panes(keys, states), closed)
        fields = [name for name in self.state if name not in self._identity]
        return found.select(*self._identity, *fields)

    def rows(self, parts: Sequence[pl.DataFrame], of: WindowRange) -> pl.DataFrame:
        """Return the windows, or without windows the groups, of several partitions.

        A group is in one partition, unless records were not placed by the key of their topic. Then
        its parts are merged.

        Args:
            parts: Results of `states`.
            of: Range of the windows.

        Returns:
            A row for each window, by start and key, with the columns `columns`.

        Raises:
            KeyInSeveralPartitions: Parts of a group cannot be merged.
        """
        import polars as pl

        found = pl.concat(parts)
        if len(parts) > 1 and found.select(self._identity).is_duplicated().any():
            found = self._combined(found)
        rows = found.select(list(self.keys)).hstack(self.aggregates.results(found))
        if self.window is None:
            return rows.cast(self.columns).sort(*self.keys)  # type: ignore[arg-type]
        rows = rows.with_columns(*window_columns(self.window, found)).select(list(self.columns))
        start = found[WINDOW_START if isinstance(self.window, SessionWindow) else PANE]
        chosen = rows.cast(self.columns).filter(_within(start, of))  # type: ignore[arg-type]
        return chosen.sort(WINDOW_START, *self.keys)

    def _combined(self, found: pl.DataFrame) -> pl.DataFrame:
        if self.aggregates.can_merge:
            return self.aggregates.combine(found, self._identity)
        names = [n for n, one in self.aggregates.aggregates.items() if not one.can_merge]
        raise KeyInSeveralPartitions(
            f"store {self.name!r} has parts of a group in several partitions, and {', '.join(names)}"
            " cannot be merged; give the records of the input the partitions of their keys, or read"
            " one part with partition=0"
        )

    def _windows(self, panes: pl.DataFrame, closed: int | None) -> pl.DataFrame:
        """Return the states of windows."""
        import polars as pl

        if not isinstance(self.window, Overlapping):
            return panes
        self.check_readable()
        if isinstance(self.window, HoppingWindow):
            parts = hopping_parts(self.window, panes, after=closed)
        else:
            is_open = pl.lit(value=True) if closed is None else pl.col(PANE) > closed
            parts = sliding_parts(self.window, list(self.keys), panes, is_open)
        return self.aggregates.combine(parts, [PANE, *self.keys])

    def _panes(self, keys: Sequence[Any], states: Sequence[Any]) -> pl.DataFrame:
        """Return entries of the store as columns: those of the key, and the state."""
        import polars as pl

        layout = self._layout
        columns = list(zip(*keys, strict=True)) if len(layout) > 1 else [keys]
        types = dict.fromkeys((PANE, SINCE, PLACE), pl.Int64()) | dict(self.keys)
        try:
            made = [
                _series(values, types[name]).alias(name)
                for name, values in zip(layout, columns or [()] * len(layout), strict=True)
            ]
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise InvalidRecord(
                f"the keys of store {self.name!r} are not {dict(self.keys)}: {error}"
            ) from error
        return pl.DataFrame(made).hstack(self.aggregates.from_values(list(states), self.state))

    @cached_property
    def _identity(self) -> list[str]:
        """Columns that identify a window, or without windows a group."""
        if isinstance(self.window, SessionWindow):
            return [*self.keys, WINDOW_START, WINDOW_END]
        return [name for name in self._layout if name != SINCE]

    @cached_property
    def _layout(self) -> list[str]:
        return key_layout(list(self.keys), self.window)


class _Definition(msgspec.Struct):
    """Part of the recorded definition of an aggregation that readers need."""

    keys: list[tuple[str, str]]
    window: dict[str, Any] | None
    state: list[tuple[str, str]]
    results: list[tuple[str, str]]


_decode = json_decoder(_Definition).decode


def _with_result(one: Any, dtype: pl.DataType) -> Any:
    """Return a recorded aggregate; a reducer with the type of its results."""
    return dataclasses.replace(one, returns=dtype) if isinstance(one, Reducer) else one


def _named(types: Types) -> list[list[str]]:
    return [[name, type_name(dtype)] for name, dtype in types.items()]


def _types(named: Sequence[tuple[str, str]]) -> dict[str, pl.DataType]:
    return {name: type_of_name(kind) for name, kind in named}


def _series(values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Return elements of keys as a column. Datetimes of keys are in UTC."""
    import polars as pl

    stored = pl.Datetime("us", "UTC") if isinstance(dtype, pl.Datetime) else None
    plain = pl.Series(values, dtype=stored) if values else pl.Series(values, dtype=dtype)
    return plain.cast(dtype)


def _within(starts: pl.Series, of: WindowRange) -> pl.Series:
    """Return True for each start that is in a range."""
    upper = starts < (MAX_TIME_MS if of.end is None else of.end)
    return upper & (starts >= (-MAX_TIME_MS if of.start is None else of.start))
