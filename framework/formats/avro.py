"""Avro: values of a declared schema, with a schema registry in Confluent's wire format.

Without a registry a value is the bare datum, and the schema can change only with the topic. With a
registry each value names the schema that it was written with, and is read by that schema: fields
are matched by name, numbers may have become wider, and fields that the writer lacked have their
default.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.changelog.depth import check_value
from strandline.changelog.errors import InvalidConfig, InvalidRecord, MissingDependency
from strandline.framework.formats import avro_schema
from strandline.framework.formats.avro_bounds import SchemaSize, loaded
from strandline.framework.formats.avro_columns import decode, encode
from strandline.framework.formats.avro_decimals import from_bytes
from strandline.framework.formats.avro_depth import AvroDepth
from strandline.framework.formats.avro_schema import (
    MISSING,
    AvroArray,
    AvroRecord,
    Node,
    NotColumnarAvro,
    Nullable,
)
from strandline.framework.formats.codecs import Codec, SerdeCodec
from strandline.framework.formats.confluent import by_schema, framed, header
from strandline.framework.formats.registry import RegisteredSchema, SchemaRegistry, chosen
from strandline.framework.formats.schema import RowType, is_typed
from strandline.framework.formats.wire import (
    ScalarRowType,
    SerdeUse,
    WireCodec,
    WireFormat,
    conform,
    is_single,
    leaf,
    relisted,
)


class AvroSerde:
    """Serde for Avro, of the topic's type or of a given schema.

    A value of a topic without a type (`value=dict`) has the columns of the schema.

    Args:
        schema: Avro schema, as JSON text or as a dict. None, the default, derives it from the
            topic's type; see docs/guide/formats.md.
        registry: A SchemaRegistry, or its URL. None, the default, takes the app's registry, because
            Avro is usually used with one. False uses none.
    """

    def __init__(
        self,
        schema: str | Mapping[str, Any] | None = None,
        *,
        registry: SchemaRegistry | str | bool | None = None,
    ) -> None:
        self.schema = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        self.registry = registry

    def codec(self, kind: Any, place: SerdeUse) -> Codec:
        """Return the codec of values of a type; see `SerdeForm.codec`.

        Args:
            kind: Declared type of the values.
            place: Topic, and the app's registry; errors name the topic.
        """
        registry = chosen(self.registry, place.registry, by_default=True)
        if is_single(kind):
            single = ScalarRowType(kind)
            text = self.schema or avro_schema.scalar(single.arrow)
            return WireCodec(single, AvroWire(single, text, place, registry))
        if is_typed(kind):
            rows = RowType(kind)
            name = place.topic if isinstance(kind, pa.Schema) else kind.__name__
            text = self.schema or avro_schema.derived(rows, avro_name(name))
            return WireCodec(rows, AvroWire(rows, text, place, registry))
        if self.schema is None:
            raise InvalidConfig(
                f"{place}: Avro needs a schema: declare the type of the values (a dataclass, Struct, or"
                " Arrow schema), or give one: serde=AvroSerde(schema)"
            )
        try:
            arrow = avro_schema.parse(self.schema).arrow
        except NotColumnarAvro:
            return DatumCodec(self.schema, place, registry)
        if not pa.types.is_struct(arrow):
            return DatumCodec(self.schema, place, registry)
        rows = RowType(pa.schema(list(arrow)))
        return WireCodec(rows, AvroWire(rows, self.schema, place, registry))


class AvroWire(WireFormat):
    """Conversion between columns and Avro."""

    def __init__(
        self,
        rows: RowType | ScalarRowType,
        text: str,
        place: SerdeUse,
        registry: SchemaRegistry | None,
    ) -> None:
        self._rows = rows
        self._text = text
        self._place = place
        self._registry = registry
        self._node = self._parsed(text)
        self._writers: dict[int, tuple[str, Node | None]] = {}

    def encode(self, column: pa.Array) -> pa.Array:
        prefix = b"" if self._registry is None else header(self._own_id(self._registry))
        return encode(_fit(column, self._node, self._rows.name), self._node, prefix)

    def decode(self, data: pa.Array) -> pa.Array:
        if self._registry is None:
            return self._as_declared(_datums(data, self._node, self._text, self._rows.arrow))
        parts, order = [], []
        for schema_id, places, datums in by_schema(data):
            text, node = self._writer(self._registry, schema_id)
            parts.append(self._as_declared(_datums(datums, node, text, self._rows.arrow)))
            order.append(places)
        if len(parts) == 1:
            return parts[0]
        whole = pa.concat_arrays([pa.array([], self._rows.arrow), *parts])
        return whole.take(pa.array(np.argsort(np.concatenate([[], *order]), kind="stable")))

    def values(self, data: pa.Array) -> list[Any] | None:
        return None

    def _as_declared(self, column: pa.Array) -> pa.Array:
        if column.type == self._rows.arrow:
            return column
        return conform(_fit(column, self._node, self._rows.name), self._rows.arrow, self._rows.name)

    def _own_id(self, registry: SchemaRegistry) -> int:
        return registry.id_of(self._place.subject, RegisteredSchema("AVRO", self._text))

    def _writer(self, registry: SchemaRegistry, schema_id: int) -> tuple[str, Node | None]:
        """Return the schema of an id as text, and as columns if it has them."""
        known = self._writers.get(schema_id)
        if known is None:
            text = registry.schema(schema_id).text
            try:
                known = text, avro_schema.parse(text)
            except NotColumnarAvro:
                known = text, None
            except InvalidConfig as error:
                raise InvalidRecord(f"schema id {schema_id}: {error}") from error
            self._writers[schema_id] = known
        return known

    def _parsed(self, text: str) -> Node:
        """Return the schema to write with. Raise InvalidConfig if it does not fit the type."""
        try:
            node = avro_schema.parse(text)
        except NotColumnarAvro as error:
            raise InvalidConfig(
                f"{self._place}: {error} in the Avro schema is no column, so the values can't be typed;"
                " declare value=dict"
            ) from error
        if isinstance(node, AvroRecord) and isinstance(self._rows, RowType):
            unknown = set(self._rows.schema.names) - {f.name for f in node.fields}
            if unknown:
                raise InvalidConfig(
                    f"{self._place}: the Avro schema has no {', '.join(sorted(unknown))}, which"
                    f" {self._rows.name} has; add it to the schema"
                )
        try:
            nothing = pa.array([], self._rows.arrow)
            conform(_fit(nothing, node, self._rows.name), self._rows.arrow, self._rows.name)
        except InvalidRecord as error:
            raise InvalidConfig(f"{self._place}: the Avro schema does not fit: {error}") from error
        return node


class DatumCodec(SerdeCodec):
    """Codec of values whose schema has no columns; fastavro converts each to a dict."""

    def __init__(self, text: str, place: SerdeUse, registry: SchemaRegistry | None) -> None:
        super().__init__(_Datums(text))
        self._text, self._place, self._registry = text, place, registry

    def encode(self, items: Sequence[Any]) -> pa.Array:
        data = super().encode(items)
        if self._registry is None:
            return data
        schema = RegisteredSchema("AVRO", self._text)
        return framed(data, header(self._registry.id_of(self._place.subject, schema)))

    def decode(self, column: pa.Array) -> list[Any]:
        if self._registry is None:
            return super().decode(column)
        values: list[Any] = [None] * len(column)
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        for schema_id, places, datums in by_schema(column.drop_null()):
            read = _reader(self._registry.schema(schema_id).text, self._text)
            for at, datum in zip(there[places].tolist(), datums.to_pylist(), strict=True):
                values[at] = read(datum)
        return values


class _Datums:
    """Bare datums of one schema, converted by fastavro; `reader` is another schema to read as."""

    def __init__(self, text: str, reader: str | None = None) -> None:
        fastavro = _fastavro()
        self._fastavro = fastavro
        try:
            schema = loaded(text)
            SchemaSize(schema)
            self._schema = fastavro.parse_schema(schema)
            own = None if reader in (None, text) else json.loads(str(reader))
            self._reader = None if own is None else fastavro.parse_schema(own)
            self._depth = AvroDepth(self._schema)
        except Exception as error:  # fastavro raises its own errors and Python's
            raise InvalidConfig(f"not an Avro schema: {error!r} in {text:.200}") from error

    def dumps(self, value: Any) -> bytes:
        out = io.BytesIO()
        try:
            if self._depth.is_recursive:
                check_value(value)
            self._fastavro.schemaless_writer(out, self._schema, value)
            self._depth.check(out.getvalue())
        except RecursionError as error:
            raise InvalidRecord(f"cannot encode a value as Avro: {error}") from error
        except Exception as error:
            raise InvalidRecord(f"{value!r:.80} is not of the Avro schema: {error!r}") from error
        return out.getvalue()

    def loads(self, data: bytes) -> Any:
        stream = io.BytesIO(data)
        try:
            self._depth.check(data)
            value = self._fastavro.schemaless_reader(stream, self._schema, self._reader)
        except Exception as error:
            raise InvalidRecord(f"not Avro of this schema: {error!r}") from error
        if stream.read(1):
            raise InvalidRecord(
                "not Avro of this schema: there are bytes after a value's last field"
            )
        return value


def avro_name(name: str) -> str:
    """Return a name that Avro accepts: letters, digits and underscores.

    >>> avro_name("my-topic.1")
    'my_topic_1'
    """
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return plain if plain[:1].isalpha() or plain[:1] == "_" else f"_{plain}"


def _datums(data: pa.Array, node: Node | None, text: str, kind: pa.DataType) -> pa.Array:
    """Return datums of a schema as a column; of type `kind` if they are read one at a time."""
    if node is not None:
        try:
            return decode(data, node)
        except NotColumnarAvro:
            pass
    read = _reader(text)
    try:
        return pa.array([read(datum) for datum in data.to_pylist()], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRecord(f"Avro that does not fit the declared type: {error}") from error


def _reader(text: str, own: str | None = None) -> Callable[[bytes], Any]:
    """Return a function that reads one datum of a writer's schema. Raise InvalidRecord."""
    try:
        return _Datums(text, own).loads
    except InvalidConfig as error:
        raise InvalidRecord(str(error)) from error


