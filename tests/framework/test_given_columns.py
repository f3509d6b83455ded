"""Columns and tables that users give, of any library: kept whole or refused, in topics and stores."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strandline as sl
from strandline.changelog.client.columns import to_batches
from strandline.changelog.client.items import column_of
from strandline.changelog.errors import InvalidRecord
from strandline.changelog.records import TopicInfo
from strandline.framework.testing import TestDriver as Driver
from strandline.statestore.column_store import open_column_store
from strandline.statestore.spec import StoreSpec

DAY, NOON = dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 12)
ZONED = NOON.replace(tzinfo=dt.UTC)
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
)
WITH_NULL = pc.dictionary_encode(pa.array(["x", None]), null_encoding="encode")


def handled(store: Callable[[sl.App], Any], call: Callable[[Any], None]) -> Any:
    """Return what a store has after a handler of a batch has used it."""
    app = sl.App("given")
    made, topic = store(app), app.topic("input", key=str, value=int)

    @app.task(topic, stores=[made], batch=True)
    def handle(batch: sl.Batch) -> None:
        call(made)

    with Driver(app) as driver:
        driver.run([("a", 1)])
        return driver.store(made)


def put(keys: Any, values: Any, key: Any = str, value: Any = int) -> Any:
    """Return what a store has after `put_batch`."""
    return handled(
        lambda app: app.store("s", key=key, value=value),
        lambda store: store.put_batch(keys, values),
    )


def refused(call: Callable[[Any], None], store: Callable[[sl.App], Any]) -> None:
    """Check that a call raises InvalidRecord and changes nothing."""

    def attempt(made: Any) -> None:
        with pytest.raises(InvalidRecord, match=r"store 's'"):
            call(made)

    assert handled(store, attempt) == {}


def appended(kind: pa.DataType, data: Any) -> list[Any]:
    """Return the values that a log stores for the column `x` of a table."""
    topic = TopicInfo("t", "", 1, {}, pa.schema([("x", kind)]), 1)
    return [
        row["value"]["x"]
        for batch in to_batches(data, topic, now_ms=1)
        for row in batch.to_pylist()
    ]


# Values that could not be read again --------------------------------------------------


@pytest.mark.parametrize("column", [NOT_UTF8, WITH_NULL, pl.Series(["a"], dtype=pl.Object)])
@pytest.mark.parametrize("value", [str, bytes, dict, int])
def test_a_store_takes_no_values_that_it_could_not_read_again(column: Any, value: Any) -> None:
    keys = ["a", "b"][: len(column)]
    store = lambda app: app.store("s", key=str, value=value)  # noqa: E731
    refused(lambda made: made.put_batch(keys, column), store)


@pytest.mark.parametrize("column", [NOT_UTF8, WITH_NULL, pl.Series(["a"], dtype=pl.Object)])
@pytest.mark.parametrize("key", [str, bytes, tuple[str, ...]])
def test_a_store_takes_no_keys_that_it_could_not_read_again(column: Any, key: Any) -> None:
    store = lambda app: app.store("s", key=key, value=int)  # noqa: E731
    numbers = list(range(len(column)))
    refused(lambda made: made.put_batch(column, numbers), store)
    refused(lambda made: made.delete_batch(column), store)
    refused(lambda made: made.get_batch(column), store)


@pytest.mark.parametrize("column", [NOT_UTF8, WITH_NULL])
def test_the_store_itself_checks_columns(column: pa.Array) -> None:
    store = open_column_store(StoreSpec("s", key=str, value=str, engine="memory"))
    pairs = open_column_store(StoreSpec("p", key=tuple[str, str], value=str, engine="memory"))
    good = pa.array(["a", "b"][: len(column)])
    for keys, values in ((column, good), (good, column)):
        with pytest.raises(InvalidRecord, match="store 's'"):
            store.put_batch(keys, values)
    with pytest.raises(InvalidRecord, match="store 'p'"):
        pairs.put_batch(pa.StructArray.from_arrays([good, column], ["0", "1"]), good)


@pytest.mark.parametrize(
    "wrap", [pl.Series, lambda items, dtype: pd.Series(items, dtype="category")]
)
def test_categories_are_their_texts(wrap: Any) -> None:
    column = wrap(["x", "y"], dtype=pl.Categorical)
    assert put(column, column, value=str) == {"x": "x", "y": "y"}


# Objects of Polars, frames of pandas --------------------------------------------------


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(8)])
@pytest.mark.parametrize("wrap", [lambda frame: frame, nw.from_native])
def test_objects_of_polars_are_refused_in_tables(kind: pa.DataType, wrap: Any) -> None:
    frame = pl.DataFrame([pl.Series("x", [object()], dtype=pl.Object)])
    with pytest.raises(InvalidRecord, match="column 'x': the type Object of Polars"):
        appended(kind, wrap(frame))


def test_a_type_that_arrow_does_not_have_is_refused_by_its_table() -> None:
    with pytest.raises(InvalidRecord, match="topic 't': the DataFrame cannot be read"):
        appended(pa.int64(), pl.DataFrame([pl.Series("x", [1], dtype=pl.Int128)]))


class Subclass(pd.DataFrame):
    """Data frame as libraries derive it from that of pandas."""


@pytest.mark.parametrize("wrap", [nw.from_native, Subclass])
@pytest.mark.parametrize(
    ("kind", "items"),
    [
        (pa.date32(), [DAY, NOON]),
        (pa.timestamp("us"), [NOON, ZONED]),
        (pa.int64(), [1, True]),
        (pa.float64(), [1.5, True]),
        (pa.string(), ["a", 1]),
        (pa.list_(pa.date32()), [[DAY, NOON]]),
    ],
)
def test_pandas_within_a_wrapper_is_read_as_pandas(kind: Any, items: Any, wrap: Any) -> None:
    with pytest.raises(InvalidRecord, match="column 'x"):
        appended(kind, wrap(pd.DataFrame({"x": pd.Series(items, dtype=object)})))


def test_a_wrapper_keeps_what_fits_and_not_the_index() -> None:
    frame = pd.DataFrame({"x": [[1.0, float("nan")], [2.0], [3.0]]})
    [first, last] = appended(pa.list_(pa.float64()), nw.from_native(frame[[True, False, True]]))
    assert first[0] == 1.0
    assert first[1] != first[1]
    assert last == [3.0]
    big = pd.DataFrame({"x": pd.Series([(1 << 63) + 1, 1], dtype=object)})
    assert appended(pa.uint64(), nw.from_native(big)) == [(1 << 63) + 1, 1]


def test_the_index_of_pandas_is_no_part_of_a_value() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3]})
    assert put(["k", "l"], frame[frame.a > 1], value=dict) == {"k": {"a": 2}, "l": {"a": 3}}


# Objects of several kinds -------------------------------------------------------------


@pytest.mark.parametrize("wrap", [list, lambda items: pd.Series(items, dtype=object), np.array])
def test_a_datetime_is_no_date_in_a_store(wrap: Any) -> None:
    dates = lambda app: app.store("s", key=str, value=dt.date)  # noqa: E731
    refused(lambda made: made.put_batch(["k", "l"], wrap([DAY, NOON])), dates)
    counter = lambda app: app.counter("s", key=dt.date)  # noqa: E731
    refused(lambda made: made.add_batch(wrap([DAY, NOON])), counter)
    times = lambda app: app.counter("s", key=dt.datetime)  # noqa: E731
    refused(lambda made: made.add_batch(wrap([ZONED, NOON])), times)


@pytest.mark.parametrize(
    "items",
    [
        ["a", b"b"],
        [1.5, True],
        [NOON, ZONED],
        [[DAY, NOON]],
        [{"a": DAY}, {"a": NOON}],
        [(DAY, NOON)],
    ],
)
def test_objects_that_arrow_would_change_are_no_column(items: list[Any]) -> None:
    with pytest.raises(InvalidRecord, match="mixed"):
        column_of(items, None, "x", "topic 't'")


def test_true_is_no_float_beside_floats() -> None:
    with pytest.raises(InvalidRecord, match="got bool"):
        column_of([1.5, True], pa.float64(), "x", "topic 't'")


# Aggregates ---------------------------------------------------------------------------


@pytest.mark.parametrize("by", [True, 1.5, "ab", None, [True]])
def test_a_count_takes_ints_only(by: Any) -> None:
    refused(lambda made: made.add_batch(["k"], by), lambda app: app.counter("s"))


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        (["k"], pl.DataFrame({"x": [1, 2]})),
        (["k", "k", "k"], pl.DataFrame({"x": [1, 2]})),
        (["k"], pl.DataFrame({"x": ["a"]})),
        (["k"], pl.DataFrame({"x": [None]})),
        (["k"], pl.DataFrame({"x": [DAY]})),
        (["k"], pl.DataFrame({"y": [1]})),
        (["k"], pl.DataFrame([pl.Series("x", [1], dtype=pl.Object)])),
        (["k"], pd.DataFrame({"x": pd.Series([[1, True]], dtype=object)})),
    ],
)
def test_rows_that_do_not_fit_aggregates_are_invalid(keys: Any, rows: Any) -> None:
    refused(lambda made: made.add_batch(keys, rows), lambda app: app.aggregates("s", n=sl.sum("x")))


# Long ints ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([(1 << 63) - 1, -1], pl.Int64),
        ([1 << 63, 1], pl.UInt64),
        ([1 << 63, -1], pl.Decimal(38, 0)),
        ([1 << 100, -1], pl.Decimal(38, 0)),
    ],
)
def test_long_ints_are_shown_as_numbers(numbers: list[int], dtype: Any, tmp_path: Path) -> None:
    with sl.App("given", log=tmp_path) as app:
        topic = app.topic("numbers", key=str, value=int)
        topic.append([("a", number) for number in numbers])
        shown = topic.to_polars()["value"]
    assert shown.dtype == dtype
    assert shown.to_list() == numbers


def test_an_int_that_no_data_frame_has_is_refused_by_name(tmp_path: Path) -> None:
    with sl.App("given", log=tmp_path) as app:
        topic = app.topic("numbers", key=str, value=int)
        topic.append([("a", 10**38)])
        with pytest.raises(InvalidRecord, match="topic 'numbers': a value is an int of more than"):
            topic.to_polars()
