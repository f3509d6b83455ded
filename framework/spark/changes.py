"""Changes of a store or a compacted topic as a stream: key, old value and new value.

The old value of a key is that of its previous record. If that record is in the same micro-batch, it
is taken from there. Otherwise the task reads the partition's earlier records, and keeps the last one
of each key that has changed. No state is kept beside the checkpoint, so a repeated batch has the
same rows. The price is that every batch reads each changed partition from its beginning, and keeps
the batch's own records in memory.

Compaction removes a record because of a later one of its key. Once such a later record is after the
start of a batch, an old value or a change may be missing. That is a data loss, as deleted records are.
The first batch of a query that begins at the log's start is an exception: it has the records that
the log still has, and a key's first one has no old value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.records import Batch, PartitionOffsets, TopicInfo
from strandline.framework.spark import decoding, tables
from strandline.framework.spark.columns import check_fields, topic_schema
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.planning import Ends, OffsetRange, ReadPlan, StoredValues
from strandline.framework.spark.reading import read_range, report
from strandline.framework.table_types import INSTANT, fit

CHANGES = ("offset", "timestamp")
"""Columns of each change besides its key and values."""
COLUMNS = ("key", "old", "new", "partition", *CHANGES)
"""All columns of a change."""

VALUE = "value"


def changes_schema(broker: Broker, options: SourceOptions) -> pa.Schema:
    """Return the columns of a change feed: key, old, new, partition, offset, timestamp."""
    topic = tables.table_topic(broker, options)
    if topic.schema is not None:
        key, value = tables.KEY.type, pa.struct(topic_schema(topic, metadata=False, headers=False))
    else:
        stored = tables.store_schema(broker, options)
        if VALUE not in stored.names or "key" not in stored.names:
            raise InvalidConfig(
                f"store {options.store!r} holds the aggregation of a stream, whose changes can be read "
                "as stored bytes: .option('decode', 'false')"
            )
        key, value = stored.field("key").type, stored.field(VALUE).type
    return pa.schema(
        [
            pa.field("key", key),
            pa.field("old", value),
            pa.field("new", value),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", INSTANT),
        ]
    )


def check_columns(topic: TopicInfo, target: pa.Schema) -> None:
    """Raise InvalidConfig if a given schema has fields of values that a typed topic lacks."""
    if topic.schema is not None:
        value = [pa.struct(topic.schema)]
        check_fields(f"topic {topic.name}", target, {"old": value, "new": value})


def widened(plan: ReadPlan, ends: Ends) -> ReadPlan:
    """Return a plan whose ranges begin at the start of the log, to find old values."""
    ranges = [replace(r, start=ends[r.topic_partition].log_start) for r in plan.ranges]
    return ReadPlan(ranges, plan.losses)


def compacted(range_: OffsetRange, since: int, now: PartitionOffsets | None) -> list[str]:
    """Return the losses of a range whose changes or old values may be gone; none if all are there.

    Args:
        range_: Widened range of the changes.
        since: Offset of the first change.
        now: Bounds of the partition after the range was pinned, or was read without a pin. A
            cleaning before that may have removed records of the range. None if it does not exist.
    """
    if now is None or now.topic_id != range_.topic_id or since <= range_.start:
        return []
    gone = max(now.superseding_end, now.purged_end)
    if gone <= since:
        return []
    loss = (
        f"changes of {range_.topic_partition} from offset {since} on are to be read, but "
        f"compaction has removed records up to offset {gone}; set min.compaction.lag.ms of the topic "
        "longer than the query may lag"
    )
    return [loss]


def read_changes(
    broker: Broker, range_: OffsetRange, since: int, target: pa.Schema, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a partition, in the order of their offsets.

    Args:
        broker: Log to read.
        range_: Pinned range: all records that may have old values, and the changes.
        since: Offset of the first change.
        target: Columns to return.
        options: Options of the read.
    """
    fail = options.fail_on_data_loss
    changes = _table_of(read_range(broker, replace(range_, start=since), fail_on_data_loss=fail))
    if changes is None:
        return
    before = replace(range_, end=max(range_.start, since))
    earlier = read_range(broker, before, fail_on_data_loss=fail)
    found = _last_values(earlier, pc.unique(changes["key"]))
    if range_.pin is None:
        tp = range_.topic_partition
        report(compacted(range_, since, broker.offsets([tp])[tp]), fail=fail)
    prior = changes.slice(0, 0) if found is None else found
    old = previous_values(prior, changes)
    stored = range_.stored or decoding.UNRECORDED
    columns = {
        "key": changes["key"],
        "old": old,
        "new": changes[VALUE],
        "partition": pa.array(np.full(len(changes), range_.partition, np.int32)),
        "offset": changes["offset"],
        "timestamp": changes["timestamp"].cast(pa.timestamp("ms", tz="UTC")),
    }
    arrays = [_column(columns[f.name], f, options, range_, stored) for f in target]
    yield from pa.Table.from_arrays(arrays, schema=target).to_batches(tables.BATCH_ROWS)


def previous_values(prior: pa.Table, changes: pa.Table) -> pa.ChunkedArray:
    """Return, for each change, the value of the previous record of its key; null if there is none.

    >>> row = lambda *rows: pa.table({"key": [k for k, _ in rows], "value": [v for _, v in rows]})
    >>> previous_values(row((b"a", b"0")), row((b"a", b"1"), (b"b", b"2"), (b"a", None))).to_pylist()
    [b'0', None, b'1']
    """
    values = pa.chunked_array([*prior[VALUE].chunks, *changes[VALUE].chunks], changes[VALUE].type)
    keys = pa.chunked_array([*prior["key"].chunks, *changes["key"].chunks], changes["key"].type)
    codes = keys.combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")  # the records of a key are together, in their order
    before = np.full(len(codes), -1)
    same = codes[order][1:] == codes[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    wanted = before[len(prior) :]
    return values.take(pa.array(wanted, mask=wanted < 0))


def _table_of(batches: Iterable[Batch]) -> pa.Table | None:
    """Return keyed records as a table with their offsets; None if there are none."""
    found = [
        batch.columns.select(["key", VALUE, "timestamp"]).append_column("offset", batch.offsets)
        for batch in batches
    ]
    whole = pa.Table.from_batches(found) if found else None
    keyed = whole if whole is None else whole.filter(whole["key"].is_valid())
    return keyed if keyed is not None and len(keyed) else None


def _last_values(batches: Iterable[Batch], keys: pa.Array) -> pa.Table | None:
    """Return the last record of each of the keys, tombstones included; None if there are none."""
    wanted = (
        batch.columns.select(["key", VALUE]).filter(
            pc.is_in(batch.columns.column("key"), value_set=keys)
        )
        for batch in batches
    )
    return tables.last_of_each_key(each for each in wanted if len(each))


def _column(
    column: pa.ChunkedArray | pa.Array,
    field: pa.Field,
    options: SourceOptions,
    range_: OffsetRange,
    stored: StoredValues,
) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    where = f"{range_.topic}-{range_.partition}"
    if not options.decode or field.name in ("partition", *CHANGES):
        return fit(whole, field, where)
    part = "key" if field.name == "key" else VALUE
    return decoding.decoded_nullable(whole, field.with_name(part), range_.topic, stored)