def _fit(array: pa.Array, node: Node, name: str) -> pa.Array:
    """Return the values in the types of a schema, with its defaults for missing fields."""
    if isinstance(node, Nullable):
        return _fit(array, node.inner, name)
    if isinstance(node, AvroArray) and pa.types.is_list(array.type):
        return relisted(array, _fit(array.flatten(), node.item, name))
    if not isinstance(node, AvroRecord) or not pa.types.is_struct(array.type):
        return leaf(array, node.arrow, name)
    have = {f.name: child for f, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        _fit(have[f.name], f.node, f.name) if f.name in have else _defaults(f, len(array), name)
        for f in node.fields
    ]
    mask = array.is_null() if array.null_count else None
    fields = [pa.field(f.name, c.type) for f, c in zip(node.fields, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _defaults(field: avro_schema.AvroField, count: int, owner: str) -> pa.Array:
    """Return a field's default `count` times. Raise InvalidRecord if it has none."""
    if field.default is MISSING:
        raise InvalidRecord(
            f"the field {field.name!r} of the Avro schema is not in {owner}, and has no default"
        )
    arrow = field.node.arrow
    if field.default is None:
        return pa.nulls(count, arrow)
    default = field.default
    if pa.types.is_decimal(arrow):
        blobs = pa.array([default.encode("latin-1")], pa.binary())
        return pa.repeat(from_bytes(blobs, arrow)[0], count)
    if pa.types.is_binary(arrow):
        default = default.encode("latin-1")
    if pa.types.is_temporal(arrow):
        raw = pa.array([default], pa.int32() if pa.types.is_date(arrow) else pa.int64())
        return pa.repeat(raw.cast(arrow)[0], count)
    return pa.repeat(pa.scalar(default, arrow), count)


def _fastavro() -> Any:
    try:
        import fastavro
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "Avro that does not fit columns (maps, unions, long arrays) needs fastavro:"
            " pip install 'strandline[avro]'"
        ) from error
    return fastavro
