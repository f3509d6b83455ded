"""Aggregates of tumbling, calendar, hopping and sliding windows, kept by pane.

The store's keys begin with the start of the pane, so that closing windows is a scan of one range
and the deletion of it. The panes of tumbling windows are the windows. Those of hopping and sliding
windows say as well for which windows they count (`HoppingWindow.since`, `SlidingWindow.since`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from strandline.framework.store import Store
from strandline.framework.streams.lateness import on_time, watermarks_of
from strandline.framework.streams.operators.first_time import FirstTime
from strandline.framework.streams.operators.group_keys import PANE, SINCE, state_keys
from strandline.framework.streams.operators.groups import GroupState, as_results
from strandline.framework.streams.operators.merging import (
    hopping_parts,
    sliding_parts,
    window_columns,
)
from strandline.framework.streams.operators.operator import LateRows, StageOperator
from strandline.framework.streams.schemas import INTERNAL, TIME
from strandline.framework.streams.stateful import GroupAggregate
from strandline.framework.streams.watermark import NO_WATERMARK
from strandline.framework.streams.windows import (
    HoppingWindow,
    SlidingWindow,
    TimeWindow,
    TumblingWindow,
)
from strandline.statestore.frames import with_series

if TYPE_CHECKING:
    import polars as pl

W = TypeVar("W", bound=TimeWindow)
P = TypeVar("P", bound=HoppingWindow | SlidingWindow)

LAST_CLOSED = "last"
"""Key of the last closed window in the store of it: its start in ms, or its last time if sliding."""


class PaneOperator(StageOperator, Generic[W]):
    """Aggregates of windows by time, whose state is a row for each pane of a group."""

    def __init__(
        self, node: GroupAggregate, window: W, store: Store[Any, Any], late: LateRows
    ) -> None:
        super().__init__()
        self.lag_ms = window.grace_ms
        self._node = node
        self._late = late
        self._state = GroupState(node, state_keys(node), store)
        self._window = window
        self._first = FirstTime(store)
        """Start in ms of a pane at or before all others."""

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Add the rows that are not late to their panes."""
        frame = on_time(self._node, frame, self.watermark, self._late)
        if not frame.is_empty():
            rows = self._with_panes(frame, watermarks_of(frame, self.watermark))
            self._note_rows(self._state.add(rows))
            self._first.added(rows[PANE].min())
        return None

    def closed_at(self) -> int | None:
        """Return the watermark at which the last window is closed; None without windows."""
        last = next(iter(self._state.columns.reverse()), None)
        return None if last is None else self._closed_after(last[0][0])

    def forget(self) -> None:
        """Look the first pane up again."""
        self._first.forget()

    def _with_panes(self, frame: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
        """Return rows with the columns of the key of their panes."""
        raise NotImplementedError

    def _closed_after(self, pane: int) -> int:
        """Return the watermark in ms at which all windows of a pane are closed."""
        raise NotImplementedError

    def _counted(self) -> int:
        """Return the number of panes of open windows, of all groups."""
        return self._state.count()

    def _taken(self, upper: int) -> pl.DataFrame:
        """Return the panes that begin before `upper` (ms)."""
        return self._state.framed(*self._state.columns.scan_batch(None, (upper,)))

    def _delete(self, upper: int, panes: pl.DataFrame) -> None:
        """Delete the panes that begin before `upper` (ms), which are among these."""
        self._state.columns.delete_range(None, (upper,))
        self._note_rows(-int((panes[PANE] < upper).sum()))
        self._first.removed_before(upper)

    def _windows(self, states: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """Return the results of states of whole windows, whose start is in PANE."""
        import polars as pl

        last_ms = pl.Series(TIME, self._window.end_of(states[PANE]) - 1, pl.Int64)
        bounds = window_columns(self._window, states)
        results = with_series(self._state.results(states), *bounds, last_ms)
        return as_results(self._node, results, self.mark_of_results(watermark))


class TumblingOperator(PaneOperator[TumblingWindow]):
    """Aggregates of windows that follow each other, of fixed length or by a calendar."""

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Close the windows that the watermark has passed; return their results."""
        before, self.watermark = self.watermark, watermark
        first = self._first.get()
        if watermark <= NO_WATERMARK or first is None:
            return None
        if self._window.closed_at(first) > watermark:
            return None
        upper = self._window.first_open(watermark)
        states = self._state.framed(*self._state.columns.take_batch(None, (upper,)))
        self._first.removed_before(upper)
        self._note_rows(-len(states))
        by = [PANE, *self._node.keys]
        return self.each(states, by, lambda part: self._windows(part, before))

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the windows that changed since the last commit."""
        changed = self._state.changed()
        return None if changed.is_empty() else self._windows(changed, self.watermark)

    def _with_panes(self, frame: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
        return with_series(frame, self._window.assign(frame[TIME]).alias(PANE))

    def _closed_after(self, pane: int) -> int:
        return self._window.closed_at(pane)


class OverlappingOperator(PaneOperator[P]):
    """Aggregates of windows that share panes, which are merged when the windows are emitted.

    Panes outlive their closed windows, so a second store has the last closed window, by which
    readers of the state know the windows that are open.
    """

    def __init__(
        self,
        node: GroupAggregate,
        window: P,
        store: Store[Any, Any],
        late: LateRows,
        closed: Store[str, int],
    ) -> None:
        super().__init__(node, window, store, late)
        self._closed = closed

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Close the windows that the watermark has passed; return their results."""
        before, self.watermark = self.watermark, watermark
        first = self._first.get()
        if watermark <= NO_WATERMARK or first is None:
            return None
        last, done = self._window.last_closed(watermark), self._last_closed(before)
        needed_end, kept_from = self._panes_of(last)
        if last == done or needed_end <= first:
            return None
        panes = self._taken(needed_end)
        rows = self._by_window(panes, done, last)
        self._delete(kept_from, panes)
        self._closed.put(LAST_CLOSED, last)
        if rows.is_empty():
            return None
        by = [PANE, *self._node.keys]
        return self.each(rows, by, lambda part: self._windows(self._combined(part), before))

    def _last_closed(self, watermark: int) -> int | None:
        """Return what identifies the last window that a watermark closes; None if it is unknown."""
        return None if watermark <= NO_WATERMARK else self._window.last_closed(watermark)

    def _panes_of(self, last: int) -> tuple[int, int]:
        """Return the end of the panes that windows up to `last` have, and the first kept after."""
        raise NotImplementedError

    def _by_window(self, panes: pl.DataFrame, after: int | None, last: int | None) -> pl.DataFrame:
        """Return the states of panes for each of their windows, whose start is in PANE.

        Args:
            panes: Keys and states of panes.
            after: What identifies a window, as of `_last_closed`; only later ones are returned.
            last: What identifies the last window to return.
        """
        raise NotImplementedError

    def _combined(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the states of windows, of rows that `_by_window` has returned."""
        return self._node.aggregates.combine(rows, [PANE, *self._node.keys])


class HoppingOperator(OverlappingOperator[HoppingWindow]):
    """Aggregates of windows that overlap, merged from their panes when they are emitted."""

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the windows with a pane that changed since the last commit."""
        changed = self._state.changed()
        if changed.is_empty():
            return None
        keys = list(self._node.keys)
        # Panes outlive their closed windows, of which some panes are gone.
        expanded = self._by_window(changed, self._last_closed(self.watermark), None)
        windows = expanded.select(PANE, *keys).unique(maintain_order=True)
        if windows.is_empty():
            return None
        panes = self._panes_in(windows)
        starts = windows[PANE].to_numpy()
        states = self._combined(self._by_window(panes, int(starts.min()) - 1, int(starts.max())))
        affected = windows.join(states, on=[PANE, *keys], maintain_order="left")
        return self._windows(affected, self.watermark)

    def _panes_in(self, windows: pl.DataFrame) -> pl.DataFrame:
        """Return the panes of windows, given by start (in PANE) and key, in the order of time.

        They are looked up if that costs less than a scan of the panes of all groups in that time.
        A pane that counts for later windows only may be under any of the starts of its windows.
        """
        import polars as pl

        size, step = self._window.size_ms, self._window.pane_ms
        entries = self._state.columns.approximate_num_entries()
        starts = size // step * (size // self._window.every_ms + 1)
        if len(windows) * starts * LOOKUP_ENTRIES > entries:
            first, last = windows[PANE].to_numpy().min(), windows[PANE].to_numpy().max()
            groups = windows.select(self._node.keys).unique()
            return self._state.scan(int(first), int(last) + size, groups)
        offsets = pl.int_ranges(0, size, step, dtype=pl.Int64)
        panes = windows.with_columns(offsets.alias(_OFFSET)).explode(_OFFSET, empty_as_null=False)
        panes = panes.select(pl.col(PANE) + pl.col(_OFFSET), *self._node.keys).unique()
        since = self._window.windows_of_panes(panes[PANE])
        looked_up = panes[since["row"]].with_columns(since["start"].alias(SINCE))
        return self._state.existing(looked_up).sort(PANE, SINCE, maintain_order=True)

    def _by_window(self, panes: pl.DataFrame, after: int | None, last: int | None) -> pl.DataFrame:
        return hopping_parts(self._window, panes, after=after, last=last)

    def _panes_of(self, last: int) -> tuple[int, int]:
        return last + self._window.size_ms, last + self._window.every_ms

    def _with_panes(self, frame: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
        return with_series(
            frame,
            self._window.assign(frame[TIME]).alias(PANE),
            self._window.since(frame[TIME], marks).alias(SINCE),
        )

    def _closed_after(self, pane: int) -> int:
        return self._window.closed_at(self._window.last_window(pane))


class SlidingOperator(OverlappingOperator[SlidingWindow]):
    """Aggregates of the records up to a time before each record, and of itself.

    The records of one time are a pane; `sliding_parts` says for which windows it counts.
    """

    def closed_at(self) -> int | None:
        """Return the watermark at which the window of the last record is closed; None without one.

        Panes are kept after that for the windows of later records, which must not be closed before
        these records have come: they would have no window of their own, and not be late either.
        """
        done = self._last_closed(self.watermark)
        for (pane, since, *_), _ in self._state.columns.reverse():
            if done is not None and pane <= done:
                return None
            if since == pane:  # other records were late for their own windows
                return int(pane) + 1 + self._window.grace_ms
        return None

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the windows with a pane that changed since the last commit."""
        import polars as pl

        changed = self._state.changed()
        if changed.is_empty():
            return None
        size, at = self._window.size_ms, changed[PANE].to_numpy()
        groups = changed.select(self._node.keys).unique()
        panes = self._state.scan(int(at.min()) - size, int(at.max()) + size + 1, groups)
        times = changed.select(pl.col(PANE).alias(_CHANGED), *self._node.keys).unique()
        pairs = panes.join(times, on=list(self._node.keys), nulls_equal=True)
        near = pairs.filter((pl.col(PANE) - pl.col(_CHANGED)).is_between(0, size))
        wanted = pl.col(PANE).is_in(near[PANE].unique().implode())
        done = self._last_closed(self.watermark)
        wanted = wanted if done is None else wanted & (pl.col(PANE) > done)
        states = self._combined(sliding_parts(self._window, self._node.keys, panes, wanted))
        return None if states.is_empty() else self._windows(states, self.watermark)

    def _panes_of(self, last: int) -> tuple[int, int]:
        return last + 1, last - self._window.size_ms + 1

    def _by_window(self, panes: pl.DataFrame, after: int | None, last: int | None) -> pl.DataFrame:
        import polars as pl

        wanted = pl.lit(value=True) if after is None else pl.col(PANE) > after
        wanted = wanted if last is None else wanted & (pl.col(PANE) <= last)
        return sliding_parts(self._window, self._node.keys, panes, wanted)

    def _with_panes(self, frame: pl.DataFrame, marks: pl.Series) -> pl.DataFrame:
        since = self._window.since(frame[TIME], marks)
        return with_series(frame, frame[TIME].alias(PANE), since.alias(SINCE))


LOOKUP_ENTRIES = 1.0
"""Number of entries of a scan that cost as much as a look-up."""
_CHANGED = f"{INTERNAL}changed"
_OFFSET = f"{INTERNAL}offset"
