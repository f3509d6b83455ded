"""The interface of one kind of aggregate, with a form for rows and a form for columns.

A kind keeps its state in a few stored fields. It can fold one value into them, merge two states,
and compute the result; and it can do the same for whole columns with Polars expressions. Both forms
are methods of one class, next to each other, because they must give the same state.

A null in a stored field of a column means that there is no state yet, so all forms for columns take
a row of nulls for the state of no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from strandline.changelog.errors import InvalidConfig
from strandline.statestore.aggregates.batch import ColumnBatch, MergeChecks

if TYPE_CHECKING:
    import polars as pl

Figures = tuple[Any, ...]
"""Values of the stored fields of one aggregate."""


@dataclass(slots=True)
class Row:
    """One row to be folded."""

    value: Callable[[str], Any]
    """Function that returns the value of a column."""
    time: int
    """Timestamp of the row in ms since the epoch."""
    source: Any
    """Row as it was given: a mapping, or an object with attributes."""


@dataclass(frozen=True, slots=True)
class StoredField:
    """One field in which a kind of aggregate keeps its state."""

    suffix: str
    """Text after the aggregate's name, in the name of the stored field."""
    type: Any
    """Type of the field in a stored value."""
    default: Any = None
    """Value for the state of no rows; immutable."""


@dataclass(frozen=True)
class Aggregate:
    """One figure that is kept for each key or group: the base of all kinds.

    Rows whose column is None are skipped by all kinds, as in SQL, except by `count()`.
    """

    column: str | None = None
    """Name of the column of the aggregated values; None if the aggregate takes whole rows."""

    kind: ClassVar[str]
    """Name of the kind, which is recorded in a store's declaration."""
    stored: ClassVar[tuple[StoredField, ...]]
    """Fields of the state. Their names and types are a stored format."""
    takes: ClassVar[str] = "numbers"
    """Values that the column may have, for errors."""
    takes_alone: ClassVar[str] = "numbers"
    """Values that a row by itself may have, for errors: times and decimals need a typed column."""
    needs_time: ClassVar[bool] = False
    """True if the state depends on the timestamps of the rows."""

    takes_rows: ClassVar[bool] = False
    """True if functions of a user fold whole rows. Their errors are not translated."""

    @property
    def can_merge(self) -> bool:
        """True if states can be merged, as hopping and session windows need."""
        return True

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the aggregate besides its column, which are part of its declaration."""
        return {}

    @property
    def described(self) -> str:
        """Kind with its settings as JSON, as recorded in a store's declaration.

        >>> from strandline.statestore.aggregates.declare import count, quantile
        >>> count().described, quantile("x", 0.9).described
        ('count', 'quantile {"q":0.9}')
        """
        if not self.settings:
            return self.kind
        return f"{self.kind} {msgspec.json.encode(self.settings).decode()}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that the aggregate reads."""
        return () if self.column is None else (self.column,)

    # One row at a time ---------------------------------------------------------------------

    def read(self, row: Row) -> Any:
        """Return what `fold` takes of a row; None to skip the row."""
        assert self.column is not None
        return row.value(self.column)

    def fold(self, old: Figures, value: Any) -> Figures:
        """Return the state with one value added to it.

        Raises TypeError for an unsuitable value, OverflowError for a result that is too large.
        """
        raise NotImplementedError

    def merge(self, old: Figures, new: Figures) -> Figures:
        """Return the state of the rows of two states; those of `old` arrived first."""
        raise NotImplementedError

    def result(self, state: Figures) -> Any:
        """Return the aggregate of a state."""
        return state[0]

    # Whole columns -------------------------------------------------------------------------

    def state_types(self, schema: Mapping[str, pl.DataType]) -> list[pl.DataType]:
        """Return the types of the stored fields as columns, for rows of a schema.

        Raises InvalidConfig if a column is missing or of an unsuitable type.
        """
        raise NotImplementedError

    def result_type(self, schema: Mapping[str, pl.DataType]) -> pl.DataType:
        """Return the type of the results. Raises InvalidConfig as `state_types` does."""
        return self.state_types(schema)[0]

    def partial(self, batch: ColumnBatch) -> Sequence[pl.Expr]:
        """Register aggregations of a batch, and return the stored fields as expressions of them."""
        raise NotImplementedError

    def merge_columns(
        self, old: Sequence[pl.Expr], new: Sequence[pl.Expr], checks: MergeChecks
    ) -> Sequence[pl.Expr]:
        """Return the stored fields of merged states; the rows of `old` arrived first."""
        raise NotImplementedError

    def gather(self, batch: ColumnBatch) -> Sequence[pl.Expr]:
        """Register aggregations of a batch, and return what `add_columns` takes of it."""
        return self.partial(batch)

    def add_columns(
        self, old: Sequence[pl.Expr], gathered: Sequence[pl.Expr], checks: MergeChecks
    ) -> Sequence[pl.Expr]:
        """Return the stored fields of states with what `gather` has returned added to them."""
        return self.merge_columns(old, gathered, checks)

    def results(self, state: Sequence[pl.Expr]) -> pl.Expr:
        """Return the aggregates of a column of states."""
        return state[0]

    def type_of(self, schema: Mapping[str, pl.DataType], column: str | None = None) -> pl.DataType:
        """Return the type of a column, by default the aggregated one. Raises InvalidConfig."""
        name = column or self.column
        assert name is not None
        if name not in schema:
            near = get_close_matches(name, schema, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {list(schema)}"
            raise InvalidConfig(f"{self}: there is no column {name!r}; {hint}")
        return schema[name]

    def suited(
        self,
        schema: Mapping[str, pl.DataType],
        find: Callable[[pl.DataType], pl.DataType | None],
        column: str | None = None,
    ) -> pl.DataType:
        """Return the type that a function finds for that of a column.

        Args:
            schema: Names and types of the columns of the rows.
            find: Function of a type; it returns None for an unsuitable one.
            column: Name of the column, by default that of the aggregated values.

        Raises:
            InvalidConfig: The column is missing, or of an unsuitable type.
        """
        given = self.type_of(schema, column)
        found = find(given)
        if found is None:
            raise InvalidConfig(
                f"{self}: column {column or self.column!r} is {given}, and {self.kind} takes"
                f" {self.takes}; cast the column first"
            )
        return found

    def __str__(self) -> str:
        return f"{self.described}({self.column or ''})"
