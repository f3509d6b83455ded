"""Merging of records into sessions, on whole columns.

Records and stored sessions are intervals of time. Those of one key that overlap are one session.
They are found by one sort by key and start, and the greatest end so far: an interval that begins at
or after it begins a new session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.changelog.errors import InvalidRecord
from strandline.statestore.aggregates.batch import milliseconds

if TYPE_CHECKING:
    import polars as pl

START, END = "start", "end"
"""Names of the columns of a session's start and end (exclusive), in ms since the epoch."""


@dataclass(frozen=True)
class MergedSessions:
    """Sessions after the records of a batch, and what becomes of the stored ones."""

    sessions: pl.DataFrame
    """Sessions with a record of the batch: columns of the key, `start` and `end`.

    The number of a session is the number of its row.
    """
    records: pl.Series
    """Number of the session of each record."""
    stored: pl.Series
    """Number of the session that each stored session is part of; null if it is unchanged."""
    absorbed: pl.Series
    """True for each stored session whose start or end has changed, so that it must be deleted."""


def merge_sessions(
    records: pl.DataFrame, stored: pl.DataFrame, by: Sequence[str], time: str, gap_ms: int
) -> MergedSessions:
    """Merge the records of a batch with the stored sessions of their keys.

    Args:
        records: Records that are not late, with the columns of the key and of the time.
        stored: Sessions that are not closed, with the columns of the key, `start` and `end` in ms.
            The sessions of one key do not overlap.
        by: Names of the columns of the key; none for one key of all records.
        time: Name of the column of timestamps.
        gap_ms: Milliseconds without a record after which a session ends.

    Returns:
        The sessions in the order of key and time, where keys are in the order of appearance in
        `records`.

    Raises:
        InvalidRecord: A column of the key of stored sessions has another type than in the records.
    """
    import polars as pl

    keys = [*by]
    _check_types(records, stored, keys)
    starts = milliseconds(records[time])
    bounds = [starts.alias(START), (starts + gap_ms).alias(END)]
    intervals = pl.DataFrame([*records.select(keys), *bounds]).with_columns(
        pl.lit(value=True).alias(_RECORD)
    )
    olds = stored.select(*keys, pl.col(START, END).cast(pl.Int64)).with_columns(
        pl.lit(value=False).alias(_RECORD)
    )
    both = pl.concat([intervals, olds]).with_row_index(_ROW)
    numbered = _numbered(both, keys)
    found = numbered.group_by(_NUMBER, maintain_order=True).agg(
        pl.col(*keys, START).first(), pl.col(END).max(), pl.col(_RECORD).any()
    )
    changed = found.filter(_RECORD).with_row_index(_SESSION).drop(_RECORD)
    placed = numbered.select(_ROW, _NUMBER).join(
        changed.select(_NUMBER, _SESSION, new_start=START, new_end=END), on=_NUMBER, how="left"
    )
    placed = placed.sort(_ROW)
    olds = olds.hstack(placed[len(records) :].select(_SESSION, "new_start", "new_end"))
    is_moved = (pl.col(START) != pl.col("new_start")) | (pl.col(END) != pl.col("new_end"))
    return MergedSessions(
        changed.select(*keys, START, END),
        placed[_SESSION][: len(records)].alias("session"),
        olds[_SESSION].alias("session"),
        olds.select(is_moved.fill_null(value=False).alias("absorbed")).to_series(),
    )


def _numbered(intervals: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return intervals by key and start, with the number of their session."""
    import polars as pl

    first = pl.col(_ROW).first().over(keys) if keys else pl.lit(0, dtype=pl.UInt32)
    ordered = intervals.with_columns(first.alias(_KEY)).sort(_KEY, START, maintain_order=True)
    ends = pl.col(END).cum_max().over(_KEY).shift(1)
    is_new_key = pl.col(_KEY) != pl.col(_KEY).shift(1)
    begins = is_new_key.fill_null(value=True) | (pl.col(START) >= ends)
    return ordered.with_columns((begins.cum_sum() - 1).alias(_NUMBER))


def _check_types(records: pl.DataFrame, stored: pl.DataFrame, keys: Sequence[str]) -> None:
    """Raise InvalidRecord if keys of stored sessions have other types than those of records."""
    for name in keys:
        if records.schema[name] != stored.schema[name]:
            raise InvalidRecord(
                f"the key {name!r} of stored sessions is {stored.schema[name]}, and that of the "
                f"records {records.schema[name]}; cast it to the stored type"
            )


_ROW, _KEY, _RECORD, _NUMBER, _SESSION = "__row", "__key", "__record", "__number", "__session"
"""Names of columns while sessions are merged."""
