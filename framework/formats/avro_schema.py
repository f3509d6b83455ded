"""Avro schemas with columns: their Arrow types, and the schemas of Arrow types.

    boolean, int, long, float, double, string, bytes, fixed, enum (its symbols as text)
    date · timestamp-millis, timestamp-micros and their local- variants
    decimal of bytes or fixed, of at most 38 digits
    record · array · a union of null and one of these

Everything else (maps, other unions, a record within itself) raises `NotColumnarAvro`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from strandline.changelog.errors import InvalidConfig
from strandline.framework.formats.avro_bounds import SchemaSize, full_name, loaded
from strandline.framework.formats.avro_decimals import MAX_DIGITS, default_text
from strandline.framework.formats.schema import RowType

MAX_COLUMNS = 10_000
"""Maximum number of columns of a schema. A named type counts at each place that refers to it, so a
short schema may have 2**100 of them. Values of a larger schema are read one at a time."""


class NotColumnarAvro(Exception):
    """Valid Avro that cannot be columns."""


@dataclass(frozen=True)
class Scalar:
    """A type without parts; `kind` is Avro's name of its encoding."""

    kind: str
    arrow: pa.DataType
    size: int = 0
    """Bytes of a fixed."""
    symbols: tuple[str, ...] = ()
    """Symbols of an enum."""


@dataclass(frozen=True)
class Nullable:
    """A union of null and another type."""

    inner: Node
    null_at: int
    """Index of null in the union: 0 or 1."""

    @property
    def arrow(self) -> pa.DataType:
        return self.inner.arrow


@dataclass(frozen=True)
class AvroArray:
    """An array."""

    item: Node

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(pa.field("item", self.item.arrow, isinstance(self.item, Nullable)))


@dataclass(frozen=True)
class AvroField:
    """A field of a record."""

    name: str
    node: Node
    default: Any
    """Default as in the JSON schema; MISSING if there is none."""


@dataclass(frozen=True)
class AvroRecord:
    """A record."""

    name: str
    fields: tuple[AvroField, ...]

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct(
            [pa.field(f.name, f.node.arrow, isinstance(f.node, Nullable)) for f in self.fields]
        )


Node = Scalar | Nullable | AvroArray | AvroRecord
MISSING = object()

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_AS_AVRO: dict[pa.DataType, Any] = {
    **{arrow: kind for kind, arrow in _PLAIN.items()},
    **{
        arrow: {"type": kind, "logicalType": logical} for (kind, logical), arrow in _LOGICAL.items()
    },
    pa.int8(): "int",
    pa.int16(): "int",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.large_string(): "string",
    pa.large_binary(): "bytes",
}


def parse(text: str) -> Node:
    """Return the columns of an Avro schema. Raise InvalidConfig, NotColumnarAvro.

    >>> parse('{"type": "record", "name": "A", "fields": [{"name": "n", "type": "long"}]}').arrow
    StructType(struct<n: int64 not null>)
    """
    try:
        schema = loaded(text)
        if SchemaSize(schema).fields > MAX_COLUMNS:
            raise NotColumnarAvro(f"a schema of more than {MAX_COLUMNS:,} fields")
        return _parsed(schema, {}, "")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidConfig(f"not an Avro schema: {error!r} in {text:.200}") from error


def derived(rows: RowType, name: str) -> str:
    """Return an Avro schema for a type, as JSON.

    Nullable fields become unions with null; defaults are kept. Raises InvalidConfig for a type that
    Avro does not have.
    """
    fields = []
    for field, column in zip(rows.fields, rows.schema, strict=True):
        inner = _of_arrow(column.type, f"{name}_{field.name}")
        declared: dict[str, Any] = {"name": field.name, "type": inner}
        default = None if field.default is None else field.default()
        if field.optional and default is None:
            declared |= {"type": ["null", inner], "default": None}
        elif field.default is not None:
            plain = field.type.write([field.check(default, name)]).to_pylist()[0]
            declared["type"] = [inner, "null"] if field.optional else inner
            declared["default"] = _json_default(plain)
        fields.append(declared)
    return json.dumps({"type": "record", "name": name, "fields": fields})


