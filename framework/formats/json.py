"""JSON.

    str, bool, int, float   JSON's own; NaN and the infinities, which JSON lacks, are refused
    bytes                   base64, in a string
    datetime                ISO 8601 in UTC: "2024-05-01T10:00:00+00:00", with 3 or 6 decimals of
                            the seconds if needed; read with any zone, and without one as UTC
    date                    "2024-05-01"
    decimal                 a string, "1.50"; read from a number too
    list, nested class      array, object
    None                    null

Fields that a reader does not know are ignored; fields with a default may be missing. Everything
else is refused, including 1.5 for an int, and null for a field that may not be None.

Two libraries are used. Polars writes a column in a third of the time of a loop, but reads 1.5 as 1
and an int that is too large as null. pyarrow's reader ends the process at a lone `null`. msgspec is
strict, and the fastest way to objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.decoding import unchecked_json_decoder
from strandline.changelog.depth import check_all_json, check_json
from strandline.changelog.errors import UNREADABLE, InvalidConfig, InvalidRecord
from strandline.framework.formats.codecs import Codec, SerdeCodec, TypedCodec
from strandline.framework.formats.confluent import HEADER_BYTES, framed, header, schema_ids, without
from strandline.framework.formats.mirror import TypeMirror, has_plain_names, mirror_of
from strandline.framework.formats.registry import RegisteredSchema, SchemaRegistry, chosen
from strandline.framework.formats.schema import RowType, is_typed
from strandline.framework.formats.wire import (
    ObjectCodec,
    SerdeUse,
    WireCodec,
    WireFormat,
    relisted,
    where_valid,
)


class JsonSerde:
    """Serde for JSON, of one type or of anything.

    >>> JsonSerde(dict[str, int]).dumps({"a": 1})
    b'{"a":1}'

    Args:
        kind: Type of the values. `Any`, the default, takes the topic's type as `serde=` of a topic,
            and anything elsewhere.
        registry: A SchemaRegistry or its URL; True is the app's. Values are then written in
            Confluent's wire format. None, the default, is plain JSON, because most readers of JSON
            expect no header.
        schema: JSON Schema as text, for the registry. None derives it from the type.

    Raises:
        InvalidConfig: The type has no form in JSON.
    """

    def __init__(
        self,
        kind: Any = Any,
        *,
        registry: SchemaRegistry | str | bool | None = None,
        schema: str | None = None,
    ) -> None:
        self.declared = kind
        self.registry = registry
        self.schema = schema
        self._decode = _decoder(kind).decode
        self._is_checked = kind not in _ANYTHING

    def codec(self, kind: Any, place: SerdeUse) -> Codec:
        """Return the codec of values of a type; see `SerdeForm.codec`.

        Args:
            kind: Declared type of the values.
            place: Topic, and the app's registry; errors name the topic.
        """
        kind = kind if self.declared is Any else self.declared
        registry = chosen(self.registry, place.registry, by_default=False)
        if registry is None:
            return _unframed(kind)
        schema = RegisteredSchema("JSON", self.schema or _schema_of(kind, place))
        return FramedCodec(cast("TypedCodec", _unframed(kind)), schema, place, registry)

    def loads(self, data: bytes, /) -> Any:
        """Return the value of a JSON text.

        Args:
            data: The text, in UTF-8.

        Raises:
            RecursionError: The text is nested too deep.
        """
        check_json(data)
        return self._decode(data)

    def dumps(self, value: Any, /) -> bytes:
        """Return a value as JSON text in UTF-8.

        Args:
            value: The value; with a type, it must be of that type.

        Raises:
            RecursionError: The value is nested too deep.
        """
        encoded = _encode(value)
        check_json(encoded)
        if self._is_checked:
            self._decode(encoded)  # because a value of another type would stop every reader
        return encoded


class JsonWire(WireFormat):
    """Conversion between struct columns and JSON objects.

    >>> wire = JsonWire(RowType(pa.schema([("n", pa.int64())])))
    >>> wire.encode(pa.array([{"n": 1}])).to_pylist()
    [b'{"n":1}']
    """

    def __init__(self, rows: RowType) -> None:
        self._rows = rows
        self._mirror = TypeMirror(rows, "JSON", msgspec.json.Decoder, check_json)
        is_class = not isinstance(rows.kind, pa.Schema)
        self._objects = _decoder(rows.kind) if is_class else None

    def encode(self, column: pa.Array) -> pa.Array:
        import polars as pl

        texts = cast("pl.Series", pl.from_arrow(_plain(column))).struct.json_encode()
        return texts.to_arrow().cast(pa.large_binary()).cast(pa.binary())

    def decode(self, data: pa.Array) -> pa.Array:
        return self._mirror.column(data)

    def values(self, data: pa.Array) -> list[Any] | None:
        return (
            None if self._objects is None else self._rows.as_read(self._loads(self._objects, data))
        )

    def _loads(self, decoder: msgspec.json.Decoder[Any], data: pa.Array) -> list[Any]:
        try:
            texts = data.to_pylist()
            check_all_json(texts)
            return list(map(decoder.decode, texts))
        except UNREADABLE as error:
            raise InvalidRecord(f"not JSON of {self._rows.name}: {error}") from error


class FramedCodec:
    """Codec that adds Confluent's header to the bytes of another codec; it reads any schema id."""

    arrow = pa.binary()
    exact: type | None = None

    def __init__(
        self, inner: TypedCodec, schema: RegisteredSchema, place: SerdeUse, registry: SchemaRegistry
    ) -> None:
        self.rows = inner.rows
        self.item, self.row = inner.item, getattr(inner, "row", None)
        self._inner, self._schema, self._place, self._registry = inner, schema, place, registry

    def encode(self, items: Sequence[Any]) -> pa.Array:
        return where_valid(self._inner.encode(items), self._add_header)

    def decode(self, column: pa.Array) -> list[Any]:
        return self._inner.decode(where_valid(column, _strip_header))

    def to_columns(self, column: pa.Array) -> pa.Array:
        return self._inner.to_columns(where_valid(column, _strip_header))

    def from_columns(self, column: pa.Array) -> pa.Array:
        return where_valid(self._inner.from_columns(column), self._add_header)

    def _add_header(self, data: pa.Array) -> pa.Array:
        return framed(data, header(self._registry.id_of(self._place.subject, self._schema)))


