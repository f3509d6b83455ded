"""Handles of counters and grouped aggregates: stores that fold in one row at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.framework.context import current_task
from strandline.framework.given_columns import as_frame
from strandline.framework.parts import Merge
from strandline.framework.session import Session
from strandline.framework.store import Store, columns_of
from strandline.statestore.aggregates import Aggregates, counter_spec
from strandline.statestore.aggregates.group import TIMESTAMP
from strandline.statestore.aggregates.stored_states import stored_type
from strandline.statestore.scalar_columns import Column
from strandline.statestore.spec import UNSET

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

K = TypeVar("K")

_KEY = "__key"


class Counter(Store[K, int]):
    """Counts per key, declared by `App.counter`. A key that was never counted reads as 0."""

    def __init__(self, session: Session, name: str, key: Any, **settings: Any) -> None:
        super().__init__(session, counter_spec(name, key, **settings))

    def add(self, key: K, by: int = 1) -> int:
        """Add to the count of a key, inside a handler of the store's task.

        Args:
            key: Key to count.
            by: Number to add, by default 1; it may be negative.

        Returns:
            The new count.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRecord: The key is not of the declared type.
        """
        store = self._partition()
        value = store[key] + by
        store.put(key, value)
        return value

    def add_batch(self, keys: Any, by: Any = 1) -> pa.Array:
        """Add to the counts of a column of keys, in a task with `batch=True`.

            seen.add_batch(batch.keys)

        Args:
            keys: Arrow array, Polars or pandas Series, NumPy array, or list. Equal keys are all
                counted.
            by: Number to add for each row, by default 1; or a column of ints aligned with `keys`.

        Returns:
            For each row the count of its key after the whole batch.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRequest: The task handles single records.
            InvalidRecord: A key is null or not of the declared type, or a count exceeds 64 bits.
                Nothing is changed then.
        """
        numbers = by if type(by) is int else self._value_column(by)
        return columns_of(self).add_batch(self._key_column(keys), numbers)

    @property
    def merge(self) -> Merge[int]:
        """Function that adds up the counts that several partitions hold of one key."""
        return sum


class Grouped(Store[K, Any]):
    """Aggregates per key, declared by `App.aggregates`. Reading a key gives its figures."""

    def __init__(
        self, session: Session, name: str, key: Any, aggregates: Aggregates, **settings: Any
    ) -> None:
        super().__init__(session, aggregates.spec(name, key, **settings))
        self.aggregates = aggregates

    def add(self, key: K, row: Any = UNSET, /, **values: Any) -> Any:
        """Fold a row into the aggregates of a key, inside a handler of the store's task.

        Args:
            key: Key of the group.
            row: A mapping, or an object whose attributes are the columns. None values are left out
                of every aggregate except `count()`. Its time, for first, last and collect, is the
                timestamp of the record that is being handled.
            **values: Columns of the row, instead of `row`.

        Returns:
            The new figures of the key.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRecord: The key or a column is not of a suitable type.
        """
        store = self._partition()
        given = values if row is UNSET else row
        time = current_task().record.timestamp if self.aggregates.needs_time else 0
        state = self.aggregates.fold(store[key], given, time=time, key=key)
        store.put(key, state)
        return self.aggregates.result(state)

    def add_batch(self, keys: Any, rows: Any, *, time: str = TIMESTAMP) -> pl.DataFrame:
        """Fold the rows of a table into the aggregates of their keys, in a task with `batch=True`.

            figures.add_batch(batch.keys, batch.to_polars())

        Args:
            keys: Key of each row: an Arrow array, a Polars or pandas Series, a NumPy array, or a
                list.
            rows: Polars DataFrame, or Arrow table, that has the columns.
            time: Name of the column of timestamps, which only first, last and collect read.

        Returns:
            A row for each distinct key: `key`, and the figures of the key after the batch.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRequest: The task handles single records.
            InvalidRecord: A key or a column is not of a suitable type, or a sum exceeds 64 bits.
                Nothing is changed then.
        """
        import polars as pl

        store, keyed = columns_of(self), self._keyed(keys, rows)
        aggregates = self.aggregates
        types, gathered = self._gathered(keyed, time)
        new = gathered

        def added(old: Column) -> Column:
            nonlocal new
            new = aggregates.add(aggregates.from_values(old, types), gathered)
            return aggregates.to_values(new)

        store.update_batch(gathered[_KEY].to_arrow(), added)
        return new.select(pl.col(_KEY).alias("key")).hstack(aggregates.results(new))

    def get_batch(self, keys: Any) -> pl.DataFrame:
        """Return the figures of a column of keys, in a task with `batch=True`.

        Args:
            keys: Column of keys, as for `add_batch`.

        Returns:
            A row for each of `keys`, with a column for each aggregate.

        Raises:
            NotInTask: No handler of the store's task is running.
            InvalidRequest: The task handles single records.
            InvalidRecord: A key is null or not of the declared type.
        """
        import polars as pl

        states = columns_of(self).get_batch(self._key_column(keys))
        if isinstance(states, list):
            found = [msgspec.structs.asdict(self.aggregates.result(state)) for state in states]
            return pl.DataFrame(found, infer_schema_length=None)
        return self.aggregates.results(self.aggregates.from_struct(states))

    def __getitem__(self, key: K) -> Any:
        """Return the figures of a key. Without any row they are those of an empty group."""
        return self.aggregates.result(self._partition()[key])

    def get(self, key: K, default: Any = UNSET) -> Any:
        """Return the figures of a key.

        Args:
            key: Key of the group.
            default: Result for a key that no row was added to. By default it is the figures of an
                empty group: a count of 0, and None for the other aggregates.
        """
        if default is not UNSET and key not in self._partition():
            return default
        return self[key]

    def range(
        self, lower: K | None = None, upper: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, Any]]:
        """Yield keys and figures from `lower` to `upper` (exclusive), in the order of the keys."""
        return self._figures(super().range(lower, upper, reverse=reverse))

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, Any]]:
        """Yield all keys of the partition with their figures, in the order of the keys."""
        return self._figures(super().all(reverse=reverse))

    @property
    def merge(self) -> Merge[Any] | None:
        """Function that merges the aggregates that several partitions hold of one key.

        None if an aggregate cannot be merged: a reducer without merge=.
        """
        return self.aggregates.merge if self.aggregates.can_merge else None

    def shown(self, value: Any) -> Any:
        """Return the figures of a stored state."""
        return self.aggregates.result(value)

    def _keyed(self, keys: Any, rows: Any) -> pl.DataFrame:
        """Return rows with a column of their keys. Raises InvalidRecord."""
        import polars as pl

        frame, column = as_frame(rows, f"store {self.name!r}: the rows"), self._key_column(keys)
        if len(frame) != len(column):
            raise InvalidRecord(
                f"store {self.name!r}: {len(column)} keys and {len(frame)} rows; give a key for each"
                " row"
            )
        return frame.with_columns(pl.Series(_KEY, pl.from_arrow(column)))

    def _gathered(self, keyed: pl.DataFrame, time: str) -> tuple[pl.Schema, pl.DataFrame]:
        """Return the types of the states of rows, and what each key gets. Raises InvalidRecord."""
        try:
            return self._storable(keyed.schema), self.aggregates.gather(keyed, [_KEY], time)
        except InvalidConfig as error:
            raise InvalidRecord(f"store {self.name!r}: {error}") from error

    def _storable(self, schema: Mapping[str, pl.DataType]) -> pl.Schema:
        """Return the types of the states of rows. Raises InvalidRecord if a store cannot keep one.

        Times are refused, because readers of the store would get them as numbers.
        """
        self.aggregates.check_storable(schema)
        types = self.aggregates.state_schema(schema)
        for name, dtype in types.items():
            if stored_type(dtype) != dtype:
                raise InvalidRecord(
                    f"store {self.name!r}: the state of {name!r} would be {dtype}; aggregates of a"
                    " store hold numbers and text, so cast the column first"
                )
        return types

    def _figures(self, entries: Iterator[tuple[K, Any]]) -> Iterator[tuple[K, Any]]:
        return ((key, self.aggregates.result(state)) for key, state in entries)
