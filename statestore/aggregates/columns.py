"""Aggregation of batches into states, and merging of states, as columns.

Each function takes a layout: the aggregates with their names and the names of their stored fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.statestore.aggregates.aggregate import Aggregate
from strandline.statestore.aggregates.batch import ColumnBatch, MergeChecks, Refusals
from strandline.statestore.aggregates.reducer import CANNOT_MERGE
from strandline.statestore.frames import arrow_columns, frame_of, selected

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


@dataclass(frozen=True)
class AggregatePart:
    """One aggregate of several, and its columns."""

    name: str
    """Name of the aggregate."""
    aggregate: Aggregate
    fields: tuple[str, ...]
    """Names of its stored fields."""

    def columns(self, prefix: str = "") -> list[pl.Expr]:
        """Return the stored fields as expressions."""
        import polars as pl

        return [pl.col(prefix + name) for name in self.fields]


Layout = Sequence[AggregatePart]

OLD = "__old:"
"""Prefix of the columns of earlier states while states are merged."""


def layout(aggregates: Mapping[str, Aggregate]) -> Layout:
    """Return the layout of aggregates."""
    return [
        AggregatePart(name, one, tuple(name + field.suffix for field in one.stored))
        for name, one in aggregates.items()
    ]


def state_schema(parts: Layout, schema: Mapping[str, pl.DataType]) -> pl.Schema:
    """Return the names and types of the stored fields. Raises InvalidConfig."""
    import polars as pl

    found: dict[str, pl.DataType] = {}
    for part in parts:
        found |= zip(part.fields, part.aggregate.state_types(schema), strict=True)
    return pl.Schema(found)


def result_schema(parts: Layout, schema: Mapping[str, pl.DataType]) -> pl.Schema:
    """Return the names and types of the results. Raises InvalidConfig."""
    import polars as pl

    return pl.Schema({part.name: part.aggregate.result_type(schema) for part in parts})


def check_keys(parts: Layout, keys: Sequence[str]) -> None:
    """Raise InvalidConfig if a column of the key is called as a stored field."""
    both = {name for part in parts for name in part.fields} & {*keys}
    if both:
        raise InvalidConfig(
            f"{min(both)!r} is both a column of the key and a field of an aggregate; give the"
            " aggregate another name"
        )


def partial(parts: Layout, frame: pl.DataFrame, by: Sequence[str], time: str) -> pl.DataFrame:
    """Return the state of each group of rows. Raises InvalidRecord, InvalidConfig."""
    batch = ColumnBatch(frame, by, time)
    return _aggregated(parts, batch, lambda part: part.aggregate.partial(batch))


def gather(parts: Layout, frame: pl.DataFrame, by: Sequence[str], time: str) -> pl.DataFrame:
    """Return what each group of rows adds to its state. Raises InvalidRecord, InvalidConfig."""
    batch = ColumnBatch(frame, by, time)
    return _aggregated(parts, batch, lambda part: part.aggregate.gather(batch))


def add(parts: Layout, old: pl.DataFrame, gathered: pl.DataFrame) -> pl.DataFrame:
    """Return the states of `old` with what `gather` returned. Raises InvalidRecord."""
    return _combined(parts, old, gathered, lambda part: part.aggregate.add_columns)


def merge(parts: Layout, old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """Return the states of the rows of two states each. Raises InvalidRecord, InvalidConfig."""
    if not all(part.aggregate.can_merge for part in parts):
        raise InvalidConfig(CANNOT_MERGE)
    return _combined(parts, old, new, lambda part: part.aggregate.merge_columns)


def combine(parts: Layout, states: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return one state for each group of states. Raises InvalidRecord, InvalidConfig.

    Neighbours are merged in pairs until each group has one state, so a group of n states takes the
    time of log2(n) merges of columns, and the order of arrival is kept.
    """
    fields = [name for part in parts for name in part.fields]
    left = states.select(*by, *fields)
    if len(left) < 2:
        return left
    group = _group_numbers(left, by)
    order = np.argsort(group, kind="stable")
    left, group = left[order], group[order]
    while (group[1:] == group[:-1]).any():
        left, group = _paired(parts, left, group)
    return left


