"""Columns of values: the same bytes as for single values, for every type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.errors import CorruptLog, InvalidRecord
from strandline.statestore.aggregates import Aggregates, count, mean, sum  # noqa: A004
from strandline.statestore.serdes import Long
from strandline.statestore.struct_columns import StructValues
from strandline.statestore.value_columns import ObjectValues, value_columns
from strandline.statestore.values import ValueCodec

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
EDGES = [
    sign * (1 << bits) + delta for sign in (1, -1) for bits in range(63) for delta in (-1, 0, 1)
]
INTS = st.sampled_from([*EDGES, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats()


class Plain(msgspec.Struct):
    n: int
    x: float
    ok: bool = False


class Mixed(msgspec.Struct, rename="camel"):
    an_int: int | None
    some_text: str | None
    any_value: int | float | str | bool | None
    raw: bytes | None = None


@dataclass
class Reading:
    place: str
    celsius: float | None = None


@dataclass(frozen=True)
class Frozen:
    place: str
    celsius: int = 0


Wide = msgspec.defstruct("Wide", [(f"field_number_{n}_with_a_long_name", int) for n in range(20)])
State = Aggregates(n=count(), total=sum("x"), mean=mean("x")).state
NUMBERS = st.none() | INTS | FLOATS | TEXTS

CASES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, INTS),
    (int, st.integers(-200, 200)),
    (float, FLOATS),
    (bool, st.booleans()),
    (str, TEXTS),
    (bytes, st.binary(max_size=40)),
    (Plain, st.builds(Plain, INTS, FLOATS, st.booleans())),
    (
        Mixed,
        st.builds(
            Mixed,
            st.none() | INTS,
            st.none() | TEXTS,
            NUMBERS | st.booleans(),
            st.none() | st.binary(max_size=40),
        ),
    ),
    (Reading, st.builds(Reading, TEXTS, st.none() | FLOATS)),
    (Frozen, st.builds(Frozen, TEXTS, INTS)),
    (Wide, st.lists(INTS, min_size=20, max_size=20).map(lambda numbers: Wide(*numbers))),
    (State, st.builds(State, INTS, NUMBERS, NUMBERS, INTS)),
    (dict[str, int], st.dictionaries(TEXTS, st.integers(0, 9), max_size=3)),
    (None, st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2) | TEXTS),
    (Long(), INTS),
]


def stored(codec: ValueCodec, values: list[Any]) -> list[bytes]:
    """Return the bytes in which a store of single keys keeps values."""
    found = codec.dump_all(list(map(codec.hold, values))).to_pylist()
    return [data for data in found if data is not None]


def rows_of(values: list[Any]) -> list[Any]:
    """Return values as Python sees them in an Arrow column."""
    return [
        {name: getattr(value, name) for name in _names(value)} if _names(value) else value
        for value in values
    ]


def _names(value: Any) -> list[str]:
    fields = getattr(value, "__struct_fields__", None)
    return list(fields or getattr(value, "__dataclass_fields__", ()))


def same(left: Any, right: Any) -> bool:
    """Return True if two values are equal and of one type; NaN equals itself here."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and (left == right or (left != left and right != right))


