"""Keys of an operator's store: their layout, and their conversion from and to columns.

    window                       key of the store
    none                         the keys of the group
    tumbling, count              start of the window, the keys of the group
    hopping, sliding             start of the pane, first window that it counts for, keys of the group
    session                      the keys of the group, number of the session in the group by start

So the windows that close together are one range, and so are the sessions of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.changelog.arrays import of_numbers
from strandline.changelog.errors import InvalidRecord
from strandline.framework.streams.outputs import key_kind
from strandline.framework.streams.schemas import INTERNAL
from strandline.framework.streams.stateful import GroupAggregate
from strandline.framework.streams.windows import (
    HoppingWindow,
    SessionWindow,
    SlidingWindow,
    Window,
)
from strandline.statestore.frames import cast_to, frame_of
from strandline.statestore.key_columns import KeyColumns
from strandline.statestore.keys import key_codec

if TYPE_CHECKING:
    import polars as pl

PANE = f"{INTERNAL}pane"
"""Start of a pane in ms since the epoch; of a count window, the number of its first row."""
SINCE = f"{INTERNAL}since"
"""Start in ms of the first window that a pane counts for."""
PLACE = f"{INTERNAL}place"
"""Number of a session among those of its group, from 0 in the order of their starts."""


class GroupKeys:
    """Columns whose values together are the key of a store, or of an internal topic.

    The key of one column is its value. The key of several columns is a tuple.
    """

    def __init__(
        self, names: Sequence[str], schema: Mapping[str, pl.DataType], operator: str
    ) -> None:
        """Choose the columns.

        Args:
            names: Names of the columns, in the order in which the store sorts by them.
            schema: Types of at least these columns.
            operator: Name of the operator, for errors.

        Raises:
            InvalidConfig: A column is of a type that keys cannot have.
        """
        self.names = tuple(names)
        self.operator = operator
        self._schema = {name: schema[name] for name in names}
        self.declared: Any = key_kind(names, schema, operator)
        """Type of the store's keys."""

    def keys(self, rows: pl.DataFrame) -> pa.Array:
        """Return the keys of rows as a store takes them: structs, if there are several columns.

        Raises InvalidRecord if a column of a key is null.
        """
        columns = [_plain(rows[name]).to_arrow() for name in self.names]
        if any(column.null_count for column in columns):
            self._refuse(rows)
        if len(columns) == 1:
            return columns[0]
        return pa.StructArray.from_arrays(columns, names=self.names)

    def encoded(self, rows: pl.DataFrame) -> pa.Array:
        """Return the keys of rows as bytes, equal for equal keys. Raises InvalidRecord."""
        found = self._columns.distinct(self.keys(rows))
        return found.names.take(of_numbers(found.codes))

    def frame(self, keys: pa.Array) -> pl.DataFrame:
        """Return the columns of keys that the store has returned."""
        columns = [keys] if len(self.names) == 1 else keys.flatten()
        return cast_to(frame_of(dict(zip(self.names, columns, strict=True))), self._schema)

    @cached_property
    def _columns(self) -> KeyColumns:
        return KeyColumns(key_codec(self.declared), self.operator)

    def _refuse(self, rows: pl.DataFrame) -> None:
        nulls = reduce(lambda one, other: one | other, [rows[n].is_null() for n in self.names])
        given = [name for name in self.names if not name.startswith(INTERNAL)]
        row = rows.filter(nulls).select(given).row(0, named=True)
        raise InvalidRecord(
            f"{self.operator}: a row has no key: {row}; filter such rows out, or give them a value "
            "with fill_null"
        )


def key_layout(keys: Sequence[str], window: Window | None) -> list[str]:
    """Return the columns of the keys of an aggregation's store, in the order of the key."""
    if window is None:
        return [*keys]
    if isinstance(window, SessionWindow):
        return [*keys, PLACE]
    if isinstance(window, HoppingWindow | SlidingWindow):
        return [PANE, SINCE, *keys]
    return [PANE, *keys]


def state_keys(node: GroupAggregate) -> GroupKeys:
    """Return the keys of the store of an aggregation."""
    import polars as pl

    schema = {**node.inputs[0].schema, **dict.fromkeys([PANE, SINCE, PLACE], pl.Int64())}
    return GroupKeys(key_layout(node.keys, node.window), schema, node.name)


def _plain(column: pl.Series) -> pl.Series:
    """Return a column of keys in which equal values have the same bytes."""
    import polars as pl

    is_coded = isinstance(column.dtype, pl.Categorical | pl.Enum)
    return column.cast(pl.String) if is_coded else column
