"""Values become those of a topic's types unchanged, or are refused, on their own and within others."""

from __future__ import annotations

import datetime as dt
import math
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.client.casting import cast_column, with_buffers
from strandline.changelog.client.columns import to_batches
from strandline.changelog.client.items import column_of
from strandline.changelog.errors import SchemaMismatch
from strandline.changelog.records import TopicInfo

NAIVE = dt.datetime(2020, 1, 1, 0, 0, 0, 1)
AWARE = NAIVE.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
DAY = dt.date(2020, 1, 1)
FINE = pd.Timestamp("2020-01-01T00:00:00.000000001")


def topic(kind: pa.DataType) -> TopicInfo:
    return TopicInfo("t", "id", 1, {}, pa.schema([("c", kind)]), 1)


def stored(data: Any, kind: pa.DataType) -> list[Any]:
    values: list[Any] = []
    for batch in to_batches(data, topic(kind), now_ms=1):
        batch.validate(full=True)
        values += [value["c"] for value in batch.column("value").to_pylist()]
    return values


PLACES: dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any]]] = {
    "on its own": (lambda kind: kind, lambda item: item),
    "in a struct": (lambda kind: pa.struct([("a", kind)]), lambda item: {"a": item}),
    "in a list": (pa.list_, lambda item: [item]),
    "in a list of a size": (lambda kind: pa.list_(kind, 1), lambda item: [item]),
    "in a map": (lambda kind: pa.map_(pa.string(), kind), lambda item: {"k": item}),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("kind", "item"),
    [
        (pa.timestamp("ms"), NAIVE),
        (pa.timestamp("us"), AWARE),
        (pa.timestamp("us", "UTC"), NAIVE),
        (pa.timestamp("us"), FINE),
        (pa.timestamp("us"), np.datetime64("2020-01-01T00:00:00.000000001")),
        (pa.timestamp("us"), 5),
        (pa.timestamp("us"), DAY),
        (pa.duration("ms"), dt.timedelta(microseconds=1)),
        (pa.duration("us"), pd.Timedelta(1, "ns")),
        (pa.time32("s"), dt.time(1, 2, 3, 4)),
        (pa.time64("us"), dt.time(1, tzinfo=dt.UTC)),
        (pa.date32(), NAIVE),
        (pa.int64(), 1.5),
        (pa.int64(), np.float32(1.5)),
        (pa.int64(), Decimal("1.5")),
        (pa.int64(), math.nan),
        (pa.int64(), True),
        (pa.uint64(), 1 << 64),
        (pa.uint64(), -1),
        (pa.float64(), (1 << 53) + 1),
        (pa.float64(), Decimal("12345678901234567890.123456789")),
        (pa.float32(), 1e300),
        (pa.float32(), (1 << 24) + 1),
        (pa.float32(), Decimal("16777217.0")),
        (pa.float16(), 4097),
        (pa.float16(), 1e6),
        (pa.decimal128(5, 2), 1.23456),
        (pa.decimal128(5, 2), Decimal("1.005")),
        (pa.decimal128(5, 2), math.nan),
        (pa.string(), b"a"),
        (pa.list_(pa.string()), "ab"),
        (pa.list_(pa.int64()), {1: 2}),
        (pa.list_(pa.int64()), np.array([1.5, 2.5])),
        (pa.list_(pa.struct([("a", pa.int64())])), np.array([{"a": 1, "z": 2}], dtype=object)),
        (pa.map_(pa.string(), pa.int64()), {None: 1}),
        (pa.map_(pa.string(), pa.string()), ["ab"]),
    ],
)
def test_what_would_change_is_refused(place: str, kind: pa.DataType, item: Any) -> None:
    within, wrap = PLACES[place]
    with pytest.raises(SchemaMismatch, match=r"topic 't': .*c"):
        stored([{"c": wrap(item)}], within(kind))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("kind", "item", "read"),
    [
        (pa.int64(), 2.0, 2),
        (pa.int64(), Decimal(2), 2),
        (pa.int32(), np.uint8(2), 2),
        (pa.uint64(), (1 << 64) - 1, (1 << 64) - 1),
        (pa.uint64(), 1 << 63, 1 << 63),
        (pa.float64(), 3, 3.0),
        (pa.float64(), Decimal("1.2345"), 1.2345),
        (pa.float64(), math.inf, math.inf),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.float32(), -math.inf, -math.inf),
        (pa.decimal128(5, 2), 0.1, Decimal("0.10")),
        (pa.decimal128(5, 2), 7, Decimal("7.00")),
        (pa.decimal128(38, 0), 1 << 100, Decimal(1 << 100)),
        (pa.timestamp("us", "UTC"), AWARE, AWARE),
        (pa.timestamp("ns"), FINE, FINE),
        (pa.timestamp("us"), pd.NaT, None),
        (pa.date32(), np.datetime64("2020-01-01"), DAY),
        (pa.binary(), "a", b"a"),
        (pa.list_(pa.int64()), np.array([1.0, 2.0]), [1, 2]),
        (pa.list_(pa.int64()), (1, None), [1, None]),
        (pa.list_(pa.list_(pa.int64())), np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    ],
)
def test_what_fits_is_converted(place: str, kind: pa.DataType, item: Any, read: Any) -> None:
    within, wrap = PLACES[place]
    expected = [("k", read)] if place == "in a map" else wrap(read)
    assert stored([{"c": wrap(item)}], within(kind)) == [expected]


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        (pa.date32(), [DAY, NAIVE]),
        (pa.timestamp("us"), [NAIVE, AWARE]),
        (pa.timestamp("us", "UTC"), [AWARE, NAIVE]),
        (pa.float32(), [1.5, (1 << 24) + 1]),
        (pa.string(), ["a", b"b"]),
    ],
)
def test_an_item_is_refused_whatever_is_next_to_it(kind: pa.DataType, items: list[Any]) -> None:
    """The type of a column was inferred from its first item, so it depended on their order."""
    for each in (items, items[::-1]):
        with pytest.raises(SchemaMismatch, match="column 'c'"):
            stored([{"c": item} for item in each], kind)


