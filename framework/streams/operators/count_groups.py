"""Aggregates of windows of a number of records of a key.

A second store counts the records of each key, which gives the position of the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.framework.context import current_task
from strandline.framework.store import Store, columns_of
from strandline.framework.streams.operators.group_keys import PANE, GroupKeys, state_keys
from strandline.framework.streams.operators.groups import GroupState, as_results
from strandline.framework.streams.operators.merging import window_columns
from strandline.framework.streams.operators.operator import StageOperator
from strandline.framework.streams.schemas import TIME, WATERMARK
from strandline.framework.streams.stateful import GroupAggregate
from strandline.framework.streams.windows import CountWindow

if TYPE_CHECKING:
    import polars as pl


class CountOperator(StageOperator):
    """Aggregates of each n records of a key, in the order of their arrival."""

    def __init__(
        self,
        node: GroupAggregate,
        window: CountWindow,
        store: Store[Any, Any],
        counts: Store[Any, Any],
    ) -> None:
        super().__init__()
        self._node = node
        self._window = window
        self._groups = GroupKeys(node.keys, node.inputs[0].schema, node.name)
        self._counts = counts
        self._state = GroupState(node, state_keys(node), store)
        self._full: list[pl.DataFrame] = []
        """Results of windows that are full, until the next call of `advance`."""

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Add rows to the windows of their keys."""
        import polars as pl

        keys = self._groups.keys(frame)
        counted = pl.Series("counted", columns_of(self._counts).get_batch(keys)).fill_null(0)
        positions = self._window.positions(frame.select(self._node.keys), counted)
        rows = frame.with_columns(self._window.assign(positions).alias(PANE))
        fresh = self._state.add(rows)
        columns_of(self._counts).add_batch(keys)
        is_last = (positions + 1) % self._window.n == 0
        if is_last.any():
            full = self._taken(rows.filter(is_last))
            self._full += [] if full is None else [full]
        self._note_rows(fresh - int(is_last.sum()))
        return None

    def _counted(self) -> int:
        """Return the number of windows that are not full, of all groups."""
        return self._state.count()

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Return the results of the windows that have become full."""
        import polars as pl

        self.watermark = watermark
        full, self._full = self._full, []
        return pl.concat(full) if full else None

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the windows that changed since the last commit and are not full."""
        import polars as pl

        changed = self._state.changed()
        if changed.is_empty():
            return None
        latest = pl.lit(current_task().stream_time, pl.Int64).alias(TIME)
        watermark = pl.lit(self.watermark, pl.Int64).alias(WATERMARK)
        return self._results(changed.with_columns(latest, watermark))

    def forget(self) -> None:
        """Drop results that were not passed on."""
        self._full = []

    def mark(self) -> object:
        """Return the results that were not passed on, and the number of open windows."""
        return self.open_rows, [*self._full]

    def undo(self, mark: Any) -> None:
        """Go back to what was in memory at a mark."""
        self.open_rows, self._full = mark

    def _taken(self, last_rows: pl.DataFrame) -> pl.DataFrame | None:
        """Delete the windows of which these rows are the last ones; return their results.

        A result has the time and the watermark of the row that made its window full, so whether it
        is late for a later operator does not depend on the division into batches.
        """
        groups = last_rows.select(PANE, *self._node.keys, TIME, WATERMARK)
        states = groups.hstack(self._state.states(groups))
        self._state.delete(groups)
        return self.each(states, [PANE, *self._node.keys], self._results)

    def _results(self, states: pl.DataFrame) -> pl.DataFrame:
        """Return the results of states with their key, time and watermark."""
        results = self._state.results(states).with_columns(
            *window_columns(self._window, states),
            states[TIME],
        )
        return as_results(self._node, results, states[WATERMARK])
