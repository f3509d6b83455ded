"""Counters and grouped aggregates: stores that keep count, sum, min, max and mean per key.

`Aggregates` describes the figures and folds one row into them. It is independent of any store, so
another engine can apply the same description to columns. `CounterStore` and `AggregateStore` add
this folding to a `PartitionStore`, and share its commit, changelog, checkpoint and restore.

None is no value, as in SQL: `count("x")`, `sum`, `min`, `max` and `mean` skip it, and sum, min, max
and mean of no values are None. `count()` counts rows. NaN is a value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Generic, Literal, TypeVar

import msgspec

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.statestore.spec import UNSET, StoreSpec
from strandline.statestore.store import PartitionStore

K = TypeVar("K")
Number = int | float
Fold = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One figure that a store keeps for each key."""

    kind: Literal["count", "sum", "min", "max", "mean"]
    column: str | None = None
    """Column of the aggregated values; None counts rows."""


def count(column: str | None = None) -> Aggregate:
    """Declare an aggregate that counts rows, or the values in a column.

    Args:
        column: Name of the column; None, the default, counts rows.

    Returns:
        The aggregate, to be declared for a store. Its result is an int.
    """
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:  # noqa: A001 - SQL's name, as in polars and pyspark
    """Declare an aggregate that sums the values in a column.

    Args:
        column: Name of the column, which has numbers or None.

    Returns:
        The aggregate, to be declared for a store. Its result is a number, or None without values.
    """
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:  # noqa: A001
    """Declare an aggregate that keeps the least value in a column.

    Args:
        column: Name of the column, which has numbers or None, or strings or None.

    Returns:
        The aggregate, to be declared for a store. Its result is None without values.
    """
    return Aggregate("min", column)


def max(column: str) -> Aggregate:  # noqa: A001
    """Declare an aggregate that keeps the greatest value in a column.

    Args:
        column: Name of the column, which has numbers or None, or strings or None.

    Returns:
        The aggregate, to be declared for a store. Its result is None without values.
    """
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """Declare an aggregate that keeps the arithmetic mean of the values in a column.

    Args:
        column: Name of the column, which has numbers or None.

    Returns:
        The aggregate, to be declared for a store. Its result is None without values.
    """
    return Aggregate("mean", column)


class Aggregates:
    """Several aggregates that are kept together for each key, and the folding of rows into them.

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
        fields = {name: step for key, one in aggregates.items() for name, step in _fields(key, one)}
        self._steps = tuple(fields.values())
        state = [_field(name, fold) for name, (fold, _) in fields.items()]
        self.state: type[msgspec.Struct] = msgspec.defstruct("State", state, frozen=True)
        """Type of the stored values. Its field names are part of the store's declaration."""
        results = [(name, _VALUE) for name in aggregates]
        self._result = msgspec.defstruct("Result", results, frozen=True)
        self.empty: Any = self.state()
        """State before the first row."""

    def fold(self, state: Any, row: Any) -> Any:
        """Return `state` with one row added to it.

        Args:
            state: State of the rows so far.
            row: A mapping, or an object with attributes, that has the columns.

        Raises:
            InvalidRecord: The row lacks a column, or has a value that cannot be folded.
        """
        read = row.__getitem__ if isinstance(row, Mapping) else partial(getattr, row)
        old = msgspec.structs.astuple(state)
        try:
            new = [
                fold(value, True if column is None else read(column))
                for value, (fold, column) in zip(old, self._steps, strict=True)
            ]
        except (KeyError, AttributeError, TypeError) as error:
            raise InvalidRecord(
                f"cannot aggregate {row!r:.200}: {error!r}; it needs numbers (or None) in "
                f"{sorted({column for _, column in self._steps if column})}"
            ) from error
        return self.state(*new)

    def merge(self, states: Sequence[Any]) -> Any:
        """Return the state of all rows from which `states` were made. All kinds can be merged.

        Raises InvalidRecord if values cannot be compared, such as text with numbers.

        >>> delays = Aggregates(n=count(), mean=mean("delay"))
        >>> parts = [delays.fold(delays.empty, {"delay": delay}) for delay in (4, 8)]
        >>> delays.result(delays.merge(parts))
        Result(n=2, mean=6.0)
        """
        rows = [msgspec.structs.astuple(state) for state in states]
        try:
            return self.state(
                *(
                    _merged(fold, figures)
                    for (fold, _), figures in zip(self._steps, zip(*rows, strict=True), strict=True)
                )
            )
        except TypeError as error:
            raise InvalidRecord(f"cannot merge {rows!r:.200}: {error}") from error

    def result(self, state: Any) -> Any:
        """Return the figures of a state as an immutable object with one attribute per name."""
        return self._result(*[_figure(state, name, one) for name, one in self.aggregates.items()])

    def spec(self, name: str, key: Any = str, **settings: Any) -> StoreSpec[Any, Any]:
        """Return the spec of a store for these aggregates; `settings` are those of `StoreSpec`."""
        figures = tuple((name, (one.kind, one.column)) for name, one in self.aggregates.items())
        return StoreSpec(
            name, key=key, value=self.state, default=self.empty, figures=figures, **settings
        )


def counter_spec(name: str, key: Any = str, **settings: Any) -> StoreSpec[Any, int]:
    """Return the spec of a store with a counter per key; `settings` are those of `StoreSpec`."""
    return StoreSpec(name, key=key, value=int, default=0, **settings)


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

    def add(self, key: K, row: Any = UNSET, /, **values: Any) -> Any:
        """Fold a row (mapping, object, or keywords) into the figures of a key; return them."""
        state = self.aggregates.fold(self.store[key], values if row is UNSET else row)
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


def _fields(name: str, one: Aggregate) -> Iterator[tuple[str, tuple[Fold, str | None]]]:
    """Yield the stored fields of one aggregate, each with its fold function and column."""
    if one.kind == "mean":
        yield f"{name}__sum", (_sum, one.column)
        yield f"{name}__count", (_count, one.column)
    else:
        yield name, (_FOLDS[one.kind], one.column)


def _field(name: str, fold: Fold) -> tuple[str, Any, Any]:
    return (name, int, 0) if fold is _count else (name, _VALUE, None)


def _figure(state: Any, name: str, one: Aggregate) -> Any:
    if one.kind != "mean":
        return getattr(state, name)
    values = getattr(state, f"{name}__count")
    return getattr(state, f"{name}__sum") / values if values else None


def _count(old: int, value: object) -> int:
    return old if value is None else old + 1


def _sum(old: Number | None, value: Any) -> Number | None:
    if value is None:
        return old
    number = _number(value)
    return number if old is None else old + number


def _min(old: Any, value: Any) -> Any:
    value = _comparable(value)
    return old if value is None or (old is not None and old <= value) else value


def _max(old: Any, value: Any) -> Any:
    value = _comparable(value)
    return old if value is None or (old is not None and old >= value) else value


def _merged(fold: Fold, figures: Sequence[Any]) -> Any:
    """Merge one figure of several states into that of all their rows."""
    if fold is _count:
        return reduce(operator.add, figures)
    return reduce(fold, figures)  # sums, least and greatest values are folded like row values


def _comparable(value: Any) -> Any:
    return value if value is None or type(value) is str else _number(value)


def _number(value: Any) -> Number:
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    if type(value) is bool:
        return int(value)
    if hasattr(value, "item"):  # numpy's and Arrow's scalars
        return _number(value.item())
    raise TypeError(f"{value!r} ({type(value).__name__}) is no number")


_VALUE = int | float | str | None
_FOLDS: dict[str, Fold] = {"count": _count, "sum": _sum, "min": _min, "max": _max}
