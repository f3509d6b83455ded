"""Every form decodes to the encoded values, by records and by columns, and refuses other bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
import sys
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.changelog.errors import MissingDependency
from strandline.framework.formats.choice import value_codec
from strandline.framework.formats.codecs import TypedCodec
from strandline.framework.formats.schema import RowType
from tests.serdes.kit import FORMS, Trip, codec, read, trips, written

EACH = pytest.mark.parametrize("form", FORMS)
SOME = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], database=None)
CODECS = {form: codec(Trip, form) for form in FORMS}
ROWS = RowType(Trip)


@EACH
@SOME
@given(values=st.lists(st.none() | trips, max_size=4))
def test_values_are_decoded_as_they_were_encoded(form: str, values: list[Trip | None]) -> None:
    assert read(CODECS[form], *written(CODECS[form], *values)) == values


@EACH
@SOME
@given(values=st.lists(st.none() | trips, max_size=4))
def test_columns_are_decoded_as_they_were_encoded_and_have_the_same_bytes(
    form: str, values: list[Trip | None]
) -> None:
    made = CODECS[form]
    column = ROWS.column([None if value is None else ROWS.check(value) for value in values])
    data = made.from_columns(column)
    assert data.to_pylist() == written(made, *values)
    assert made.to_columns(data).equals(column)


@EACH
def test_a_slice_of_a_column_is_encoded_without_the_rest(form: str) -> None:
    made, values = CODECS[form], [a_trip(n) for n in range(5)]
    column = ROWS.column([ROWS.check(value) for value in values])
    data = made.from_columns(column.slice(1, 3))
    assert made.decode(data) == values[1:4]
    assert made.decode(data.slice(1, 1)) == values[2:3]
    assert made.to_columns(data.slice(1)).equals(column.slice(2, 2))


@EACH
@SOME
@given(trip=trips, at=st.integers(0), byte=st.integers(0, 255), noise=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_invalid_record(
    form: str, trip: Trip, at: int, byte: int, noise: bytes
) -> None:
    [good] = written(CODECS[form], trip)
    assert good is not None
    damaged = bytearray(good)
    damaged[at % len(good)] = byte
    for call in (CODECS[form].decode, CODECS[form].to_columns):
        for data in (bytes(damaged), noise, b""):
            with contextlib.suppress(sl.InvalidRecord):
                assert len(call(pa.array([data, good], pa.binary()))) == 2


@EACH
def test_a_truncated_value_spoils_no_other(form: str) -> None:
    """Protobuf omits defaults at the end, so nothing is missing there."""
    made = CODECS[form]
    whole = [data for data in written(made, a_trip(1), a_trip(2)) if data is not None]
    for end in range(len(whole[0])):
        try:
            got = read(made, whole[0][:end], whole[1])
        except sl.InvalidRecord:
            continue
        assert form == "protobuf"
        assert got[1] == a_trip(2)


@EACH
def test_times_are_decoded_in_utc(form: str) -> None:
    east = dt.timezone(dt.timedelta(hours=2))
    naive, there = dt.datetime(2024, 5, 1, 10), dt.datetime(2024, 5, 1, 12, tzinfo=east)
    for at in (naive, there):
        trip = dataclasses.replace(a_trip(1), at=at)
        [back] = read(CODECS[form], *written(CODECS[form], trip))
        assert back.at == dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)
        assert back.at.tzinfo is dt.UTC


@EACH
def test_a_value_of_another_type_is_refused_when_it_is_sent(form: str) -> None:
    with pytest.raises(sl.InvalidRecord, match="field 'number' of Trip is stored as int64"):
        CODECS[form].item(dataclasses.replace(a_trip(1), number="many"))  # type: ignore[arg-type]
    with pytest.raises(sl.InvalidRecord, match="expected Trip, got 'trip'"):
        CODECS[form].item("trip")


@EACH
def test_a_later_change_of_a_value_that_was_sent_does_not_matter(form: str) -> None:
    trip = a_trip(1)
    item = CODECS[form].item(trip)
    trip.tags.append("changed")
    [back] = CODECS[form].decode(CODECS[form].encode([item]))
    assert back == a_trip(1)


@EACH
def test_structs_and_arrow_schemas_are_typed_as_well(form: str) -> None:
    class Leg(msgspec.Struct):
        carrier: str
        minutes: int = 3

    schema = pa.schema([pa.field("n", pa.int32(), nullable=False), ("x", pa.float32())])
    legs, rows = codec(Leg, form), codec(schema, form)
    assert read(legs, *written(legs, Leg("AA", 5))) == [Leg("AA", 5)]
    assert read(rows, *written(rows, {"n": -1, "x": 0.5}, {"n": 2})) == [
        {"n": -1, "x": 0.5},
        {"n": 2, "x": None},
    ]


@EACH
def test_nulls_in_a_table_become_the_defaults_of_required_fields(form: str) -> None:
    made = CODECS[form]
    column = ROWS.column([ROWS.check(a_trip(1))])
    lacking = {"rank": None, "code": None, "tags": None, "fare": None}
    table = pa.array([column[0].as_py() | lacking], ROWS.arrow)
    [back] = made.decode(made.from_columns(table))
    expected = dataclasses.replace(a_trip(1), rank=7, code=b"\xff", tags=[], fare=None)
    assert back == expected


@pytest.mark.parametrize(
    ("kind", "serde", "value"),
    [
        (bytes, "bytes", b"\x00\xff"),
        (dict, "json", {"a": [1, None]}),
        (dict[str, int], "json", {"a": 1}),
        (str, "json", "é"),
        (dict, "msgpack", {"a": [1, None]}),
        (int, "msgpack", 2**70),
        (str, "avro", "é"),
        (int, "avro", -(2**63)),
        (float, "avro", 0.1),
        (bool, "avro", True),
        (bytes, "avro", b"\xff"),
    ],
)
def test_values_without_fields_have_forms_too(kind: Any, serde: Any, value: Any) -> None:
    made = value_codec(kind, serde)
    items = [made.item(value), made.item(None)]
    assert made.decode(made.encode(items)) == [value, None]


@pytest.mark.parametrize(
    ("kind", "serde", "match"),
    [
        (Trip, "xml", "there is no serde 'xml'; it is one of json, avro"),
        (Trip, "bytes", "is for values that are bytes"),
        (dict, "avro", "Avro needs a schema"),
        (dict, "protobuf", "Protobuf needs a type"),
        (
            pa.schema([("a", pa.duration("s"))]),
            "json",
            "field 'a' of the Arrow schema is duration",
        ),
        (pa.schema([("a", pa.uint64())]), "avro", "Avro has no type for uint64"),
        (pa.schema([("a", pa.duration("s"))]), "protobuf", "Protobuf has no type for"),
    ],
)
def test_a_type_that_a_form_cannot_hold_is_refused_when_it_is_declared(
    kind: Any, serde: Any, match: str
) -> None:
    with pytest.raises(sl.InvalidConfig, match=match):
        codec(kind, serde)


@dataclasses.dataclass(frozen=True)
class Inner:
    rank: int = 7
    words: list[str] = dataclasses.field(default_factory=lambda: ["x"])
    note: str | None = None


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    more: list[Inner]
    maybe: Inner | None = None


@EACH
def test_nulls_deep_in_a_table_become_defaults_too(form: str) -> None:
    made = codec(Outer, form)
    empty = {"rank": None, "words": None, "note": None}
    rows = [
        {"inner": empty, "more": [empty, {**empty, "rank": 1}], "maybe": None},
        {"inner": {**empty, "words": ["y"]}, "more": [], "maybe": empty},
    ]
    table = pa.array([*rows, None], RowType(Outer).arrow)
    assert made.decode(made.from_columns(table)) == [
        Outer(Inner(), [Inner(), Inner(rank=1)]),
        Outer(Inner(words=["y"]), [], Inner()),
        None,
    ]


MAPS = sl.AvroSerde({"type": "map", "values": "int"})


@pytest.mark.parametrize(
    ("package", "kind", "form", "extra"),
    [
        ("google.protobuf.message", Trip, "protobuf", "protobuf"),
        ("fastavro", dict, MAPS, "avro"),
        ("confluent_kafka.schema_registry", Trip, sl.AvroSerde(registry="mock://x"), "registry"),
    ],
)
def test_a_package_that_is_missing_is_named(
    package: str, kind: Any, form: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for loaded in (
        "strandline.framework.formats.protobuf",
        "strandline.framework.formats.protobuf_messages",
    ):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    with pytest.raises(MissingDependency, match=re.escape(f"pip install 'strandline[{extra}]'")):
        written(codec(kind, form), a_trip(1))


class Upper:
    """A serde of a user's own."""

    def dumps(self, value: Any) -> bytes:
        return str(value.town).upper().encode()

    def loads(self, data: bytes) -> Any:
        return Town(data.decode().lower())


@dataclasses.dataclass
class Town:
    town: str


def test_a_users_serde_is_a_form_of_typed_values() -> None:
    made: TypedCodec = codec(Town, Upper())
    assert written(made, Town("york")) == [b"YORK"]
    assert read(made, b"YORK", None) == [Town("york"), None]
    assert made.to_columns(pa.array([b"YORK"])).to_pylist() == [{"town": "york"}]
    assert made.from_columns(pa.array([{"town": "york"}])).to_pylist() == [b"YORK"]


def a_trip(n: int) -> Trip:
    return Trip(
        name=f"trip {n}",
        at=dt.datetime(2024, 5, n + 1, tzinfo=dt.UTC),
        day=dt.date(2024, 5, n + 1),
        number=n,
        length=n / 3,
        late=bool(n % 2),
        ticket=bytes([n]),
        stops=[],
        scores=[n] * n,
        fare=None,
        tags=["x"],
    )
