"""Protocol Buffers: values of a message class, with a schema registry in Confluent's wire format.

A topic's values are messages (`value=FlightPb`), or objects of another class whose fields are
matched by name (`value=Flight, serde=ProtobufSerde(FlightPb)`). Without a message class one is
derived from the type: its fields are numbered in order, so new fields at the end do not affect old
readers.

Reading needs no registry: unknown fields are skipped, and missing ones have Protobuf's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.errors import InvalidConfig, InvalidRecord, MissingDependency
from strandline.framework.formats.binary import flat
from strandline.framework.formats.codecs import Codec
from strandline.framework.formats.confluent import HEADER_BYTES, framed, schema_ids, without
from strandline.framework.formats.registry import SchemaRegistry, chosen
from strandline.framework.formats.schema import Row, RowType, is_typed
from strandline.framework.formats.wire import (
    SerdeUse,
    WireCodec,
    WireFormat,
    conform,
    where_valid,
    with_nulls,
)

try:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import DecodeError, Message
    from google.protobuf.message_factory import GetMessageClass

    from strandline.framework.formats import protobuf_messages as messages
except ModuleNotFoundError as missing:
    raise MissingDependency(
        "Protobuf values need the package protobuf: pip install 'strandline[protobuf]'"
    ) from missing


class ProtobufSerde:
    """Serde for Protobuf, of the topic's type or of a message class.

    Args:
        message: A message class or its descriptor. None, the default, derives one from the topic's
            type.
        registry: A SchemaRegistry, or its URL. None, the default, takes the app's registry, because
            Protobuf is usually used with one. False uses none.
    """

    def __init__(
        self,
        message: type[Message] | Descriptor | None = None,
        *,
        registry: SchemaRegistry | str | bool | None = None,
    ) -> None:
        self.message = GetMessageClass(message) if isinstance(message, Descriptor) else message
        self.registry = registry

    def codec(self, kind: Any, place: SerdeUse) -> Codec:
        """Return the codec of values of a type; see `SerdeForm.codec`.

        Args:
            kind: Declared type of the values.
            place: Topic, and the app's registry; errors name the topic.
        """
        registry = chosen(self.registry, place.registry, by_default=True)
        if is_typed(kind):
            rows = RowType(kind)
            name = place.topic if isinstance(kind, pa.Schema) else kind.__name__
            made = self.message or messages.derived(rows, name)
            return WireCodec(rows, ProtobufWire(rows, made, Frames(made, place, registry)))
        message: type[Message] | None = kind if _is_message(kind) else self.message
        if message is None:
            raise InvalidConfig(
                f"{place}: Protobuf needs a type: declare the values' (a message class, dataclass, Struct,"
                " or Arrow schema), or give one: serde=ProtobufSerde(FlightPb)"
            )
        return MessageCodec(message, Frames(message, place, registry))


class Frames:
    """Headers of messages in the log: none, or Confluent's."""

    def __init__(
        self, message: type[Message], place: SerdeUse, registry: SchemaRegistry | None
    ) -> None:
        self._message, self._place, self._registry = message, place, registry
        self._prefix = b"" if registry is None else None

    def add_headers(self, data: pa.Array) -> pa.Array:
        """Return messages with their headers. Raise SchemaMismatch, RegistryUnavailable."""
        if self._prefix is None:
            assert self._registry is not None
            self._prefix = self._registry.ask(self._registered, f"schema of {self._place.subject}")
        return framed(data, self._prefix) if self._prefix else data

    def strip_headers(self, data: pa.Array) -> pa.Array:
        """Return messages without their headers. Raise InvalidRecord."""
        if self._registry is None:
            return data
        schema_ids(data)
        raw, bounds = flat(without(data, HEADER_BYTES))
        if len(data) and (bounds[1:] > bounds[:-1]).all() and not raw[bounds[:-1]].any():
            return without(data, HEADER_BYTES + 1)  # every index is [0], a single byte
        return of_items([_after_indexes(value) for value in data.to_pylist()], pa.binary())

    def _registered(self, client: Any) -> bytes:
        """Register the schema and return the header.

        Confluent's serializer also registers the imports of the schema. For an empty message its
        result is the header.
        """
        from confluent_kafka.schema_registry import topic_subject_name_strategy
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
        from confluent_kafka.serialization import SerializationContext

        assert self._registry is not None
        settings = {
            "auto.register.schemas": self._registry.auto_register,
            "subject.name.strategy": topic_subject_name_strategy,
        }
        serializer = ProtobufSerializer(self._message, client, settings)
        context = SerializationContext(self._place.topic, self._place.part)
        return cast("bytes", serializer(self._message(), context))


class ProtobufWire(WireFormat):
    """Conversion between columns and messages with fields of the same names."""

    def __init__(self, rows: RowType, message: type[Message], frames: Frames) -> None:
        self._rows, self._frames = rows, frames
        self._shape = messages.fitting(rows, message)

    def encode(self, column: pa.Array) -> pa.Array:
        return self._frames.add_headers(self._shape.encode(column))

    def decode(self, data: pa.Array) -> pa.Array:
        column = self._shape.decode(self._frames.strip_headers(data))
        return conform(column, self._rows.arrow, self._rows.name)

    def values(self, data: pa.Array) -> list[Any] | None:
        return None


class MessageCodec:
    """Codec of values that are messages themselves; columns are made only on request."""

    exact: type | None = None
    arrow = pa.binary()

    def __init__(self, message: type[Message], frames: Frames) -> None:
        self._message, self._frames = message, frames
        self._check_depth = messages.may_be_too_deep(message)
        try:
            self._shape = messages.MessageShape(message)
            self.rows: RowType | None = RowType(pa.schema(list(self._shape.arrow)))
        except messages.NotColumnarMessage:
            self.rows = None

    def item(self, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, self._message):
            name = self._message.DESCRIPTOR.full_name
            raise InvalidRecord(f"expected a {name}, got {value!r:.80} ({type(value).__name__})")
        return messages.serialized(value, check_depth=self._check_depth)

    def row(self, item: Any) -> Row:
        [fields] = self._shape.decode(of_items([item], pa.binary())).to_pylist()
        return tuple(fields.values())

    def encode(self, items: Sequence[Any]) -> pa.Array:
        return where_valid(of_items(items, pa.binary()), self._frames.add_headers)

    def decode(self, column: pa.Array) -> list[Any]:
        payloads = self._frames.strip_headers(column.drop_null()).to_pylist()
        values = [_read(self._message.FromString, payload) for payload in payloads]
        return with_nulls(values, column)

    def to_columns(self, column: pa.Array) -> pa.Array:
        return where_valid(
            column, lambda data: self._shape.decode(self._frames.strip_headers(data))
        )

    def from_columns(self, column: pa.Array) -> pa.Array:
        return where_valid(column, lambda rows: self._frames.add_headers(self._shape.encode(rows)))


def _is_message(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)


def _read(call: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return call(data)
    except DecodeError as error:
        raise InvalidRecord(f"not a Protobuf message: {error}") from error


def _after_indexes(value: bytes) -> bytes:
    """Return the bytes after header and message indexes."""
    count, at = _varint(value, HEADER_BYTES)
    for _ in range(count):
        _, at = _varint(value, at)
    return value[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an int in zigzag encoding, and the position after it."""
    coded = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise InvalidRecord(
                "there are no message indexes after the schema id, as Protobuf needs"
            )
        coded |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
        shift += 7
    number = (coded >> 1) ^ -(coded & 1)
    if not 0 <= number <= len(data):
        raise InvalidRecord(f"{number} is neither a count nor a message index of Protobuf")
    return number, at
