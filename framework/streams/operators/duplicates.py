"""The first of equal rows within a time.

The store's keys begin with the time of the kept row in units of `within`, so that what is too old
to matter is deleted as one range. A row equal to one that was kept less than `within` before or
after it is a duplicate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.framework.store import Store, columns_of
from strandline.framework.streams.lateness import on_time
from strandline.framework.streams.operators.group_keys import GroupKeys
from strandline.framework.streams.operators.operator import LateRows, StageOperator
from strandline.framework.streams.schemas import INTERNAL, TIME
from strandline.framework.streams.stateful import DropDuplicates
from strandline.framework.streams.watermark import NO_WATERMARK

if TYPE_CHECKING:
    import polars as pl

UNIT = f"{INTERNAL}unit"
"""Column of the time of a row in units of `within`, rounded down."""


def duplicate_keys(node: DropDuplicates) -> GroupKeys:
    """Return the columns of the keys of kept rows."""
    import polars as pl

    schema = {**node.inputs[0].schema, UNIT: pl.Int64()}
    return GroupKeys([UNIT, *node.on], schema, node.name)


class DuplicatesOperator(StageOperator):
    """Rows of which no equal one was kept within a time."""

    def __init__(self, node: DropDuplicates, store: Store[Any, Any], late: LateRows) -> None:
        super().__init__()
        self._node = node
        self._store = store
        self._late = late
        self._keys = duplicate_keys(node)

    def process(self, frame: pl.DataFrame, /) -> pl.DataFrame | None:
        """Return the rows that are no duplicates; keep their times."""
        import polars as pl

        within = self._node.within_ms
        frame = on_time(self._node, frame, self.watermark, self._late)
        if frame.is_empty():
            return None
        rows = frame.with_columns((pl.col(TIME) // within).alias(UNIT))
        kept = rows.filter(self._is_kept(rows))
        if kept.is_empty():
            return None
        columns_of(self._store).put_batch(self._keys.keys(kept), kept[TIME].to_arrow())
        return kept.drop(UNIT)

    def advance(self, watermark: int) -> pl.DataFrame | None:
        """Forget the rows that are too old to have duplicates that are not late."""
        before, self.watermark = self.watermark, watermark
        within = self._node.within_ms
        # A row that is not late is at watermark - within or later, and looks one unit back.
        upper = (watermark - within) // within - 1
        if watermark > NO_WATERMARK and upper > (before - within) // within - 1:
            columns_of(self._store).delete_range(None, (upper,))
        return None

    def forget(self) -> None:
        """Do nothing: all of it is in the store."""

    def _is_kept(self, rows: pl.DataFrame) -> pl.Series:
        """Return for each row True if no equal row was kept near it, also of this batch."""
        import polars as pl

        near = [self._times(rows.with_columns(pl.col(UNIT) + step)) for step in (-1, 0, 1)]
        on, within = list(self._node.on), self._node.within_ms
        times = rows[TIME]
        stored = [((times - kept).abs() < within).fill_null(value=False) for kept in near]
        is_new = ~(stored[0] | stored[1] | stored[2])
        is_alone = rows.select(on).is_unique() if on else pl.Series([len(rows) == 1] * len(rows))
        if (is_alone | ~is_new).all():
            return is_new
        flags = is_new.to_list()
        times_of: dict[tuple[Any, ...], list[int]] = {}
        unsettled = (is_new & ~is_alone).arg_true()
        # To Python both times of an hour that a clock repeats are equal; their numbers are not.
        keys = rows.select(pl.col(on).to_physical())[unsettled].rows()
        for at, key, time in zip(unsettled, keys, times[unsettled], strict=True):
            kept_before = times_of.setdefault(key, [])
            flags[at] = all(abs(time - other) >= within for other in kept_before)
            if flags[at]:
                kept_before.append(time)
        return pl.Series(flags, dtype=pl.Boolean)

    def _times(self, rows: pl.DataFrame) -> pl.Series:
        """Return the time at which an equal row was kept in the same unit; null if none was."""
        import polars as pl

        found = pl.from_arrow(columns_of(self._store).get_batch(self._keys.keys(rows)))
        assert isinstance(found, pl.Series)
        return found
