"""The records of a topic as a table, and as a Polars data frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import repeated, unsliced
from strandline.changelog.broker import Broker
from strandline.changelog.client.casting import cast_column
from strandline.changelog.errors import InvalidRequest, SchemaMismatch
from strandline.changelog.records import HEADERS_TYPE, Batch, Isolation, TopicInfo, TopicPartition
from strandline.changelog.scan import scan_kept
from strandline.changelog.schema import upgrade, with_fields
from strandline.changelog.settings import check_choice

if TYPE_CHECKING:
    import polars as pl

Offsets = Mapping[int, int] | int
"""Offsets by partition number, or one offset for all partitions."""

PLACE = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}
"""Columns that place a record, and their types."""


_POLARS_DIGITS = 38
"""Maximum number of digits of a decimal in Polars."""


def topic_table(
    broker: Broker,
    info: TopicInfo,
    value: pa.DataType,
    *,
    isolation: Isolation = "read_committed",
    start: Offsets | None = None,
    end: Offsets | None = None,
) -> pa.Table:
    """Return the records of a topic, ordered by partition and offset.

    Columns: those of `PLACE`, key (binary), value, and headers if any record has some.

    Args:
        broker: The log.
        info: Description of the topic.
        value: Type of the value column, to which batches of an earlier schema are upgraded.
        isolation: Whether aborted records and those of open transactions are left out.
        start: First offset; by default the log start.
        end: End offset (exclusive); by default, and at most, the present end.

    Raises:
        InvalidConfig: There is no such isolation.
        InvalidRequest: `start` or `end` names a partition that does not exist.
        OffsetOutOfRange: The topic was deleted and created again during the call.
    """
    check_choice("isolation", isolation, get_args(Isolation))
    partitions = info.topic_partitions
    now = broker.offsets(partitions)
    starts = _bounds(start, {tp: one.log_start for tp, one in now.items()})
    ends = _bounds(end, {tp: one.visible_end(isolation) for tp, one in now.items()}, limit=True)
    schema = pa.schema({**PLACE, "key": pa.binary(), "value": value})
    tables = [
        _table(batch, schema)
        for tp in partitions
        for fetched in scan_kept(broker, {tp: starts[tp]}, ends, isolation=isolation)
        for batch in fetched[tp].batches
    ]
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default")


def record_frame(table: pa.Table, *, has_fields: bool, tombstones: bool) -> pl.DataFrame:
    """Return a table of records as a Polars data frame.

    Args:
        table: Records, with at least the columns of `PLACE`, key and value.
        has_fields: True if the value is a struct: its fields become columns, called `value_<name>`
            if another column has that name.
        tombstones: False: leave out tombstones. True: a column `tombstone` marks them.

    Raises:
        SchemaMismatch: Polars does not have the type of a column.
    """
    import polars as pl

    if tombstones:
        at = table.schema.get_field_index("value")
        table = table.add_column(at, "tombstone", table["value"].is_null())
    else:
        table = table.filter(table["value"].is_valid())
    frame = pl.from_arrow(for_polars(flattened(table) if has_fields else table))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _polars_field(field: pa.Field) -> pa.Field:
    """Return a field in a type that Polars has; it panics at some others. Raises SchemaMismatch."""
    kind = field.type
    if pa.types.is_decimal(kind):
        digits = min(_POLARS_DIGITS, kind.precision + max(0, -kind.scale))
        return field.with_type(pa.decimal128(digits, max(0, kind.scale)))
    is_empty = (pa.types.is_fixed_size_list(kind) and kind.list_size == 0) or (
        pa.types.is_fixed_size_binary(kind) and kind.byte_width == 0
    )
    if is_empty or kind == pa.month_day_nano_interval():
        raise SchemaMismatch(
            f"column {field.name!r} has type {kind}, which Polars does not have; read it with "
            "`Log.read`, as an Arrow table"
        )
    return field.with_type(with_fields(kind, _polars_field))


def for_polars(table: pa.Table) -> pa.Table:
    """Return a table that Polars reads: decimals have 38 digits at most, and no negative scale.

    Polars panics at other decimals. Raises SchemaMismatch for a value or a type that it cannot have.
    """
    for at, field in enumerate(table.schema):
        if pa.types.is_fixed_size_list(field.type):
            table = table.set_column(at, field, unsliced(table.column(at)))
        wanted = _polars_field(field)
        if wanted.type != field.type:
            chunks = [
                cast_column(chunk, wanted.type, field.name, "as a Polars data frame")
                for chunk in table.column(at).chunks
            ]
            table = table.set_column(at, wanted, pa.chunked_array(chunks, wanted.type))
    return table


def _bounds(
    given: Offsets | None, whole: Mapping[TopicPartition, int], *, limit: bool = False
) -> dict[TopicPartition, int]:
    """Return an offset for each partition: the one given, but not outside the log."""
    if isinstance(given, int):
        given = {tp.partition: given for tp in whole}
    given = given or {}
    unknown = set(given) - {tp.partition for tp in whole}
    if unknown:
        raise InvalidRequest(f"offsets are given for partitions {sorted(unknown)}, which are none")
    pick = min if limit else max
    return {tp: pick(given.get(tp.partition, edge), edge) for tp, edge in whole.items()}


def _table(batch: Batch, schema: pa.Schema) -> pa.Table:
    columns = upgrade(batch.columns, schema.field("value").type)
    arrays = [
        repeated(batch.partition, len(batch), np.int32),
        batch.offsets,
        pc.cast(columns.column("timestamp"), PLACE["timestamp"]),
        columns.column("key"),
        columns.column("value"),
    ]
    if columns.num_columns > 3:
        schema = schema.append(pa.field("headers", HEADERS_TYPE))
        arrays.append(batch.headers)
    return pa.Table.from_arrays(arrays, schema=schema)


def flattened(table: pa.Table) -> pa.Table:
    """Replace the struct column `value` by one column for each of its fields."""
    at = table.schema.get_field_index("value")
    fields, values = table.schema.field(at).type, table.column(at).flatten()
    rest = table.remove_column(at)
    taken = set(rest.schema.names)
    for field, array in zip(fields, values, strict=True):
        name = f"value_{field.name}" if field.name in taken else field.name
        rest = rest.append_column(name, array)
    return rest
