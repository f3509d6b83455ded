"""Protobuf messages as columns: Arrow types of descriptors, and message classes made from a type.

    double, float, int32 … fixed64, bool, string, bytes    the Arrow types of these names
    enum                            its names, as text
    google.protobuf.Timestamp       timestamp[us, UTC]
    message · repeated              struct · list

A field without presence (proto3 without `optional`) cannot be None. Maps, and messages within
themselves, raise `NotColumnarMessage`. A date is an int32: days since 1970.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP_FILE

from strandline.changelog.arrays import of_items
from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.framework.formats.schema import RowType
from strandline.framework.formats.wire import conform

Read = Callable[[Any], Any]


MAX_MESSAGE_DEPTH = 100
"""Maximum number of messages within each other below a value. Protobuf's own decoders, in every
language, refuse deeper ones, but its encoders write them, and overflow the stack at some depth."""


class NotColumnarMessage(Exception):
    """A message that cannot be columns."""


def may_be_too_deep(message: type[Message]) -> bool:
    """Return True if messages of a class may be deeper than MAX_MESSAGE_DEPTH."""
    return _may_exceed(cast("Descriptor", message.DESCRIPTOR), (), set())


def serialized(message: Message, *, check_depth: bool) -> bytes:
    """Return a message as bytes.

    Args:
        message: The message.
        check_depth: True for a class whose messages `may_be_too_deep`.

    Raises:
        InvalidRecord: A required field has no value, or messages are nested too deep.
    """
    if check_depth:
        _check_depth(message)
    try:
        return message.SerializeToString()
    except EncodeError as error:
        raise InvalidRecord(f"no {message.DESCRIPTOR.full_name}: {error}") from error


class MessageShape:
    """Conversion between a message class and an Arrow struct, a message at a time."""

    def __init__(self, message: type[Message]) -> None:
        self._message = message
        self._fields = _fields_of(cast("Descriptor", message.DESCRIPTOR), ())
        self.arrow = pa.struct([arrow for arrow, _, _ in self._fields])

    def encode(self, column: pa.Array) -> pa.Array:
        """Return the messages of a struct column as bytes. Raise InvalidRecord."""
        present = [entry for entry in self._fields if entry[0].name in column.type.names]
        columns = []
        for arrow, _, write in present:
            child = column.field(arrow.name)
            items = _items(conform(child, _shared(child.type, arrow.type), arrow.name))
            plain = write is _same
            columns.append(items if plain else [i if i is None else write(i) for i in items])
        names = [arrow.name for arrow, _, _ in present]
        make = self._message
        try:
            made = [
                serialized(make(**dict(zip(names, row, strict=True))), check_depth=False)
                for row in zip(*columns, strict=True)
            ]
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRecord(f"no {make.DESCRIPTOR.full_name}: {error}") from error
        return of_items(made, pa.binary())

    def decode(self, data: pa.Array) -> pa.Array:
        """Return messages given as bytes as a struct column. Raise InvalidRecord."""
        parse = self._message.FromString
        try:
            parsed = [parse(payload) for payload in data.to_pylist()]
        except DecodeError as error:
            raise InvalidRecord(f"not a {self._message.DESCRIPTOR.full_name}: {error}") from error
        try:
            arrays = [
                pa.array([read(message) for message in parsed], arrow.type)
                for arrow, read, _ in self._fields
            ]
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise InvalidRecord(
                f"a value of {self._message.DESCRIPTOR.full_name}: {error}"
            ) from error
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow))


def fitting(rows: RowType, message: type[Message]) -> MessageShape:
    """Return the shape of a message class. Raise InvalidConfig unless it fits the type."""
    name = message.DESCRIPTOR.full_name
    try:
        shape = MessageShape(message)
    except NotColumnarMessage as error:
        raise InvalidConfig(
            f"{error} in {name} is no column, so the values can't be typed; declare value= the message"
        ) from error
    theirs = shape.arrow
    for field, column in zip(rows.fields, rows.schema, strict=True):
        at = theirs.get_field_index(field.name)
        if at < 0:
            raise InvalidConfig(
                f"{name} has no field {field.name!r}, which {rows.name} has; add it"
            )
        if field.optional and not theirs.field(at).nullable:
            raise InvalidConfig(
                f"field {field.name!r} of {rows.name} may be None, but in {name} it has no presence;"
                f" make it `optional` there, or give it a default here"
            )
        try:
            conform(pa.array([], column.type), theirs.field(at).type, field.name)
        except InvalidRecord as error:
            raise InvalidConfig(f"{name} does not fit {rows.name}: {error}") from error
    return shape


def derived(rows: RowType, name: str) -> type[Message]:
    """Return a message class for a type, with its fields numbered from 1. Raise InvalidConfig."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    file = FileDescriptorProto(name=f"{plain}.proto", syntax="proto3")
    file.dependency.append(TIMESTAMP_FILE.name)
    _describe(file.message_type.add(name=plain), rows.arrow, rows.name)
    pool = DescriptorPool()
    pool.AddSerializedFile(TIMESTAMP_FILE.serialized_pb)
    try:
        pool.Add(file)
        return GetMessageClass(pool.FindMessageTypeByName(plain))
    except (TypeError, KeyError) as error:
        raise InvalidConfig(f"{rows.name} cannot be a Protobuf message: {error}") from error


