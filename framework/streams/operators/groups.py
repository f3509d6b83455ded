"""Aggregates of groups of rows without windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.framework.context import current_task
from strandline.framework.store import Store, columns_of
from strandline.framework.streams.operators.group_keys import GroupKeys
from strandline.framework.streams.operators.operator import StageOperator
from strandline.framework.streams.schemas import TIME, WATERMARK
from strandline.framework.streams.stateful import SESSION_FIELDS, GroupAggregate
from strandline.framework.streams.windows import SessionWindow
from strandline.statestore.aggregates import Aggregates
from strandline.statestore.column_store import ColumnStore
from strandline.statestore.frames import arranged, cast_to, with_series
from strandline.statestore.scalar_columns import Column

if TYPE_CHECKING:
    import polars as pl


class GroupState:
    """States of the groups of an aggregation in its store, as columns."""

    def __init__(self, node: GroupAggregate, keys: GroupKeys, store: Store[Any, Any]) -> None:
        self._node = node
        self._keys = keys
        self._store = store
        self._aggregates = kept_aggregates(node)
        self._types = self._aggregates.state_schema(state_inputs(node))

    @property
    def columns(self) -> ColumnStore[Any, Any]:
        """Store of the running partition."""
        return columns_of(self._store)

    def add(self, rows: pl.DataFrame) -> int:
        """Add rows, which have the columns of the key, to the states of their groups.

        Returns:
            Number of groups that had no state before.
        """
        aggregates = self._aggregates
        gathered = aggregates.gather(rows, self._keys.names, TIME)

        def added(old: Column) -> Column:
            return aggregates.to_values(aggregates.add(self._states(old), gathered))

        return self.columns.update_batch(self._keys.keys(gathered), added)

    def count(self) -> int:
        """Return the number of groups, all of which are read for it."""
        return sum(1 for _ in self.columns.all())

    def put(self, states: pl.DataFrame) -> None:
        """Set the states of groups, given with the columns of the key."""
        self._put(self._keys.keys(states), states)

    def delete(self, groups: pl.DataFrame) -> None:
        """Delete the states of groups."""
        self.columns.delete_batch(self._keys.keys(groups))

    def states(self, groups: pl.DataFrame) -> pl.DataFrame:
        """Return the states of groups, in the same order; rows of nulls for those without."""
        return self._states(self.columns.get_batch(self._keys.keys(groups)))

    def existing(self, groups: pl.DataFrame) -> pl.DataFrame:
        """Return the groups that have a state, with their states."""
        import polars as pl

        found = groups.filter(pl.Series(self.columns.contains_batch(self._keys.keys(groups))))
        return found.hstack(self.states(found))

    def scan(self, lower: int, upper: int, groups: pl.DataFrame) -> pl.DataFrame:
        """Return keys from `lower` to `upper` (ms, exclusive) with their states, of some groups.

        Args:
            lower: First time; the keys begin with times.
            upper: End of the times.
            groups: Columns of the key that the returned keys share with one of these rows.
        """
        import polars as pl

        on = groups.columns
        batches = self.columns.scan_batches((lower,), (upper,))
        framed = (self.framed(*batch) for batch in batches)
        near = [frame.join(groups, on=on, how="semi", maintain_order="left") for frame in framed]
        return pl.concat(near)

    def changed(self) -> pl.DataFrame:
        """Return the groups that changed since the last commit and exist, with their states."""
        keys, values = self.columns.changed_rows()
        if isinstance(values, list):
            exist = of_items([value is not None for value in values], pa.bool_())
            return self.framed(keys.filter(exist), [each for each in values if each is not None])
        exist = values.is_valid()
        return self.framed(keys.filter(exist), values.filter(exist))

    def framed(self, keys: pa.Array, values: Any) -> pl.DataFrame:
        """Return keys and values of the store as one frame: the key's columns, and the states."""
        return self._keys.frame(keys).hstack(self._states(values))

    def results(self, states: pl.DataFrame) -> pl.DataFrame:
        """Return the columns of the group's keys, and of the results, of a frame of states."""
        keys = arranged(states, self._node.keys)
        return keys.hstack(self._node.aggregates.results(states))

    def _put(self, keys: pa.Array, states: pl.DataFrame) -> None:
        self.columns.put_batch(keys, self._aggregates.to_values(states))

    def _states(self, values: Any) -> pl.DataFrame:
        return self._aggregates.from_values(values, self._types)


def kept_aggregates(node: GroupAggregate) -> Aggregates:
    """Return the aggregates that the store of an aggregation keeps."""
    if not isinstance(node.window, SessionWindow):
        return node.aggregates
    return Aggregates(**node.aggregates.aggregates, **SESSION_FIELDS)


def state_inputs(node: GroupAggregate) -> dict[str, pl.DataType]:
    """Return the types of the columns of which `kept_aggregates` are made."""
    import polars as pl

    found: dict[str, pl.DataType] = dict(node.inputs[0].schema)
    if isinstance(node.window, SessionWindow):
        found |= dict.fromkeys(SESSION_FIELDS, pl.Int64())
    return found


def as_results(
    node: GroupAggregate, frame: pl.DataFrame, watermark: int | pl.Series
) -> pl.DataFrame:
    """Return results with all columns of the node, in order and of its types.

    Args:
        node: The aggregation.
        frame: Columns of keys, window, results and time.
        watermark: Watermark in ms before the results, or before each of them.
    """
    import polars as pl

    if isinstance(watermark, int):
        watermark = pl.Series([watermark], dtype=pl.Int64).new_from_index(0, len(frame))
    found = with_series(frame, watermark.alias(WATERMARK))
    return cast_to(arranged(found, node.schema), node.schema)


class GroupOperator(StageOperator):
    """Aggregates of all rows of each group."""

    def __init__(self, node: GroupAggregate, store: Store[Any, Any], keys: GroupKeys) -> None:
        super().__init__()
        self._node = node
        self._state = GroupState(node, keys, store)

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Add rows to their groups. Updates are passed on at the commit."""
        self._state.add(frame)
        return None

    def forget(self) -> None:
        """Do nothing: all of it is in the store."""

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the groups that changed since the last commit."""
        import polars as pl

        changed = self._state.changed()
        if changed.is_empty():
            return None
        latest = pl.Series(TIME, [current_task().stream_time], pl.Int64)
        results = self._state.results(changed)
        results = with_series(results, latest.new_from_index(0, len(results)))
        return as_results(self._node, results, self.watermark)
