"""Protobuf: message classes from elsewhere, derived classes, and fields that are added or
removed."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, cast

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import strandline as sl
from strandline.framework.formats import protobuf_messages
from strandline.framework.formats.schema import RowType
from tests.serdes.kit import Trip, codec, read, shown, written

_F = descriptor_pb2.FieldDescriptorProto


def message_class() -> type[Message]:
    """Return a message class like the one that protoc generates from

    message Sale {
      string shop = 1;
      google.protobuf.Timestamp at = 2;
      optional double amount = 3;
      Kind kind = 4;              enum Kind { CASH = 0; CARD = 1; }
      repeated Line lines = 5;    message Line { int32 article = 1; }
    }
    """
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    sale = file.message_type.add(name="Sale")
    one, many = _F.LABEL_OPTIONAL, _F.LABEL_REPEATED
    sale.field.add(name="shop", number=1, type=_F.TYPE_STRING, label=one)
    instant = ".google.protobuf.Timestamp"
    sale.field.add(name="at", number=2, type=_F.TYPE_MESSAGE, type_name=instant, label=one)
    amount = sale.field.add(name="amount", number=3, type=_F.TYPE_DOUBLE, label=one)
    amount.proto3_optional, amount.oneof_index = True, 0
    sale.oneof_decl.add(name="_amount")
    sale.field.add(name="kind", number=4, type=_F.TYPE_ENUM, type_name=".shop.Kind", label=one)
    sale.field.add(name="lines", number=5, type=_F.TYPE_MESSAGE, type_name=".shop.Line", label=many)
    line = file.message_type.add(name="Line")
    line.field.add(name="article", number=1, type=_F.TYPE_INT32, label=one)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="CASH", number=0)
    kind.value.add(name="CARD", number=1)
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return cast("type[Message]", GetMessageClass(pool.FindMessageTypeByName("shop.Sale")))


SalePb: Any = message_class()
AT = dt.datetime(2024, 5, 1, 10, 0, 0, 250_000, tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True)
class Line:
    article: int


@dataclasses.dataclass(frozen=True)
class Sale:
    shop: str
    at: dt.datetime
    amount: float | None = None
    kind: str = "CASH"
    lines: list[Line] = dataclasses.field(default_factory=list)


def a_message(**fields: Any) -> Any:
    seconds = int(AT.timestamp())
    at = {"seconds": seconds, "nanos": 250_000_000}
    return SalePb(**{"shop": "york", "at": at, **fields})


def test_values_may_be_messages() -> None:
    made = codec(SalePb, "protobuf")
    message = a_message(amount=0.0, kind=1, lines=[{"article": 3}])
    assert written(made, message, None) == [message.SerializeToString(), None]
    assert read(made, message.SerializeToString(), None) == [message, None]
    assert shown(made, message.SerializeToString()) == [
        {"shop": "york", "at": AT, "amount": 0.0, "kind": "CARD", "lines": [{"article": 3}]}
    ]
    assert made.from_columns(made.to_columns(made.encode([made.item(message)]))).to_pylist() == [
        message.SerializeToString()
    ]
    with pytest.raises(sl.InvalidRecord, match="expected a shop.Sale, got"):
        made.item({"shop": "york"})


def test_values_may_have_their_own_class_and_the_fields_of_a_message() -> None:
    for serde in (sl.ProtobufSerde(SalePb), sl.ProtobufSerde(SalePb.DESCRIPTOR)):
        made = codec(Sale, serde)
        sale = Sale("york", AT, None, "CARD", [Line(3), Line(4)])
        [data] = written(made, sale)
        assert SalePb.FromString(data) == a_message(kind=1, lines=[{"article": 3}, {"article": 4}])
        assert read(made, data) == [sale]


@dataclasses.dataclass
class Wrong:
    shop: str | None = None


@pytest.mark.parametrize(
    ("kind", "message", "match"),
    [
        (Trip, SalePb, "shop.Sale has no field 'name', which Trip has"),
        (Wrong, SalePb, "field 'shop' of Wrong may be None, but in shop.Sale it has no presence"),
        (pa.schema([("shop", pa.int64())]), SalePb, "may be None"),
        (
            pa.schema([pa.field("shop", pa.int64(), nullable=False)]),
            SalePb,
            "does not fit the Arrow schema: .* expected string, got int64",
        ),
        (
            pa.schema([("fields", pa.string())]),
            struct_pb2.Struct,
            "a map or group, in .* is no column",
        ),
    ],
)
def test_a_message_that_does_not_fit_the_type_is_refused_when_it_is_declared(
    kind: Any, message: Any, match: str
) -> None:
    with pytest.raises(sl.InvalidConfig, match=match):
        codec(kind, sl.ProtobufSerde(message))


def test_messages_that_are_no_columns_can_be_values() -> None:
    made = codec(struct_pb2.Struct, "protobuf")
    message = struct_pb2.Struct()
    message.update({"a": 1.0})
    assert made.rows is None
    assert read(made, *written(made, message)) == [message]


def test_a_value_that_does_not_fit_the_message_is_refused() -> None:
    with pytest.raises(sl.InvalidRecord, match="no shop.Sale"):
        written(codec(Sale, sl.ProtobufSerde(SalePb)), Sale("york", AT, kind="CHEQUE"))
    with pytest.raises(sl.InvalidRecord, match="loses something"):
        written(codec(Sale, sl.ProtobufSerde(SalePb)), Sale("york", AT, lines=[Line(2**40)]))


@dataclasses.dataclass(frozen=True)
class Vague:
    article: int | None = None


@dataclasses.dataclass(frozen=True)
class Deep:
    lines: list[Vague]


def test_none_where_a_message_within_has_no_presence_is_refused() -> None:
    made = codec(Deep, sl.ProtobufSerde(SalePb))
    assert read(made, *written(made, Deep([Vague(3)]))) == [Deep([Vague(3)])]
    with pytest.raises(sl.InvalidRecord, match="None in shop.Line.article, which has no presence"):
        written(made, Deep([Vague(3), Vague()]))


@dataclasses.dataclass(frozen=True)
class Later:
    shop: str
    at: dt.datetime
    amount: float | None = None
    kind: str = "CASH"
    lines: list[Line] = dataclasses.field(default_factory=list)
    till: int = 4


def test_new_fields_at_the_end_change_nothing_for_old_readers_and_old_values_have_defaults() -> (
    None
):
    before, after = codec(Sale, "protobuf"), codec(Later, "protobuf")
    assert read(after, *written(before, Sale("york", AT, 1.0))) == [Later("york", AT, 1.0)]
    assert read(before, *written(after, Later("york", AT, 1.0, till=9))) == [Sale("york", AT, 1.0)]


def test_a_derived_message_has_the_expected_fields() -> None:
    message = protobuf_messages.derived(RowType(Sale), "Sale")
    told = descriptor_pb2.DescriptorProto()
    cast("Any", message.DESCRIPTOR).CopyToProto(told)
    fields = {f.name: (f.number, f.type, f.proto3_optional) for f in told.field}
    assert fields == {
        "shop": (1, _F.TYPE_STRING, False),
        "at": (2, _F.TYPE_MESSAGE, False),
        "amount": (3, _F.TYPE_DOUBLE, True),
        "kind": (4, _F.TYPE_STRING, True),
        "lines": (5, _F.TYPE_MESSAGE, False),
    }
