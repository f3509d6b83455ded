"""States of aggregates as the values of a store, and back.

    state column                          value in the store
    numbers, text, bools, bytes           the same
    times                                 number of their unit since the epoch or midnight
    decimals, categories                  text
    lists                                 a tuple; the states are then objects and not a column

The types of the rows decide which column a value is read back as.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, get_origin

import numpy as np
import pyarrow as pa

from strandline.changelog.arrays import of_numbers
from strandline.changelog.errors import InvalidRecord
from strandline.statestore.aggregates.aggregate import StoredField
from strandline.statestore.frames import cast_to

if TYPE_CHECKING:
    import polars as pl


def stored_type(dtype: pl.DataType) -> pl.DataType:
    """Return the type as which a store keeps the values of a column.

    >>> import polars as pl
    >>> stored_type(pl.List(pl.Date())), stored_type(pl.Float64())
    (List(Int64), Float64)
    """
    import polars as pl

    if isinstance(dtype, pl.List):
        return pl.List(stored_type(_instance(dtype.inner)))
    if isinstance(dtype, pl.Struct):
        return pl.Struct({f.name: stored_type(_instance(f.dtype)) for f in dtype.fields})
    if dtype.is_temporal():
        return pl.Int64()
    is_text = dtype.is_decimal() or isinstance(dtype, pl.Categorical | pl.Enum)
    return pl.String() if is_text else dtype


def figure_of_type(figure: Any, dtype: pl.DataType) -> Any:
    """Return a figure of a stored state as a value of the type of its column.

    >>> import polars as pl
    >>> figure_of_type(20_090, pl.Date()), figure_of_type("1.50", pl.Decimal(9, 2))
    (datetime.date(2025, 1, 2), Decimal('1.50'))
    """
    stored = stored_type(dtype)
    if figure is None or stored == dtype:
        return figure
    return _column([figure], stored).cast(dtype).to_list()[0]


def can_store(field: StoredField, dtype: pl.DataType) -> bool:
    """Return True if a store can keep a state column of a type in a field.

    >>> import polars as pl
    >>> text = StoredField("", str | None)
    >>> can_store(text, pl.String()), can_store(text, pl.List(pl.String()))
    (True, False)
    """
    import polars as pl

    if get_origin(field.type) is tuple:
        inner = _instance(dtype.inner) if isinstance(dtype, pl.List) else dtype
        items = [f.dtype for f in inner.fields] if isinstance(inner, pl.Struct) else [inner]
        return all(_is_scalar(_instance(item)) for item in items)
    if dtype == pl.Binary:
        return bool(field.type == (bytes | None))
    return _is_scalar(dtype)


def has_lists(types: Iterable[pl.DataType]) -> bool:
    """Return True if one of the types of state columns is a list."""
    import polars as pl

    return any(isinstance(dtype, pl.List) for dtype in types)


def as_stored(states: pl.DataFrame) -> pl.DataFrame:
    """Return state columns in the types in which a store keeps them."""
    return cast_to(states, {name: stored_type(dtype) for name, dtype in states.schema.items()})


def objects(kind: type[Any], states: pl.DataFrame) -> list[Any]:
    """Return the states of a frame, which `as_stored` has returned, as objects of a class."""
    columns = [_items(column) for column in states.get_columns()]
    return [kind(*row) for row in zip(*columns, strict=True)]


def frame_of_objects(values: Sequence[Any], types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the states of objects as a frame; a row of nulls and empty lists for each None.

    Args:
        values: Objects whose attributes are called as the columns.
        types: Types of the state columns, by name.

    Raises:
        InvalidRecord: An object has a value of another type.
    """
    import polars as pl

    columns: list[pl.Series] = []
    for name, dtype in types.items():
        given = [None if value is None else getattr(value, name) for value in values]
        try:
            columns.append(_column(given, stored_type(dtype)).cast(dtype).alias(name))
        except (TypeError, pl.exceptions.PolarsError) as error:
            raise InvalidRecord(
                f"the stored figures of {name!r} are not {dtype}, the type of the column now:"
                f" {error}; cast the column, or give the aggregate another name"
            ) from error
    return pl.DataFrame(columns)


def _is_scalar(dtype: pl.DataType) -> bool:
    import polars as pl

    stored = stored_type(dtype)
    return (stored.is_numeric() and stored != pl.Int128) or stored in (
        pl.String,
        pl.Boolean,
        pl.Null,
    )


def _items(column: pl.Series) -> list[Any]:
    """Return the values of a column; lists as tuples, and structs in them as tuples as well."""
    import polars as pl

    dtype, found = column.dtype, column.to_list()
    if not isinstance(dtype, pl.List):
        return found
    if not isinstance(dtype.inner, pl.Struct):
        return [tuple(items or ()) for items in found]
    return [tuple(tuple(item.values()) for item in items or ()) for items in found]


def _column(given: list[Any], dtype: pl.DataType) -> pl.Series:
    """Return values of objects as a column. Lists are laid out as one column of their items."""
    import polars as pl

    if not isinstance(dtype, pl.List):
        return pl.Series(given, dtype=dtype)
    inner, lists = _instance(dtype.inner), [each or () for each in given]
    items = list(chain.from_iterable(lists))
    if isinstance(inner, pl.Struct):
        fields = list(zip(*items, strict=True)) if items else [()] * len(inner.fields)
        pairs = zip(inner.fields, fields, strict=True)
        flat = pl.DataFrame(
            [_column(list(of), _instance(f.dtype)).alias(f.name) for f, of in pairs]
        )
        values = flat.to_struct().to_arrow()
    else:
        values = _column(items, inner).to_arrow()
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    found = pl.from_arrow(pa.LargeListArray.from_arrays(of_numbers(ends), values))
    assert isinstance(found, pl.Series)
    return found


def _instance(dtype: Any) -> pl.DataType:
    """Return a type as an object; Polars also takes its class."""
    found: pl.DataType = dtype() if isinstance(dtype, type) else dtype
    return found
