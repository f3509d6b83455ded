"""Tables and columns that users give, of any library, as Arrow data.

Wrappers of narwhals are opened first, so that data of pandas is recognised within them. pandas,
Polars and narwhals are not imported: the modules of an object's classes name its library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.changelog.client.casting import plain
from strandline.changelog.client.items import UNFIT, UNMIXED, inferred, is_of
from strandline.changelog.client.pandas_frames import cells_of, is_pandas, pandas_table
from strandline.changelog.errors import InvalidRecord, SchemaMismatch


def native(data: Any) -> Any:
    """Return the object within a wrapper of narwhals; any other object as it is."""
    return data.to_native() if is_of(data, "narwhals") else data


def is_table(data: Any) -> bool:
    """Return True for a data frame, an Arrow table, or another object with Arrow data.

    >>> is_table(pa.table({"a": [1]})), is_table([1])
    (True, False)
    """
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def given_table(data: Any, type_of: Callable[[str], pa.DataType | None], where: str) -> pa.Table:
    """Return a data frame or other Arrow data as a table, without the index of pandas.

    Args:
        data: An object for which `is_table` is True.
        type_of: Returns the type that a column is to have, None if there is none.
        where: Description of the place, for errors.

    Raises:
        InvalidRecord: It is a single column of pandas.
        SchemaMismatch: A column cannot be read.
    """
    data = native(data)
    if isinstance(data, pa.Table):
        return data
    if is_pandas(data):
        return pandas_table(data, type_of, where)
    if is_of(data, "polars"):
        for name, dtype in zip(data.columns, data.dtypes, strict=True):
            _refuse_polars_objects(dtype, f"{where}: column {name!r}")
    try:
        return pa.table(data)
    except UNFIT as error:
        raise SchemaMismatch(
            f"{where}: the {type(data).__name__} cannot be read ({error}); convert that column first"
        ) from error


def given_array(data: Any, where: str) -> pa.Array:
    """Return a column that users give as one Arrow array, without dictionaries and views.

    Args:
        data: Arrow array, Polars or pandas Series, NumPy array, or a sequence of Python values. A
            DataFrame, an Arrow table or a record batch is a column of structs.
        where: Description of the column, for errors.

    Raises:
        InvalidRecord: It is no column, its values have no common type, or it contradicts its type.

    >>> given_array(pa.array(["a", None]).dictionary_encode(), "the keys").to_pylist()
    ['a', None]
    """
    try:
        column = _column(native(data), where)
        if not pa.types.is_primitive(column.type):
            column.validate(full=True)
        return _whole(column)
    except InvalidRecord:
        raise
    except UNFIT as error:
        raise InvalidRecord(
            f"{where} must be one column of values of one type, got {type(data).__name__}: {error}"
        ) from error


def objects_of(data: Any) -> list[Any] | None:
    """Return the Python objects of a list, or of a column that holds objects; else None.

    >>> objects_of([1, "a"]), objects_of(pa.array([1]))
    ([1, 'a'], None)
    """
    data = native(data)
    if isinstance(data, list):
        return data
    dtype = getattr(data, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind != "O" or getattr(data, "ndim", 1) != 1:
        return None
    return cells_of(data) if is_pandas(data) else data.tolist()


def _column(data: Any, where: str) -> pa.Array | pa.ChunkedArray:
    """Return native data as an Arrow column. Raises one of UNFIT."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return data
    if isinstance(data, pa.RecordBatch | pa.Table) or hasattr(data, "columns"):
        return given_table(data, lambda _: None, where).to_struct_array()
    if isinstance(data, str | bytes | bytearray):
        raise TypeError("one value is no column; put it into a list")
    if is_of(data, "polars"):
        _refuse_polars_objects(data.dtype, where)
        return pa.chunked_array(data)
    if isinstance(data, np.ndarray) or is_pandas(data):
        return _of_array(data)
    if is_table(data):
        return pa.chunked_array(data) if hasattr(data, "__arrow_c_stream__") else pa.array(data)
    return inferred(list(data))


def _of_array(data: Any) -> pa.Array | pa.ChunkedArray:
    """Return an array of NumPy, or a Series or an index of pandas, as a column."""
    column = pa.array(data)
    if column.type in UNMIXED:
        return column
    objects = objects_of(data)
    return column if objects is None else inferred(objects)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without dictionaries and views."""
    if isinstance(column, pa.Array):
        return plain(column)
    if not column.num_chunks:
        return plain(pa.array([], column.type))
    return pa.chunked_array(map(plain, column.chunks)).combine_chunks()


def _refuse_polars_objects(dtype: Any, where: str) -> None:
    """Raise SchemaMismatch for the type Object of Polars, whose Arrow data are addresses."""
    if type(dtype).__name__ == "Object":
        raise SchemaMismatch(
            f"{where}: the type Object of Polars has Python objects, whose types are not known; "
            "cast it, or give the values as a list"
        )
