"""Handles of counters and grouped aggregates: stores that fold in one row at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from strandline.framework.context import current_task
from strandline.framework.parts import Merge
from strandline.framework.session import Session
from strandline.framework.store import Store
from strandline.statestore.aggregates import Aggregates, counter_spec
from strandline.statestore.spec import UNSET

K = TypeVar("K")


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

    def _figures(self, entries: Iterator[tuple[K, Any]]) -> Iterator[tuple[K, Any]]:
        return ((key, self.aggregates.result(state)) for key, state in entries)