def _strip_header(data: pa.Array) -> pa.Array:
    schema_ids(data)  # checks that each value has a header
    return without(data, HEADER_BYTES)


def _unframed(kind: Any) -> Codec:
    if not is_typed(kind):
        return SerdeCodec(JsonSerde(kind))
    rows = RowType(kind)
    if has_plain_names(kind):
        return WireCodec(rows, JsonWire(rows))
    return ObjectCodec(rows, JsonSerde(kind))


def _schema_of(kind: Any, place: SerdeUse) -> str:
    """Return the JSON Schema of a type."""
    if kind in _ANYTHING:
        raise InvalidConfig(
            f"{place}: a registry wants a JSON Schema: declare the type of the values, or give one:"
            " serde=JsonSerde(schema=…, registry=…)"
        )
    declared = mirror_of(RowType(kind)) if isinstance(kind, pa.Schema) else kind
    return _encode({"$schema": _DIALECT, **msgspec.json.schema(declared)}).decode()


def _plain(array: pa.Array) -> pa.Array:
    """Return the array in types that Polars writes in the documented form."""
    kind = array.type
    types = pa.types
    if types.is_struct(kind):
        children = [_plain(child) for child in array.flatten()]
        fields = [pa.field(f.name, c.type) for f, c in zip(kind, children, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if types.is_list(kind):
        return relisted(array, _plain(array.flatten()))
    if types.is_floating(kind):
        if not pc.all(pc.is_finite(array), min_count=0).as_py():
            raise InvalidRecord("JSON has no NaN and no infinity; use None, or another serde")
        return array
    if types.is_timestamp(kind):
        return array.cast(pa.timestamp("us", "UTC"))
    if types.is_binary(kind):
        return _base64(array)
    return array.cast(pa.string()) if types.is_decimal128(kind) else array


def _base64(array: pa.BinaryArray) -> pa.Array:
    import polars as pl

    encoded = cast("pl.Series", pl.from_arrow(array)).bin.encode("base64")
    return encoded.to_arrow().cast(pa.large_string())


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return unchecked_json_decoder(kind)
    except TypeError as error:
        raise InvalidConfig(f"{kind!r} has no form in JSON: {error}; use another serde") from error


_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_encode = msgspec.json.Encoder().encode
_ANYTHING = (Any, None, object, dict, list)
