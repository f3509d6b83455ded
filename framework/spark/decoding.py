"""Stored keys and values as typed columns: keys in the stores' encoding, values in MessagePack.

Both encodings are self-describing, so the types are found by decoding. Tuple keys become a struct
of _1, _2, … (Spark's names in tuples); dataclasses and dicts become a struct of their fields. A
value that does not fit the type found, or the one the user gave, is an error and never a silent
null.

The recorded declaration of the store (`statestore.declaration`) tells if values are MessagePack,
and which begin with an expiry. Without a record it is guessed from the values. It also tells how
another framework has written keys and values, as Faust does in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.changelog.client.items import column_of
from strandline.changelog.errors import CorruptLog, InvalidRecord, SchemaMismatch
from strandline.framework.spark.planning import StoredValues
from strandline.framework.table_types import spark_type
from strandline.statestore.declaration import Declaration, plain_serde
from strandline.statestore.key_types import key_from_wire
from strandline.statestore.keys import decode_key, key_codec
from strandline.statestore.values import ValueCodec

UNRECORDED = StoredValues("messagepack", "marked")
"""Form of values that is assumed for a store whose declaration is not recorded."""

_GIVE_A_TYPE = (
    "give their types, .schema('key string, value struct<n: bigint>, partition int'), or read them as bytes: "
    ".option('decode', 'false')"
)


def infer(
    keys: Sequence[bytes], values: Sequence[bytes], topic: str, stored: StoredValues = UNRECORDED
) -> pa.Schema:
    """Return the columns `key` and `value` of a store, from some of its records.

    Raises InvalidRecord if they are not of one type, or the values are not MessagePack.

    >>> from strandline.statestore.keys import key_codec
    >>> infer([key_codec(str).encode("LHR")], [b"\\x81\\xa1n\\x01"], "t").types
    [DataType(string), StructType(struct<n: int64>)]
    """
    found = {
        "key": _common_type(_decode_keys(keys, stored), "keys", topic),
        "value": _common_type(_decode_values(values, topic, stored), "values", topic),
    }
    if stored.declaration is not None:
        described = Declaration.from_bytes(stored.declaration).value
        if described is not None:
            found["value"] = _with_floats(found["value"], described.root, described.objects)
    return pa.schema([pa.field(name, spark_type(kind, name)) for name, kind in found.items()])


def decode(
    batch: pa.RecordBatch, target: pa.Schema, topic: str, stored: StoredValues = UNRECORDED
) -> pa.RecordBatch:
    """Return the binary columns `key` and `value` as those of `target`. Raise InvalidRecord."""
    arrays = [_decoded(batch, field, topic, stored) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def decoded_nullable(
    column: pa.Array, field: pa.Field, topic: str, stored: StoredValues = UNRECORDED
) -> pa.Array:
    """Return encoded keys or values, some of them null, in the type of `field`, named key or value.

    Raises InvalidRecord.
    """
    present = pa.RecordBatch.from_arrays([column.drop_null()], names=[field.name])
    typed = _decoded(present, field, topic, stored)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    return typed.take(pa.array(np.cumsum(there) - 1, mask=~there))


def without_expired(
    batch: pa.RecordBatch, now: int, stored: StoredValues = UNRECORDED
) -> pa.RecordBatch:
    """Return the rows of stored keys and values that have not expired at `now` (ms)."""
    expired = ValueCodec(None, now=lambda: now, expiry=stored.expiry).expired
    live = [value is not None and not expired(value) for value in batch.column("value").to_pylist()]
    return batch if all(live) else batch.filter(pa.array(live))


def _decoded(batch: pa.RecordBatch, field: pa.Field, topic: str, stored: StoredValues) -> pa.Array:
    if field.name == "key":
        return _typed(_decode_keys(batch.column("key").to_pylist(), stored), field, topic)
    if field.name == "value":
        values = _decode_values(batch.column("value").to_pylist(), topic, stored)
        return _typed(values, field, topic)
    return pa.nulls(len(batch), field.type)


def _decode_keys(keys: Iterable[bytes], stored: StoredValues) -> list[Any]:
    decode: Callable[[bytes], Any] = decode_key
    if stored.declaration is not None:
        codec = key_codec(key_from_wire(Declaration.from_bytes(stored.declaration).key))
        decode = codec.decode if codec.is_foreign else decode_key
    return [_named(decode(key)) for key in keys]


def _decode_values(values: Iterable[bytes], topic: str, stored: StoredValues) -> list[Any]:
    if stored.form == "serde":
        raise InvalidRecord(
            f"values of {topic!r} are written by a serde that only the app has; read them as bytes: "
            ".option('decode', 'false')"
        )
    codec = ValueCodec(plain_serde(stored.form), topic, expiry=stored.expiry)
    try:
        return [codec.loads(value) for value in values]
    except CorruptLog as error:
        named = "JSON" if stored.form == "json" else "MessagePack"
        raise InvalidRecord(
            f"values of {topic!r} are not {named}, so a serde of its own wrote them; read them "
            f"as bytes: .option('decode', 'false') ({error})"
        ) from error


def _named(key: Any) -> Any:
    if isinstance(key, tuple):
        return {f"_{index}": _named(item) for index, item in enumerate(key, 1)}
    return key


def _common_type(items: list[Any], what: str, topic: str) -> pa.DataType:
    try:
        return pa.array(items).type
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidRecord(
            f"{what} of {topic!r} are not of one type ({error}); {_GIVE_A_TYPE}"
        ) from error


def _with_floats(kind: pa.DataType, node: Any, objects: Mapping[str, Any]) -> pa.DataType:
    """Return the type found in some values, with float64 where the declaration has floats.

    A whole number that a handler stores as a float may be written as an integer.
    """
    if pa.types.is_integer(kind):
        members = node["of"] if node["is"] == "union" else [node]
        return pa.float64() if any(one["is"] == "float" for one in members) else kind
    if node["is"] == "union":
        members = [one for one in node["of"] if one["is"] in ("object", "dict") or "items" in one]
        return _with_floats(kind, members[0], objects) if len(members) == 1 else kind
    if pa.types.is_list(kind) and isinstance(node.get("items"), dict):
        return pa.list_(_with_floats(kind.value_type, node["items"], objects))
    if pa.types.is_struct(kind) and node["is"] in ("object", "dict"):
        if node["is"] == "dict":
            nodes = dict.fromkeys(kind.names, node["values"])
        else:
            described: Mapping[str, Any] = objects[node["name"]]["fields"]
            nodes = {name: each["type"] for name, each in described.items()}
        return pa.struct(
            field.with_type(_with_floats(field.type, nodes[field.name], objects))
            if field.name in nodes
            else field
            for field in kind
        )
    return kind


def _typed(items: list[Any], field: pa.Field, topic: str) -> pa.Array:
    try:
        return column_of(items, field.type, field.name, f"topic {topic!r}")
    except SchemaMismatch as error:
        raise InvalidRecord(
            f"a {field.name} of {topic!r} does not fit {field.type}: {error}; {_GIVE_A_TYPE}"
        ) from error
