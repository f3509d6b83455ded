"""A schema registry: Confluent's own serializers and Strandline's read and write the same bytes."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import strandline as sl
from strandline.changelog.errors import RegistryUnavailable, SchemaMismatch
from strandline.framework.formats import avro_schema, protobuf_messages
from strandline.framework.formats.registry import SchemaRegistry
from strandline.framework.formats.schema import RowType
from strandline.framework.formats.wire import SerdeUse
from tests.serdes.kit import Trip, codec, read, shown, written
from tests.serdes.test_forms import a_trip
from tests.serdes.test_protobuf import SalePb, a_message

TOPIC_NAMES: dict[str, Any] = {"subject.name.strategy": topic_subject_name_strategy}


def in_context(name: str) -> SerializationContext:
    return SerializationContext(name, MessageField.VALUE)


def formed(kind: Any, serde: Any, name: str, registry: SchemaRegistry) -> Any:
    return codec(kind, serde, SerdeUse(name, "value", registry))


def row_of(trip: Trip) -> Any:
    rows = RowType(Trip)
    return rows.column([rows.check(trip)]).to_pylist()[0]


# Confluent's serializers ------------------------------------------------------------------


@pytest.mark.long
def test_avro_is_compatible_with_confluents(registry: SchemaRegistry, name: str) -> None:
    trip, context = a_trip(3), in_context(name)
    text = avro_schema.derived(RowType(Trip), "Trip")
    made = formed(Trip, "avro", name, registry)
    [data] = written(made, trip)
    assert AvroSerializer(registry.client(), text, conf=TOPIC_NAMES)(row_of(trip), context) == data
    assert AvroDeserializer(registry.client())(data, context) == row_of(trip)
    assert read(made, data, None) == [trip, None]
    assert f"{name}-value" in registry.client().get_subjects()


def test_avro_without_columns_is_compatible_with_confluents(
    registry: SchemaRegistry, name: str
) -> None:
    counts = {"name": "counts", "type": {"type": "map", "values": ["int", "string"]}}
    schema = {"type": "record", "name": "Counted", "fields": [counts]}
    value, made = {"counts": {"a": 1, "b": "x"}}, formed(dict, sl.AvroSerde(schema), name, registry)
    [data, nothing] = written(made, value, None)
    theirs = AvroSerializer(registry.client(), json.dumps(schema), conf=TOPIC_NAMES)
    assert theirs(value, in_context(name)) == data
    assert read(made, data, nothing, data) == [value, None, value]


def test_protobuf_is_compatible_with_confluents(registry: SchemaRegistry, name: str) -> None:
    message, context = a_message(amount=2.5, lines=[{"article": 1}]), in_context(name)
    made = formed(SalePb, "protobuf", name, registry)
    [data] = written(made, message)
    theirs = ProtobufSerializer(SalePb, registry.client(), conf=TOPIC_NAMES)
    assert theirs(message, context) == data
    deserialize = ProtobufDeserializer(SalePb, {"use.deprecated.format": False})
    assert deserialize(data, context) == message
    assert read(made, data, None) == [message, None]


def test_a_message_that_is_not_the_first_of_its_schema_is_found(
    registry: SchemaRegistry, name: str
) -> None:
    line = SalePb.DESCRIPTOR.file.message_types_by_name["Line"]
    made = formed(dict, sl.ProtobufSerde(line), name, registry)
    message = made._message(article=7)
    [data] = written(made, message)
    theirs = ProtobufSerializer(made._message, registry.client(), conf=TOPIC_NAMES)
    assert theirs(message, in_context(name)) == data
    assert data[5:] == b"\x02\x02\x08\x07"  # one index, 1; then the message
    assert read(made, data, data) == [message, message]


def test_a_derived_message_can_be_registered(registry: SchemaRegistry, name: str) -> None:
    trip, made = a_trip(2), formed(Trip, "protobuf", name, registry)
    [data] = written(made, trip)
    message = protobuf_messages.derived(RowType(Trip), "Trip")
    theirs = ProtobufSerializer(message, registry.client(), conf=TOPIC_NAMES)
    assert theirs(message.FromString(data[6:]), in_context(name)) == data
    assert read(made, data) == [trip]


def test_json_with_a_schema_is_compatible_with_confluents(
    registry: SchemaRegistry, name: str
) -> None:
    trip, context = a_trip(4), in_context(name)
    made = formed(Trip, sl.JsonSerde(registry=True), name, registry)
    [data] = written(made, trip)
    schema = registry.client().get_latest_version(f"{name}-value").schema.schema_str
    told = JSONDeserializer(schema)(data, context)
    assert told == json.loads(data[5:])
    theirs = JSONSerializer(schema, registry.client(), conf=TOPIC_NAMES)(told, context)
    assert theirs[:5] == data[:5]
    assert read(made, theirs, None) == [trip, None]
    assert shown(made, theirs) == [row_of(trip)]
    assert made.from_columns(made.to_columns(pa.array([data]))).to_pylist() == [data]


def test_keys_have_their_own_subject(registry: SchemaRegistry, name: str) -> None:
    made = codec(str, "avro", SerdeUse(name, "key", registry))
    [data] = written(made, "york")
    assert read(made, data) == ["york"]
    assert registry.client().get_latest_version(f"{name}-key").schema.schema_str == '"string"'


# Schemas that change ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Old:
    n: int
    gone: str


@dataclasses.dataclass(frozen=True)
class New:
    n: int
    more: float = 1.5


def test_each_value_is_read_by_the_schema_it_was_written_with(
    registry: SchemaRegistry, name: str
) -> None:
    registry.client().set_compatibility(subject_name=f"{name}-value", level="NONE")
    before, after = (formed(kind, "avro", name, registry) for kind in (Old, New))
    data = [
        *written(before, Old(1, "x")),
        *written(after, New(2, 2.5)),
        *written(before, Old(3, "y")),
    ]
    assert read(after, data[0], None, *data[1:]) == [New(1), None, New(2, 2.5), New(3)]
    with pytest.raises(sl.InvalidRecord, match="the field 'gone' of the Avro schema is not in Old"):
        read(before, *data)


def test_a_schema_that_the_registry_refuses_is_an_error_before_anything_is_written(
    registry: SchemaRegistry, name: str, tmp_path: Any
) -> None:
    registry.client().set_compatibility(subject_name=f"{name}-value", level="BACKWARD")
    written(formed(New, "avro", name, registry), New(1))
    app = sl.App("shop", log=tmp_path / "log", registry=registry)
    topic = app.topic(name, value=Old, serde="avro")
    with pytest.raises(SchemaMismatch, match=f"the schema of {name}-value.*HTTP status code 409"):
        topic.append([("k", Old(1, "x"))])
    assert topic.to_polars().height == 0
    app.close()


def test_without_auto_register_the_schema_must_exist(
    registry: SchemaRegistry, registry_url: str, name: str
) -> None:
    careful = SchemaRegistry(registry_url, auto_register=False)
    made = formed(New, "avro", name, careful)
    with pytest.raises(SchemaMismatch, match="register it first, or let auto_register be True"):
        written(made, New(1))
    there = written(formed(New, "avro", name, registry), New(1))
    assert written(made, New(1)) == there


# Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serde", "data", "match"),
    [
        ("avro", b"\x00\x00\x00\xff\xff\x02", "schema id 65535.*written with another registry"),
        ("avro", b"{}", "does not begin with 0 and a schema id of 4 bytes"),
        ("avro", b"\x02\x00\x00\x00\x01\x02", "does not begin with 0"),
        ("protobuf", b"\x00\x00\x00\x00\x01", "no message indexes"),
        ("protobuf", b"\x00\x00\x00\x00\x01\x7f", "neither a count nor a message index"),
        ("protobuf", b"\x00\x00\x00\x00\x01\x02", "no message indexes"),
    ],
)
def test_bytes_that_are_not_in_the_wire_format_are_refused(
    registry: SchemaRegistry, name: str, serde: str, data: bytes, match: str
) -> None:
    with pytest.raises(sl.InvalidRecord, match=match):
        read(formed(New, serde, name, registry), data)


@pytest.mark.parametrize("serde", ["avro", "protobuf"])
def test_the_error_of_a_registry_that_is_down_is_retriable(
    serde: str, down: SchemaRegistry, name: str
) -> None:
    with pytest.raises(RegistryUnavailable, match="http://127.0.0.1:1 does not answer"):
        written(formed(New, serde, name, down), New(1))
    assert issubclass(RegistryUnavailable, sl.Retriable)


def test_known_schemas_need_no_registry(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = formed(New, "avro", name, registry)
    [data] = written(made, New(1))
    assert read(made, data) == [New(1)]

    def gone(*_: object) -> None:
        raise ConnectionRefusedError("nobody there")

    client = registry.client()
    for call in ("register_schema", "get_schema", "lookup_schema"):
        monkeypatch.setattr(client, call, gone)
    assert read(made, *written(made, New(2))) == [New(2)]
    with pytest.raises(RegistryUnavailable):
        read(made, b"\x00\x00\x01\x00\x00\x02")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, 40101, "Unauthenticated"),
        (401, -1, "Unauthenticated"),
        (404, 40401, "SchemaMismatch"),
        (404, 404, "RegistryUnavailable"),
        (404, -1, "RegistryUnavailable"),
        (409, 409, "SchemaMismatch"),
        (409, None, "RegistryUnavailable"),
        (422, 42201, "SchemaMismatch"),
        (422, -1, "RegistryUnavailable"),
        (500, 50001, "RegistryUnavailable"),
        (503, -1, "RegistryUnavailable"),
    ],
)
def test_errors_of_a_registry_become_errors_of_strandline(
    status: int, code: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    registry = SchemaRegistry(f"mock://{status}-{code}")

    def refuse(*_: object) -> None:
        raise SchemaRegistryError(status, code, "no")  # type: ignore[arg-type]

    monkeypatch.setattr(registry.client(), "register_schema", refuse)
    with pytest.raises(sl.StrandlineError, match="no") as raised:
        written(formed(New, "avro", "t", registry), New(1))
    assert type(raised.value).__name__ == expected


def test_mistakes_in_declaring_a_registry_are_explained() -> None:
    with pytest.raises(sl.InvalidConfig, match="http://host:port"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(sl.InvalidConfig, match="Unrecognized properties: no.such"):
        SchemaRegistry("http://127.0.0.1:1", no_such=1).client()
    with pytest.raises(sl.InvalidConfig, match="the app has none"):
        codec(New, sl.JsonSerde(registry=True))


def test_credentials_go_to_the_client() -> None:
    registry = SchemaRegistry("http://127.0.0.1:1", basic_auth_user_info="me:secret")
    assert registry.client()._rest_client.session.auth is not None
    assert "secret" not in repr(registry)


def test_mock_registries_of_one_name_share_their_schemas(name: str) -> None:
    data = written(formed(New, "avro", name, SchemaRegistry(f"mock://{name}")), New(1))
    other = formed(New, "avro", name, SchemaRegistry(f"mock://{name}"))
    assert read(other, *data) == [New(1)]


def test_registry_false_means_no_registry(registry: SchemaRegistry, name: str) -> None:
    schema = json.loads(avro_schema.derived(RowType(New), "New"))
    made = formed(New, sl.AvroSerde(registry=False), name, registry)
    [data] = written(made, New(1))
    assert data is not None
    assert fastavro.schemaless_reader(io.BytesIO(data), schema, None) == {"n": 1, "more": 1.5}