# Depth --------------------------------------------------------------------------------


def _may_exceed(descriptor: Descriptor, above: tuple[str, ...], shallow: set[str]) -> bool:
    name = descriptor.full_name
    if name in above or len(above) > MAX_MESSAGE_DEPTH:
        return True
    if name in shallow:
        return False
    inner = [field.message_type for field in descriptor.fields if field.message_type is not None]
    if any(_may_exceed(one, (*above, name), shallow) for one in inner):
        return True
    shallow.add(name)
    return False


def _check_depth(message: Message) -> None:
    """Refuse a message that is nested too deep, without recursion. Raise InvalidRecord."""
    level: list[Message | list[Message]] = [message]
    for _ in range(MAX_MESSAGE_DEPTH + 1):
        level = [inner for outer in level for inner in _messages_within(outer)]
        if not level:
            return
    raise InvalidRecord(
        f"a {message.DESCRIPTOR.full_name} is nested more than {MAX_MESSAGE_DEPTH} deep"
    )


def _messages_within(outer: Message | list[Message]) -> list[Message | list[Message]]:
    """Return the messages in a message; the entry of a map is one too, and a list of its value."""
    if isinstance(outer, list):
        return list(outer)
    found: list[Message | list[Message]] = []
    for field, value in outer.ListFields():
        inner = field.message_type
        if inner is None:
            continue
        if inner.GetOptions().map_entry:
            of_messages = inner.fields_by_name["value"].message_type is not None
            found += [[one] if of_messages else [] for one in value.values()]
        else:
            found += list(value) if field.is_repeated else [value]
    return found


# From descriptors ---------------------------------------------------------------------

_T = FieldDescriptor
_SCALARS = {
    _T.TYPE_DOUBLE: pa.float64(),
    _T.TYPE_FLOAT: pa.float32(),
    _T.TYPE_INT64: pa.int64(),
    _T.TYPE_SINT64: pa.int64(),
    _T.TYPE_SFIXED64: pa.int64(),
    _T.TYPE_UINT64: pa.uint64(),
    _T.TYPE_FIXED64: pa.uint64(),
    _T.TYPE_INT32: pa.int32(),
    _T.TYPE_SINT32: pa.int32(),
    _T.TYPE_SFIXED32: pa.int32(),
    _T.TYPE_UINT32: pa.uint32(),
    _T.TYPE_FIXED32: pa.uint32(),
    _T.TYPE_BOOL: pa.bool_(),
    _T.TYPE_STRING: pa.string(),
    _T.TYPE_BYTES: pa.binary(),
}
_INSTANT = pa.timestamp("us", "UTC")
_TIMESTAMP = "google.protobuf.Timestamp"


def _fields_of(descriptor: Descriptor, above: tuple[str, ...]) -> list[tuple[pa.Field, Read, Read]]:
    """Return for each field its column, its reader, and its converter for the constructor."""
    if descriptor.full_name in above:
        raise NotColumnarMessage(f"{descriptor.full_name}, which is within itself,")
    if len(above) > MAX_MESSAGE_DEPTH:
        raise NotColumnarMessage(f"a message that is more than {MAX_MESSAGE_DEPTH} deep")
    found = []
    for field in descriptor.fields:
        kind, read, write = _converters(field, (*above, descriptor.full_name))
        name, present = field.name, field.has_presence
        if field.is_repeated:
            each = _each(read)
            column = pa.field(name, pa.list_(kind), nullable=False)
            found.append((column, _getting(name, each), _each(write)))
            continue
        getting = _getting_present(name, read) if present else _getting(name, read)
        found.append((pa.field(name, kind, nullable=present), getting, write))
    if not found:
        raise NotColumnarMessage(f"{descriptor.full_name}, which has no fields,")
    return found


def _converters(field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Read, Read]:
    if field.type in _SCALARS:
        return _SCALARS[field.type], _same, _same
    if field.type == _T.TYPE_ENUM:
        return pa.string(), _named(field.enum_type), _same
    if field.type != _T.TYPE_MESSAGE or field.message_type.GetOptions().map_entry:
        raise NotColumnarMessage(f"{field.full_name}, a map or group,")
    if field.message_type.full_name == _TIMESTAMP:
        return _INSTANT, _from_timestamp, _same
    inner = _fields_of(field.message_type, above)
    reads = [(arrow.name, read) for arrow, read, _ in inner]
    writes = [(arrow, write) for arrow, _, write in inner]

    def to_row(message: Any) -> dict[str, Any]:
        return {name: read(message) for name, read in reads}

    def to_arguments(row: dict[str, Any]) -> dict[str, Any]:
        for arrow, _ in writes:
            if arrow.name in row and row[arrow.name] is None and not arrow.nullable:
                raise InvalidRecord(
                    f"None in {field.message_type.full_name}.{arrow.name}, which has no presence"
                )
        return {
            arrow.name: write(row[arrow.name])
            for arrow, write in writes
            if row.get(arrow.name) is not None
        }

    return pa.struct([arrow for arrow, _, _ in inner]), to_row, to_arguments


