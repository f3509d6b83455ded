"""Rows as Python functions see them, and frames of what the functions return."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from strandline.changelog.errors import InvalidRecord
from strandline.framework.context import TaskContext, note_row, running
from strandline.framework.formats.schema import Row, RowType
from strandline.framework.handlers import check_finished

if TYPE_CHECKING:
    import polars as pl

Function = Callable[..., Any]


class StreamRow:
    """One row of a stream, whose columns are attributes and items.

    >>> row = StreamRow({"carrier": "BA", "delay": 4})
    >>> row.carrier, row["delay"], dict(row)
    ('BA', 4, {'carrier': 'BA', 'delay': 4})
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        if name == "_columns" or name.startswith("__"):  # asked by copy and pickle
            raise AttributeError(name)
        try:
            return self._columns[name]
        except KeyError:
            raise AttributeError(self._unknown(name), name=name, obj=self) from None

    def __getitem__(self, name: str) -> Any:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(self._unknown(name)) from None

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Return an iterator of names and values, as `dict(row)` takes them."""
        return iter(self._columns.items())

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamRow) and other._columns == self._columns

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self)
        return f"StreamRow({shown})"

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._columns, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return f"the row has no column {name!r}{hint} Its columns are {[*self._columns]}"


def rows_of(frame: pl.DataFrame, visible: Sequence[str]) -> Iterator[StreamRow]:
    """Return an iterator of the rows of a frame, with the columns that users see.

    In a step of a task that takes too long, it raises StepCutShort instead of the next row.
    """
    rows = map(StreamRow, frame.select(visible).iter_rows(named=True))
    context = running()
    return rows if context is None else _until_cut(rows, context)


def _until_cut(rows: Iterator[StreamRow], context: TaskContext) -> Iterator[StreamRow]:
    for count, row in enumerate(rows):
        if context.step.to_cut is not None:
            note_row(context, count)
        yield row


class Results:
    """Conversion of what a function returns for rows to columns.

    Args:
        kind: A dataclass, a msgspec.Struct or an Arrow schema.
        what: Name of the function and its operator, for errors.
    """

    def __init__(self, kind: Any, what: str) -> None:
        self.rows = RowType(kind)
        self._what = what
        self._names = set(self.rows.schema.names)

    def checked(self, result: Any) -> Row:
        """Return the fields of one result. Raise InvalidRecord if it does not fit the schema."""
        check_finished(result, self._what)
        try:
            if isinstance(result, dict):
                return self._from_dict(result)
            return self.rows.check(result)
        except InvalidRecord as error:
            raise InvalidRecord(f"{self._what} returned another row: {error}") from error

    def frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        """Return checked rows as a frame with the columns of the schema."""
        import polars as pl

        column = self.rows.column(rows)
        table = pa.Table.from_arrays(column.flatten(), schema=self.rows.schema)
        return cast("pl.DataFrame", pl.from_arrow(table))

    def _from_dict(self, result: dict[str, Any]) -> Row:
        if result.keys() != self._names:
            missing, extra = self._names - result.keys(), result.keys() - self._names
            raise InvalidRecord(
                f"it lacks the columns {sorted(missing)}, and has the unknown columns"
                f" {sorted(map(str, extra))}; the schema has {self.rows.schema.names}"
            )
        fields = [(field, result[field.name]) for field in self.rows.fields]
        return tuple(field.check(item, "the row") for field, item in fields)


def checked_bool(result: Any, what: str) -> bool:
    """Return the result of a predicate; None is no match. Raise InvalidRecord if it is no bool."""
    check_finished(result, what)
    if result is None or result in (True, False):
        return bool(result)
    raise InvalidRecord(f"{what} returned {result!r:.100}; a predicate returns True or False")


def check_frame(made: Any, schema: Mapping[str, pl.DataType], what: str) -> pl.DataFrame:
    """Return a function's frame with its columns in order. Raise InvalidRecord if they differ.

    Args:
        made: Result of the function.
        schema: Columns that it was declared to have.
        what: Name of the function and its operator, for errors.
    """
    import polars as pl

    check_finished(made, what)
    if not isinstance(made, pl.DataFrame):
        raise InvalidRecord(f"{what} returned {type(made).__name__}; it must return a polars frame")
    differences = schema_differences(made.schema, schema)
    if differences:
        raise InvalidRecord(f"{what} returned another frame: {'; '.join(differences)}")
    return made.select(list(schema))


def schema_differences(
    found: Mapping[str, pl.DataType], wanted: Mapping[str, pl.DataType]
) -> list[str]:
    """Return each difference of a frame's columns from the declared ones, in words."""
    missing = [f"column {name!r} is missing" for name in wanted if name not in found]
    extra = [f"column {name!r} was not declared" for name in found if name not in wanted]
    types = [
        f"column {name!r} is {found[name]}, declared as {dtype}"
        for name, dtype in wanted.items()
        if name in found and found[name] != dtype
    ]
    return [*missing, *extra, *types]
