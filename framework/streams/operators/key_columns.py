"""Conversion between columns of rows and the keys of an operator's store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.changelog.errors import InvalidConfig

if TYPE_CHECKING:
    import polars as pl


class KeyColumns:
    """Columns whose values together are the key of a store.

    The key of one column is its value. The key of several columns is a tuple.
    """

    def __init__(self, names: Sequence[str], schema: Mapping[str, pl.DataType]) -> None:
        """Choose the columns.

        Args:
            names: Names of the columns, in the order in which the store sorts by them.
            schema: Types of at least these columns.

        Raises:
            InvalidConfig: A column is of a type that keys cannot have.
        """
        self.names = tuple(names)
        self.schema = {name: schema[name] for name in names}
        kinds = [_key_type(name, kind) for name, kind in self.schema.items()]
        self.declared: Any = kinds[0] if len(kinds) == 1 else tuple[tuple(kinds)]  # type: ignore[misc]
        """Type of the store's keys."""

    def keys(self, rows: pl.DataFrame) -> pa.Array:
        """Return the keys of rows as the store takes them: structs, if there are several columns."""
        columns = [_plain(rows[name]).to_arrow() for name in self.names]
        if len(columns) == 1:
            return columns[0]
        return pa.StructArray.from_arrays(columns, names=self.names)

    def frame(self, keys: pa.Array) -> pl.DataFrame:
        """Return the columns of keys that the store has returned."""
        import polars as pl

        columns = [keys] if len(self.names) == 1 else keys.flatten()
        frame = pl.from_arrow(pa.table(columns, names=list(self.names)))
        assert isinstance(frame, pl.DataFrame)
        return frame.cast(self.schema)  # type: ignore[arg-type]

    def nulls(self, rows: pl.DataFrame) -> pl.Series:
        """Return for each row True if a column of its key is null."""
        return reduce(lambda one, other: one | other, [rows[n].is_null() for n in self.names])


def _key_type(name: str, kind: pl.DataType) -> Any:
    """Return the type of the values of a column of keys. Raises InvalidConfig."""
    import polars as pl

    if kind.is_integer():
        return int
    if kind.is_float():
        return float
    if isinstance(kind, pl.Datetime) and kind.time_zone is None:
        raise InvalidConfig(
            f"column {name!r} cannot be a key, because its times have no zone; give them one with "
            f'sl.col("{name}").dt.replace_time_zone("UTC")'
        )
    for known, declared in (
        (pl.String, str),
        (pl.Categorical, str),
        (pl.Enum, str),
        (pl.Boolean, bool),
        (pl.Binary, bytes),
        (pl.Date, date),
        (pl.Datetime, datetime),
    ):
        if isinstance(kind, known):
            return declared
    raise InvalidConfig(
        f"column {name!r} of type {kind} cannot be a key; keys are text, numbers, booleans, bytes, "
        "dates and times with a zone"
    )


def _plain(column: pl.Series) -> pl.Series:
    import polars as pl

    is_coded = isinstance(column.dtype, pl.Categorical | pl.Enum)
    return column.cast(pl.String) if is_coded else column
