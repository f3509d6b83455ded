"""Schemas of a typed topic: versions 1, 2, 3 …, each an extension of the previous one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from strandline.changelog.arrow_messages import FieldBudget, open_schema
from strandline.changelog.errors import REPAIR, UNREADABLE, CorruptLog, SchemaMismatch
from strandline.changelog.printable import shortened

BYTES = 0
"""Schema id of values that are bytes."""
MAX_SCHEMA_FIELDS = 10_000
"""Maximum number of fields of a topic's schema, including nested fields."""
MAX_SCHEMA_DEPTH = 100
"""Maximum number of types within each other in a topic's schema. Arrow reads about 120."""
MAX_SCHEMA_BYTES = 1 << 20
"""Maximum number of bytes of a topic's schema as an Arrow IPC message."""
MAX_SCHEMA_VERSIONS = 1_000
"""Maximum number of versions of a topic's schema."""
MAX_VERSIONS_BYTES = 16 << 20
"""Maximum number of bytes of all versions of a topic's schema. The catalog contains them, and is
rewritten whenever a topic changes."""


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

        Raises SchemaMismatch unless it is the latest version plus nullable fields at its end, of
        types that can be stored, within the limits above. A topic of an earlier release may exceed
        them; it is read, and cannot be extended.
        """
        _check_names(schema, topic)
        known = 0
        if self.latest is not None:
            if schema.equals(self.latest):
                return self
            if objection := _objection(schema, self.latest):
                raise SchemaMismatch(f"topic {topic!r}: {objection}")
            known = len(self.latest)
        # A topic of an earlier release may have fields of other types, and keeps them.
        _check_types(schema, topic, known)
        versions = (*self.versions, schema.remove_metadata())
        _check_versions(versions, topic)
        return ValueSchemas(versions)


def value_type(schema: pa.Schema | None) -> pa.DataType:
    """Return the Arrow type of the column `value` for a schema; binary for None.

    >>> value_type(pa.schema([("n", pa.int64())]))
    StructType(struct<n: int64>)
    """
    return pa.binary() if schema is None else pa.struct(list(schema))


def with_fields(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return a type with each field directly within it changed; a type without fields as it is.

    >>> with_fields(pa.list_(pa.int64()), lambda field: field.with_nullable(False))
    ListType(list<item: int64 not null>)
    """
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([change(field) for field in kind])
    if types.is_map(kind):
        key = change(kind.key_field).with_nullable(nullable=False)
        return pa.map_(key, change(kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return pa.list_(change(kind.value_field))
    return pa.large_list(change(kind.value_field)) if types.is_large_list(kind) else kind


def nullable(field: pa.Field) -> pa.Field:
    """Return a field that may be null, as may each field within it; keys of maps may not.

    >>> nullable(pa.field("n", pa.list_(pa.field("item", pa.int64(), False)), False))
    pyarrow.Field<n: list<item: int64>>
    """
    return field.with_type(with_fields(field.type, nullable)).with_nullable(nullable=True)


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


def _check_names(schema: pa.Schema, topic: str) -> None:
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise SchemaMismatch(
            f"topic {topic!r}: a schema is a pyarrow.Schema of at least one field, got {schema!r}"
        )
    if len(set(schema.names)) != len(schema.names):
        raise SchemaMismatch(f"topic {topic!r}: field names must be unique, got {schema.names}")


def _check_types(schema: pa.Schema, topic: str, known: int) -> None:
    """Raise SchemaMismatch for too many fields, or a type that cannot be stored.

    The types of the first `known` fields are not checked.
    """
    count = len(schema)
    for number, field in enumerate(schema):
        # A stack instead of recursion: each entry is a type, its depth, and if lists contain it.
        types = [(field.type, 1, False)]
        while types:
            kind, depth, repeated = types.pop()
            kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
            problem = None if number < known else _problem(kind, repeated=repeated)
            if problem or depth > MAX_SCHEMA_DEPTH:
                deep = f"types nested more than {MAX_SCHEMA_DEPTH} deep"
                raise SchemaMismatch(
                    f"topic {topic!r}: field {field.name!r} has type {_shown(field.type)}, which "
                    f"cannot be stored: {problem or f'{deep}; use fewer levels'}"
                )
            count += kind.num_fields
            if count > MAX_SCHEMA_FIELDS:
                raise SchemaMismatch(
                    f"topic {topic!r}: the schema has more than {MAX_SCHEMA_FIELDS:,} fields, "
                    f"nested ones included (at field {field.name!r}); use a list or a map of "
                    "values of one type, or several topics"
                )
            inner = repeated or kind.id in _LISTS
            types += [(kind.field(i).type, depth + 1, inner) for i in range(kind.num_fields)]


def _problem(kind: pa.DataType, *, repeated: bool) -> str | None:
    """Return the reason why a type cannot be stored, and what to use instead; None if it can."""
    if kind.id == pa.lib.Type_NA:
        return "null is the type of no value; give the field the type of its values"
    if kind.id in (pa.lib.Type_DENSE_UNION, pa.lib.Type_SPARSE_UNION):
        return "a union; use a struct with a nullable field for each type"
    if kind.id not in _STORABLE:
        return (
            f"{_shown(kind)} shares bytes among values; use its plain value type, such as string "
            "or list"
        )
    if repeated and _is_empty(kind):
        return f"{_shown(kind)} in a list takes no bytes; give it a field or a size"
    return None


def _is_empty(kind: pa.DataType) -> bool:
    """Return True for a type whose values take no bytes, so that a list has any number of them."""
    if kind.id == pa.lib.Type_STRUCT:
        return bool(kind.num_fields == 0)
    if kind.id == pa.lib.Type_FIXED_SIZE_LIST:
        return bool(kind.list_size == 0)
    return bool(kind.id == pa.lib.Type_FIXED_SIZE_BINARY and kind.byte_width == 0)


def _shown(kind: pa.DataType) -> str:
    """Return a type for an error, shortened."""
    return shortened(str(kind), 200)


def _check_versions(versions: Sequence[pa.Schema], topic: str) -> None:
    """Raise SchemaMismatch if the versions of a topic's schema take too much of the catalog."""
    if len(versions) > MAX_SCHEMA_VERSIONS:
        raise SchemaMismatch(
            f"topic {topic!r} has {MAX_SCHEMA_VERSIONS:,} versions of its schema, and cannot get "
            "another one; add several fields at a time, and copy the records into a new topic"
        )
    sizes = [len(message) for message in encode_schemas(versions)]
    if sizes[-1] > MAX_SCHEMA_BYTES:
        raise SchemaMismatch(
            f"topic {topic!r}: the schema has {sizes[-1]:,} bytes as an Arrow message, at most "
            f"{MAX_SCHEMA_BYTES:,} are allowed; use fewer or shorter names, or less metadata of fields"
        )
    if sum(sizes) > MAX_VERSIONS_BYTES:
        raise SchemaMismatch(
            f"topic {topic!r}: all versions of the schema have {sum(sizes):,} bytes together, at "
            f"most {MAX_VERSIONS_BYTES:,} are allowed; copy the records into a new topic"
        )


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


_LISTS = frozenset(
    {pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST, pa.lib.Type_FIXED_SIZE_LIST, pa.lib.Type_MAP}
)
_STORABLE = _LISTS | {
    getattr(pa.lib, f"Type_{name}")
    for name in (
        *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        *("HALF_FLOAT", "FLOAT", "DOUBLE", "DECIMAL32", "DECIMAL64", "DECIMAL128", "DECIMAL256"),
        *("STRING", "LARGE_STRING", "BINARY", "LARGE_BINARY", "FIXED_SIZE_BINARY", "STRUCT"),
        *("DATE32", "DATE64", "TIME32", "TIME64", "TIMESTAMP", "DURATION"),
        "INTERVAL_MONTH_DAY_NANO",
    )
}
"""Ids of the types whose values each have bytes of their own.

Values of views, dictionaries and runs may share bytes, so a small batch becomes a large one at its
readers, when they cast it or make Python objects of it.
"""
