"""State of open sessions: two stores, of which a batch or a closing reads what it concerns.

    <name>             key: columns of the group, and the number of the session among those of the
                       group, from 0 in the order of their starts
                       value: aggregates, start and end of the session, and in the one with number
                       0 the number of sessions of the group
    <name>-deadlines   key: a time, and the columns of the group; value: 0

So the sessions of the groups of a batch are found by looking up their number 0, and then the few
groups that have more. Nothing about them is kept in memory besides the caches of the stores.

A deadline is a time at which a group is to be looked at. Each group with sessions has one at or
before the end of the session that ends first. A session that is extended keeps its deadline, and is
given another one when that has passed; so records change one key of one store, and closing sessions
is a scan of one range. A session that is put before all others gets an additional deadline. Times
of deadlines have been ends of sessions of the group, and sessions only ever grow, so there is no
deadline without a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from strandline.changelog.arrays import of_numbers
from strandline.framework.store import Store, columns_of
from strandline.framework.streams.operators.first_time import FirstTime
from strandline.framework.streams.operators.group_keys import PLACE, GroupKeys, state_keys
from strandline.framework.streams.operators.groups import GroupState
from strandline.framework.streams.schemas import INTERNAL
from strandline.framework.streams.stateful import (
    WINDOW_COUNT,
    WINDOW_END,
    GroupAggregate,
)

if TYPE_CHECKING:
    import polars as pl

DEADLINE = f"{INTERNAL}deadline"
"""Column of deadlines in ms since the epoch."""
GROUP = f"{INTERNAL}group"
"""Column of the number of a session's group: its row in the frame of groups."""
LATEST = int(np.iinfo(np.int64).max)
"""Time in ms after that of all sessions."""

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def deadline_keys(node: GroupAggregate) -> GroupKeys:
    """Return the columns of the keys of the deadlines of an aggregation's groups."""
    import polars as pl

    schema = {**node.inputs[0].schema, DEADLINE: pl.Int64()}
    return GroupKeys([DEADLINE, *node.keys], schema, node.name)


class OpenSessions:
    """The open sessions of one partition.

    Frames of groups have the columns of the key. Frames of sessions have these, GROUP, PLACE, and
    the stored fields, in the order of group and start.
    """

    def __init__(
        self, node: GroupAggregate, store: Store[Any, Any], deadlines: Store[Any, Any]
    ) -> None:
        self._state = GroupState(node, state_keys(node), store)
        self._deadlines = deadlines
        self._deadline_keys = deadline_keys(node)
        self._first = FirstTime(deadlines)

    def of(self, groups: pl.DataFrame) -> pl.DataFrame:
        """Return the sessions of distinct groups. Raises InvalidRecord for a null in a key."""
        import polars as pl

        numbered = groups.with_row_index(GROUP).cast({GROUP: pl.Int64()})
        first = self._stored(numbered.with_columns(pl.lit(0, pl.Int64).alias(PLACE)))
        first = first.filter(pl.col(WINDOW_END).is_not_null())
        others = first[WINDOW_COUNT].to_numpy() - 1
        if not others.any():
            return first
        rows = np.repeat(np.arange(len(first)), others)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(others) - others, others) + 1
        more = first[rows].select(numbered.columns).with_columns(pl.Series(PLACE, places))
        return pl.concat([first, self._stored(more)]).sort(GROUP, PLACE)

    def replace(
        self,
        before: pl.DataFrame,
        after: pl.DataFrame,
        groups: pl.DataFrame,
        *,
        are_due: bool = False,
    ) -> None:
        """Replace the sessions of groups, and add the deadlines that the groups need.

        Args:
            before: All sessions of the groups so far, as `of` returns them.
            after: All sessions from now on. PLACE is null for those that are new or changed.
            groups: The groups, by number.
            are_due: True if the deadlines of the groups were removed by `take_due`.
        """
        counts = np.bincount(after[GROUP].to_numpy(), minlength=len(groups))
        gone = before.filter(before[PLACE].to_numpy() >= counts[before[GROUP].to_numpy()])
        if not gone.is_empty():
            self._state.delete(gone)
        changed = _changed(after)
        if not changed.is_empty():
            self._state.put(changed)
        ends = _least_ends(after, len(groups))
        covered = LATEST if are_due else _least_ends(before, len(groups))
        self._add_deadlines(ends, ends < covered, groups)

    def take_due(self, time: int) -> pl.DataFrame | None:
        """Remove the deadlines up to a time (ms); return their groups, or None if there are none.

        Those that keep sessions need new deadlines: see `replace`.
        """
        first = self._first.get()
        if first is None or first > time:
            return None
        keys, _ = columns_of(self._deadlines).take_batch(None, (time + 1,))
        self._first.removed_before(time + 1)
        groups = self._deadline_keys.frame(keys).drop(DEADLINE)
        return None if groups.is_empty() else groups.unique(maintain_order=True)

    def __bool__(self) -> bool:
        return next(iter(columns_of(self._deadlines).all()), None) is not None

    def count(self) -> int:
        """Return the number of sessions. It reads all."""
        return self._state.count()

    def last_end(self) -> int | None:
        """Return the greatest end of a session in ms; None if there are none. It reads all."""
        batches = self._state.columns.scan_batches()
        ends = [self._state.framed(*batch)[WINDOW_END].to_numpy().max() for batch in batches]
        return int(max(ends)) if ends else None

    def forget(self) -> None:
        """Look the first deadline up again."""
        self._first.forget()

    def _stored(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Return sessions with their stored fields, which are null if there is no session."""
        return keys.hstack(self._state.states(keys))

    def _add_deadlines(self, ends: Numbers, needed: Mask, groups: pl.DataFrame) -> None:
        """Add deadlines, in ms by group, for the groups that need one."""
        import polars as pl

        if needed.any():
            times = pl.Series(DEADLINE, ends[needed])
            keys = self._deadline_keys.keys(groups.filter(needed).with_columns(times))
            columns_of(self._deadlines).put_batch(keys, of_numbers(np.zeros(len(times), np.int64)))
            self._first.added(times.min())


def _changed(after: pl.DataFrame) -> pl.DataFrame:
    """Return the sessions that must be written, with their places and counts."""
    import polars as pl

    place = pl.int_range(pl.len()).over(GROUP)
    count = pl.when(place == 0).then(pl.len().over(GROUP)).cast(pl.Int64)
    is_same = pl.col(PLACE).eq_missing(place) & pl.col(WINDOW_COUNT).eq_missing(count)
    placed = after.with_columns(
        place.alias(PLACE), count.alias(WINDOW_COUNT), is_same.alias(_IS_SAME)
    )
    return placed.filter(~pl.col(_IS_SAME))


def _least_ends(sessions: pl.DataFrame, groups: int) -> Numbers:
    """Return the least end in ms of the sessions of each group; LATEST for one without any."""
    found: Numbers = np.full(groups, LATEST, np.int64)
    np.minimum.at(found, sessions[GROUP].to_numpy(), sessions[WINDOW_END].to_numpy())
    return found


_IS_SAME = f"{INTERNAL}is_same"
