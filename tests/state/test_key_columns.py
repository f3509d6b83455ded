"""Columns of keys: the same bytes as for single keys, for every type."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, NewType

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.errors import CorruptLog, InvalidRecord
from strandline.statestore.key_columns import KeyColumns
from strandline.statestore.keys import key_codec
from strandline.statestore.ordered import encode_tuple

Code = NewType("Code", str)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=4) | st.text("a\x00ÿ", max_size=20)
BYTES = st.binary(max_size=4) | st.lists(st.sampled_from([b"\x00", b"\xff", b"a"])).map(b"".join)
EDGES = [
    sign * (1 << bits) + delta for sign in (1, -1) for bits in range(63) for delta in (-1, 0, 1)
]
INTS = st.sampled_from([*EDGES, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
DATES = st.dates()
TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))]))

PAIRS = pa.struct([("a", pa.string()), ("b", pa.int64())])
CASES: list[tuple[Any, st.SearchStrategy[Any], pa.DataType]] = [
    (str, TEXTS, pa.string()),
    (str, TEXTS, pa.large_string()),
    (Code, TEXTS, pa.string()),
    (bytes, BYTES, pa.binary()),
    (int, INTS, pa.int64()),
    (int, st.integers(0, 255), pa.uint8()),
    (int, st.integers(0, 2**63 - 1), pa.uint64()),
    (float, FLOATS, pa.float64()),
    (float, st.floats(width=32, allow_nan=False), pa.float32()),
    (bool, st.booleans(), pa.bool_()),
    (date, DATES, pa.date32()),
    (datetime, TIMES, pa.timestamp("us", "UTC")),
    (datetime, TIMES, pa.timestamp("us", "America/New_York")),
    (tuple[str, int], st.tuples(TEXTS, INTS), PAIRS),
    (tuple[int, int], st.tuples(INTS, INTS), None),
    (tuple[bytes, bytes], st.tuples(BYTES, BYTES), None),
    (tuple[Code, int], st.tuples(TEXTS, INTS), None),
    (tuple[str], st.tuples(TEXTS), None),
    (
        tuple[str | None, int | None, datetime | None],
        st.tuples(st.none() | TEXTS, st.none() | INTS, st.none() | TIMES),
        None,
    ),
    (
        tuple[float, bool | None, date | None, bytes | None],
        st.tuples(FLOATS, st.none() | st.booleans(), st.none() | DATES, st.none() | BYTES),
        None,
    ),
    (tuple[str, tuple[int, str]], st.tuples(TEXTS, st.tuples(INTS, TEXTS)), None),
    (tuple[int, ...], st.lists(INTS, max_size=3).map(tuple), None),
]


def column_of(declared: Any, keys: list[Any], arrow: pa.DataType | None) -> pa.Array:
    """Return keys as a column from outside."""
    kind = arrow or KeyColumns(key_codec(declared)).arrow
    return pa.array(keys, kind)


@pytest.mark.parametrize(("declared", "keys", "arrow"), CASES, ids=lambda each: str(each)[:40])
@given(st.data())
def test_a_column_of_keys_has_the_bytes_of_single_keys(
    declared: Any, keys: st.SearchStrategy[Any], arrow: pa.DataType, data: st.DataObject
) -> None:
    codec = key_codec(declared)
    rows = [codec.admit(key) for key in data.draw(st.lists(keys, max_size=6))]
    column = column_of(declared, rows, arrow)
    found = KeyColumns(codec).distinct(column)
    distinct = list(dict.fromkeys(rows))
    assert found.names.to_pylist() == codec.encode_all(distinct).to_pylist()
    assert [distinct[code] for code in found.codes] == rows
    decoded = KeyColumns(codec).decode(found.names)
    assert decoded.type == KeyColumns(codec).arrow
    assert decoded == column_of(declared, distinct, None)


@pytest.mark.parametrize(("declared", "keys", "arrow"), CASES[:1] + CASES[13:14])
@given(st.data())
def test_a_slice_of_a_column_has_the_keys_of_its_rows(
    declared: Any, keys: st.SearchStrategy[Any], arrow: pa.DataType, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(keys, min_size=3, max_size=6))
    columns = KeyColumns(key_codec(declared))
    part = column_of(declared, rows, arrow)[1:-1]
    names = columns.distinct(part).names
    assert names == columns.distinct(column_of(declared, rows[1:-1], arrow)).names
    assert columns.decode(names[1:]) == columns.decode(names)[1:]


def test_a_dictionary_column_adds_no_keys_that_no_row_has() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2]), pa.array(["a", "b", "c"]))
    found = KeyColumns(key_codec(str)).distinct(column)
    assert (found.names.to_pylist(), found.codes.tolist()) == ([b"Qc", b"Qa"], [0, 1, 0])


def test_columns_in_chunks_are_taken() -> None:
    column = pa.chunked_array([["a"], ["b", "a"]])
    assert KeyColumns(key_codec(str)).distinct(column).codes.tolist() == [0, 1, 0]


def test_keys_of_many_elements_with_many_values_stay_distinct() -> None:
    """The product of the numbers of values is beyond 64 bits."""
    keys = [(n, n * 7, n * 13, n * 17, n * 19) for n in range(10_000)]
    declared = tuple[int, int, int, int, int]
    found = KeyColumns(key_codec(declared)).distinct(column_of(declared, keys * 2, None))
    assert found.names.to_pylist() == list(map(encode_tuple, keys))
    assert found.codes.tolist() == [*range(10_000)] * 2


@pytest.mark.parametrize(
    ("declared", "column", "message"),
    [
        (str, pa.array([1]), "store 's': a key must be str, got a column of int64; cast it first"),
        (str, pa.array(["a", None]), "got a null"),
        (int, pa.array([1.5]), "must be int, got a column of double"),
        (int, pa.array([True]), "must be int, got a column of bool"),
        (int, pa.array([2**63], pa.uint64()), "must be int"),
        (float, pa.array([1]), "must be float, got a column of int64"),
        (float, pa.array([float("nan")]), "NaN equals nothing"),
        (datetime, pa.array([datetime(2020, 1, 1)]), "must be an aware datetime"),
        (datetime, pa.array([1], pa.timestamp("ns", "UTC")), "must be an aware datetime"),
        (datetime, pa.array([2**60], pa.timestamp("us", "UTC")), "the years 1 to 9999"),
        (date, pa.array([2**30], pa.int32()).cast(pa.date32()), "the years 1 to 9999"),
        (tuple[str, int], pa.array(["a"]), "must be a tuple of 2 elements, got a column of string"),
        (tuple[str, int], pa.array([{"a": "x"}]), "must be a tuple of 2 elements"),
        (
            tuple[str, int],
            pa.array([{"a": "x", "b": None}]),
            "a null in an element that must be int",
        ),
        (tuple[str, int], pa.array([{"a": "x", "b": "y"}]), "an element that must be int"),
        (tuple[int, ...], pa.array([["x"]]), "must be int"),
    ],
)
def test_a_column_of_another_type_is_refused(declared: Any, column: Any, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        KeyColumns(key_codec(declared), "s").distinct(column)


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (str, b"P1"),
        (str, b""),
        (str, b"Q\xff"),
        (int, b"\x22\x01"),
        (int, b"\x21\x01\x01"),
        (float, b"8\x00"),
        (bool, b"\x05"),
        (date, b"@\x00\x00\x00\x00"),
        (datetime, b"A" + b"\xff" * 8),
        (tuple[str, int], b"`Qab"),
    ],
)
def test_damaged_keys_are_reported(declared: Any, name: bytes) -> None:
    with pytest.raises(CorruptLog):
        KeyColumns(key_codec(declared)).decode(pa.array([b"", name][1:], pa.binary()))


def test_keys_that_fit_in_no_column_are_refused_with_the_way_to_read_them() -> None:
    for declared, key in ((int, 2**70), (str, "\ud800"), (tuple[str, int], ("a", -(2**63) - 1))):
        codec = key_codec(declared)
        with pytest.raises(InvalidRecord, match=r"read it with get\(\) or range\(\)"):
            KeyColumns(codec).decode(pa.array([codec.encode(key)], pa.binary()))