def results(parts: Layout, states: pl.DataFrame) -> pl.DataFrame:
    """Return the results of states."""
    return selected(
        states, (part.aggregate.results(part.columns()).alias(part.name) for part in parts)
    )


def to_struct(parts: Layout, states: pl.DataFrame) -> pa.StructArray:
    """Return states as one array of structs."""
    import pyarrow as pa

    names = [name for part in parts for name in part.fields]
    return pa.StructArray.from_arrays(arrow_columns(states, names), names)


def from_struct(parts: Layout, states: pa.StructArray) -> pl.DataFrame:
    """Return states of an array of structs, without other fields of it. Raises InvalidRecord."""
    names = [name for part in parts for name in part.fields]
    given = [field.name for field in states.type]
    missing = [name for name in names if name not in given]
    if missing:
        raise InvalidRecord(f"states lack the fields {missing}; they have {given}")
    # `flatten` marks the fields of null structs as null, unlike `field`.
    columns = dict(zip(given, states.flatten(), strict=True))
    return frame_of({name: columns[name] for name in names})


def _aggregated(
    parts: Layout, batch: ColumnBatch, fields: Callable[[AggregatePart], Sequence[pl.Expr]]
) -> pl.DataFrame:
    """Return the columns of the key, and the stored fields of each group of a batch."""
    import polars as pl

    found: list[pl.Expr] = []
    check_keys(parts, batch.by)
    for part in parts:
        batch.name = part.name
        expressions = zip(fields(part), part.fields, strict=True)
        found += [expression.alias(name) for expression, name in expressions]
    groups = batch.groups()
    batch.refusals.check(groups, batch.by)
    return selected(groups, [*map(pl.col, batch.by), *found])


def _combined(
    parts: Layout,
    old: pl.DataFrame,
    new: pl.DataFrame,
    method: Callable[[AggregatePart], Callable[..., Sequence[pl.Expr]]],
) -> pl.DataFrame:
    """Return the states that a method of each aggregate makes of two rows of columns."""
    import polars as pl

    names = [name for part in parts for name in part.fields]
    both = new.hstack([old.get_column(name).alias(OLD + name) for name in names])
    refusals, of_states = Refusals(), Refusals()
    found: dict[str, pl.Expr] = {}
    for part in parts:
        types = [new.schema[name] for name in part.fields]
        checks = MergeChecks(part.name, types, refusals, of_states)
        made = method(part)(part.columns(OLD), part.columns(), checks)
        found |= {name: one.alias(name) for one, name in zip(made, part.fields, strict=True)}
    keys = [name for name in new.columns if name not in names]
    refusals.check(both, keys)
    states = selected(both, (found.get(name, pl.col(name)) for name in new.columns))
    of_states.check(states, keys)
    return states


def _group_numbers(states: pl.DataFrame, by: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the number of each row's group, in the order of first appearance."""
    import polars as pl

    if not by:
        return np.zeros(len(states), dtype=np.int64)
    keys = states.select(by).with_row_index("__row")
    first = keys.select(pl.col("__row").first().over(by)).to_series().to_numpy()
    return first.astype(np.int64)


def _paired(
    parts: Layout, states: pl.DataFrame, group: np.ndarray[Any, Any]
) -> tuple[pl.DataFrame, np.ndarray[Any, Any]]:
    """Merge the first state of each group with its second, the third with the fourth and so on."""
    import polars as pl

    is_first = np.concatenate([[True], group[1:] != group[:-1]])
    places = np.arange(len(group))
    in_group = places - np.maximum.accumulate(np.where(is_first, places, 0))
    second = np.flatnonzero(in_group % 2 == 1)
    kept = np.flatnonzero(in_group % 2 == 0)
    is_paired = np.isin(kept + 1, second, assume_unique=True)
    pairs = merge(parts, states[kept[is_paired]], states[second])
    order = np.argsort(np.concatenate([kept[is_paired], kept[~is_paired]]), kind="stable")
    merged = pl.concat([pairs, states[kept[~is_paired]]])[order]
    return merged, group[kept]
