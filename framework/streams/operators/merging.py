"""Windows of the states that an aggregation keeps, as columns.

The panes of tumbling and count windows are the windows, and sessions are merged when they are
stored. The panes of hopping and sliding windows are merged here: when windows close, and when the
state is read from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.framework.streams.operators.group_keys import FIRST, LAST, PANE, SINCE
from strandline.framework.streams.schemas import INTERNAL
from strandline.framework.streams.stateful import WINDOW_END, WINDOW_START
from strandline.framework.streams.windows import (
    CountWindow,
    HoppingWindow,
    SessionWindow,
    SlidingWindow,
    TimeWindow,
    Window,
)
from strandline.statestore.aggregates import Aggregates

if TYPE_CHECKING:
    import polars as pl

_TIME_OF = f"{INTERNAL}time_of"


def expanded(window: HoppingWindow, panes: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each hopping window of each pane, with the start of the window in PANE."""
    windows = window.windows_of_panes(panes[PANE], panes[SINCE])
    rows = panes[windows["row"]]
    return rows.with_columns(windows["start"].alias(PANE))


def hopping_states(
    window: HoppingWindow,
    aggregates: Aggregates,
    keys: Sequence[str],
    panes: pl.DataFrame,
    wanted: pl.Expr | None,
) -> pl.DataFrame:
    """Return the states of hopping windows, merged from their panes.

    Args:
        window: Definition of the windows.
        aggregates: Aggregates that are kept.
        keys: Columns of the key of a group.
        panes: Panes in the order of the store.
        wanted: Condition for the start of a window, in PANE; None for all windows.

    Returns:
        The start of each window in PANE, the key, and the state.
    """
    windows = expanded(window, panes)
    if wanted is not None:
        windows = windows.filter(wanted)
    return aggregates.combine(windows, [PANE, *keys])


def sliding_states(
    window: SlidingWindow,
    aggregates: Aggregates,
    keys: Sequence[str],
    panes: pl.DataFrame,
    wanted: pl.Expr | None,
) -> pl.DataFrame:
    """Return the states of sliding windows, merged from their panes.

    A pane has the records of one time. It counts for the windows of the times from `SINCE` on, and
    has a window of its own if that is its time.

    Args:
        window: Definition of the windows.
        aggregates: Aggregates that are kept.
        keys: Columns of the key of a group.
        panes: Panes in the order of the store.
        wanted: Condition for the time of the last record of a window, in PANE; None for all.

    Returns:
        The start of each window in PANE, the key, and the state.
    """
    import polars as pl

    by, size = [*keys], window.size_ms
    own = panes.filter(pl.col(SINCE) == pl.col(PANE))
    own = own if wanted is None else own.filter(wanted)
    windows = own.select(pl.col(PANE).alias(_TIME_OF), *by)
    pairs = windows.join(panes, on=by, maintain_order="left_right")
    counting = pairs.filter(
        (pl.col(_TIME_OF) - pl.col(PANE)).is_between(0, size) & (pl.col(SINCE) <= pl.col(_TIME_OF))
    )
    starts = counting.with_columns((pl.col(_TIME_OF) - size).alias(PANE)).drop(_TIME_OF)
    return aggregates.combine(starts, [PANE, *by])


def window_columns(window: Window, states: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return start and end (exclusive) of windows, as results have them.

    Args:
        window: Definition of the windows.
        states: Windows, with their start in PANE; sessions with FIRST and LAST.
    """
    if isinstance(window, CountWindow):
        return states[PANE].alias(WINDOW_START), window.end_of(states[PANE]).alias(WINDOW_END)
    if isinstance(window, SessionWindow):
        starts, ends = states[FIRST], states[LAST]
    else:
        assert isinstance(window, TimeWindow)
        starts, ends = states[PANE], window.end_of(states[PANE])
    return _datetimes(starts, WINDOW_START), _datetimes(ends, WINDOW_END)


def _datetimes(ms: pl.Series, name: str) -> pl.Series:
    """Return times in ms since the epoch as datetimes."""
    import polars as pl

    return (ms * 1_000).cast(pl.Datetime("us", "UTC")).alias(name)
