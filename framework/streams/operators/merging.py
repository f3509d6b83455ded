"""Windows of the states that an aggregation keeps, as columns.

The panes of tumbling and count windows are the windows, and sessions are merged when they are
stored. The panes of hopping and sliding windows are merged here: when windows close, and when the
state is read from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.framework.streams.operators.group_keys import PANE, SINCE
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

if TYPE_CHECKING:
    import polars as pl

_TIME_OF = f"{INTERNAL}time_of"


def hopping_parts(
    window: HoppingWindow,
    panes: pl.DataFrame,
    *,
    after: int | None = None,
    last: int | None = None,
) -> pl.DataFrame:
    """Return the states of panes for each of their hopping windows, to be combined by window.

    Args:
        window: Definition of the windows.
        panes: Keys and states of panes, in the order of the store.
        after: Start in ms of a window; only later ones are returned.
        last: Start in ms of the last window to return.

    Returns:
        The columns of `panes`, with the start of the window in PANE.
    """
    windows = window.windows_of_panes(panes[PANE], panes[SINCE], after=after, last=last)
    return panes[windows["row"]].with_columns(windows["start"].alias(PANE))


def sliding_parts(
    window: SlidingWindow, keys: Sequence[str], panes: pl.DataFrame, wanted: pl.Expr
) -> pl.DataFrame:
    """Return the states of panes for each of their sliding windows, to be combined by window.

    A pane has the records of one time. It counts for the windows of the times from `SINCE` on, and
    has a window of its own if that is its time.

    Args:
        window: Definition of the windows.
        keys: Columns of the key of a group.
        panes: Keys and states of panes, in the order of the store.
        wanted: Condition for the time of the last record of a window, in PANE.

    Returns:
        The columns of `panes`, with the start of the window in PANE.
    """
    import polars as pl

    by, size = [*keys], window.size_ms
    own = panes.filter(pl.col(SINCE) == pl.col(PANE)).filter(wanted)
    windows = own.select(pl.col(PANE).alias(_TIME_OF), *by)
    pairs = windows.join(panes, on=by, maintain_order="left_right")
    counting = pairs.filter(
        (pl.col(_TIME_OF) - pl.col(PANE)).is_between(0, size) & (pl.col(SINCE) <= pl.col(_TIME_OF))
    )
    return counting.with_columns((pl.col(_TIME_OF) - size).alias(PANE)).drop(_TIME_OF)


def window_columns(window: Window, states: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return start and end (exclusive) of windows, as results have them.

    Args:
        window: Definition of the windows.
        states: Windows, with their start in PANE; sessions with WINDOW_START and WINDOW_END (ms).
    """
    if isinstance(window, CountWindow):
        return states[PANE].alias(WINDOW_START), window.end_of(states[PANE]).alias(WINDOW_END)
    if isinstance(window, SessionWindow):
        starts, ends = states[WINDOW_START], states[WINDOW_END]
    else:
        assert isinstance(window, TimeWindow)
        starts, ends = states[PANE], window.end_of(states[PANE])
    return _datetimes(starts, WINDOW_START), _datetimes(ends, WINDOW_END)


def _datetimes(ms: pl.Series, name: str) -> pl.Series:
    """Return times in ms since the epoch as datetimes."""
    import polars as pl

    return (ms * 1_000).cast(pl.Datetime("us", "UTC")).alias(name)
