"""Stores that keep counters and grouped aggregates per key, a record at a time.

`CounterStore` and `AggregateStore` add counting and folding to a `PartitionStore`, and share its
commit, changelog, checkpoint and restore.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from strandline.statestore.aggregates.group import Aggregates
from strandline.statestore.spec import UNSET, StoreSpec
from strandline.statestore.store import PartitionStore

K = TypeVar("K")


def counter_spec(name: str, key: Any = str, **settings: Any) -> StoreSpec[Any, int]:
    """Return the spec of a store with a counter per key; `settings` are those of `StoreSpec`."""
    return StoreSpec(name, key=key, value=int, default=0, is_counter=True, **settings)


class CounterStore(Generic[K]):
    """Store with a count for each key.

    >>> from strandline.statestore.store import open_store
    >>> flights = CounterStore(open_store(counter_spec("n", engine="memory")))
    >>> flights.add("BA"), flights.add("BA", 2), flights["AA"]
    (1, 3, 0)
    """

    def __init__(self, store: PartitionStore[K, int]) -> None:
        self.store = store
        """Underlying store, which the worker commits."""

    def add(self, key: K, by: int = 1) -> int:
        """Add `by` to the count of a key; return the new count."""
        store = self.store
        store[key] = value = store[key] + by
        return value

    def __getitem__(self, key: K) -> int:
        """Return the count of a key; 0 if nothing was ever added to it."""
        return self.store[key]

    def __contains__(self, key: K) -> bool:
        return key in self.store

    def all(self) -> Iterator[tuple[K, int]]:
        """Return an iterator of all keys with their counts, in the order of the keys."""
        return self.store.all()


class AggregateStore(Generic[K]):
    """Store with aggregates for each key.

    >>> from strandline.statestore.aggregates.declare import count, sum
    >>> from strandline.statestore.store import open_store
    >>> kept = Aggregates(n=count(), total=sum("delay"))
    >>> delays = AggregateStore(open_store(kept.spec("delays", engine="memory")), kept)
    >>> delays.add("BA", {"delay": 3.5})
    Result(n=1, total=3.5)
    >>> delays.add("BA", delay=None)
    Result(n=2, total=3.5)
    """

    def __init__(self, store: PartitionStore[K, Any], aggregates: Aggregates) -> None:
        self.store = store
        """Underlying store, which the worker commits."""
        self.aggregates = aggregates

    def add(self, key: K, row: Any = UNSET, time: int = 0, /, **values: Any) -> Any:
        """Fold a row (mapping, object, or keywords) into the figures of a key; return them.

        `time` is the row's timestamp in ms since the epoch, which first, last and collect need.
        """
        given = values if row is UNSET else row
        state = self.aggregates.fold(self.store[key], given, time=time, key=key)
        self.store[key] = state
        return self.aggregates.result(state)

    def __getitem__(self, key: K) -> Any:
        """Return the figures of a key; those of zero rows if nothing was ever added to it."""
        return self.aggregates.result(self.store[key])

    def __contains__(self, key: K) -> bool:
        return key in self.store

    def all(self) -> Iterator[tuple[K, Any]]:
        """Return an iterator of all keys with their figures, in the order of the keys."""
        return ((key, self.aggregates.result(state)) for key, state in self.store.all())