def scalar(kind: pa.DataType) -> str:
    """Return the schema of a single value of an Arrow type, as JSON. Raise InvalidConfig."""
    return json.dumps(_of_arrow(kind, "value"))


def _parsed(schema: Any, names: dict[str, Node], space: str) -> Node:
    if isinstance(schema, list):
        if len(schema) != 2 or "null" not in schema:
            raise NotColumnarAvro(f"the union {json.dumps(schema)}")
        null_at = schema.index("null")
        return Nullable(_parsed(schema[1 - null_at], names, space), null_at)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return Scalar(schema, _PLAIN[schema])
        known = names.get(full_name(schema, space))
        if known is None:
            raise NotColumnarAvro(f"the type {schema!r}")
        return known
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _parsed(kind, names, space)
    if kind == "array":
        return AvroArray(_parsed(schema["items"], names, space))
    if kind in ("record", "error", "enum", "fixed"):
        return _named(schema, kind, names, space)
    logical = schema.get("logicalType")
    arrow = _decimal_type(schema) if logical == "decimal" else _LOGICAL.get((kind, logical))
    return _parsed(kind, names, space) if arrow is None else Scalar(kind, arrow)


def _named(schema: Mapping[str, Any], kind: str, names: dict[str, Node], space: str) -> Node:
    full = full_name(schema["name"], schema.get("namespace", space))
    made: Node
    if kind == "enum":
        made = Scalar("enum", pa.string(), symbols=tuple(schema["symbols"]))
    elif kind == "fixed":
        is_decimal = schema.get("logicalType") == "decimal"
        arrow = _decimal_type(schema) if is_decimal else pa.binary()
        made = Scalar("fixed", arrow, size=int(schema["size"]))
        if made.size < 1:
            raise NotColumnarAvro("a fixed of no bytes")
    else:
        inner = full.rpartition(".")[0]
        fields = tuple(
            AvroField(f["name"], _parsed(f["type"], names, inner), f.get("default", MISSING))
            for f in schema["fields"]
        )
        if not fields:
            raise NotColumnarAvro("a record of no fields")
        made = AvroRecord(full, fields)
    names[full] = made
    return made


def _decimal_type(schema: Mapping[str, Any]) -> pa.DataType:
    """Return the type of a decimal. Raise NotColumnarAvro if it is none of Arrow's or of Avro's."""
    precision, scale = (schema.get(name, 0) for name in ("precision", "scale"))
    is_whole = type(precision) is type(scale) is int
    if not is_whole or schema["type"] not in ("bytes", "fixed"):
        raise NotColumnarAvro(f"the decimal {json.dumps(schema)}")
    if not 0 < precision <= MAX_DIGITS or not 0 <= scale <= precision:
        raise NotColumnarAvro(f"a decimal of {precision} digits with {scale} places")
    return pa.decimal128(precision, scale)


def _of_arrow(kind: pa.DataType, path: str) -> Any:
    """Return the schema of an Arrow type.

    `path` names nested records: Flight_leg for the field `leg` of Flight.
    """
    if pa.types.is_struct(kind):
        fields = []
        for field in kind:
            inner = _of_arrow(field.type, f"{path}_{field.name}")
            declared = (
                {"type": ["null", inner], "default": None} if field.nullable else {"type": inner}
            )
            fields.append({"name": field.name, **declared})
        return {"type": "record", "name": path, "fields": fields}
    if pa.types.is_list(kind):
        inner = _of_arrow(kind.value_type, f"{path}_item")
        return {"type": "array", "items": ["null", inner] if kind.value_field.nullable else inner}
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if kind not in _AS_AVRO:
        raise InvalidConfig(
            f"{path.replace('_', '.')}: Avro has no type for {kind}; give a schema, or use another serde"
        )
    return _AS_AVRO[kind]


def _json_default(value: Any) -> Any:
    """Return a default for a schema: bytes as text of code points 0 to 255, times as ints."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Decimal):
        return default_text(value)
    if isinstance(value, dt.datetime):
        return round((value - _EPOCH) / dt.timedelta(microseconds=1))
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days
    if isinstance(value, list):
        return [_json_default(item) for item in value]
    if isinstance(value, dict):
        return {name: _json_default(item) for name, item in value.items()}
    return value


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