def _same(value: Any) -> Any:
    return value


def _shared(ours: pa.DataType, theirs: pa.DataType) -> pa.DataType:
    """Return their type, restricted to the fields that ours has."""
    if pa.types.is_list(ours) and pa.types.is_list(theirs):
        return pa.list_(_shared(ours.value_type, theirs.value_type))
    if not (pa.types.is_struct(ours) and pa.types.is_struct(theirs)):
        return theirs
    common = [f for f in theirs if ours.get_field_index(f.name) >= 0]
    return pa.struct([f.with_type(_shared(ours.field(f.name).type, f.type)) for f in common])


def _items(array: pa.Array) -> list[Any]:
    """Return the items to write of a column.

    Times become the fields of a Timestamp, because datetimes are slow.
    """
    if not pa.types.is_timestamp(array.type):
        return list(array.to_pylist())
    micros = array.cast(pa.int64()).fill_null(0).to_numpy()
    seconds, nanos = np.divmod(micros, 1_000_000)
    nanos *= 1000
    moments = [
        {"seconds": s, "nanos": n} for s, n in zip(seconds.tolist(), nanos.tolist(), strict=True)
    ]
    if not array.null_count:
        return moments
    there = array.is_valid().to_pylist()
    return [moment if valid else None for moment, valid in zip(moments, there, strict=True)]


def _each(call: Read) -> Read:
    return list if call is _same else lambda values: [call(value) for value in values]


def _getting(name: str, call: Read) -> Read:
    return lambda message: call(getattr(message, name))


def _getting_present(name: str, call: Read) -> Read:
    return lambda message: call(getattr(message, name)) if message.HasField(name) else None


def _named(enum: EnumDescriptor) -> Read:
    names = {value.number: value.name for value in enum.values}
    return lambda number: names.get(number, str(number))


def _from_timestamp(value: Any) -> int:
    """Return a Timestamp in microseconds, as Arrow stores it."""
    micros: int = value.seconds * 1_000_000 + value.nanos // 1000
    return micros


# To descriptors -----------------------------------------------------------------------

_P = FieldDescriptorProto
_AS_PROTO = {
    pa.float64(): _P.TYPE_DOUBLE,
    pa.float32(): _P.TYPE_FLOAT,
    pa.int64(): _P.TYPE_INT64,
    pa.uint64(): _P.TYPE_UINT64,
    pa.int32(): _P.TYPE_INT32,
    pa.int16(): _P.TYPE_INT32,
    pa.int8(): _P.TYPE_INT32,
    pa.date32(): _P.TYPE_INT32,
    pa.uint32(): _P.TYPE_UINT32,
    pa.uint16(): _P.TYPE_UINT32,
    pa.uint8(): _P.TYPE_UINT32,
    pa.bool_(): _P.TYPE_BOOL,
    pa.string(): _P.TYPE_STRING,
    pa.large_string(): _P.TYPE_STRING,
    pa.binary(): _P.TYPE_BYTES,
    pa.large_binary(): _P.TYPE_BYTES,
}


def _describe(message: DescriptorProto, kind: pa.StructType, owner: str) -> None:
    optional = []
    for number, column in enumerate(kind, 1):
        repeated = pa.types.is_list(column.type)
        told = message.field.add(name=column.name, number=number)
        told.label = _P.LABEL_REPEATED if repeated else _P.LABEL_OPTIONAL
        inner = column.type.value_type if repeated else column.type
        if pa.types.is_timestamp(inner) and inner.tz is not None:
            told.type, told.type_name = _P.TYPE_MESSAGE, f".{_TIMESTAMP}"
        elif pa.types.is_struct(inner):
            nested = message.nested_type.add(name=f"{column.name[:1].upper()}{column.name[1:]}")
            told.type, told.type_name = _P.TYPE_MESSAGE, nested.name
            _describe(nested, inner, f"{owner}.{column.name}")
        elif inner in _AS_PROTO:
            told.type = _AS_PROTO[inner]
        else:
            raise InvalidConfig(
                f"field {column.name!r} of {owner} is {column.type}, which Protobuf has no type for; use"
                " another one, or another serde"
            )
        if column.nullable and not repeated and told.type != _P.TYPE_MESSAGE:
            optional.append(told)
    for told in optional:  # as protoc does: each has a oneof of its own
        told.proto3_optional, told.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{told.name}")
