"""The latest state of a store, or of any compacted topic, as a table.

A compacted topic is a table written as changes: the last record of a key is its value, and a
null value deletes it. One task reads one partition, up to an end that planning captures, and
drops what is superseded as it goes, so that it holds about as much as the table has, not the log.

It reads what planning has pinned (`pinning`), so the table is of that moment, at every attempt. Without a
pin, cleaning goes on meanwhile: what it removes because of records behind the end is missing before it. There
the task reads on to those records, and begins anew where it may have missed a deletion: what it gives
is all of one moment, that of planning or a later one, and attempts of one task may differ in it.

A store has the columns `key` and `value`, of the types that its newest records show (`decoding`), and
`partition`: several partitions may have a key, each with a part, if the store is not keyed as its input.
`.schema(…)` given to Spark is taken instead of looking, and `.option("decode", "false")` leaves
keys and values binary. A compacted topic that is not a store's has its columns as they are, `key` before them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, UnknownPin
from strandline.changelog.pins import there
from strandline.changelog.records import Batch, TopicInfo
from strandline.framework.parts import partitions_asked
from strandline.framework.querying.placement import is_placed
from strandline.framework.spark import decoding
from strandline.framework.spark.columns import METADATA, fit, topic_schema
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.pinning import pin_of_read, planned
from strandline.framework.spark.planning import (
    OffsetRange,
    ReadPlan,
    StoredValues,
    latest,
    plan,
    resolve,
)
from strandline.framework.spark.reading import ends_of, read_pinned, read_range, report_unpinned
from strandline.statestore.recorded import DeclarationLog

SAMPLE_OFFSETS = 1000
"""How many of the newest offsets of each partition show the types of a store."""

COMPACT_ROWS = 1 << 20
"""How many rows may pile up before superseded ones are dropped."""

BATCH_ROWS = 1 << 16

_log = logging.getLogger(__name__)

PARTITION = pa.field("partition", METADATA["partition"])

BINARY = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])


def table_topic(broker: Broker, options: SourceOptions) -> TopicInfo:
    """The topic that the option `store` means.

    Raises UnknownTopic, and InvalidConfig for a topic that is not compacted.
    """
    topic = broker.topic(options.table)
    if not topic.effective.compact:
        raise InvalidConfig(
            f"topic {topic.name!r} is not compacted, so it is no table; read its records with "
            f".option('subscribe', {topic.name!r}), or set its cleanup.policy to compact"
        )
    return topic


def store_schema(broker: Broker, options: SourceOptions) -> pa.Schema:
    """The columns of a store. Raises InvalidRecord if its values are of no one type."""
    topic = table_topic(broker, options)
    if topic.schema is not None:
        columns = topic_schema(topic, metadata=False, headers=False)
        return pa.schema([BINARY.field("key"), *(f for f in columns if f.name != "key")])
    stored = _stored_values(broker, topic, options) or decoding.UNRECORDED
    sample = _sample(broker, topic, stored) if options.decode else []
    if not sample:
        return BINARY.append(PARTITION) if options.is_app_store else BINARY
    keys, values = zip(*sample, strict=True)
    return decoding.infer(keys, values, topic.name, stored).append(PARTITION)


def check_columns(broker: Broker, options: SourceOptions, target: pa.Schema) -> None:
    """Raise InvalidConfig if rows could be parts of a key's value, and do not say of which partition.

    That is so if a schema was given without the column `partition`, for a store of which it is
    not known that each key is in one partition.
    """
    if not options.is_app_store or PARTITION.name in target.names or options.partition is not None:
        return
    app, _, store = (options.store or "").partition("/")
    count = table_topic(broker, options).partitions
    if count > 1 and not is_placed(broker, app, store, count):
        raise InvalidConfig(
            f"several partitions of store {options.store!r} may have a key, each with a part of it, and "
            f"the schema has no column for that: add `partition int`, or read one part with "
            f".option('partition', '0')"
        )


def plan_store(broker: Broker, options: SourceOptions) -> list[OffsetRange]:
    """One range for each partition of the store: everything up to now, pinned."""
    topic, timeout = table_topic(broker, options), options.batch_pin_ms

    def look() -> ReadPlan:
        wanted = partitions_asked(topic.name, topic.partitions, options.partition)
        ends = {tp: end for tp, end in ends_of(broker, [topic]).items() if tp.partition in wanted}
        return plan(resolve("earliest", ends, "store"), latest(ends), ends)

    while True:
        name = pin_of_read()
        ranges = planned(broker, options, name, timeout, look)
        # Asked after planning: values are rewritten only after that was recorded.
        stored = _stored_values(broker, topic, options)
        ranges = [replace(each, stored=stored) for each in ranges]
        if not any(each.pin for each in ranges) or _are_whole(broker, ranges):
            return ranges
        there(broker.pins).release(name.holder, name.until)


def _are_whole(broker: Broker, ranges: list[OffsetRange]) -> bool:
    """Whether nothing in them was removed for a record behind them, between planning and pinning."""
    now = broker.offsets([each.topic_partition for each in ranges])
    return all(now[each.topic_partition].superseding_end <= each.end for each in ranges)


def read_store(
    broker: Broker, range_: OffsetRange, target: pa.Schema, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """The latest value of each key in one partition."""
    table = _table(broker, range_, fail_on_data_loss=options.fail_on_data_loss)
    now, stored = SystemClock().now_ms(), range_.stored or decoding.UNRECORDED
    for batch in table.to_batches(max_chunksize=BATCH_ROWS) if table else ():
        if options.decode:
            live = decoding.without_expired(batch, now, stored)
            rows = decoding.decode(live, _without_partition(target), range_.topic, stored)
            yield _with_partition(rows, target, range_)
        elif options.is_app_store:
            rows = _plain(batch, _without_partition(target), range_)
            yield _with_partition(rows, target, range_)
        else:
            yield _plain(batch, target, range_)


def _table(broker: Broker, range_: OffsetRange, *, fail_on_data_loss: bool) -> pa.Table | None:
    """The latest state; without a pin read again if a deletion may have been missed meanwhile."""
    if range_.pin is not None:
        try:
            return latest_by_key(read_pinned(broker, range_, range_.pin))
        except UnknownPin as error:
            report_unpinned(range_, error, fail=fail_on_data_loss)
            range_ = replace(range_, pin=None)
    tp = range_.topic_partition
    while True:
        settled_end = broker.offsets([tp])[tp].settled_end
        table = latest_by_key(_changes(broker, range_, fail_on_data_loss=fail_on_data_loss))
        now = broker.offsets([tp])[tp]
        if not now.must_start_over(range_.start, settled_end):
            return table
        _log.warning(
            "%s is read again: deletions up to offset %d were removed meanwhile; its topic's "
            "delete.retention.ms should be longer than it takes to read it",
            *(tp, now.purged_end),
        )


def _changes(broker: Broker, range_: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Batch]:
    """The records of the range, and those behind it that have replaced some of it."""
    tp = range_.topic_partition
    position, end = range_.start, range_.end
    while position < end:
        stretch = replace(range_, start=position, end=end)
        yield from read_range(broker, stretch, fail_on_data_loss=fail_on_data_loss)
        position, end = end, max(end, broker.offsets([tp])[tp].superseding_end)


def latest_by_key(batches: Iterable[Batch]) -> pa.Table | None:
    """The last record of each key, without tombstones; None if there are no records."""
    kept: pa.Table | None = None
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch.columns.select(["key", "value"]))
        rows += len(batch)
        if rows >= max(COMPACT_ROWS, len(kept) if kept else 0):
            kept, waiting, rows = _last_of_each(kept, waiting), [], 0
    if waiting:
        kept = _last_of_each(kept, waiting)
    return None if kept is None else kept.filter(kept["value"].is_valid())


def _last_of_each(kept: pa.Table | None, newer: list[pa.RecordBatch]) -> pa.Table:
    whole = pa.Table.from_batches(newer)
    if kept is not None:
        whole = pa.concat_tables([kept, whole])
    # Not group_by: its engine complains of every buffer that came over a socket unaligned.
    codes = whole["key"].combine_chunks().dictionary_encode().indices.to_numpy()
    last = np.empty(codes.max() + 1, np.int64)
    last[codes] = np.arange(len(codes))  # of repeated indices the last assignment stands
    return whole.take(pa.array(last))


def _stored_values(broker: Broker, topic: TopicInfo, options: SourceOptions) -> StoredValues | None:
    """How the values of an app's store are written, if that is recorded.

    Raises InvalidConfig while values are still to be rewritten for a changed declaration.
    """
    app, slash, _ = (options.store or "").partition("/")
    if not slash:
        return None
    recorded = DeclarationLog(broker, app, SystemClock()).read()
    if unfinished := recorded.unfinished(topic.name, topic.partitions):
        raise InvalidConfig(
            f"store {options.store!r}: values of its partitions {unfinished} are still of an older "
            "declaration, and are rewritten when the app runs; run it first"
        )
    declaration = recorded.stores.get(topic.name)
    return None if declaration is None else StoredValues(declaration.form, declaration.expiry)


def _sample(broker: Broker, topic: TopicInfo, stored: StoredValues) -> list[tuple[bytes, bytes]]:
    """Return some of the newest keys and values of each partition; no tombstones."""
    found: list[tuple[bytes, bytes]] = []
    for tp, end in ends_of(broker, [topic]).items():
        last = end.last_stable_offset
        newest = OffsetRange(*tp, end.topic_id, max(end.log_start, last - SAMPLE_OFFSETS), last)
        # Only what nothing later has replaced: values of an older declaration may be in the log still.
        table = latest_by_key(read_range(broker, newest, fail_on_data_loss=False))
        for batch in table.to_batches() if table else ():
            shown = decoding.without_expired(batch, now=0, stored=stored)
            found += zip(*(shown.column(name).to_pylist() for name in BINARY.names), strict=True)
    return found


def _without_partition(target: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in target if field.name != PARTITION.name])


def _with_partition(
    batch: pa.RecordBatch, target: pa.Schema, range_: OffsetRange
) -> pa.RecordBatch:
    """A batch in the columns of `target`, with the partition in that of its name."""
    number = pa.repeat(pa.scalar(range_.partition, PARTITION.type), len(batch))
    where = f"{range_.topic}-{range_.partition}"
    arrays = [
        fit(number, field, where) if field.name == PARTITION.name else batch.column(field.name)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _plain(batch: pa.RecordBatch, target: pa.Schema, range_: OffsetRange) -> pa.RecordBatch:
    own = {name: batch.column(name) for name in BINARY.names}
    value = own["value"]
    if pa.types.is_struct(value.type):
        own |= dict(zip(value.type.names, value.flatten(), strict=True))
    where = f"{range_.topic}-{range_.partition}"
    arrays = [
        fit(own[f.name], f, where) if f.name in own else pa.nulls(len(batch), f.type)
        for f in target
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)
