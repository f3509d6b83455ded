"""Columns that users give to handles, as Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_origin

import pyarrow as pa

from strandline.changelog.client.given import given_array, given_table, is_table, native
from strandline.changelog.client.tables import for_polars
from strandline.changelog.errors import InvalidRecord

if TYPE_CHECKING:
    import polars as pl


def as_frame(data: Any, where: str) -> pl.DataFrame:
    """Return a DataFrame or an Arrow table as a Polars DataFrame. Raises InvalidRecord."""
    import polars as pl

    data = native(data)
    try:
        if not is_table(data):
            return pl.DataFrame(data)
        frame = pl.from_arrow(for_polars(given_table(data, lambda _: None, where)))
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InvalidRecord(
            f"{where} are a DataFrame or an Arrow table, got {type(data).__name__}: {error}"
        ) from error
    assert isinstance(frame, pl.DataFrame)
    return frame


def key_column(declared: Any, keys: Any, what: str) -> pa.Array:
    """Return a column of keys; of tuple keys a struct with their elements in order.

    Args:
        declared: Declared type of the keys.
        keys: A column as for `given_array`. Tuple keys are also a sequence of tuples.
        what: Description of the column, for errors.

    Raises:
        InvalidRecord: It is no column of keys.

    >>> key_column(tuple[str, int], [("a", 1), ("b", 2)], "the keys").field(1).to_pylist()
    [1, 2]
    """
    if get_origin(declared) is tuple and isinstance(keys, list):
        if not keys:
            return pa.array([], pa.struct([]))
        _check_lengths(keys, what)
        columns = [given_array(list(column), what) for column in zip(*keys, strict=True)]
        names = [str(number) for number in range(len(columns))]
        return pa.StructArray.from_arrays(columns, names=names)
    return given_array(keys, what)


def _check_lengths(keys: Sequence[Any], what: str) -> None:
    """Raise InvalidRecord unless the keys are tuples of one length, which is not 0."""
    other = next((key for key in keys if not isinstance(key, tuple)), None)
    if other is not None:
        raise InvalidRecord(f"{what} must be tuples, got {other!r:.100}")
    lengths = sorted(set(map(len, keys)))
    if lengths != [lengths[-1]] or not lengths[-1]:
        raise InvalidRecord(
            f"{what} in a column must be tuples of one length, which is not 0; got lengths "
            f"{', '.join(map(str, lengths))}. Call the store once for each length; for an empty tuple "
            "use the methods for single keys"
        )
