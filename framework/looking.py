"""A topic as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from changelog.broker import Broker
from changelog.errors import MissingDependency
from changelog.records import Batch, TopicPartition
from framework.topic import Topic

if TYPE_CHECKING:
    import polars as pl

TIMESTAMP = pa.timestamp("ms", tz="UTC")


def topic_to_polars(topic: Topic[Any, Any]) -> pl.DataFrame:
    """See `Topic.to_polars`."""
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependency("to_polars() needs polars: pip install polars") from error
    frame = pl.from_arrow(topic_to_arrow(topic))
    assert isinstance(frame, pl.DataFrame)
    return frame


def topic_to_arrow(topic: Topic[Any, Any]) -> pa.Table:
    """Every committed record of a topic: its place, time, key, and value."""
    topic.app.prepare()
    batches = list(committed_batches(topic.app.broker, topic.name))
    tables = [_table(topic, batch) for batch in batches]
    return pa.concat_tables(tables) if tables else _empty(topic)


def committed_batches(broker: Broker, topic: str) -> list[Batch]:
    """All that read_committed sees, partition after partition."""
    partitions = [TopicPartition(topic, n) for n in range(broker.topic(topic).partitions)]
    ends = broker.offsets(partitions)
    found: list[Batch] = []
    for tp in partitions:
        position = ends[tp].log_start
        while position < ends[tp].last_stable_offset:
            fetched = broker.fetch({tp: position})[tp]
            if fetched.next_offset == position:
                break
            found += fetched.batches
            position = fetched.next_offset
    return found


def _table(topic: Topic[Any, Any], batch: Batch) -> pa.Table:
    columns = batch.columns
    place = {
        "partition": pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch)),
        "offset": batch.offsets,
        "timestamp": columns.column("timestamp").cast(TIMESTAMP),
        "key": _decoded(topic.keys.decode(columns.column("key")), columns.column("key")),
    }
    return pa.table({**place, **_values(topic, columns.column("value"))})


def _values(topic: Topic[Any, Any], column: pa.Array) -> dict[str, pa.Array]:
    if topic.schema is None:
        return {"value": _decoded(topic.values.decode(column), column)}
    names = [field.name for field in column.type]
    flat = dict(zip(names, column.flatten(), strict=True))
    return {_free(f.name): flat.get(f.name, pa.nulls(len(column), f.type)) for f in topic.schema}


def _free(name: str) -> str:
    """A value's column whose name is taken by the record's own is called value_<name>."""
    return f"value_{name}" if name in ("partition", "offset", "timestamp", "key") else name


def _decoded(values: list[Any], column: pa.Array) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return column


def _empty(topic: Topic[Any, Any]) -> pa.Table:
    nothing = pa.RecordBatch.from_arrays(
        [pa.array([], pa.int64()), pa.array([], pa.binary()), pa.array([], topic.values.arrow)],
        names=["timestamp", "key", "value"],
    )
    return _table(topic, Batch(topic.name, 0, 0, nothing))
