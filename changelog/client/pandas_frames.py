"""Data frames of pandas as Arrow tables. pandas itself is not imported.

A column of objects is read like that of rows, so lists keep their NaN, and what does not fit is
refused by the same rules. A cell that is missing for pandas (None, NaN, NaT, NA) is null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.changelog.client.items import UNFIT, column_of, is_of
from strandline.changelog.errors import InvalidRecord, SchemaMismatch


def is_pandas(data: Any) -> bool:
    """Return True for an object of a class of pandas, or of a subclass."""
    return is_of(data, "pandas")


def pandas_table(frame: Any, type_of: Callable[[str], pa.DataType | None], where: str) -> pa.Table:
    """Return the columns of a data frame, without its index.

    Args:
        frame: Data frame of pandas.
        type_of: Returns the type of a column of the topic, None for any other name.
        where: Name of the topic, for errors.

    Raises:
        InvalidRecord: It is no data frame.
        SchemaMismatch: A column cannot be read, or two have the same name.
    """
    if not hasattr(frame, "columns"):
        raise InvalidRecord(
            f"{where}: data to append is a DataFrame, got a {type(frame).__name__}; use to_frame()"
        )
    names = [str(label) for label in frame.columns]
    if len(set(names)) != len(names):
        raise SchemaMismatch(f"{where}: column names must be unique, got {', '.join(names)}")
    is_object = np.array([dtype == np.dtype(object) for dtype in frame.dtypes], bool)
    try:
        # Without this argument, the index becomes a column.
        table = pa.Table.from_pandas(frame.loc[:, ~is_object], preserve_index=False)
    except UNFIT as error:
        reason = "; ".join(map(str, error.args))
        raise SchemaMismatch(
            f"{where}: the data frame cannot be read ({reason}); convert that column first"
        ) from error
    plain = iter(table.columns)
    columns = [
        column_of(cells_of(frame.iloc[:, at]), type_of(name), name, where)
        if is_object[at]
        else next(plain)
        for at, name in enumerate(names)
    ]
    return pa.Table.from_arrays(columns, names=names)


def cells_of(series: Any) -> list[Any]:
    """Return the objects of a Series or an index; None for each that is missing for pandas."""
    cells, missing = series.tolist(), np.asarray(series.isna())
    if not missing.any():
        return list(cells)
    return [None if is_null else cell for cell, is_null in zip(cells, missing, strict=True)]
