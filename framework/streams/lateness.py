"""Late rows: those whose windows were closed, or whose duplicates were forgotten, before them.

A row carries the watermark of the partition that it was first read from. So whether it is late is
known wherever it is; the operator that it is for says when its windows are closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strandline.framework.streams.schemas import TIME, WATERMARK
from strandline.framework.streams.stateful import DropDuplicates, GroupAggregate, StatefulNode
from strandline.framework.streams.watermark import NO_WATERMARK
from strandline.framework.streams.windows import TimeWindow

if TYPE_CHECKING:
    import polars as pl


def watermarks_of(rows: pl.DataFrame, reached: int = NO_WATERMARK) -> pl.Series:
    """Return the watermark in ms before each row, or that which its operator has reached."""
    marks = rows[WATERMARK]
    least: Any = marks.min()
    return marks if least is not None and least >= reached else marks.clip(lower_bound=reached)


def late_rows(node: StatefulNode, rows: pl.DataFrame, reached: int = NO_WATERMARK) -> pl.Series:
    """Return which rows are late for an operator.

    Args:
        node: The operator.
        rows: Rows with their time and watermark.
        reached: Watermark in ms that the operator has reached, by which rows are late as well.

    Returns:
        True for each late row.
    """
    import polars as pl

    marks = watermarks_of(rows, reached)
    if isinstance(node, DropDuplicates):
        # The rows kept at the time of a late row may be forgotten, so it may be a duplicate.
        return (rows[TIME] + node.within_ms < marks).alias("late")
    if isinstance(node, GroupAggregate) and isinstance(node.window, TimeWindow):
        return node.window.late(rows[TIME], marks)
    return pl.Series("late", [False], pl.Boolean).new_from_index(0, len(rows))


def on_time(
    node: StatefulNode,
    rows: pl.DataFrame,
    reached: int,
    take_late: Callable[[pl.DataFrame], None],
) -> pl.DataFrame:
    """Return the rows that are not late for an operator, and pass the others to a function.

    Args:
        node: The operator.
        rows: Rows with their time and watermark.
        reached: Watermark in ms that the operator has reached.
        take_late: Function of late rows, called if there are any.
    """
    late = late_rows(node, rows, reached)
    if not late.any():
        return rows
    take_late(rows.filter(late))
    return rows.filter(~late)
