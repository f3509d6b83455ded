"""Schemas of a typed topic: versions 1, 2, 3 …, each an extension of the previous one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from strandline.changelog.arrow_messages import FieldBudget, open_schema
from strandline.changelog.errors import REPAIR, UNREADABLE, CorruptLog, SchemaMismatch

BYTES = 0
"""Schema id of values that are bytes."""


@dataclass(frozen=True)
class ValueSchemas:
    """All versions of a topic's value schema; none for a topic of bytes."""

    versions: tuple[pa.Schema, ...] = ()

    @property
    def latest(self) -> pa.Schema | None:
        return self.versions[-1] if self.versions else None

    @property
    def latest_id(self) -> int:
        return len(self.versions)

    @property
    def latest_type(self) -> pa.DataType:
        """Arrow type of the column `value`."""
        return value_type(self.latest)

    def type_of(self, schema_id: int, where: str) -> pa.DataType:
        """Return the Arrow type of `value` in a frame with this schema id. Raises CorruptLog."""
        if schema_id > len(self.versions):
            raise CorruptLog(
                f"{where}: the frame has schema id {schema_id}, the topic has "
                f"{len(self.versions)}; put the catalog back that has it (topics.meta)"
            )
        return value_type(self.versions[schema_id - 1] if schema_id else None)

    def extended(self, schema: pa.Schema, topic: str) -> ValueSchemas:
        """Return the versions with `schema` added, unless it is the latest version already.

        Raises SchemaMismatch unless it is the latest version plus nullable fields at its end.
        """
        check_schema(schema, topic)
        if self.latest is not None:
            if schema.equals(self.latest):
                return self
            if objection := _objection(schema, self.latest):
                raise SchemaMismatch(f"topic {topic!r}: {objection}")
        return ValueSchemas((*self.versions, schema.remove_metadata()))


def value_type(schema: pa.Schema | None) -> pa.DataType:
    """Return the Arrow type of the column `value` for a schema; binary for None.

    >>> value_type(pa.schema([("n", pa.int64())]))
    StructType(struct<n: int64>)
    """
    return pa.binary() if schema is None else pa.struct(list(schema))


def check_schema(schema: pa.Schema, topic: str) -> None:
    """Raise SchemaMismatch for a schema that a topic cannot have."""
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise SchemaMismatch(
            f"topic {topic!r}: a schema is a pyarrow.Schema of at least one field, got {schema!r}"
        )
    if len(set(schema.names)) != len(schema.names):
        raise SchemaMismatch(f"topic {topic!r}: field names must be unique, got {schema.names}")
    for field in schema:
        if pa.types.is_dictionary(field.type) or pa.types.is_null(field.type):
            raise SchemaMismatch(
                f"topic {topic!r}: field {field.name!r} has type {field.type}, which cannot be "
                f"stored; use its plain value type"
            )


def extends(new: pa.Schema, old: pa.Schema) -> bool:
    """Return True if `new` is `old`, or `old` with nullable fields added at its end.

    >>> old = pa.schema([("n", pa.int64())])
    >>> extends(old.append(pa.field("x", pa.string())), old)
    True
    """
    return _objection(new, old) is None


def upgrade(columns: pa.RecordBatch, latest: pa.DataType) -> pa.RecordBatch:
    """Return the batch with values of the latest version; missing fields are null."""
    index = columns.schema.get_field_index("value")
    value = columns.column(index)
    if value.type == latest or not pa.types.is_struct(value.type):
        return columns
    arrays = value.flatten() if value.null_count == 0 else _children(value)
    have = {field.name: array for field, array in zip(value.type, arrays, strict=True)}
    upgraded = pa.StructArray.from_arrays(
        [have.get(f.name, pa.nulls(len(value), f.type)) for f in latest],
        fields=list(latest),
        mask=value.is_null() if value.null_count else None,
    )
    return columns.set_column(index, pa.field("value", latest), upgraded)


def encode_schemas(schemas: Sequence[pa.Schema]) -> list[bytes]:
    """Return each schema as an Arrow IPC schema message, for the catalog."""
    return [schema.serialize().to_pybytes() for schema in schemas]


def decode_schemas(messages: Sequence[bytes], where: str) -> ValueSchemas:
    """Return the schemas from the messages of `encode_schemas`. Raises CorruptLog."""
    try:
        return ValueSchemas(tuple(map(read_schema, messages)))
    except pa.ArrowException as error:
        raise CorruptLog(f"{where}: a schema cannot be decoded: {error}; {REPAIR}") from error


def read_schema(message: bytes, budget: FieldBudget | None = None) -> pa.Schema:
    """Return the schema in an Arrow IPC message, and subtract its fields from a budget.

    Raises ArrowInvalid, also for a bad name.
    """
    try:
        schema = open_schema(message, budget)
        _read_names(schema)
    except (OSError, *UNREADABLE) as error:
        raise pa.ArrowInvalid(str(error)) from error
    return schema


def _read_names(fields: Iterable[pa.Field]) -> None:
    for field in fields:
        assert field.name is not None
        _read_names(field.type.field(i) for i in range(field.type.num_fields))


def _children(value: pa.StructArray) -> list[pa.Array]:
    return [value.field(i) for i in range(value.type.num_fields)]


def _objection(new: pa.Schema, old: pa.Schema) -> str | None:
    """Return the reason why `new` does not extend `old`; None if it does."""
    for index, field in enumerate(old):
        if index >= len(new) or not new.field(index).equals(field):
            got = new.field(index) if index < len(new) else "nothing"
            return (
                f"field {index} is {field}, got {got}; a new version keeps all fields in order "
                f"and adds nullable ones at the end"
            )
    for field in list(new)[len(old) :]:
        if not field.nullable:
            return (
                f"the added field {field.name!r} must be nullable, since earlier records do not "
                f"have it"
            )
    return None
