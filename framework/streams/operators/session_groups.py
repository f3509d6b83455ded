"""Aggregates of sessions.

The store's keys are those of the group, followed by the start and the end of the session. Which
sessions are open is kept in memory as well: by key, to find those that a record extends, and by
end, to find those to close.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from strandline.framework.store import Store
from strandline.framework.streams.operators.group_keys import FIRST, LAST, state_keys
from strandline.framework.streams.operators.groups import GroupState, as_results
from strandline.framework.streams.operators.merging import window_columns
from strandline.framework.streams.operators.operator import LateRows, StageOperator
from strandline.framework.streams.schemas import INTERNAL, TIME, WATERMARK
from strandline.framework.streams.sessions import END, START, merge_sessions
from strandline.framework.streams.stateful import GroupAggregate
from strandline.framework.streams.windows import SessionWindow

if TYPE_CHECKING:
    import polars as pl

NUMBER = f"{INTERNAL}session"
"""Column of the number of a session within a batch."""

Key = tuple[Any, ...]


class OpenSessions:
    """The sessions of a store that are not closed: by key, and by end."""

    def __init__(self, sessions: Iterable[Key]) -> None:
        self._by_key: dict[Key, set[tuple[int, int]]] = {}
        self._by_end: list[tuple[int, int, Key]] = []
        for session in sessions:
            self.add(session)

    def add(self, session: Key) -> None:
        """Add a session, given as a key of the store."""
        *key, first, last = session
        self._by_key.setdefault(tuple(key), set()).add((first, last))
        heapq.heappush(self._by_end, (last, first, tuple(key)))

    def remove(self, session: Key) -> None:
        """Remove a session."""
        *key, first, last = session
        found = self._by_key[tuple(key)]
        found.discard((first, last))
        if not found:
            del self._by_key[tuple(key)]

    def of(self, keys: Iterable[Key]) -> list[Key]:
        """Return the sessions of some keys."""
        return [(*key, *bounds) for key in keys for bounds in sorted(self._by_key.get(key, ()))]

    def take_closed(self, before: int) -> list[Key]:
        """Remove and return the sessions that end at or before a time (ms)."""
        closed = []
        while self._by_end and self._by_end[0][0] <= before:
            last, first, key = heapq.heappop(self._by_end)
            # A session that was extended since has another end.
            if (first, last) in self._by_key.get(key, ()):
                closed.append((*key, first, last))
                self.remove(closed[-1])
        return closed

    def last_end(self) -> int | None:
        """Return the greatest end of a session in ms; None if there are none."""
        ends = [last for bounds in self._by_key.values() for _, last in bounds]
        return max(ends, default=None)


class SessionOperator(StageOperator):
    """Aggregates of records with less than a gap between one and the next."""

    def __init__(
        self, node: GroupAggregate, window: SessionWindow, store: Store[Any, Any], late: LateRows
    ) -> None:
        super().__init__()
        self.lag_ms = window.grace_ms
        self._node = node
        self._window = window
        self._late = late
        self._keys = state_keys(node)
        self._state = GroupState(node, self._keys, store)
        self._found: OpenSessions | None = None

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Merge the rows that are not late with the sessions of their keys."""
        late = self._window.late(frame[TIME], frame[WATERMARK].clip(lower_bound=self.watermark))
        if late.any():
            self._late(frame.filter(late))
            frame = frame.filter(~late)
        if not frame.is_empty():
            self._merge(frame)
        return None

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Close the sessions that the watermark has passed; return their results."""
        before, self.watermark = self.watermark, watermark
        closed = self._open.take_closed(watermark - self._window.grace_ms)
        if not closed:
            return None
        sessions = self._frame(closed)
        states = self._with_states(sessions)
        self._state.columns.delete_batch(self._keys.keys(sessions))
        return self._results(states, before)

    def updates(self) -> pl.DataFrame | None:
        """Return the results of the sessions that changed since the last commit and are open."""
        changed = self._state.changed()
        return None if changed.is_empty() else self._results(changed, self.watermark)

    def closed_at(self) -> int | None:
        """Return the watermark at which the last session is closed; None without sessions."""
        last = self._open.last_end()
        return None if last is None else last + self._window.grace_ms

    def forget(self) -> None:
        """Find the open sessions in the store again."""
        self._found = None

    @property
    def _open(self) -> OpenSessions:
        if self._found is None:
            self._found = OpenSessions(key for key, _ in self._state.columns.all())
        return self._found

    def _merge(self, frame: pl.DataFrame) -> None:
        """Merge rows with the sessions of their keys."""
        import polars as pl

        keys = list(self._node.keys)
        self._keys.keys(frame.with_columns(pl.lit(0).alias(FIRST), pl.lit(0).alias(LAST)))
        stored = self._frame(self._open.of(frame.select(keys).unique(maintain_order=True).rows()))
        bounds = stored.rename({FIRST: START, LAST: END})
        merged = merge_sessions(frame, bounds, keys, TIME, self._window.gap_ms)
        fresh = self._node.aggregates.partial(
            frame.with_columns(merged.records.alias(NUMBER)), [NUMBER], TIME
        )
        touched = stored.with_columns(merged.stored.alias(NUMBER)).filter(
            merged.stored.is_not_null()
        )
        states = fresh
        if not touched.is_empty():
            old = self._state.states(touched).with_columns(touched[NUMBER])
            both = pl.concat([old.select(fresh.columns), fresh], how="vertical_relaxed")
            states = self._node.aggregates.combine(both, [NUMBER])
        numbered = merged.sessions.rename({START: FIRST, END: LAST}).with_row_index(NUMBER)
        made = numbered.with_columns(pl.col(NUMBER).cast(pl.Int64)).join(states, on=NUMBER)
        self._store(stored.filter(merged.absorbed), made.drop(NUMBER))

    def _store(self, absorbed: pl.DataFrame, made: pl.DataFrame) -> None:
        if not absorbed.is_empty():
            self._state.columns.delete_batch(self._keys.keys(absorbed))
        self._state.put(made)
        names = list(self._keys.names)
        for session in absorbed.select(names).rows():
            self._open.remove(session)
        for session in made.select(names).rows():
            self._open.add(session)

    def _with_states(self, sessions: pl.DataFrame) -> pl.DataFrame:
        return sessions.hstack(self._state.states(sessions))

    def _results(self, states: pl.DataFrame, watermark: int) -> pl.DataFrame:
        results = self._state.results(states).with_columns(
            *window_columns(self._window, states), (states[LAST] - 1).alias(TIME)
        )
        return as_results(self._node, results, watermark)

    def _frame(self, sessions: list[Key]) -> pl.DataFrame:
        """Return sessions, given as keys of the store, as columns."""
        import polars as pl

        schema = {**self._node.inputs[0].schema, FIRST: pl.Int64(), LAST: pl.Int64()}
        kinds = {name: schema[name] for name in self._keys.names}
        return pl.DataFrame(sessions, schema=kinds, orient="row")