def test_items_of_several_types_keep_their_places() -> None:
    items = [(1 << 53) + 1, None, 2.0, Decimal(3), np.int8(4), pd.NA, 5]
    assert column_of(items, pa.int64(), "c", "t").to_pylist() == [items[0], None, 2, 3, 4, None, 5]


def test_dates_and_datetimes_are_not_mixed_in_a_column_of_times() -> None:
    rows = [{"c": 1, "timestamp": DAY}, {"c": 2, "timestamp": NAIVE}]
    with pytest.raises(SchemaMismatch, match="'timestamp': dates and datetimes are mixed"):
        list(to_batches(rows, topic(pa.int64()), now_ms=1))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.decimal128(5, 2), pa.array([1.23456])),
        (pa.list_(pa.decimal128(5, 2)), pa.array([[1.005]])),
        (pa.float32(), pa.array([1e300])),
        (pa.float64(), pa.array([Decimal("12345678901234567890.123456789")])),
        (pa.float16(), pa.array([70_000], pa.int32())),
        (pa.struct([("a", pa.float32())]), pa.array([{"a": -1e300}])),
    ],
)
def test_numbers_of_columns_do_not_change(kind: pa.DataType, column: pa.Array) -> None:
    with pytest.raises(SchemaMismatch, match="which loses something"):
        stored(pa.table({"c": column}), kind)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (pa.decimal128(38, 0), pa.array([3e38])),
        (pa.decimal128(38, 20), pa.array([-3e20])),
        (pa.decimal64(10, 0), pa.array([2.0**64])),
        (pa.decimal32(5, 2), pa.array([1.9e-6])),
        (pa.decimal128(38, 0), pa.array([5e-324])),
        (pa.decimal32(5, 2), pa.array([Decimal(1 << 64)], pa.decimal128(38, 0))),
        (pa.decimal32(4, 4), pa.array([Decimal("1.22e-32")], pa.decimal256(76, 76))),
        (pa.decimal256(76, 76), pa.array([128])),
        (pa.decimal128(3, 1), pa.array([100, -100])),
        (pa.decimal128(3, -2), pa.array([150])),
    ],
)
def test_a_number_beyond_a_decimal_type_is_refused(kind: pa.DataType, data: pa.Array) -> None:
    with pytest.raises(SchemaMismatch, match="loses something"):
        cast_column(data, kind, "x", "topic 't'")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (pa.decimal32(5, 0), pa.array([Decimal(123)], pa.decimal256(53, 44))),
        (pa.decimal32(9, 2), pa.array([Decimal("-9999999.99")], pa.decimal128(38, 20))),
        (pa.int64(), pa.array([Decimal(100)], pa.decimal32(5, 2))),
        (pa.decimal64(18, 0), pa.array([-(10**18) + 1])),
        (pa.decimal256(76, 0), pa.array([1e15])),
    ],
)
def test_a_number_within_a_decimal_type_is_kept(kind: pa.DataType, data: pa.Array) -> None:
    assert cast_column(data, kind, "x", "topic 't'")[0].as_py() == data[0].as_py()


