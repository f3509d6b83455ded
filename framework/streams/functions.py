"""Operators that call a user's Python function, for each row or for a frame of rows.

A function gets the columns that users see, and never an empty frame. An exception that it raises
propagates unchanged, because the caller finds the row that it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from strandline.changelog.errors import InvalidRecord
from strandline.framework.handlers import check_result
from strandline.framework.streams.nodes import Emit, Node
from strandline.framework.streams.rows import Function, Results, check_frame, checked_bool, rows_of
from strandline.framework.streams.schemas import INTERNAL, TIME, WATERMARK

if TYPE_CHECKING:
    import polars as pl


class FunctionNode(Node):
    """Operator that calls a Python function."""

    def eagerly(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that the operator gives for those of `frame`, which is not empty."""
        raise NotImplementedError

    @property
    def reads(self) -> list[str]:
        """Columns of the input that a function sees."""
        return list(self.inputs[0].visible)


@dataclass(frozen=True, eq=False, kw_only=True)
class RowFunction(FunctionNode):
    """Operator that calls one function for each row."""

    function: Function

    @property
    def detail(self) -> str:
        """Name of the function."""
        return name_of(self.function)

    @property
    def what(self) -> str:
        """Name of the function and its operator, for errors."""
        return f"{self.where}: {self.label}: {self.detail}"


@dataclass(frozen=True, eq=False, kw_only=True)
class FilterRows(RowFunction):
    """Rows for which a function returns True."""

    label = "filter"

    def eagerly(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows for which the function returns True."""
        import polars as pl

        what = self.what
        kept = [checked_bool(self.function(row), what) for row in rows_of(frame, self.reads)]
        return frame.filter(pl.Series(kept, dtype=pl.Boolean))


@dataclass(frozen=True, eq=False, kw_only=True)
class AddColumns(FunctionNode):
    """The columns of the input, with some that functions compute."""

    label = "with_columns"
    functions: Mapping[str, Function]
    """Function by the name of its column."""
    kind: Any
    """Class whose fields have the types of the columns, by the same names."""

    @property
    def detail(self) -> str:
        """Name of each column with that of its function."""
        return ", ".join(f"{name}={name_of(fn)}" for name, fn in self.functions.items())

    @cached_property
    def results(self) -> Results:
        """Conversion of the functions' results to columns."""
        return Results(self.kind, f"{self.where}: {self.label}")

    def eagerly(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with the computed columns."""
        made = [
            self.results.checked({name: fn(row) for name, fn in self.functions.items()})
            for row in rows_of(frame, self.reads)
        ]
        added = frame.with_columns(self.results.frame(made).get_columns())
        return added.select(list(self.schema))


@dataclass(frozen=True, eq=False, kw_only=True)
class MapRows(RowFunction):
    """For each row, the row that a function returns."""

    label = "map"
    kind: Any
    """Dataclass, msgspec.Struct or Arrow schema of the returned rows."""

    @cached_property
    def results(self) -> Results:
        """Conversion of what the function returns to columns."""
        return Results(self.kind, self.what)

    def eagerly(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the function's rows, with key and time of the rows that they are for."""
        made = [self.results.checked(self.function(row)) for row in rows_of(frame, self.reads)]
        return _with_kept(self.results.frame(made), frame, self.schema)


@dataclass(frozen=True, eq=False, kw_only=True)
class FlatMap(MapRows):
    """For each row, the rows that a function returns or yields."""

    label = "flat_map"

    def eagerly(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the function's rows, with key and time of the rows that they are for."""
        made, sources = [], []
        for at, row in enumerate(rows_of(frame, self.reads)):
            several = [self.results.checked(one) for one in self._several(self.function(row))]
            made += several
            sources += [at] * len(several)
        return _with_kept(self.results.frame(made), frame[sources], self.schema)

    def _several(self, result: Any) -> Iterable[Any]:
        if isinstance(result, Iterable) and not isinstance(result, str | bytes | Mapping):
            return result
        raise InvalidRecord(
            f"{self.what} returned {result!r:.100} ({type(result).__name__}); flat_map takes a list"
            " of rows, which may be empty, or a generator"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class MapBatches(RowFunction):
    """The frame that a function returns for a frame of any number of rows."""

    label = "map_batches"

    def eagerly(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the function's frame.

        Rows that are as many as before are taken for the same ones. Otherwise it is unknown which
        is which, so the function is called for each row that may be late alone, and for those
        between: which ones are late must not depend on the division into batches.
        """
        import polars as pl

        made = check_frame(self.function(frame.select(self.reads)), self.visible, self.what)
        own = [name for name in self.schema if name not in made.columns]
        if len(made) == len(frame):
            return made.hstack(frame.select(own)).select(list(self.schema))
        parts = _parted(frame) if WATERMARK in own else [frame]
        if len(parts) > 1:
            return pl.concat([self.eagerly(part) for part in parts])
        values = dict.fromkeys(own)
        if len(frame) == 1:
            values = frame.select(own).row(0, named=True)
        elif WATERMARK in own:
            values[WATERMARK] = frame[WATERMARK].min()
        added = [pl.lit(values[name], self.schema[name]).alias(name) for name in own]
        return made.with_columns(added).select(list(self.schema))


@dataclass(frozen=True, eq=False, kw_only=True)
class Peek(RowFunction):
    """The rows of the input, after a function was called for each of them."""

    label = "peek"

    def eagerly(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Call the function for each row, and return the rows."""
        call_for_rows(self, frame)
        return frame


@dataclass(frozen=True, eq=False, kw_only=True)
class Foreach(RowFunction):
    """End of a stream at which a function is called for each row."""

    label = "foreach"
    emit: Emit | None = None
    """Results that are taken of an aggregation."""


def call_for_rows(node: RowFunction, frame: pl.DataFrame) -> None:
    """Call the function of a node for each row of a frame."""
    for row in rows_of(frame, node.reads):
        check_result(node.function(row), node.what)


def name_of(function: Any) -> str:
    """Return the name of a function, for descriptions and errors."""
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _parted(frame: pl.DataFrame) -> list[pl.DataFrame]:
    """Return rows in parts: each row alone that is older than its watermark, and those between."""
    import polars as pl

    is_old = (frame[TIME] < frame[WATERMARK]).fill_null(value=False)
    begins = is_old | is_old.shift(1, fill_value=False)
    part = begins.cast(pl.Int64).cum_sum().alias(_PART)
    return frame.with_columns(part).partition_by(_PART, maintain_order=True, include_key=False)


_PART = f"{INTERNAL}part"


def _with_kept(
    made: pl.DataFrame, frame: pl.DataFrame, schema: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    """Return a function's rows with the columns of the input that it does not make."""
    kept = [name for name in schema if name not in made.columns]
    return made.with_columns(frame[name] for name in kept).select(list(schema))
