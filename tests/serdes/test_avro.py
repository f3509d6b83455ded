"""Avro: the same bytes as fastavro writes, for any schema, and read with the writer's schema."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import io
import json
from decimal import Decimal
from typing import Annotated, Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.framework.formats import avro_columns, avro_schema
from strandline.framework.formats.avro import AvroWire
from strandline.framework.formats.schema import RowType
from strandline.framework.formats.wire import SerdeUse
from tests.serdes.kit import Trip, codec, read, shown, trips, written

SOME = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], database=None)


def datum(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


# Against fastavro -----------------------------------------------------------------------

NAMES = iter(f"N{n}" for n in range(1_000_000))


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(inner, min_size=1, max_size=4)
    return fields.map(
        lambda kinds: {
            "type": "record",
            "name": next(NAMES),
            "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)],
        }
    )


plain = st.sampled_from(
    ["boolean", "int", "long", "float", "double", "string", "bytes"]
) | st.builds(
    lambda kind: {"name": next(NAMES), **kind},
    st.sampled_from([{"type": "fixed", "size": 3}, {"type": "enum", "symbols": ["A", "B", "C"]}]),
)


def not_union(kind: Any) -> bool:
    return not isinstance(kind, list)


schemas = records(
    st.recursive(
        plain,
        lambda inner: st.one_of(
            inner.map(lambda item: {"type": "array", "items": item}),
            inner.filter(not_union).map(lambda kind: ["null", kind]),
            inner.filter(not_union).map(lambda kind: [kind, "null"]),
            records(inner),
        ),
        max_leaves=4,
    )
)
_PLAIN = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(codec="utf-8"), max_size=200),
    "bytes": st.binary(max_size=200),
    "fixed": st.binary(min_size=3, max_size=3),
    "enum": st.sampled_from("ABC"),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.none() | values(next(k for k in kind if k != "null"))
    if isinstance(kind, str):
        return _PLAIN[kind]
    if kind["type"] == "array":
        return st.lists(values(kind["items"]), max_size=4)
    if kind["type"] == "record":
        return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in kind["fields"]})
    return _PLAIN[kind["type"]]


@SOME
@given(st.data())
def test_any_schema_is_written_and_read_as_by_fastavro(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    rows = data.draw(st.lists(values(schema), max_size=4))
    node = avro_schema.parse(json.dumps(schema))
    encoded = avro_columns.encode(pa.array(rows, node.arrow), node)
    assert encoded.to_pylist() == [datum(schema, row) for row in rows]
    assert avro_columns.decode(encoded, node).to_pylist() == rows


@SOME
@given(trip=trips)
def test_values_of_a_type_are_as_fastavro_writes_them_by_the_derived_schema(trip: Trip) -> None:
    text = avro_schema.derived(RowType(Trip), "Trip")
    row = RowType(Trip).column([RowType(Trip).check(trip)]).to_pylist()[0]
    assert written(codec(Trip, "avro"), trip) == [datum(json.loads(text), row)]


def test_a_derived_schema_has_the_expected_fields() -> None:
    fields = {
        f["name"]: f for f in json.loads(avro_schema.derived(RowType(Trip), "Trip"))["fields"]
    }
    assert fields["at"]["type"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert fields["remark"] == {"name": "remark", "type": ["null", "string"], "default": None}
    assert fields["rank"] == {"name": "rank", "type": "long", "default": 7}
    assert fields["code"] == {"name": "code", "type": "bytes", "default": "\xff"}
    assert fields["tags"]["default"] == []
    assert "default" not in fields["number"]
    assert fields["stops"]["type"]["items"][1]["name"] == "Trip_stops_item"


# Decimals -------------------------------------------------------------------------------


def decimal_of(precision: int, scale: int, size: int = 0) -> dict[str, Any]:
    place = {"type": "fixed", "name": next(NAMES), "size": size} if size else {"type": "bytes"}
    return {**place, "logicalType": "decimal", "precision": precision, "scale": scale}


def as_java(unscaled: int) -> bytes:
    """Return what BigInteger.toByteArray does: the fewest bytes with a bit for the sign."""
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


@SOME
@given(
    st.sampled_from([(1, 0), (4, 4), (9, 2), (18, 0), (38, 10), (38, 38)]),
    st.sampled_from([0, 16, 17, 40]),
    st.data(),
)
def test_decimals_are_those_of_fastavro(
    digits: tuple[int, int], size: int, data: st.DataObject
) -> None:
    precision, scale = digits
    edges = [0, 127, 128, 255, 256, 32_767, 32_768, 10**precision - 1]
    near = st.sampled_from([edge for edge in edges if edge < 10**precision])
    most = 10**precision - 1
    whole = st.integers(-most, most) | near | near.map(lambda edge: -edge)
    unscaled = data.draw(st.lists(whole, max_size=5))
    exact = decimal.Context(prec=38)
    rows = [Decimal(one).scaleb(-scale, exact) for one in unscaled]
    schema = decimal_of(precision, scale, size)
    node = avro_schema.parse(json.dumps(schema))
    assert node.arrow == pa.decimal128(precision, scale)
    column = pa.array([None, *rows, None], node.arrow)[1 : len(rows) + 1]
    encoded = avro_columns.encode(column, node)
    with decimal.localcontext(exact):
        found = [
            fastavro.schemaless_reader(io.BytesIO(one.as_py()), schema, None) for one in encoded
        ]
        theirs = pa.array([datum(schema, row) for row in rows], pa.binary())
    assert found == rows
    assert avro_columns.decode(encoded, node).to_pylist() == rows
    assert avro_columns.decode(theirs, node).to_pylist() == rows
    if not size:
        assert encoded.to_pylist() == [datum("bytes", as_java(one)) for one in unscaled]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00" * 20])
def test_zero_may_have_any_number_of_bytes(data: bytes) -> None:
    node = avro_schema.parse(json.dumps(decimal_of(5, 2)))
    found = avro_columns.decode(pa.array([datum("bytes", data)]), node)
    assert found.to_pylist() == [Decimal("0.00")]


@pytest.mark.parametrize("unscaled", [10**5, -(10**5), 2**126, 10**38, 2**127, -(2**200)])
def test_a_decimal_with_more_digits_than_its_schema_is_refused(unscaled: int) -> None:
    node = avro_schema.parse(json.dumps(decimal_of(5, 2)))
    with pytest.raises(sl.InvalidRecord, match=r"an Avro decimal does not fit decimal128\(5, 2\)"):
        avro_columns.decode(pa.array([datum("bytes", as_java(unscaled))]), node)


def test_a_decimal_that_is_too_large_for_its_fixed_is_refused() -> None:
    node = avro_schema.parse(json.dumps(decimal_of(9, 2, size=2)))
    with pytest.raises(sl.InvalidRecord, match="more than the 2 bytes of its Avro fixed"):
        avro_columns.encode(pa.array([Decimal("327.68")], node.arrow), node)


@pytest.mark.parametrize("wrong", [{"precision": 39}, {"precision": 3, "scale": 4}, {"scale": 1}])
def test_a_decimal_that_arrow_lacks_is_no_column(wrong: dict[str, int]) -> None:
    schema = {"type": "bytes", "logicalType": "decimal", **wrong}
    with pytest.raises(avro_schema.NotColumnarAvro, match="decimal"):
        avro_schema.parse(json.dumps(schema))


@dataclasses.dataclass(frozen=True)
class Payment:
    amount: Annotated[Decimal, pa.decimal128(9, 2)]
    tip: Annotated[Decimal | None, pa.decimal128(9, 2)] = None
    fee: Annotated[Decimal, pa.decimal128(9, 2)] = Decimal("-1.28")


def test_money_has_a_derived_schema_with_its_defaults() -> None:
    text = avro_schema.derived(RowType(Payment), "Payment")
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    assert json.loads(text)["fields"] == [
        {"name": "amount", "type": kind},
        {"name": "tip", "type": ["null", kind], "default": None},
        {"name": "fee", "type": kind, "default": "\x80"},
    ]
    made = codec(Payment, "avro")
    [data] = written(made, Payment(Decimal("19.9")))
    told = {"amount": Decimal("19.90"), "tip": None, "fee": Decimal("-1.28")}
    assert fastavro.schemaless_reader(io.BytesIO(data), json.loads(text), None) == told
    assert read(made, data) == [Payment(Decimal("19.90"))]


def test_a_decimal_of_a_schema_may_have_other_digits_if_nothing_is_lost() -> None:
    schema = schema_of(
        amount={"type": decimal_of(12, 3)}, extra={"type": decimal_of(4, 1), "default": "\xff"}
    )
    wide = dataclasses.make_dataclass("Wide", [("amount", Annotated[Decimal, pa.decimal128(9, 2)])])
    made = codec(wide, sl.AvroSerde(schema))
    [data] = written(made, wide(Decimal("19.90")))
    assert data == datum(schema, {"amount": Decimal("19.900"), "extra": Decimal("-0.1")})
    assert read(made, data) == [wide(Decimal("19.90"))]
    lossy = datum(schema, {"amount": Decimal("19.901"), "extra": Decimal("0.0")})
    with pytest.raises(sl.InvalidRecord, match="loses something"):
        read(made, lossy)


# Schemas of others ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sale:
    shop: str
    at: dt.datetime
    amount: float
    note: str | None = None


def schema_of(**fields: Any) -> dict[str, Any]:
    told = [{"name": name, **kind} for name, kind in fields.items()]
    return {"type": "record", "name": "com.shop.Sale", "fields": told}


GIVEN = schema_of(
    till={"type": "int", "default": 4},
    at={"type": {"type": "long", "logicalType": "timestamp-millis"}},
    shop={"type": {"type": "enum", "name": "Shop", "symbols": ["york", "leeds"]}},
    note={"type": ["string", "null"], "default": ""},
    amount={"type": "float"},
)
AT = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def test_a_given_schema_may_order_and_type_the_fields_differently() -> None:
    made = codec(Sale, sl.AvroSerde(GIVEN))
    [data] = written(made, Sale("leeds", AT, 0.5))
    told = {"till": 4, "at": AT, "shop": "leeds", "note": None, "amount": 0.5}
    assert data == datum(GIVEN, told)
    assert read(made, data) == [Sale("leeds", AT, 0.5)]


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (Sale("derby", AT, 1.0), "'derby' is none of the Avro enum's"),
        (
            Sale("york", AT.replace(microsecond=1), 1.0),
            "expected timestamp.ms, tz=UTC.*loses something",
        ),
    ],
)
def test_a_value_that_does_not_fit_the_schema_is_refused(value: Sale, match: str) -> None:
    with pytest.raises(sl.InvalidRecord, match=match):
        written(codec(Sale, sl.AvroSerde(GIVEN)), value)


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (
            schema_of(shop={"type": "string"}),
            "the Avro schema has no amount, at, note, which Sale has",
        ),
        (
            {**GIVEN, "fields": [*GIVEN["fields"], {"name": "more", "type": "int"}]},
            "the field 'more' of the Avro schema is not in Sale, and has no default",
        ),
        (
            {**GIVEN, "fields": [*GIVEN["fields"][:-1], {"name": "amount", "type": "string"}]},
            "column 'amount': expected string, got double",
        ),
        (
            {
                **GIVEN,
                "fields": [
                    *GIVEN["fields"],
                    {"name": "m", "type": {"type": "map", "values": "int"}},
                ],
            },
            "'map' in the Avro schema is no column",
        ),
        ("{", "not an Avro schema"),
    ],
)
def test_a_schema_that_does_not_fit_the_type_is_refused_when_it_is_declared(
    schema: Any, match: str
) -> None:
    with pytest.raises(sl.InvalidConfig, match=match):
        codec(Sale, sl.AvroSerde(schema))


def test_values_without_a_type_have_the_columns_of_the_schema() -> None:
    made = codec(dict, sl.AvroSerde(GIVEN))
    told = {"till": 4, "at": AT, "shop": "leeds", "note": None, "amount": 0.5}
    assert written(made, told) == [datum(GIVEN, told)]
    assert shown(made, datum(GIVEN, told)) == read(made, datum(GIVEN, told)) == [told]


MAP = schema_of(counts={"type": {"type": "map", "values": ["int", "string", "null"]}})


def test_values_that_are_no_columns_are_dicts() -> None:
    made = codec(dict, sl.AvroSerde(MAP))
    value = {"counts": {"a": 1, "b": "x", "c": None}}
    assert written(made, value, None) == [datum(MAP, value), None]
    assert read(made, datum(MAP, value), None) == [value, None]
    with pytest.raises(sl.InvalidRecord, match="is not of the Avro schema"):
        made.item({"counts": 1})
    with pytest.raises(sl.InvalidRecord, match="bytes after"):
        read(made, datum(MAP, value) + b"x")


# Schemas that change --------------------------------------------------------------------


def resolved(kind: Any, writer: Any, *rows: Any) -> list[Any]:
    """Return rows written with another schema, as a reader of a type gets them."""
    rowtype = RowType(kind)
    wire = AvroWire(
        rowtype, avro_schema.derived(rowtype, "Sale"), SerdeUse("sales"), _Knows(writer)
    )  # type: ignore[arg-type]
    data = pa.array([b"\0\0\0\0\7" + datum(writer, row) for row in rows], pa.binary())
    return rowtype.values(wire.decode(data))


class _Knows:
    """A registry with a single schema."""

    def __init__(self, schema: Any) -> None:
        self._text = json.dumps(schema)

    def schema(self, _id: int) -> Any:
        from strandline.framework.formats.registry import RegisteredSchema

        return RegisteredSchema("AVRO", self._text)


@dataclasses.dataclass(frozen=True)
class Now:
    shop: str
    amount: float
    count: int = 9
    note: str | None = None


def test_added_fields_have_their_defaults_and_removed_ones_are_ignored() -> None:
    writer = schema_of(
        old={"type": {"type": "array", "items": "string"}},
        amount={"type": "int"},
        shop={"type": "bytes"},
    )
    row = {"old": ["x"], "amount": 3, "shop": b"york"}
    with pytest.raises(sl.InvalidRecord, match="expected string, got binary"):
        resolved(Now, writer, row)
    writer["fields"][2]["type"] = "string"
    row["shop"] = "york"
    assert resolved(Now, writer, row) == [Now("york", 3.0)]


def test_a_writer_whose_fields_are_no_columns_can_be_read() -> None:
    writer = schema_of(
        counts={"type": {"type": "map", "values": "int"}},
        shop={"type": "string"},
        amount={"type": ["null", "double", "int"]},
    )
    row = {"counts": {"a": 1}, "shop": "york", "amount": 2.5}
    assert resolved(Now, writer, row, row) == [Now("york", 2.5)] * 2


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("com.shop.Elsewhere", "UnknownType"),
        ({"type": "array", "items": "null"}, "an array of items without bytes"),
        (
            {"type": "map", "values": {"type": "array", "items": {"type": "null"}}},
            "items without bytes",
        ),
        (
            {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
            "an array of items without bytes",
        ),
    ],
)
def test_a_writer_with_an_incompatible_schema_spoils_its_own_records_only(
    kind: Any, match: str
) -> None:
    writer = schema_of(n={"type": "int"})
    data = b"\0\0\0\0\7" + datum(writer, {"n": 1})
    writer["fields"][0]["type"] = kind
    rows = RowType(Now)
    known: Any = _Knows(writer)
    wire = AvroWire(rows, avro_schema.derived(rows, "Sale"), SerdeUse("sales"), known)
    with pytest.raises(sl.InvalidRecord, match=match):
        wire.decode(pa.array([data]))


def test_a_long_array_can_be_read() -> None:
    @dataclasses.dataclass(frozen=True)
    class Long:
        items: list[int]

    made = codec(Long, "avro")
    for length in (avro_columns.MAX_COLUMNAR_ITEMS, avro_columns.MAX_COLUMNAR_ITEMS + 1):
        value = Long(list(range(length)))
        assert read(made, *written(made, value, value)) == [value, value]


def test_blocks_of_an_array_may_include_their_size() -> None:
    node = avro_schema.parse('{"type": "array", "items": "long"}')
    # -2 items in 2 bytes: 1, 2; then 1 item: 3; then the end; and an empty array
    blocks = bytes([0x03, 0x04, 0x02, 0x04, 0x02, 0x06, 0x00])
    got = avro_columns.decode(pa.array([blocks, b"\0"]), node).to_pylist()
    assert got == [[1, 2, 3], []]


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ('"long"', b"\xff" * 11),
        ('"long"', b"\xff"),
        ('"string"', b"\x01"),  # a length of -1
        ('"string"', b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ('"string"', b"\x02\xff"),
        ('"boolean"', b"\x02"),
        ('["null", "long"]', b"\x04"),
        ('{"type": "enum", "name": "E", "symbols": ["A"]}', b"\x02"),
        ('"int"', b"\x80\x80\x80\x80\x20"),
        ('"long"', b"\x02\x02"),
        ('{"type": "array", "items": "long"}', b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ],
)
def test_bytes_that_are_no_value_of_the_schema_are_refused(schema: str, data: bytes) -> None:
    with pytest.raises(sl.InvalidRecord):
        avro_columns.decode(pa.array([data]), avro_schema.parse(schema))
