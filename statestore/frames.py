"""Data frames of Polars made column by column, without a query.

Each query of Polars (`select`, `cast` and `rename` of a frame, `from_arrow` of a table) takes some
ten microseconds however few rows there are, and hands its work to other threads. A batch passes
through dozens of such steps, so what only arranges, casts or converts columns is done here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.changelog.arrays import unsliced

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

FEW_ROWS = 1_000
"""Number of rows up to which one thread is faster than several."""


def frame_of(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pl.DataFrame:
    """Return Arrow columns of equal lengths as a frame.

    >>> import pyarrow as pa
    >>> frame_of({"n": pa.array([1, 2]), "text": pa.array(["a", None])}).rows()
    [(1, 'a'), (2, None)]
    """
    import polars as pl

    return pl.DataFrame([pl.Series(name, unsliced(one)) for name, one in columns.items()])


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted.

    >>> repeated(["b", "a", "b", "c", "a"])
    ['a', 'b']
    """
    return sorted(name for name, number in Counter(names).items() if number > 1)


def cast_to(frame: pl.DataFrame, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return a frame with columns of these types, by name; other columns stay as they are.

    A value that its type cannot hold raises the error of `polars.Series.cast`.

    >>> import polars as pl
    >>> frame = pl.DataFrame({"n": [1], "text": ["a"]})
    >>> cast_to(frame, {"n": pl.Float64()}).schema["n"], cast_to(frame, frame.schema) is frame
    (Float64, True)
    """
    import polars as pl

    schema = frame.schema
    if all(schema[name] == dtype for name, dtype in types.items()):
        return frame
    return pl.DataFrame(
        [each.cast(types[each.name]) if each.name in types else each for each in frame]
    )


def arranged(frame: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """Return some columns of a frame, in this order.

    >>> import polars as pl
    >>> frame = pl.DataFrame({"a": [1], "b": [2]})
    >>> arranged(frame, ["b"]).rows(), arranged(frame, ["a", "b"]) is frame
    ([(2,)], True)
    """
    wanted = list(names)
    return frame if wanted == frame.columns else frame[wanted]


def selected(frame: pl.DataFrame, expressions: Iterable[pl.Expr]) -> pl.DataFrame:
    """Return the columns that expressions make of a frame; of few rows without other threads.

    >>> import polars as pl
    >>> selected(pl.DataFrame({"a": [1, 2]}), [pl.col("a") * 2]).rows()
    [(2,), (4,)]
    """
    exprs = list(expressions)
    return frame.select_seq(exprs) if len(frame) <= FEW_ROWS else frame.select(exprs)


def with_series(frame: pl.DataFrame, *columns: pl.Series) -> pl.DataFrame:
    """Return a frame with columns added, or in the place of those with their names.

    >>> import polars as pl
    >>> frame = pl.DataFrame({"a": [1], "b": [2]})
    >>> with_series(frame, pl.Series("a", [3]), pl.Series("c", [4])).rows(named=True)
    [{'a': 3, 'b': 2, 'c': 4}]
    """
    found = {each.name: each for each in (*frame.get_columns(), *columns)}
    return type(frame)(list(found.values()))


def nulls(name: str, dtype: pl.DataType, count: int) -> pl.Series:
    """Return a column of nulls.

    >>> import polars as pl
    >>> nulls("n", pl.Int64(), 2).to_list()
    [None, None]
    """
    import polars as pl

    return pl.Series(name, [None], dtype).new_from_index(0, count)


def arrow_columns(frame: pl.DataFrame, names: Sequence[str]) -> list[pa.Array]:
    """Return columns of a frame as Arrow arrays of one chunk each."""
    return [frame.get_column(name).to_arrow() for name in names]
