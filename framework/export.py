"""Export of a topic as a data frame."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidRecord, MissingDependency
from strandline.changelog.records import Batch, TopicPartition
from strandline.changelog.scan import scan_batches
from strandline.changelog.schema import upgrade
from strandline.framework.formats.codecs import Codec, TypedCodec
from strandline.framework.topic_declaration import TopicDeclaration

if TYPE_CHECKING:
    import polars as pl

PLACE = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}
"""Columns that place a record, and their types."""


def topic_to_polars(topic: TopicDeclaration, *, tombstones: bool) -> pl.DataFrame:
    """Return the committed records of a topic as a Polars DataFrame; see `Topic.to_polars`."""
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependency("to_polars() needs polars: pip install polars") from error
    frame = pl.from_arrow(topic_to_arrow(topic, tombstones=tombstones))
    assert isinstance(frame, pl.DataFrame)
    return frame


def topic_to_arrow(topic: TopicDeclaration, *, tombstones: bool) -> pa.Table:
    """Return the committed records of a topic as a table: partition, offset, timestamp, key and
    value.
    """
    topic.session.prepare()
    schema = pa.schema({**PLACE, "key": pa.binary(), "value": topic.values.arrow})
    stored = pa.Table.from_batches(
        [_stored(batch, schema) for batch in committed_batches(topic.session.broker(), topic.name)],
        schema,
    )
    if not tombstones:
        stored = stored.filter(stored["value"].is_valid())
    columns = {name: stored[name] for name in PLACE}
    columns["key"] = _shown(topic, topic.keys, stored, "key")
    if tombstones:
        columns["tombstone"] = stored["value"].is_null()
    values = _shown(topic, topic.values, stored, "value")
    return pa.table({**columns, **_named(topic, values, taken=columns)})


def committed_batches(broker: Broker, topic: str) -> list[Batch]:
    """Return all batches that a read_committed reader sees, partition by partition."""
    partitions = [TopicPartition(topic, n) for n in range(broker.topic(topic).partitions)]
    now = broker.offsets(partitions)
    starts = {tp: ends.log_start for tp, ends in now.items()}
    stable = {tp: ends.last_stable_offset for tp, ends in now.items()}
    return list(scan_batches(broker, starts, stable))


def _stored(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    columns = upgrade(batch.columns, schema.field("value").type)
    arrays = [
        pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch)),
        batch.offsets,
        columns.column("timestamp").cast(PLACE["timestamp"]),
        columns.column("key"),
        columns.column("value"),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _named(
    topic: TopicDeclaration, values: pa.ChunkedArray, *, taken: Container[str]
) -> dict[str, pa.ChunkedArray]:
    """Return the value's columns, as `value_<name>` if the record has a column of that name."""
    if topic.schema is None:
        return {"value": values}
    names = [f"value_{name}" if name in taken else name for name in topic.schema.names]
    return dict(zip(names, values.flatten(), strict=True))


def _shown(topic: TopicDeclaration, codec: Codec, stored: pa.Table, part: str) -> pa.ChunkedArray:
    """Return stored keys or values decoded; their bytes if the decoded values differ in type."""
    column = stored[part]
    call = codec.decode if codec.rows is None else cast("TypedCodec", codec).to_columns
    made = []
    begin = 0
    for chunk in column.chunks:
        try:
            made.append(call(chunk))
        except InvalidRecord as error:
            at = stored.slice(begin + _first_refused(call, chunk), 1).to_pylist()[0]
            raise InvalidRecord(
                f"the {part} at {topic.name}[{at['partition']}]@{at['offset']} cannot be read: {error}"
            ) from error
        begin += len(chunk)
    if codec.rows is not None:
        return pa.chunked_array(made, codec.rows.arrow)
    try:
        return pa.chunked_array([pa.array([value for values in made for value in values])])
    except (pa.ArrowException, OverflowError):
        return column


def _first_refused(call: Callable[[pa.Array], Any], chunk: pa.Array) -> int:
    """Return the index of the first value for which `call` raises InvalidRecord, by bisection."""
    start, end = 0, len(chunk)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            call(chunk.slice(start, middle - start))
            start = middle
        except InvalidRecord:
            end = middle
    return start