@pytest.mark.parametrize(("declared", "values"), CASES, ids=lambda each: str(each)[:30])
@given(st.data())
def test_a_column_of_values_has_the_bytes_of_single_values(
    declared: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = ValueCodec(declared, "s")
    columns = value_columns(codec)
    rows = [row for row in data.draw(st.lists(values, max_size=6)) if row is not None]
    expected = stored(codec, rows)
    block = columns.decode(pa.array(expected, pa.binary()))
    assert [array.dtype for array in block] == [np.dtype(kind) for kind in columns.dtypes]
    assert columns.encode(block).to_pylist() == expected
    shown = columns.column(block, np.ones(len(rows), np.bool_))
    again = columns.block(shown)
    assert columns.encode(again).to_pylist() == expected
    plain = shown if isinstance(shown, list) else shown.to_pylist()
    want = rows if isinstance(columns, ObjectValues) else rows_of(rows)
    assert all(map(same, plain, want))
    items = [columns.item(block, row) for row in range(len(rows))]
    assert all(map(same, rows_of(items), rows_of(rows)))


@pytest.mark.parametrize(("declared", "values"), CASES, ids=lambda each: str(each)[:30])
@given(st.data())
def test_rows_without_a_value_are_null(
    declared: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = ValueCodec(declared, "s")
    rows = [row for row in data.draw(st.lists(values, max_size=4)) if row is not None]
    block = value_columns(codec).decode(pa.array(stored(codec, rows), pa.binary()))
    valid = np.arange(len(rows)) % 2 == 0
    shown = value_columns(codec).column(block, valid)
    plain = shown if isinstance(shown, list) else shown.to_pylist()
    assert [item is not None for item in plain] == valid.tolist()


def test_classes_that_are_written_in_another_way_are_kept_as_objects() -> None:
    class AsList(msgspec.Struct, array_like=True):
        n: int

    class Tagged(msgspec.Struct, tag=True):
        n: int

    class Omitting(msgspec.Struct, omit_defaults=True):
        n: int = 0

    class Nested(msgspec.Struct):
        n: list[int]

    class Limited(msgspec.Struct):
        n: Annotated[int, msgspec.Meta(ge=0)]

    for declared, value in (
        (AsList, AsList(1)),
        (Tagged, Tagged(1)),
        (Omitting, Omitting()),
        (Nested, Nested([1])),
        (Limited, Limited(1)),
    ):
        columns = value_columns(ValueCodec(declared, "s"))
        assert isinstance(columns, ObjectValues)
        block = columns.block([value])
        assert columns.encode(block).to_pylist() == stored(ValueCodec(declared), [value])
        assert columns.item(block, 0) == value


def test_values_of_an_older_declaration_are_read_with_their_defaults() -> None:
    class Older(msgspec.Struct):
        n: int
        x: float

    older = stored(ValueCodec(Older), [Older(7, 1.5)])
    block = value_columns(ValueCodec(Plain)).decode(pa.array(older, pa.binary()))
    assert value_columns(ValueCodec(Plain)).item(block, 0) == Plain(7, 1.5)


def test_an_int_that_was_put_into_a_field_of_floats_is_read_as_a_float() -> None:
    data = pa.array([msgspec.msgpack.encode({"n": 1, "x": 2, "ok": True})], pa.binary())
    columns = value_columns(ValueCodec(Plain))
    assert columns.item(columns.decode(data), 0) == Plain(1, 2.0, ok=True)
    numbers = value_columns(ValueCodec(float))
    assert numbers.decode(pa.array([b"\x02"], pa.binary()))[0].tolist() == [2.0]


def test_a_column_of_ints_is_taken_for_a_field_of_floats() -> None:
    columns = value_columns(ValueCodec(Plain))
    block = columns.block(pa.array([{"x": 2, "ok": True, "n": 1}]))
    assert columns.item(block, 0) == Plain(1, 2.0, ok=True)


def test_a_union_shows_the_type_of_its_values() -> None:
    columns = value_columns(ValueCodec(State, "s"))
    assert isinstance(columns, StructValues)

    def kind(*totals: Any) -> str:
        block = columns.block([State(1, total, None, 0) for total in totals])
        shown = columns.column(block, np.ones(len(totals), np.bool_))
        assert shown.field("total").to_pylist() == list(totals)
        return str(shown.field("total").type)

    assert kind(1, None, 2) == "int64"
    assert kind(1.5, None) == "double"
    assert kind("a") == "string"
    assert kind(None) == "null"
    assert kind(1, 1.5, None, "a").startswith("dense_union")


@pytest.mark.parametrize(
    ("declared", "values", "message"),
    [
        (int, pa.array(["a"]), "store 's': values must be int; got a column of string"),
        (int, pa.array([1.0]), "got a column of double; cast it to int64"),
        (int, pa.array([1, None]), "a value is null, .* use delete_batch"),
        (int, pa.array([2**63], pa.uint64()), "values must be int"),
        (float, pa.array([2**60 + 1]), "values must be float"),
        (bool, pa.array([1]), "values must be bool"),
        (str, pa.array([b"a"]), "values must be str"),
        (Plain, pa.array([1]), "got a column of int64; give a struct"),
        (Plain, pa.array([{"n": 1}]), "its fields are"),
        (Plain, pa.array([{"n": 1, "x": 1.0, "ok": None}]), "field 'ok' has a null"),
        (Plain, pa.array([{"n": "1", "x": 1.0, "ok": True}]), "field 'n' is a column of string"),
        (Plain, [Plain(2**63, 0.0)], "does not fit in a column"),
        (Plain, [1], "does not fit in a column"),
        (Plain, pa.array([{"n": 1, "x": 1.0, "ok": True}, None]), "a value is null"),
        (dict[str, int], [{"a": "b"}], "store 's': a value of this store must be"),
        (dict[str, int], [None], "a value is null"),
    ],
)
def test_values_of_another_type_are_refused(declared: Any, values: Any, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        value_columns(ValueCodec(declared, "s")).block(values)


@pytest.mark.parametrize(
    ("declared", "data"),
    [
        (int, b"\xa1a"),
        (int, b""),
        (int, b"\x01\x01"),
        (int, b"\xcd\x01"),
        (int, b"\xcf" + b"\xff" * 8),
        (bool, b"\x01"),
        (str, b"\xa2a"),
        (str, b"\x01"),
        (Plain, b"\x83"),
        (Plain, msgspec.msgpack.encode({"n": 1, "x": "a", "ok": True})),
        (Plain, msgspec.msgpack.encode({"n": 2**64 - 1, "x": 1.0, "ok": True})),
        (dict[str, int], b"\x01"),
    ],
)
def test_stored_bytes_of_another_type_are_reported(declared: Any, data: bytes) -> None:
    codec = ValueCodec(declared, "s")
    good = stored(codec, [{int: 1, bool: True, str: "a", Plain: Plain(1, 1.0)}.get(declared, {})])
    with pytest.raises(CorruptLog, match="store 's'"):
        value_columns(codec).decode(pa.array([*good, data, *good], pa.binary()))
