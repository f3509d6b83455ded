"""Typed values are read as they were written, and values that do not fit are named."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.framework.formats.choice import key_codec, value_codec
from strandline.framework.formats.schema import RowType, is_typed


@dataclass(frozen=True)
class Inner:
    x: int
    y: str | None = None


@dataclass(frozen=True)
class Everything:
    text: str
    number: int
    real: float
    flag: bool
    data: bytes
    when: dt.datetime
    day: dt.date
    maybe: float | None
    many: list[int]
    inner: Inner
    inners: list[Inner] = field(default_factory=list)
    extra: int = 7


class Struct(msgspec.Struct, kw_only=True):
    a: int
    b: str = "b"


@dataclass
class Mutable:
    n: int


WHEN = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)


INT64 = st.integers(-(2**63), 2**63 - 1)


def everything() -> st.SearchStrategy[Everything]:
    inner = st.builds(Inner, INT64, st.none() | st.text())
    return st.builds(
        Everything,
        st.text(),
        INT64,
        st.floats(allow_nan=False),
        st.booleans(),
        st.binary(),
        st.datetimes(timezones=st.just(dt.UTC)),
        st.dates(),
        st.none() | st.floats(allow_nan=False),
        st.lists(INT64, max_size=3),
        inner,
        st.lists(inner, max_size=3),
        INT64,
    )


ROWS = RowType(Everything)


@settings(max_examples=50)
@given(st.lists(st.none() | everything(), max_size=5))
def test_values_are_read_as_they_were_written(values: list[Any]) -> None:
    column = ROWS.column([None if value is None else ROWS.check(value) for value in values])
    column.validate(full=True)
    assert column.type == ROWS.arrow
    assert ROWS.values(column) == values
    assert ROWS.values(column.slice(1)) == values[1:]


def test_structs_and_schemas_are_typed_too() -> None:
    rows = RowType(Struct)
    assert rows.values(rows.column([rows.check(Struct(a=1))])) == [Struct(a=1)]
    schema = pa.schema([("a", pa.int32()), ("at", pa.timestamp("ms"))])
    rows = RowType(schema)
    given = {"a": 1, "at": dt.datetime(2020, 1, 1)}
    assert rows.values(rows.column([rows.check(given)])) == [given]
    assert rows.values(rows.column([rows.check({"a": 1})])) == [{"a": 1, "at": None}]
    with pytest.raises(InvalidRecord, match=r"no columns \['b'\]"):
        rows.check({"a": 1, "b": 2})
    assert not is_typed(int)
    assert not is_typed(list[int])


REQUIRED = pa.struct([pa.field("a", pa.int64(), nullable=False)])
ZONED = pa.timestamp("ms", "UTC")


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        (pa.int32(), 1.5),
        (pa.list_(pa.int64()), [1.5]),
        (pa.timestamp("ms"), dt.datetime(2020, 1, 1, 0, 0, 0, 1)),
        (pa.timestamp("ms"), WHEN),
        (pa.timestamp("ms"), 5),
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}),
        (pa.list_(pa.string()), "ab"),
        (pa.float32(), 1e300),
        (REQUIRED, {"a": None}),
    ],
)
def test_items_of_an_arrow_schema_are_not_changed(kind: pa.DataType, item: Any) -> None:
    with pytest.raises(InvalidRecord, match="field 'c' of the Arrow schema is stored as"):
        RowType(pa.schema([("c", kind)])).check({"c": item})


@pytest.mark.parametrize(
    ("kind", "item", "read"),
    [
        (pa.int32(), 2.0, 2),
        (pa.float32(), 0.5, 0.5),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1}, {"a": 1, "b": None}),
        (REQUIRED, {"a": 1}, {"a": 1}),
        (ZONED, dt.datetime(2013, 1, 1, 5), WHEN),
        (
            pa.list_(pa.struct([("at", ZONED)])),
            [{"at": dt.datetime(2013, 1, 1, 5)}],
            [{"at": WHEN}],
        ),
        (pa.map_(pa.string(), ZONED), {"at": dt.datetime(2013, 1, 1, 5)}, [("at", WHEN)]),
    ],
)
def test_items_of_an_arrow_schema_are_converted(kind: pa.DataType, item: Any, read: Any) -> None:
    assert RowType(pa.schema([("c", kind)])).check({"c": item}) == (read,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"number": 2**63},
            "field 'number' of Everything is stored as int64; got 9223372036854775808",
        ),
        ({"number": 1.5}, "'number'.*int is expected"),
        ({"number": True}, "'number'.*int is expected"),
        ({"number": None}, "'number'.*may not be None"),
        ({"text": "\ud800"}, "'text'"),
        ({"many": [1, "x"]}, "field 'many'.*got"),
        ({"inner": Mutable(1)}, "expected Inner, got"),
        ({"when": "today"}, "'when'.*datetime is expected"),
        ({"day": WHEN}, "'day'.*date is expected"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(change: dict[str, Any], says: str) -> None:
    good = {
        "text": "t", "number": 1, "real": 1.0, "flag": True, "data": b"", "when": WHEN,
        "day": WHEN.date(), "maybe": None, "many": [], "inner": Inner(1),
    }  # fmt: skip
    ROWS.check(Everything(**good))
    with pytest.raises(InvalidRecord, match=says):
        row = ROWS.check(Everything(**{**good, **change}))
        ROWS.column([row])
        raise InvalidRecord(f"field {next(iter(change))!r} was let in")


def test_a_mutable_value_is_copied_when_it_is_checked() -> None:
    rows, value = RowType(Mutable), Mutable(1)
    row = rows.check(value)
    value.n = 2
    assert rows.values(rows.column([row])) == [Mutable(1)]


def test_ints_become_floats_where_floats_are_declared() -> None:
    @dataclass
    class Local:
        x: Any

    Local.__annotations__ = {"x": float}
    rows = RowType(dataclass(type("L", (), {"__annotations__": {"x": float}})))
    assert rows.check(rows.kind(1)) == (1.0,)


def test_older_records_read_with_the_defaults_of_newer_fields() -> None:
    old = RowType(Inner)
    newer = RowType(
        dataclass(frozen=True)(
            type("Newer", (), {"__annotations__": {"x": int, "y": str | None, "z": int}, "z": 5})
        )
    )
    column = old.column([(1, "a")])
    [value] = newer.values(column)
    assert (value.x, value.y, value.z) == (1, "a", 5)


@pytest.mark.parametrize("hint", [set[int], int | str, object, complex, dict[str, int]])
def test_types_without_a_column_are_refused_by_name(hint: Any) -> None:
    with pytest.raises(InvalidConfig):
        RowType(dataclass(type("Odd", (), {"__annotations__": {"odd": hint}})))


CASES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text()),
    (bytes, st.binary()),
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (dict[str, int], st.dictionaries(st.text(), st.integers(0, 9))),
    (Any, st.recursive(st.integers(0, 9) | st.text(), st.lists)),
    (tuple[str, int], st.tuples(st.text(), st.integers(0, 9))),
]


@pytest.mark.parametrize("make", [key_codec, value_codec])
@pytest.mark.parametrize(("kind", "items"), CASES, ids=lambda case: str(case)[:20])
def test_codecs_decode_to_the_encoded_values(make: Any, kind: Any, items: Any) -> None:
    codec = make(kind)

    @settings(max_examples=30)
    @given(st.lists(st.none() | items, max_size=20))
    def check(values: list[Any]) -> None:
        kept = [v if type(v) is codec.exact else codec.item(v) for v in values]
        column = codec.encode(kept)
        assert column.type == codec.arrow
        assert codec.decode(column) == values
        assert codec.decode(column.slice(1)) == values[1:]
        assert codec.decode(pa.concat_arrays([column, column])) == values * 2

    check()


def test_ints_beyond_64_bits_are_values_too() -> None:
    codec = value_codec(int)
    assert codec.decode(codec.encode([1, 2**70, -(2**70)])) == [1, 2**70, -(2**70)]


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01\x01", b"\xa1a", b"\xcc"])
def test_bytes_that_are_no_int_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        value_codec(int).decode(pa.array([b"\x01", data, b"\x02"]))


Money = Annotated[Decimal, pa.decimal128(9, 2)]


@dataclass(frozen=True)
class Line:
    amount: Annotated[int, pa.int16()]
    price: Money


@dataclass(frozen=True)
class Bill:
    total: Money
    lines: list[Line]
    discount: Money | None
    at: Annotated[dt.datetime, "written by the till"]
    ratios: Annotated[list[float], pa.list_(pa.float32())]
    tax: Annotated[Decimal | None, pa.decimal128(38, 10)] = None


def money(most: int = 10**7 - 1) -> st.SearchStrategy[Decimal]:
    return st.decimals(-most, most, places=2)


BILLS = st.builds(
    Bill,
    money(),
    st.lists(st.builds(Line, st.integers(-(2**15), 2**15 - 1), money()), max_size=3),
    st.none() | money(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=3),
    st.none() | st.decimals(-(10**20), 10**20, places=10),
)


@pytest.mark.parametrize("serde", [None, "json", "msgpack"])
def test_fields_have_the_arrow_types_that_their_annotations_name(serde: str | None) -> None:
    codec = value_codec(Bill, serde)
    assert codec.rows is not None
    schema = codec.rows.schema
    assert schema.field("total") == pa.field("total", pa.decimal128(9, 2), nullable=False)
    assert schema.field("tax") == pa.field("tax", pa.decimal128(38, 10))
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    assert schema.field("lines").type.value_type.field("amount").type == pa.int16()

    @settings(max_examples=30)
    @given(st.lists(st.none() | BILLS, max_size=4))
    def check(bills: list[Bill | None]) -> None:
        stored = codec.encode([None if bill is None else codec.item(bill) for bill in bills])
        assert codec.decode(stored) == bills
        columns = codec.to_columns(stored) if serde else stored  # type: ignore[attr-defined]
        assert RowType(Bill).values(columns) == bills

    check()


@pytest.mark.parametrize("serde", [None, "json", "msgpack"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"total": Decimal("0.001")}, "field 'total' of Bill is stored as decimal128"),
        ({"total": Decimal(10) ** 7}, "field 'total' of Bill"),
        ({"total": Decimal("NaN")}, "field 'total' of Bill"),
        ({"total": 0.5}, "field 'total' of Bill"),
        ({"total": None}, "may not be None"),
        ({"lines": [Line(2**15, Decimal(1))]}, "field 'amount' of Line is stored as int16"),
        ({"ratios": [1e300]}, "field 'ratios' of Bill"),
    ],
)
def test_a_value_that_does_not_fit_its_arrow_type_is_refused(
    serde: str | None, change: dict[str, Any], match: str
) -> None:
    fields = {"total": Decimal(1), "lines": [], "discount": None, "at": WHEN, "ratios": []}
    with pytest.raises(InvalidRecord, match=match):
        value_codec(Bill, serde).item(Bill(**(fields | change)))


@pytest.mark.parametrize("read", ["decode", "to_columns"])
def test_decimals_in_json_may_be_numbers_and_are_never_rounded(read: str) -> None:
    codec = value_codec(Bill, "json")
    by: Callable[[pa.Array], Any] = getattr(codec, read)

    def total(text: str) -> Decimal:
        bill = b'{"total":%b,"lines":[],"discount":null,"at":"2013-01-01T05:00:00Z","ratios":[]}'
        [found] = by(pa.array([bill % text.encode()]))
        return found.total if read == "decode" else found["total"].as_py()

    assert str(total("1.1")) == str(total('"1.10"')) == "1.10"
    for wrong in ("1.111", '"1.111"', '"NaN"', "1e30", '"a"'):
        with pytest.raises(InvalidRecord):
            total(wrong)


@pytest.mark.parametrize(
    ("hint", "match"),
    [
        (Decimal, r"Annotated\[Decimal, pa.decimal128\(12, 2\)\]"),
        (Annotated[str, pa.int64()], "the values of int64 are int, and the field is <class 'str'>"),
        (Annotated[float, pa.decimal128(9, 2)], "are Decimal, and the field is <class 'float'>"),
        (Annotated[list[int], pa.int64()], "are int, and the field is list"),
        (Annotated[dict[str, int], pa.map_(pa.string(), pa.int64())], "no type that can be"),
    ],
)
def test_an_arrow_type_of_other_values_is_refused(hint: Any, match: str) -> None:
    with pytest.raises(InvalidConfig, match=f"field 'a' of W cannot be a column.*{match}"):
        RowType(make_dataclass("W", [("a", hint)]))
