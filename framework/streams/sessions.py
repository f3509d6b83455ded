"""Merging of records into sessions, on whole columns.

Records and stored sessions are intervals of time. Those of one key that overlap are one session.
They are found by one sort by key and start, and the greatest end so far: an interval that begins at
or after it begins a new session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strandline.changelog.errors import InvalidRecord
from strandline.statestore.aggregates.batch import milliseconds
from strandline.statestore.exact_sums import INT64_MAX

if TYPE_CHECKING:
    import polars as pl

Numbers = np.ndarray[Any, np.dtype[np.int64]]

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

    _check_types(records, stored, by)
    times = milliseconds(records[time]).to_numpy()
    starts = np.concatenate([times, stored[START].cast(pl.Int64).to_numpy()])
    ends = np.concatenate([times + gap_ms, stored[END].cast(pl.Int64).to_numpy()])
    keys = pl.concat([records.select(by), stored.select(by)])
    found = _sessions(_key_numbers(keys, len(starts)), starts, ends, len(records))
    number = pl.Series("session", found.number, dtype=pl.Int64)
    number = number.set(pl.Series(found.number < 0), None)
    bounds = [pl.Series(START, found.starts), pl.Series(END, found.ends)]
    old = slice(len(records), None)
    own = np.maximum(found.number[old], 0)
    absorbed = np.zeros(len(stored), dtype=bool)
    if len(records):
        is_moved = (found.starts[own] != starts[old]) | (found.ends[own] != ends[old])
        absorbed = is_moved & (found.number[old] >= 0)
    of_keys: Iterable[pl.Series] = keys[found.first] if keys.width else []
    return MergedSessions(
        pl.DataFrame([*of_keys, *bounds]),
        number[: len(records)],
        number[len(records) :],
        pl.Series("absorbed", absorbed),
    )


@dataclass(frozen=True)
class _SessionBounds:
    """Sessions with a record: one entry each, and the number of the session of each interval."""

    first: Numbers
    """Number of the interval with which the session begins."""
    starts: Numbers
    ends: Numbers
    number: Numbers
    """Number of the session of each interval; -1 for those without a record."""


def _sessions(key: Numbers, starts: Numbers, ends: Numbers, records: int) -> _SessionBounds:
    """Return the sessions of intervals, of which the first `records` are records."""
    if not records:
        none = np.zeros(0, dtype=np.int64)
        return _SessionBounds(none, none, none, np.full(len(starts), -1))
    order = _order(key, starts)
    key, sorted_ends = key[order], ends[order]
    is_new_key = np.concatenate([[True], key[1:] != key[:-1]])
    greatest = _greatest_so_far(sorted_ends, np.cumsum(is_new_key))
    begins = is_new_key
    begins[1:] |= starts[order[1:]] >= greatest[:-1]
    first = np.flatnonzero(begins)
    has_record = np.logical_or.reduceat(order < records, first)
    number = np.where(has_record, np.cumsum(has_record) - 1, -1)
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.repeat(number, np.diff(first, append=len(order)))
    latest = np.maximum.reduceat(sorted_ends, first)
    first = order[first[has_record]]
    return _SessionBounds(first, starts[first], latest[has_record], numbers)


def _key_numbers(keys: pl.DataFrame, rows: int) -> Numbers:
    """Return a number for each row, equal for equal keys, in the order of first appearance."""
    import polars as pl

    if not keys.width:
        return np.zeros(rows, dtype=np.int64)
    first = pl.col(_ROW).first().over(keys.columns)
    return keys.with_row_index(_ROW).select(first.cast(pl.Int64)).to_series().to_numpy()


def _order(key: Numbers, starts: Numbers) -> Numbers:
    """Return the order of intervals by key and start."""
    import polars as pl

    frame = pl.DataFrame({"key": key, "start": starts})
    return frame.select(pl.arg_sort_by("key", "start").cast(pl.Int64)).to_series().to_numpy()


def _greatest_so_far(ends: Numbers, key: Numbers) -> Numbers:
    """Return the greatest end so far of each key; keys are numbered in the order of the rows."""
    least = int(ends.min())
    width = int(ends.max()) - least + 1
    values = None
    if width * (int(key[-1]) + 1) > INT64_MAX:
        values, ranks = np.unique(ends, return_inverse=True)
        ends, least, width = ranks, 0, len(values)
    # A later key has greater numbers than all earlier ones, so one pass is enough for all keys.
    base = key * width - least
    found: Numbers = np.maximum.accumulate(ends + base) - base
    return found if values is None else values[found]


def _check_types(records: pl.DataFrame, stored: pl.DataFrame, keys: Sequence[str]) -> None:
    """Raise InvalidRecord if keys of stored sessions have other types than those of records."""
    for name in keys:
        if records.schema[name] != stored.schema[name]:
            raise InvalidRecord(
                f"the key {name!r} of stored sessions is {stored.schema[name]}, and that of the "
                f"records {records.schema[name]}; cast it to the stored type"
            )


_ROW = "__row"
"""Name of the column of row numbers."""
