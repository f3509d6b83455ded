"""Records as rows of a target: the columns of a topic, and batches of the log in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import as_numpy, repeated
from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.changelog.records import HEADERS_TYPE, Batch, TopicInfo
from strandline.changelog.schema import nullable, upgrade, value_type
from strandline.framework.export import first_refused
from strandline.framework.formats.codecs import Codec, as_column, column_type
from strandline.framework.offload.files import Rows
from strandline.framework.offload.periods import PERIOD_COLUMNS
from strandline.framework.table_types import INSTANT, fit, place_of, times_of
from strandline.framework.topic_declaration import TopicDeclaration

PARTITION = "_partition"
"""Name of the column with the partitions of a typed topic's records."""
ICEBERG_PARTITION = "_topic_partition"
"""Its name in Iceberg tables, because `_partition` is a column that their readers add."""

Column = Callable[[Batch], pa.Array]
"""Function that returns one column of a batch, or a struct of several."""


@dataclass(frozen=True)
class RowForm:
    """The columns of a topic's rows, and how they come from its batches."""

    schema: pa.Schema
    """Columns in the topic's own types, nullable at every level: old records may have nulls anywhere."""
    columns: Sequence[Column]
    """Functions that return them, in this order."""
    fields: Column | None
    """Function that returns the struct of the last columns, of a typed topic; else None."""

    @property
    def time(self) -> str:
        """Name of the column with the records' times."""
        return "timestamp" if self.fields is None else "_timestamp"

    def rows(self, batches: Sequence[Batch], target: pa.Schema) -> Rows:
        """Return consecutive batches of one partition as rows, in the columns of `target`.

        Raises InvalidRecord if a value cannot be decoded, or does not fit the target's type.
        """
        table = pa.Table.from_batches([self._batch(batch, target) for batch in batches], target)
        offsets = np.concatenate([as_numpy(batch.offsets) for batch in batches])
        times = np.concatenate([as_numpy(batch.columns.column("timestamp")) for batch in batches])
        return Rows(table, offsets, times)

    def _batch(self, batch: Batch, target: pa.Schema) -> pa.RecordBatch:
        arrays = [column(batch) for column in self.columns]
        if self.fields is not None:
            arrays += self.fields(batch).flatten()
        made = dict(zip(self.schema.names, arrays, strict=True))
        if self.fields is not None:
            made.setdefault(ICEBERG_PARTITION, made[PARTITION])
        fitted = [fit(made[field.name], field, place_of(batch)) for field in target]
        return pa.RecordBatch.from_arrays(fitted, schema=target)


def row_form(info: TopicInfo, declared: TopicDeclaration | None) -> RowForm:
    """Return the rows of a topic, decoded as it is declared, if it is.

    Raises InvalidConfig if a column of the topic has the name of one that is added.
    """
    key, value = _stored("key"), _stored("value")
    key_type, value_type_ = pa.binary(), value_type(info.schema)
    if declared is not None:
        key, key_type = _decoded(declared.keys, "key")
        value, value_type_ = _decoded(declared.values, "value")
    if pa.types.is_struct(value_type_):
        return _typed_form(
            info.name, key, key_type, partial(_upgraded, value, value_type_), value_type_
        )
    columns = {
        "partition": (_partition, pa.int32()),
        "offset": (_offsets, pa.int64()),
        "timestamp": (times_of, INSTANT),
        "key": (key, key_type),
        "value": (value, value_type_),
        "headers": (_headers, HEADERS_TYPE),
    }
    return _form(columns, None, [])


def _typed_form(
    topic: str, key: Column, key_type: pa.DataType, value: Column, fields: pa.StructType
) -> RowForm:
    columns = {
        PARTITION: (_partition, pa.int32()),
        "_offset": (_offsets, pa.int64()),
        "_timestamp": (times_of, INSTANT),
        "_key": (key, key_type),
        "_tombstone": (_is_tombstone, pa.bool_()),
        "_headers": (_headers, HEADERS_TYPE),
    }
    reserved = {*columns, *PERIOD_COLUMNS["hour"]}
    # Readers that ignore case take either column for the other, as DuckDB does.
    if taken := sorted(field.name for field in fields if field.name.lower() in reserved):
        raise InvalidConfig(
            f"topic {topic!r} has columns of its own called {', '.join(taken)}, which a load adds to "
            "every row (many readers ignore case); load a topic without them"
        )
    return _form(columns, value, [*fields])


def _form(
    columns: dict[str, tuple[Column, pa.DataType]], value: Column | None, fields: list[pa.Field]
) -> RowForm:
    placed = [pa.field(name, kind) for name, (_, kind) in columns.items()]
    schema = pa.schema([nullable(f).remove_metadata() for f in (*placed, *fields)])
    return RowForm(schema, [make for make, _ in columns.values()], value)


# Columns ----------------------------------------------------------------------------------


def _partition(batch: Batch) -> pa.Array:
    return repeated(batch.partition, len(batch), np.int32)


def _offsets(batch: Batch) -> pa.Array:
    return batch.offsets


def _headers(batch: Batch) -> pa.Array:
    return batch.headers


def _is_tombstone(batch: Batch) -> pa.Array:
    return pc.is_null(batch.columns.column("value"))


def _stored(part: str) -> Column:
    return lambda batch: batch.columns.column(part)


def _decoded(codec: Codec, part: str) -> tuple[Column, pa.DataType]:
    """Return the column of decoded keys or values, and its type: bytes if there is none."""
    kind = column_type(codec)
    if kind in (None, pa.binary()):
        return _stored(part), pa.binary()
    return partial(_decode, codec, part), kind


def _decode(codec: Codec, part: str, batch: Batch) -> pa.Array:
    stored = batch.columns.column(part)
    call = partial(as_column, codec)
    try:
        return call(stored)
    except InvalidRecord as error:
        at = batch.offsets[first_refused(call, stored)].as_py()
        raise InvalidRecord(
            f"the {part} at {batch.topic}[{batch.partition}]@{at} cannot be read: {error}"
        ) from error


def _upgraded(value: Column, latest: pa.StructType, batch: Batch) -> pa.Array:
    """Return typed values in the latest version of the topic's columns."""
    made = batch.columns.set_column(
        batch.columns.schema.get_field_index("value"), "value", value(batch)
    )
    return upgrade(made, latest).column("value")
