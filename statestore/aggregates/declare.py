"""Declarations of aggregates: `count`, `sum`, `mean` and the others, named as in SQL and Polars.

None is no value, as in SQL: all aggregates skip it except `count()`, which counts rows, and
`reducer`. NaN is a value. The results of no values are None, or 0 for counts, or an empty list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.changelog.decoding import json_value
from strandline.changelog.errors import UNREADABLE, InvalidConfig
from strandline.statestore.aggregates.aggregate import Aggregate
from strandline.statestore.aggregates.distinct import DistinctCount
from strandline.statestore.aggregates.numeric import Count, Deviation, Max, Mean, Min, Sum, Variance
from strandline.statestore.aggregates.ordered import (
    AnyValue,
    Collected,
    FirstValue,
    LastValue,
    TopValues,
)
from strandline.statestore.aggregates.reducer import Add, Reducer
from strandline.statestore.aggregates.sketches import (
    DistinctSketch,
    QuantileSketch,
    check_installed,
)


def count(column: str | None = None) -> Aggregate:
    """Declare an aggregate that counts rows, or the values in a column.

    Args:
        column: Name of the column; None, the default, counts rows.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is an int.
    """
    return Count(column)


def sum(column: str) -> Aggregate:  # noqa: A001 - SQL's name, as in polars and pyspark
    """Declare an aggregate that sums the values in a column.

    A sum of integers is exact. It must fit into 64 bits, otherwise the record or batch that makes
    it too large fails with InvalidRecord. A column of decimals has exact sums of at most 37 digits.
    Sums of floats are equal to rounding, because rows that arrive together are summed first.

    Args:
        column: Name of the column, which has numbers, decimals or None. A single record has
            numbers or None.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is a number, or None without
        values.
    """
    return Sum(column)


def min(column: str) -> Aggregate:  # noqa: A001
    """Declare an aggregate that keeps the least value in a column.

    NaN is greater than all other numbers, so the result is NaN only if there are no others.

    Args:
        column: Name of the column, which has numbers or None, or strings or None. In streams it may
            also have times.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is None without values.
    """
    return Min(column)


def max(column: str) -> Aggregate:  # noqa: A001
    """Declare an aggregate that keeps the greatest value in a column.

    NaN is greater than all other numbers, so the result is NaN if there is one.

    Args:
        column: Name of the column, which has numbers or None, or strings or None. In streams it may
            also have times.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is None without values.
    """
    return Max(column)


def mean(column: str) -> Aggregate:
    """Declare an aggregate that keeps the arithmetic mean of the values in a column.

    It keeps a sum and a count. The sum is limited as that of `sum`.

    Args:
        column: Name of the column, which has numbers, decimals or None. A single record has
            numbers or None.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is None without values.
    """
    return Mean(column)


def var(column: str) -> Aggregate:
    """Declare an aggregate that keeps the sample variance of the values in a column.

    The sum of squared differences from the mean is divided by the number of values less one, as
    by SQL's `var_samp`. The result is NaN if a value is infinite or NaN.

    Args:
        column: Name of the column, which has numbers or None.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is a float, or None for
        fewer than two values.
    """
    return Variance(column)


def std(column: str) -> Aggregate:
    """Declare an aggregate that keeps the sample standard deviation of the values in a column.

    It is the square root of the variance by `var`.

    Args:
        column: Name of the column, which has numbers or None.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is a float, or None for
        fewer than two values.
    """
    return Deviation(column)


def first(column: str) -> Aggregate:
    """Declare an aggregate that keeps the value of the earliest record that has one.

    Records are ordered by their timestamps; of equal ones the first to arrive counts.

    Args:
        column: Name of the column, whose values are numbers, text or bools; in streams also
            times.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is None without values.
    """
    return FirstValue(column)


def last(column: str) -> Aggregate:
    """Declare an aggregate that keeps the value of the latest record that has one.

    Records are ordered by their timestamps; of equal ones the last to arrive counts.

    Args:
        column: Name of the column, whose values are numbers, text or bools; in streams also
            times.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is None without values.
    """
    return LastValue(column)


def any(column: str) -> Aggregate:  # noqa: A001
    """Declare an aggregate that keeps some value in a column, for columns that do not vary.

    Args:
        column: Name of the column, whose values are numbers, text or bools; in streams also
            times.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is None without values.
    """
    return AnyValue(column)


def n_unique(column: str, *, approx: bool = False) -> Aggregate:
    """Declare an aggregate that counts the distinct values in a column.

    The exact form keeps all distinct values, at most 100,000 for each key: a record or batch that
    brings more fails with InvalidRecord. The approximate form keeps a HyperLogLog sketch of at most
    4.1 KiB with 4,096 registers. Its estimate has a relative standard error of 1.63 % for any
    number of values, so it is within 3.3 % of the exact number in 95 of 100 cases. Up to a few
    hundred distinct values it is nearly always exact.

    Args:
        column: Name of the column, which has numbers, text or None; approximately also bytes. In
            streams it may also have times.
        approx: True for the approximate form, which needs the package `datasketches`.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is an int.

    Raises:
        MissingDependency: `approx` is True and `datasketches` is not installed.
    """
    if not approx:
        return DistinctCount(column)
    check_installed()
    return DistinctSketch(column)


def quantile(column: str, q: float) -> Aggregate:
    """Declare an aggregate that estimates a quantile of the numbers in a column.

    The result is a value of the column whose rank (the share of values that are not greater) is
    about `q`. It is exact up to 200 values, as by SQL's `percentile_disc`. For more values a KLL
    sketch is kept, of about 5 KiB for a million values, and the rank of the result differs from
    `q` by at most 1.33 % in 99 of 100 cases, for any number of values in any order; the least
    and the greatest value are always exact. The sketch chooses at random which values it keeps, so results of equal values may differ within this
    bound. NaN has no rank, and is skipped.

    Args:
        column: Name of the column, which has numbers or None.
        q: Rank from 0, the least value, to 1, the greatest; 0.5 is the median.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is a float, or None without
        values.

    Raises:
        InvalidConfig: `q` is not between 0 and 1.
        MissingDependency: The package `datasketches` is not installed.
    """
    if type(q) not in (int, float) or not 0 <= q <= 1:
        raise InvalidConfig(
            f"quantile({column!r}, {q!r}): q is a rank from 0 to 1, as 0.95 for the 95th percentile"
        )
    check_installed()
    return QuantileSketch(column, float(q))


def collect(column: str, *, limit: int = 1000) -> Aggregate:
    """Declare an aggregate that keeps a list of values in a column.

    Values are ordered by the timestamps of their records, equal ones by arrival.

    Args:
        column: Name of the column, whose values are numbers, text or bools; in streams also
            times.
        limit: Maximum number of values; later ones are left out. By default 1000, because the list
            is rewritten with each change.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is a list.

    Raises:
        InvalidConfig: `limit` is not a positive int.
    """
    _check_positive("limit", limit)
    return Collected(column, limit)


def top(column: str, n: int, *, by: str | None = None) -> Aggregate:
    """Declare an aggregate that keeps the values of the records that are greatest.

    Of records that are equally great, those that arrived earlier are kept and come first. Records
    without a value in one of the columns are left out. NaN is the greatest number.

    Args:
        column: Name of the column of the values in the result.
        n: Number of records.
        by: Name of the column that orders the records, with numbers or text; by default `column`.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is a list, greatest first.

    Raises:
        InvalidConfig: `n` is not a positive int.
    """
    _check_positive("n", n)
    return TopValues(column, n, by)


def reducer(
    init: Any,
    add: Add,
    merge: Add | None = None,
    *,
    returns: Any = None,
    version: str | None = None,
) -> Aggregate:
    """Declare an aggregate by functions of your own.

    The state is any value of MessagePack: numbers, text, bytes, lists, dicts. The functions may
    change the state that they are given, and must return the new one. They are called once for
    each row, so they are slower than the other aggregates.

    Args:
        init: State before the first row, or a function that returns it.
        add: Function of a state and a row that returns the new state. A row is the mapping or
            object that a handler added, and a dict of the columns in streams.
        merge: Function of two states, the earlier first, that returns the state of the rows of
            both. Hopping and session windows need it.
        returns: Type of the state for streams: int, float, str, bytes, bool or a Polars type. By
            default the type of the state before the first row.
        version: Version of the functions, recorded with the state. Functions cannot be compared, so
            give another version when they are changed such that states made before do not fit:
            such states are then refused. The default records no version.

    Returns:
        The aggregate, to be declared for a store or stream. Its result is the state.

    Raises:
        InvalidConfig: One of the functions cannot be called, or the version is no text.

    >>> words = reducer(list, lambda old, row: [*old, row["word"]], lambda old, new: old + new)
    """
    given: dict[str, Any] = {"add": add, "merge": merge}
    for name, function in given.items():
        if not callable(function) and (function is not None or name == "add"):
            raise InvalidConfig(f"reducer: {name}= is a function, got {function!r}")
    if version is not None and (type(version) is not str or not version):
        raise InvalidConfig(f'reducer: version= is a text, as version="2", got {version!r}')
    return Reducer(None, init, add, merge, returns, version)


def recorded(described: str, column: str | None) -> Aggregate:
    """Return the aggregate of a recorded kind with its settings; see `Aggregate.described`.

    Raises InvalidConfig if there is no such kind.

    >>> recorded('quantile {"q":0.9}', "delay")
    QuantileSketch(column='delay', q=0.9)
    """
    kind, _, settings = described.partition(" ")
    try:
        given = json_value(settings) if settings else {}
        if given.pop("approx", False):
            return DistinctSketch(column)
        return _KINDS[kind](column, **given)
    except (KeyError, TypeError, AttributeError, *UNREADABLE) as error:
        raise InvalidConfig(f"unknown aggregate {described!r:.200}; use a later version") from error


def _check_positive(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise InvalidConfig(f"{name}= is a number of values from 1, got {value!r}")


_KINDS: Mapping[str, type[Aggregate]] = {
    kind.kind: kind
    for kind in (
        *(Count, Sum, Min, Max, Mean, Variance, Deviation),
        *(FirstValue, LastValue, AnyValue, Collected, TopValues),
        *(DistinctCount, QuantileSketch, Reducer),
    )
}
