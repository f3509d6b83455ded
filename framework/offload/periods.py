"""Days and hours (UTC) of records, by which the files of a target can be divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from strandline.framework.offload.target import PartitionBy

HOUR_MS = 3_600_000
HOURS = {"day": 24, "hour": 1}

PERIOD_COLUMNS: dict[PartitionBy, dict[str, pa.DataType]] = {
    "none": {},
    "day": {"_day": pa.date32()},
    "hour": {"_day": pa.date32(), "_hour": pa.int32()},
}
"""Columns in the names of folders, and their types, of tables and of earlier Parquet targets."""
VISIBLE = "utc_"
"""Prefix of these columns in Parquet targets: PyArrow and pandas skip folders that begin with `_`."""


class Run(NamedTuple):
    """Rows of one period, as indices into a table."""

    period: int
    """Number of days or hours since the epoch; 0 for all rows of an undivided target."""
    rows: pa.Array | None
    """Indices of the rows, ascending; None for all rows."""


def runs(timestamps: np.ndarray, by: PartitionBy) -> Iterator[Run]:
    """Yield the rows of each period.

    Args:
        timestamps: Times of the rows, in milliseconds since the epoch.
        by: Length of a period.

    >>> [(r.period, r.rows.to_pylist()) for r in runs(np.array([0, 86_400_000, 5]), "day")]
    [(0, [0, 2]), (1, [1])]
    """
    if by == "none":
        yield Run(0, None)
        return
    periods = timestamps // (HOURS[by] * HOUR_MS)
    if len(periods) and periods.min() == periods.max():
        yield Run(int(periods[0]), None)
        return
    order = np.argsort(periods, kind="stable")
    starts = np.flatnonzero(np.diff(periods[order], prepend=periods[order[0]] - 1))
    for rows in np.split(order, starts[1:]):
        yield Run(int(periods[rows[0]]), pa.array(rows))


def values(period: int, by: PartitionBy, prefix: str = "_") -> dict[str, str]:
    """Return the values of the period columns, whose names begin with `prefix`, as text.

    >>> values(20_000 * 24 + 7, "hour"), values(20_000, "day"), values(0, "none")
    ({'_day': '2024-10-04', '_hour': '7'}, {'_day': '2024-10-04'}, {})
    >>> values(20_000 * 24 + 7, "hour", VISIBLE)
    {'utc_day': '2024-10-04', 'utc_hour': '7'}
    """
    if by == "none":
        return {}
    day, hour = divmod(period * HOURS[by], 24)
    found = {f"{prefix}day": str(np.datetime64(day, "D"))}
    return found | {f"{prefix}hour": str(hour)} if by == "hour" else found


def folder(period: dict[str, str]) -> str:
    """Return the folder of a period's files, with a slash at its end; empty if not divided.

    >>> folder({"_day": "2024-10-04", "_hour": "7"})
    '_day=2024-10-04/_hour=7/'
    """
    return "".join(f"{name}={value}/" for name, value in period.items())
