"""Handles of counters and grouped aggregates: stores with a row folded in at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.framework.parts import Merge
from strandline.framework.store import Store
from strandline.statestore.aggregates import Aggregates, counter_spec
from strandline.statestore.spec import UNSET

if TYPE_CHECKING:
    from strandline.framework.app import App

K = TypeVar("K")


class Counter(Store[K, int]):
    """A count per key, made by `App.counter`; 0 for a key that was never counted."""

    def __init__(self, app: App, name: str, key: Any, **settings: Any) -> None:
        super().__init__(app, counter_spec(name, key, **settings))

    def add(self, key: K, by: int = 1) -> int:
        """Add to a key's count, inside a handler; return what it is then."""
        store = self._partition()
        value = store[key] + by
        store.put(key, value)
        return value

    @property
    def merge(self) -> Merge[int]:
        return sum


class Grouped(Store[K, Any]):
    """Aggregates per key, made by `App.aggregates`."""

    def __init__(
        self, app: App, name: str, key: Any, aggregates: Aggregates, **settings: Any
    ) -> None:
        super().__init__(app, aggregates.spec(name, key, **settings))
        self.aggregates = aggregates

    def add(self, key: K, row: Any = UNSET, /, **values: Any) -> Any:
        """Fold a row (mapping, object, or keywords) into a key's figures; return them."""
        store = self._partition()
        state = self.aggregates.fold(store[key], values if row is UNSET else row)
        store.put(key, state)
        return self.aggregates.result(state)

    def __getitem__(self, key: K) -> Any:
        return self.aggregates.result(self._partition()[key])

    def get(self, key: K, default: Any = UNSET) -> Any:
        """A key's figures; else `default`, else those of no row at all."""
        if default is not UNSET and key not in self._partition():
            return default
        return self[key]

    def range(
        self, lower: K | None = None, upper: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, Any]]:
        """Keys and figures from `lower` up to but without `upper`."""
        return self._figures(super().range(lower, upper, reverse=reverse))

    def all(self, *, reverse: bool = False) -> Iterator[tuple[K, Any]]:
        """All keys of the partition and their figures, in the order of the keys."""
        return self._figures(super().all(reverse=reverse))

    @property
    def merge(self) -> Merge[Any]:
        return self.aggregates.merge

    def shown(self, value: Any) -> Any:
        return self.aggregates.result(value)

    def _figures(self, entries: Iterator[tuple[K, Any]]) -> Iterator[tuple[K, Any]]:
        return ((key, self.aggregates.result(state)) for key, state in entries)
