"""Aggregates of tumbling, calendar, hopping and sliding windows, kept by pane.

The store's keys begin with the start of the pane, so that closing windows is a scan of one range
and the deletion of it. The panes of tumbling windows are the windows. Those of hopping and sliding
windows say as well for which windows they count (`HoppingWindow.since`, `SlidingWindow.since`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.framework.store import Store
from strandline.framework.streams.operators.group_keys import PANE, SINCE, state_keys
from strandline.framework.streams.operators.groups import GroupState, as_results
from strandline.framework.streams.operators.merging import (
    expanded,
    hopping_states,
    sliding_states,
    window_columns,
)
from strandline.framework.streams.operators.operator import LateRows, StageOperator
from strandline.framework.streams.schemas import INTERNAL, TIME, WATERMARK
from strandline.framework.streams.stateful import GroupAggregate
from strandline.framework.streams.watermark import NO_WATERMARK
from strandline.framework.streams.windows import (
    HoppingWindow,
    SlidingWindow,
    TimeWindow,
    TumblingWindow,
)

if TYPE_CHECKING:
    import polars as pl

LAST_CLOSED = "last"
"""Key of the last closed window in the store of it: its start in ms, or its last time if sliding."""


class PaneOperator(StageOperator):
    """Aggregates of windows by time: what tumbling and hopping windows have in common."""

    def __init__(
        self, node: GroupAggregate, window: TimeWindow, store: Store[Any, Any], late: LateRows
    ) -> None:
        super().__init__()
        self.lag_ms = window.grace_ms
        self._node = node
        self._late = late
        self._state = GroupState(node, state_keys(node), store)
        self._times = window
        self._first: int | None = None
        """Start of a pane at or before all others; None if it must be looked up."""

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Add the rows that are not late to their panes."""
        marks = frame[WATERMARK].clip(lower_bound=self.watermark)
        late = self._times.late(frame[TIME], marks)
        if late.any():
            self._late(frame.filter(late))
            frame, marks = frame.filter(~late), marks.filter(~late)
        if not frame.is_empty():
            rows = self._with_panes(frame, marks)
            self._state.add(rows)
            self._note_first(rows[PANE].min())
        return None

    def closed_at(self) -> int | None:
        """Return the watermark at which the last window is closed; None without windows."""
        last = next(iter(self._state.columns.reverse()), None)
        return None if last is None else self._closed_after(last[0][0])

    def forget(self) -> None:
        """Look the first pane up again."""
        self._first = None

    def _with_panes(self, frame: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
        """Return rows with the columns of the key of their panes."""
        raise NotImplementedError

    def _closed_after(self, pane: int) -> int:
        """Return the watermark in ms at which all windows of a pane are closed."""
        raise NotImplementedError

    def _first_pane(self) -> int | None:
        """Return a time in ms at or before the start of all panes; None if there are none."""
        if self._first is None:
            first = next(iter(self._state.columns.all()), None)
            self._first = None if first is None else first[0][0]
        return self._first

    def _note_first(self, pane: Any) -> None:
        if self._first is not None:
            self._first = min(self._first, int(pane))

    def _taken(self, upper: int) -> pl.DataFrame:
        """Return the panes that begin before `upper` (ms)."""
        return self._state.framed(*self._state.columns.scan_batch(None, (upper,)))

    def _delete(self, upper: int) -> None:
        """Delete the panes that begin before `upper` (ms)."""
        self._state.columns.delete_range(None, (upper,))
        self._first = upper

    def _windows(self, states: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """Return the results of states of whole windows, whose start is in PANE."""
        import polars as pl

        last_ms = pl.Series(TIME, self._times.end_of(states[PANE]) - 1, pl.Int64)
        results = self._state.results(states).with_columns(
            *window_columns(self._times, states), last_ms
        )
        return as_results(self._node, results, watermark)


class TumblingOperator(PaneOperator):
    """Aggregates of windows that follow each other, of fixed length or by a calendar."""

    def __init__(
        self, node: GroupAggregate, window: TumblingWindow, store: Store[Any, Any], late: LateRows
    ) -> None:
        super().__init__(node, window, store, late)
        self._window = window

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Close the windows that the watermark has passed; return their results."""
        before, self.watermark = self.watermark, watermark
        first = self._first_pane()
        if watermark <= NO_WATERMARK or first is None:
            return None
        if self._window.closed_at(first) > watermark:
            return None
        upper = self._window.first_open(watermark)
        states = self._taken(upper)
        self._delete(upper)
        return self._windows(states, before)

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the windows that changed since the last commit."""
        changed = self._state.changed()
        return None if changed.is_empty() else self._windows(changed, self.watermark)

    def _with_panes(self, frame: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
        return frame.with_columns(self._window.assign(frame[TIME]).alias(PANE))

    def _closed_after(self, pane: int) -> int:
        return self._window.closed_at(pane)


class OverlappingOperator(PaneOperator):
    """Aggregates of windows that share panes, which are merged when the windows are emitted.

    Panes outlive their closed windows, so a second store has the last closed window, by which
    readers of the state know the windows that are open.
    """

    def __init__(
        self,
        node: GroupAggregate,
        window: TimeWindow,
        store: Store[Any, Any],
        late: LateRows,
        closed: Store[str, int],
    ) -> None:
        super().__init__(node, window, store, late)
        self._closed = closed

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Close the windows that the watermark has passed; return their results."""
        import polars as pl

        before, self.watermark = self.watermark, watermark
        first = self._first_pane()
        if watermark <= NO_WATERMARK or first is None:
            return None
        last = self._last_closed(watermark)
        done = NO_WATERMARK if before <= NO_WATERMARK else self._last_closed(before)
        needed_end, kept_from = self._panes_of(last)
        if last == done or needed_end <= first:
            return None
        closed = (pl.col(PANE) <= last) & (pl.col(PANE) > done)
        states = self._merged(self._taken(needed_end), closed)
        self._delete(kept_from)
        self._closed.put(LAST_CLOSED, last)
        return None if states.is_empty() else self._windows(states, before)

    def _last_closed(self, watermark: int) -> int:
        """Return what identifies the last window that a watermark closes, in ms."""
        raise NotImplementedError

    def _panes_of(self, last: int) -> tuple[int, int]:
        """Return the end of the panes that windows up to `last` have, and the first kept after."""
        raise NotImplementedError

    def _merged(self, panes: pl.DataFrame, wanted: pl.Expr | None) -> pl.DataFrame:
        """Return the states of the wanted windows of panes, by start (in PANE) and key."""
        raise NotImplementedError


class HoppingOperator(OverlappingOperator):
    """Aggregates of windows that overlap, merged from their panes when they are emitted."""

    def __init__(
        self,
        node: GroupAggregate,
        window: HoppingWindow,
        store: Store[Any, Any],
        late: LateRows,
        closed: Store[str, int],
    ) -> None:
        super().__init__(node, window, store, late, closed)
        self._window = window

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the windows with a pane that changed since the last commit."""
        import polars as pl

        changed = self._state.changed()
        if changed.is_empty():
            return None
        keys = list(self._node.keys)
        windows = expanded(self._window, changed).select(PANE, *keys).unique(maintain_order=True)
        if self.watermark > NO_WATERMARK:
            # Panes outlive their closed windows, of which some panes are gone.
            windows = windows.filter(pl.col(PANE) > self._last_closed(self.watermark))
        if windows.is_empty():
            return None
        last = max(windows[PANE].to_list())
        states = self._merged(self._taken(last + self._window.size_ms), None)
        affected = windows.join(states, on=[PANE, *keys], maintain_order="left")
        return self._windows(affected, self.watermark)

    def _merged(self, panes: pl.DataFrame, wanted: pl.Expr | None) -> pl.DataFrame:
        return hopping_states(self._window, self._node.aggregates, self._node.keys, panes, wanted)

    def _last_closed(self, watermark: int) -> int:
        return self._window.last_closed(watermark)

    def _panes_of(self, last: int) -> tuple[int, int]:
        return last + self._window.size_ms, last + self._window.every_ms

    def _with_panes(self, frame: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
        return frame.with_columns(
            self._window.assign(frame[TIME]).alias(PANE),
            self._window.since(frame[TIME], marks).alias(SINCE),
        )

    def _closed_after(self, pane: int) -> int:
        return self._window.closed_at(self._window.last_window(pane))


class SlidingOperator(OverlappingOperator):
    """Aggregates of the records up to a time before each record, and of itself.

    The records of one time are a pane; `sliding_states` says for which windows it counts.
    """

    def __init__(
        self,
        node: GroupAggregate,
        window: SlidingWindow,
        store: Store[Any, Any],
        late: LateRows,
        closed: Store[str, int],
    ) -> None:
        super().__init__(node, window, store, late, closed)
        self._window = window

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the windows with a pane that changed since the last commit."""
        import polars as pl

        changed = self._state.changed()
        if changed.is_empty():
            return None
        size = self._window.size_ms
        panes = self._taken(max(changed[PANE].to_list()) + size + 1)
        times = changed.select(pl.col(PANE).alias(_CHANGED), *self._node.keys).unique()
        pairs = panes.join(times, on=list(self._node.keys), nulls_equal=True)
        near = pairs.filter((pl.col(PANE) - pl.col(_CHANGED)).is_between(0, size))
        wanted = pl.col(PANE).is_in(near[PANE].unique().implode())
        if self.watermark > NO_WATERMARK:
            wanted &= pl.col(PANE) > self._last_closed(self.watermark)
        states = self._merged(panes, wanted)
        return None if states.is_empty() else self._windows(states, self.watermark)

    def _last_closed(self, watermark: int) -> int:
        return self._window.last_closed(watermark)

    def _panes_of(self, last: int) -> tuple[int, int]:
        return last + 1, last - self._window.size_ms + 1

    def _merged(self, panes: pl.DataFrame, wanted: pl.Expr | None) -> pl.DataFrame:
        return sliding_states(self._window, self._node.aggregates, self._node.keys, panes, wanted)

    def _with_panes(self, frame: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
        return frame.with_columns(
            frame[TIME].alias(PANE), self._window.since(frame[TIME], marks).alias(SINCE)
        )

    def _closed_after(self, pane: int) -> int:
        return pane + self._window.size_ms + 1 + self._window.grace_ms


_CHANGED = f"{INTERNAL}changed"