def test_a_null_in_a_map_may_stand_for_a_struct_with_a_field_that_is_not_nullable() -> None:
    items = [[("p", None)], None, [("q", {"v": 1}), ("r", None)]]
    column = pa.array(items, pa.map_(pa.string(), pa.struct([("v", pa.int64())])))
    kind = pa.map_(pa.string(), pa.struct([pa.field("v", pa.int64(), nullable=False)]))
    topic = TopicInfo("t", "", 1, {}, pa.schema([("x", kind)]), 1)
    [batch] = to_batches(pa.table({"x": column}), topic, now_ms=1)
    assert batch.column("value").field("x").to_pylist() == items
    with pytest.raises(SchemaMismatch, match="not null"):
        wrong = pa.array([[("p", {"v": None})]], column.type)
        list(to_batches(pa.table({"x": wrong}), topic, now_ms=1))


def test_views_within_lists_of_a_fixed_size_are_stored() -> None:
    inner = pa.large_list(pa.binary_view())
    items = [[[]], None, [[b"a longer value than twelve", None]]]
    made = []
    for each in ([None, [[]]], items):
        column = pa.array(each, pa.list_(inner, 1))
        made += cast_column(
            with_buffers(column), pa.list_(pa.list_(pa.binary())), "x", "t"
        ).to_pylist()
    assert made == [None, [[]], *items]


def test_a_short_float_is_the_decimal_that_its_shortest_text_names() -> None:
    column = pa.array(np.array([0.1, 0.42], np.float16))
    made = cast_column(column, pa.decimal128(4, 2), "x", "topic 't'")
    assert made.to_pylist() == [Decimal("0.10"), Decimal("0.42")]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-1e9, max_value=1e9))
def test_decimals_are_the_nearest_floats(number: Decimal) -> None:
    column = pa.array([number], pa.decimal128(20, 4))
    made = cast_column(column, pa.float64(), "c", "t")
    assert made.to_pylist() == [float(number)]
    assert cast_column(made, column.type, "c", "t").equals(column)


REQUIRED = {
    "struct": (pa.struct([pa.field("a", pa.int64(), nullable=False)]), {"a": None}, "c.a"),
    "list": (pa.list_(pa.field("item", pa.int64(), nullable=False)), [1, None], "c[]"),
    "map": (
        pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
        [("k", None)],
        "c.value",
    ),
    "list of structs": (
        pa.list_(pa.struct([pa.field("a", pa.int64(), nullable=False)])),
        [{"a": 1}, {"a": None}, None],
        "c[].a",
    ),
}


@pytest.mark.parametrize("form", ["rows", "loose", "exact"])
@pytest.mark.parametrize("name", REQUIRED)
def test_a_field_that_is_not_nullable_is_never_null(name: str, form: str) -> None:
    kind, value, path = REQUIRED[name]
    data: Any = [{"c": None}, {"c": value}]
    if form == "exact":
        data = pa.table({"c": pa.array([None, value], kind)})
    elif form == "loose":
        data = pa.table({"c": pa.array([None, value], loose(kind))})
    with pytest.raises(SchemaMismatch) as caught:
        stored(data, kind)
    assert f"column {path!r} (int64 not null) is null" in str(caught.value)
    assert stored([{"c": None}], kind) == [None]


def test_a_field_that_is_not_nullable_is_not_left_out() -> None:
    kind, _, _ = REQUIRED["struct"]
    with pytest.raises(SchemaMismatch, match=r"column 'c\.a' \(int64 not null\) is null"):
        stored([{"c": {}}], kind)


