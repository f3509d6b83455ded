"""Aggregates of sessions: what a batch, and the passing of time, make of the open ones.

The sessions of the groups of a batch are read from the store, merged with its records, and written
back. The module `open_sessions` describes how they are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strandline.framework.streams.lateness import on_time
from strandline.framework.streams.operators.groups import as_results
from strandline.framework.streams.operators.merging import window_columns
from strandline.framework.streams.operators.open_sessions import GROUP, OpenSessions
from strandline.framework.streams.operators.operator import LateRows, StageOperator
from strandline.framework.streams.schemas import INTERNAL, TIME
from strandline.framework.streams.sessions import END, START, merge_sessions
from strandline.framework.streams.stateful import WINDOW_END, WINDOW_START, GroupAggregate
from strandline.framework.streams.windows import SessionWindow

if TYPE_CHECKING:
    import polars as pl

SESSION = f"{INTERNAL}session"
"""Column of the number of a session within a batch."""


class SessionOperator(StageOperator):
    """Aggregates of records with less than a gap between one and the next."""

    def __init__(
        self, node: GroupAggregate, window: SessionWindow, sessions: OpenSessions, late: LateRows
    ) -> None:
        super().__init__()
        self.lag_ms = window.grace_ms
        self._node = node
        self._window = window
        self._late = late
        self._open = sessions

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Merge the rows that are not late with the sessions of their keys."""
        frame = on_time(self._node, frame, self.watermark, self._late)
        if not frame.is_empty():
            self._merge(frame)
        return None

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Close the sessions that the watermark has passed; return their results."""
        import polars as pl

        before, self.watermark = self.watermark, watermark
        end = watermark - self._window.grace_ms
        groups = self._open.take_due(end)
        if groups is None:
            return None
        sessions = self._open.of(groups)
        is_closed = pl.col(WINDOW_END) <= end
        closed = sessions.filter(is_closed)
        self._open.replace(sessions, sessions.filter(~is_closed), groups, are_due=True)
        self._note_rows(-len(closed))
        if closed.is_empty():
            return None
        by = [*self._node.keys, WINDOW_START]
        return self.each(closed, by, lambda part: self._results(part, before))

    def has_open(self) -> bool:
        """Return True if there are open sessions."""
        return bool(self._open)

    def closed_at(self) -> int | None:
        """Return the watermark at which the last session is closed; None without sessions."""
        last = self._open.last_end()
        return None if last is None else last + self._window.grace_ms

    def _counted(self) -> int:
        """Return the number of open sessions."""
        return self._open.count()

    def forget(self) -> None:
        """Drop what is kept of the store."""
        self._open.forget()

    def _merge(self, frame: pl.DataFrame) -> None:
        """Merge rows with the sessions of their groups."""
        import polars as pl

        keys = list(self._node.keys)
        numbers, groups = _grouped(frame.select(keys))
        stored = self._open.of(groups)
        merged = merge_sessions(
            frame.select(TIME).with_columns(numbers),
            stored.select(GROUP, pl.col(WINDOW_START).alias(START), pl.col(WINDOW_END).alias(END)),
            *([GROUP], TIME, self._window.gap_ms),
        )
        fresh = self._node.aggregates.partial(
            frame.with_columns(merged.records.alias(SESSION)), [SESSION], TIME
        )
        touched = stored.with_columns(merged.stored.alias(SESSION)).drop_nulls(SESSION)
        both = pl.concat([touched.select(fresh.columns), fresh], how="vertical_relaxed")
        states = self._node.aggregates.combine(both, [SESSION]).sort(SESSION)
        made = merged.sessions.rename({START: WINDOW_START, END: WINDOW_END})
        made = made.hstack(groups[made[GROUP]]).hstack(states.drop(SESSION))
        after = _merged(stored.filter(merged.stored.is_null()), made)
        self._open.replace(stored, after, groups)
        self._note_rows(len(after) - len(stored))

    def _results(self, states: pl.DataFrame, watermark: int) -> pl.DataFrame:
        states = states.sort(WINDOW_END, WINDOW_START, maintain_order=True)
        results = (
            states.select(self._node.keys)
            .hstack(self._node.aggregates.results(states))
            .with_columns(
                *window_columns(self._window, states), (states[WINDOW_END] - 1).alias(TIME)
            )
        )
        return as_results(self._node, results, self.mark_of_results(watermark))


def _merged(rest: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Return stored sessions and new ones in one frame, sorted by group and start.

    The new ones have no places in the store yet.
    """
    import polars as pl

    columns = [
        (pl.col(name) if name in made.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in rest.schema.items()
    ]
    after = made.select(columns)
    return after if rest.is_empty() else pl.concat([rest, after]).sort(GROUP, WINDOW_START)


def _grouped(keys: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """Return the number of each row's group, and the distinct groups by number."""
    import polars as pl

    first = pl.col(GROUP).first().over(keys.columns)
    firsts = keys.with_row_index(GROUP).select(first.cast(pl.Int64)).to_series().to_numpy()
    is_first = firsts == np.arange(len(firsts))
    numbers = np.cumsum(is_first)[firsts] - 1
    return pl.Series(GROUP, numbers, pl.Int64), keys.filter(is_first)
