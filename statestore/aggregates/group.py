"""Several aggregates that are kept together for each key, by rows and by columns.

`Aggregates` is independent of any store and of any engine. Its state of a key is one object for
code that handles a record at a time, and one row of columns for code that handles batches; the
fields are the same. `stores.py` keeps the objects, and streams keep the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.statestore.aggregates import columns, stored_states
from strandline.statestore.aggregates.aggregate import Aggregate, Figures, Row
from strandline.statestore.aggregates.values import COMPARABLE, SCALAR
from strandline.statestore.frames import arranged, cast_to, repeated
from strandline.statestore.spec import UNSET, StoreSpec

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

TIMESTAMP = "timestamp"
"""Default name of the column of timestamps in a batch."""


class Aggregates:
    """Several aggregates that are kept together for each key, and the folding of rows into them.

    >>> from strandline.statestore.aggregates.declare import count, max, mean
    >>> delays = Aggregates(n=count(), worst=max("delay"), mean=mean("delay"))
    >>> state = delays.fold(delays.empty, {"delay": 4})
    >>> state = delays.fold(state, {"delay": None})
    >>> delays.result(state)
    Result(n=2, worst=4, mean=4.0)
    """

    def __init__(self, **aggregates: Aggregate) -> None:
        if not aggregates:
            raise InvalidConfig("aggregates need at least one name, as n=count()")
        self.aggregates: Mapping[str, Aggregate] = aggregates
        """Aggregates by name, in the order of declaration."""
        for name, one in aggregates.items():
            _check(name, one)
        fields = list(_stored(aggregates))
        _check_distinct([name for name, _, _ in fields])
        self._parts = tuple(_parts(aggregates))
        self._layout = columns.layout(aggregates)
        self.state: type[msgspec.Struct] = msgspec.defstruct("State", fields, frozen=True)
        """Type of the stored values. Its field names are part of the store's declaration."""
        self._result = msgspec.defstruct("Result", [(n, Any) for n in aggregates], frozen=True)
        self.empty: Any = self.state()
        """State before the first row."""

    @property
    def can_merge(self) -> bool:
        """True if states can be merged, as hopping and session windows need."""
        return all(one.can_merge for one in self.aggregates.values())

    @property
    def needs_time(self) -> bool:
        """True if a state depends on the timestamps of the rows."""
        return any(one.needs_time for one in self.aggregates.values())

    # One row at a time ---------------------------------------------------------------------

    def fold(self, state: Any, row: Any, *, time: int = 0, key: Any = UNSET) -> Any:
        """Return `state` with one row added to it.

        Args:
            state: State of the rows so far.
            row: A mapping, or an object with attributes, that has the columns.
            time: Timestamp of the row in ms since the epoch, for first, last and collect.
            key: Key of the state, for errors.

        Raises:
            InvalidRecord: The row lacks a column, or has a value that cannot be folded.
        """
        read = row.__getitem__ if isinstance(row, Mapping) else partial(getattr, row)
        given = Row(read, time, row)
        old = msgspec.structs.astuple(state)
        new: list[Any] = []
        for one, where in self._parts:
            figures = old[where]
            try:
                value = one.read(given)
                new += figures if value is None else one.fold(figures, value)
            except (KeyError, AttributeError, TypeError, OverflowError) as error:
                if one.takes_rows:
                    raise
                raise InvalidRecord(
                    f"cannot aggregate {row!r:.200}{_for(key)}: {error!r}; in a store, {one} needs "
                    f"{one.takes_alone} (or None) in {sorted(one.columns)}"
                ) from error
        return self.state(*new)

    def merge(self, states: Sequence[Any]) -> Any:
        """Return the state of all rows from which `states` were made, the earliest first.

        Raises InvalidRecord if values cannot be compared, such as text with numbers, and
        InvalidConfig if an aggregate cannot merge states (see `can_merge`).

        >>> from strandline.statestore.aggregates.declare import count, mean
        >>> delays = Aggregates(n=count(), mean=mean("delay"))
        >>> parts = [delays.fold(delays.empty, {"delay": delay}) for delay in (4, 8)]
        >>> delays.result(delays.merge(parts))
        Result(n=2, mean=6.0)
        """
        rows = [msgspec.structs.astuple(state) for state in states]
        try:
            return self.state(*reduce(self._merged, rows))
        except (TypeError, OverflowError) as error:
            raise InvalidRecord(f"cannot merge {rows!r:.200}: {error}") from error

    def result(self, state: Any) -> Any:
        """Return the figures of a state as an immutable object with one attribute per name."""
        figures = msgspec.structs.astuple(state)
        return self._result(*[one.result(figures[where]) for one, where in self._parts])

    def _merged(self, old: Figures, new: Figures) -> Figures:
        return tuple(
            figure for one, where in self._parts for figure in one.merge(old[where], new[where])
        )

    # Whole columns -------------------------------------------------------------------------

    def state_schema(self, schema: Mapping[str, pl.DataType]) -> pl.Schema:
        """Return the names and types of the stored fields as columns.

        Args:
            schema: Names and types of the columns of the rows.

        Raises:
            InvalidConfig: A column is missing, or of a type that cannot be aggregated.
        """
        return columns.state_schema(self._layout, schema)

    def result_schema(self, schema: Mapping[str, pl.DataType]) -> pl.Schema:
        """Return the names and types of the results as columns.

        Args:
            schema: Names and types of the columns of the rows.

        Raises:
            InvalidConfig: A column is missing, or of a type that cannot be aggregated.
        """
        return columns.result_schema(self._layout, schema)

    def partial(
        self, frame: pl.DataFrame, by: Sequence[str], time: str = TIMESTAMP
    ) -> pl.DataFrame:
        """Return the state of each group of rows of a batch.

        Args:
            frame: Rows, in the order of their arrival.
            by: Names of the columns that identify a group; none for one group of all rows.
            time: Name of the column of timestamps: datetimes, or integers of ms since the epoch.
                Only first, last and collect read it.

        Returns:
            One row for each group, in the order of first appearance: the columns of the key, then
            the stored fields.

        Raises:
            InvalidRecord: A sum of integers exceeds 64 bits, or there are too many distinct values.
        """
        return columns.partial(self._layout, frame, by, time)

    def merge_columns(self, old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
        """Return the states of the rows of two states each.

        Args:
            old: States, one row for each row of `new`; a row of nulls for a key without a state.
            new: States of later rows. Other columns, such as those of the key, stay as they are,
                and identify the key in errors.

        Returns:
            The columns of `new`, with merged states.

        Raises:
            InvalidRecord: A sum of integers exceeds 64 bits, or there are too many distinct values.
            InvalidConfig: An aggregate cannot merge states; see `can_merge`, and use `add`.
        """
        return columns.merge(self._layout, old, new)

    def gather(self, frame: pl.DataFrame, by: Sequence[str], time: str = TIMESTAMP) -> pl.DataFrame:
        """Return what the rows of each group of a batch add to its state, for `add`.

        Args:
            frame: Rows, in the order of their arrival.
            by: Names of the columns that identify a group.
            time: Name of the column of timestamps.

        Returns:
            One row for each group, in the order of first appearance: the columns of the key, then
            the stored fields, of which one of a reducer without merge= is the list of rows.

        Raises:
            InvalidRecord: A sum of integers exceeds 64 bits, or there are too many distinct values.
        """
        return columns.gather(self._layout, frame, by, time)

    def add(self, old: pl.DataFrame, gathered: pl.DataFrame) -> pl.DataFrame:
        """Return earlier states with what `gather` returned added to them.

        Args:
            old: States so far, one row for each row of `gathered`; a row of nulls for a group
                without a state.
            gathered: Rows of the groups.

        Returns:
            The columns of `gathered`, with the states.

        Raises:
            InvalidRecord: A sum of integers exceeds 64 bits, or there are too many distinct values.
        """
        return columns.add(self._layout, old, gathered)

    def combine(self, states: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return one state for each group of states, such as the panes of a window.

        Args:
            states: Columns of the key and stored fields. Of one group, earlier states come first.
            by: Names of the columns that identify a group; none for one group of all states.

        Returns:
            One row for each group, in the order of first appearance: the columns of the key, then
            the stored fields.

        Raises:
            InvalidRecord: A sum of integers exceeds 64 bits, or there are too many distinct values.
            InvalidConfig: An aggregate cannot merge states; see `can_merge`.
        """
        return columns.combine(self._layout, states, by)

    def results(self, states: pl.DataFrame) -> pl.DataFrame:
        """Return the results of a frame of states, one column for each aggregate.

        Args:
            states: Stored fields; other columns are dropped. A row of nulls gives the results of
                no rows.
        """
        return columns.results(self._layout, states)

    def to_struct(self, states: pl.DataFrame) -> pa.StructArray:
        """Return a frame of states as one Arrow array, whose fields are those of `state`."""
        return columns.to_struct(self._layout, states)

    def from_struct(self, states: pa.StructArray) -> pl.DataFrame:
        """Return an Arrow array of states as a frame; a row of nulls for each null."""
        return columns.from_struct(self._layout, states)

    def to_values(self, states: pl.DataFrame) -> pa.StructArray | list[Any]:
        """Return a frame of states as a store takes them: one Arrow array, or objects for lists."""
        names = [name for part in self._layout for name in part.fields]
        stored = stored_states.as_stored(arranged(states, names))
        if stored_states.has_lists(stored.dtypes):
            return stored_states.objects(self.state, stored)
        return self.to_struct(stored)

    def from_values(
        self, values: pa.StructArray | list[Any], types: Mapping[str, pl.DataType]
    ) -> pl.DataFrame:
        """Return states that a store has returned as a frame; a row of nulls for each null.

        Args:
            values: Column of the store, or list of objects; lists of a null state are empty.
            types: Types of the stored fields, as `state_schema` returns them.

        Raises:
            InvalidRecord: A state is of another type.
        """
        if isinstance(values, list):
            return stored_states.frame_of_objects(values, types)
        return cast_to(self.from_struct(values), types)

    def check_storable(self, schema: Mapping[str, pl.DataType]) -> None:
        """Raise InvalidConfig if a store cannot keep the states of rows of these types."""
        types = self.state_schema(schema)
        for part in self._layout:
            for field, name in zip(part.aggregate.stored, part.fields, strict=True):
                if not stored_states.can_store(field, types[name]):
                    raise InvalidConfig(
                        f"{part.name}={part.aggregate}: its state would be {types[name]}; state "
                        "holds numbers, text, bools and times, so select or cast the values before"
                    )

    def check_keys(self, keys: Sequence[str]) -> None:
        """Raise InvalidConfig if a column of the key is called as a stored field."""
        columns.check_keys(self._layout, keys)

    # ---------------------------------------------------------------------------------------

    def spec(
        self,
        name: str,
        key: Any = str,
        *,
        rows: Mapping[str, pl.DataType] | None = None,
        **settings: Any,
    ) -> StoreSpec[Any, Any]:
        """Return the spec of a store for these aggregates.

        Args:
            name: Name of the store.
            key: Type of the keys.
            rows: Names and types of the columns of the rows, if they are known. States of numbers
                are then declared as such, so that a store of columns needs no objects for them.
            settings: Further arguments of `StoreSpec`.

        Raises:
            InvalidConfig: A column of `rows` is missing, or of a type that cannot be aggregated.
        """
        state = self.state if rows is None else self._state_for(self.state_schema(rows))
        figures = tuple(
            (name, (one.described, one.column)) for name, one in self.aggregates.items()
        )
        return StoreSpec(name, key=key, value=state, default=state(), figures=figures, **settings)

    def _state_for(self, schema: pl.Schema) -> type[msgspec.Struct]:
        """Return the type of stored values whose fields have the types of columns."""
        fields = [
            (name, _narrowed(declared, schema[name]), default)
            for name, declared, default in _stored(self.aggregates)
        ]
        return msgspec.defstruct("State", fields, frozen=True)


def _check(name: str, one: Any) -> None:
    """Raise InvalidConfig if `one` is no aggregate of columns by name, or its name is no name."""
    if not name.isidentifier():
        raise InvalidConfig(
            f"an aggregate cannot be called {name!r}, because results have its name as an attribute;"
            " use letters, digits and underscores"
        )
    if not isinstance(one, Aggregate):
        raise InvalidConfig(f"{name}= is an aggregate, as sl.count(), got {one!r:.100}")
    named: Sequence[Any] = one.columns
    wrong = [column for column in named if not isinstance(column, str)]
    if wrong:
        raise InvalidConfig(
            f"{name}={one.kind}: a column is given by its name here, got {wrong[0]!r:.100}; "
            "expressions are for streams"
        )


def _check_distinct(names: Sequence[str]) -> None:
    """Raise InvalidConfig if two stored fields have one name."""
    if twice := repeated(names):
        raise InvalidConfig(
            f"two aggregates need a stored field {twice[0]!r}; give one another name"
        )


def _stored(aggregates: Mapping[str, Aggregate]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of the stored fields."""
    for name, one in aggregates.items():
        for field in one.stored:
            yield name + field.suffix, field.type, field.default


def _narrowed(declared: Any, dtype: pl.DataType) -> Any:
    """Return the type of a field of scalars that has numbers only; any other type as it is.

    A column of ints in a store has 64 bits with a sign, so it cannot keep all of UInt64.
    """
    import polars as pl

    if declared not in (COMPARABLE, SCALAR) or dtype in (pl.UInt64, pl.Int128):
        return declared
    stored = stored_states.stored_type(dtype)
    if stored.is_integer():
        return int | None
    return float | None if stored.is_float() else declared


def _parts(aggregates: Mapping[str, Aggregate]) -> Iterator[tuple[Aggregate, slice]]:
    """Yield each aggregate with the places of its fields in a state."""
    end = 0
    for one in aggregates.values():
        start, end = end, end + len(one.stored)
        yield one, slice(start, end)


def _for(key: Any) -> str:
    return "" if key is UNSET else f" for the key {key!r:.100}"