def loose(kind: pa.DataType) -> pa.DataType:
    """Return a type whose fields may all be null."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, loose(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, loose(kind.item_type))
    return pa.list_(loose(kind.value_type)) if pa.types.is_list(kind) else kind


UNBUFFERED = """
import pyarrow as pa

from strandline.changelog.client.columns import to_batches
from strandline.changelog.records import TopicInfo

def check_types(column):  # `validate` does not compare the types of the parts
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [column.field(at) for at in range(kind.num_fields)]
    else:
        parts = [column.values] if pa.types.is_nested(kind) else []
    for at, part in enumerate(parts):
        assert part.type.equals(kind.field(at).type), (part.type, kind)
        check_types(part)

none = pa.Array.from_buffers(pa.int64(), 0, [None, None])
buffers = [pa.py_buffer(bytes(1)), pa.py_buffer(bytes(12))]
lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, buffers, children=[none])
ends = pa.array([0, 1, 2], pa.int32())
for size in (2, -1):
    kind = pa.list_(pa.int64(), size)
    for column, wanted in (
        (lists, kind),
        (pa.StructArray.from_arrays([lists], ["s"]), pa.struct([("s", kind)])),
        (pa.ListArray.from_arrays(ends, lists), pa.list_(kind)),
        (pa.MapArray.from_arrays(ends, pa.array(["a", "b"]), lists), pa.map_(pa.string(), kind)),
    ):
        topic = TopicInfo("t", "id", 1, {}, pa.schema([("c", wanted)]), 1)
        data = pa.table({"c": pa.chunked_array([column, column])}).slice(1, 2)
        [batch] = to_batches(data, topic, now_ms=1)
        batch.validate(full=True)
        check_types(batch.column("value"))
        print(batch.column("value").to_pylist())
"""


def test_lists_whose_items_have_no_buffers_are_stored() -> None:
    """A column of nulls may have none; Arrow reads them and ends the process."""
    run = subprocess.run([sys.executable, "-c", UNBUFFERED], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    each = [None, None], [{"s": None}] * 2, [[None]] * 2, [[("b", None)], [("a", None)]]
    assert run.stdout.splitlines() == [str([{"c": v} for v in values]) for values in each] * 2


@pytest.mark.parametrize("source", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
@pytest.mark.parametrize("target", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_lists_of_each_kind_become_those_of_another(source: Any, target: Any) -> None:
    column = pa.array([[0, 0], [1, 2], None, [3, None]], source(pa.int64()))[1:]
    made = cast_column(column, target(pa.int32()), "c", "t")
    made.validate(full=True)
    assert made.to_pylist() == [[1, 2], None, [3, None]]


def test_a_list_of_another_size_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="1 items instead of 2"):
        stored(pa.table({"c": [[1, 2], [3]]}), pa.list_(pa.int64(), 2))


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([1, "x"], pa.int64()),
        ([1 << 70], pa.int64()),
        ([DAY, NAIVE], pa.date32()),
        ([[1.5]], pa.list_(pa.int64())),
        (pd.Categorical([1, "x"]), pa.int64()),
    ],
)
def test_what_pandas_cannot_convert_is_refused_by_name(cells: Any, kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="topic 't': .*c"):
        stored(pd.DataFrame({"c": cells}), kind)


def test_pandas_cells_of_a_topic_of_bytes_are_refused_by_name() -> None:
    frame = pd.DataFrame({"value": ["x", b"y", 1]})
    with pytest.raises(SchemaMismatch, match="topic 'bytes': column 'value'"):
        list(to_batches(frame, TopicInfo("bytes", "id", 1, {}), now_ms=1))


def test_nan_within_a_cell_of_pandas_is_kept_and_a_missing_cell_is_null() -> None:
    cells = [[math.nan, 1.0], None, np.array([math.nan])]
    read = stored(pd.DataFrame({"c": cells}), pa.list_(pa.float64()))
    assert str(read) == "[[nan, 1.0], None, [nan]]"
    assert stored(pd.DataFrame({"c": ["a", math.nan, pd.NA]}), pa.string()) == ["a", None, None]
