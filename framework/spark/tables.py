"""Latest state of a store, or of any compacted topic, as a table.

A compacted topic is a table written as changes: the last record of a key is its value, and a null
value deletes it. One task reads one partition, up to an end that planning captures. It drops
superseded records as it reads, so its memory is bounded by the size of the table, not of the log.

It reads records that planning has pinned (`pinning`), so the table is that of the time of planning,
at every attempt. Without a pin, the cleaner may run meanwhile, and may remove records before the
end because of newer ones after it. The task then reads on to those newer records, and starts over
if it may have missed a deletion. The result is the state at one moment, that of planning or a later
one, and attempts of one task may differ.

A store has the columns `key` and `value`, of the types of its newest records (`decoding`), and
`partition`, because several partitions may hold parts of a key if the store is not keyed as its
input is. A `.schema(…)` given to Spark replaces the types found, and `.option("decode", "false")`
leaves keys and values binary. The state of a stream's aggregation has columns of its own
(`groups`). A compacted topic that is not a store's has `key`, the record's key as bytes, and its own
columns; one of them that is called `key` is `value_key`, as in `Topic.to_polars`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, SchemaMismatch, UnknownPin
from strandline.changelog.pins import there
from strandline.changelog.records import Batch, TopicInfo
from strandline.framework.parts import partitions_asked
from strandline.framework.querying.placement import is_placed
from strandline.framework.spark import as_of, decoding, groups
from strandline.framework.spark.columns import METADATA, check_fields, check_names, topic_schema
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
from strandline.framework.table_types import fit
from strandline.statestore.frames import repeated
from strandline.statestore.ownership import check_named
from strandline.statestore.recorded import DeclarationLog

SAMPLE_OFFSETS = 1000
"""Number of the newest offsets of each partition from which the types of a store are inferred."""

COMPACT_ROWS = 1 << 20
"""Number of rows after which superseded ones are dropped."""

BATCH_ROWS = 1 << 16
"""Maximum number of rows of a batch for Spark."""

_log = logging.getLogger(__name__)

PARTITION = pa.field("partition", METADATA["partition"])
"""Column of the partition that holds a key."""

BINARY = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])
"""Columns of undecoded keys and values."""

KEY = BINARY.field("key")
"""Column of the record's key."""


def table_topic(broker: Broker, options: SourceOptions) -> TopicInfo:
    """Return the topic of the option `store`.

    Raises UnknownTopic, and InvalidConfig for a topic that is not compacted.
    """
    topic = broker.topic(options.table)
    if not topic.effective.compact:
        raise InvalidConfig(
            f"topic {topic.name!r} is not compacted, so it cannot be read as a table; read its records with "
            f".option('subscribe', {topic.name!r}), or set its cleanup.policy to compact"
        )
    return topic


def store_schema(broker: Broker, options: SourceOptions) -> pa.Schema:
    """Return the columns of a store or of a compacted topic.

    Raises InvalidRecord if values of a store are not of one type, and SchemaMismatch for columns of
    a topic that would have one name.
    """
    topic = table_topic(broker, options)
    if topic.schema is not None:
        columns = topic_schema(topic, metadata=False, headers=False)
        names = _names_in_table(topic.schema.names, topic.name)
        return pa.schema(
            [KEY, *(each.with_name(name) for each, name in zip(columns, names, strict=True))]
        )
    recorded = stored_values(broker, topic, options)
    if (aggregation := groups.groups_of(options, recorded)) is not None:
        return groups.groups_schema(aggregation)
    stored = recorded or decoding.UNRECORDED
    sample = _sample(broker, topic, stored) if options.decode else []
    if not sample:
        return BINARY.append(PARTITION) if options.is_app_store else BINARY
    keys, values = zip(*sample, strict=True)
    return decoding.infer(keys, values, topic.name, stored).append(PARTITION)


def check_columns(broker: Broker, options: SourceOptions, target: pa.Schema) -> None:
    """Raise InvalidConfig if a given schema has columns that are not there, or lacks `partition`.

    Rows without the column `partition` could be parts of a key's value, if the store may have a key
    in several partitions.
    """
    if not options.is_app_store:
        _check_of_topic(table_topic(broker, options), target)
        return
    columns = (*BINARY.names, PARTITION.name)
    lacks_partition = PARTITION.name not in target.names and options.partition is None
    if not lacks_partition and not {*target.names}.difference(columns):
        return
    app, _, store = (options.store or "").partition("/")
    topic = table_topic(broker, options)
    aggregation = groups.groups_of(options, stored_values(broker, topic, options))
    if groups.takes_columns(aggregation, target):
        return
    check_names(
        f"store {options.store!r} (fields of a value are named inside it: value struct<n: bigint>)",
        target,
        columns,
    )
    count = topic.partitions
    if lacks_partition and count > 1 and not is_placed(broker, app, store, count):
        raise InvalidConfig(
            f"several partitions of store {options.store!r} may have a key, each with a part of it, and "
            f"the schema has no column for that: add `partition int`, or read one part with "
            f".option('partition', '0')"
        )


def _check_of_topic(topic: TopicInfo, target: pa.Schema) -> None:
    """Raise InvalidConfig if a given schema has columns or fields that a compacted topic lacks."""
    known = {field.name: [field.type] for field in BINARY}
    if topic.schema is not None:
        names = _names_in_table(topic.schema.names, topic.name)
        known = {
            KEY.name: [KEY.type],
            **{n: [t] for n, t in zip(names, topic.schema.types, strict=True)},
        }
    check_names(f"the table of topic {topic.name}", target, known)
    check_fields(f"the table of topic {topic.name}", target, known)


def _names_in_table(names: Sequence[str], topic: str) -> list[str]:
    """Return the names of a topic's own columns in its table, whose first column is the key.

    Spark ignores the case of names.

    Raises SchemaMismatch for two columns of one name.

    >>> _names_in_table(["Key", "value"], "t")
    ['value_Key', 'value']
    """
    found = [f"value_{name}" if name.lower() == KEY.name else name for name in names]
    before, after = ({*repeated([name.lower() for name in each])} for each in (names, found))
    if twice := after - before:
        raise SchemaMismatch(
            f"topic {topic!r} has columns {KEY.name!r} and {min(twice)!r}, and its table would have two "
            f"called {min(twice)!r}; read its records with .option('subscribe', {topic!r}), or its "
            "changes with .option('changes', 'true')"
        )
    return found


def plan_store(broker: Broker, options: SourceOptions) -> list[OffsetRange]:
    """Return one range for each partition of the store: everything up to now, pinned.

    With `asOfOffsets` or `asOfTimestamp` the ranges end there. Raises OffsetOutOfRange if the log
    no longer has that state.
    """
    topic, timeout = table_topic(broker, options), options.batch_pin_ms
    as_of.check(broker, options)

    def look() -> ReadPlan:
        wanted = partitions_asked(topic.name, topic.partitions, options.partition)
        ends = {tp: end for tp, end in ends_of(broker, [topic]).items() if tp.partition in wanted}
        start = resolve("earliest", ends, "store")
        if options.as_of is None:
            return plan(start, latest(ends), ends)
        return plan(start, as_of.positions(broker, options.as_of, ends), ends)

    while True:
        name = pin_of_read()
        ranges = planned(broker, options, name, timeout, look)
        # Read the declaration after planning. A rewrite of values is recorded before it begins, so
        # a plan that contains rewritten values is followed by a read that sees the record.
        stored = stored_values(broker, topic, options)
        ranges = [replace(each, stored=stored) for each in ranges]
        if (aggregation := groups.groups_of(options, stored)) is not None:
            as_of.check_groups(options, aggregation)
            ranges = groups.with_closed(broker, options, aggregation, ranges)
        if not any(each.pin for each in ranges) or _are_whole(broker, ranges):
            return ranges
        there(broker.pins).release(name.holder, name.until)


def _are_whole(broker: Broker, ranges: list[OffsetRange]) -> bool:
    """Return True if no record was removed for a newer one after the end before the pin existed."""
    now = broker.offsets([each.topic_partition for each in ranges])
    return all(now[each.topic_partition].superseding_end <= each.end for each in ranges)


def read_store(
    broker: Broker, range_: OffsetRange, target: pa.Schema, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the latest value of each key in one partition."""
    # Without its pin an earlier state cannot be read, not even a part of it.
    fail = options.fail_on_data_loss or options.as_of is not None
    table = _table(broker, range_, fail_on_data_loss=fail)
    now, stored = as_of.moment_ms(options), range_.stored or decoding.UNRECORDED
    aggregation = groups.groups_of(options, stored)
    if aggregation is not None and groups.takes_columns(aggregation, target):
        yield from groups.group_batches(table, aggregation, stored, target, BATCH_ROWS)
        return
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
    """Return the latest state of a range.

    Without a pin, it is read again if a deletion may have been missed.
    """
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
    """Yield the records of the range, and those after it that have superseded some of it."""
    tp = range_.topic_partition
    position, end = range_.start, range_.end
    while position < end:
        stretch = replace(range_, start=position, end=end)
        yield from read_range(broker, stretch, fail_on_data_loss=fail_on_data_loss)
        position, end = end, max(end, broker.offsets([tp])[tp].superseding_end)


def latest_by_key(batches: Iterable[Batch]) -> pa.Table | None:
    """Return the last record of each key, without tombstones; None if there are no records."""
    kept = last_of_each_key(batch.columns.select(["key", "value"]) for batch in batches)
    return None if kept is None else kept.filter(kept["value"].is_valid())


def last_of_each_key(records: Iterable[pa.RecordBatch]) -> pa.Table | None:
    """Return the last record of each key, tombstones included; None if there are no records.

    Records without a key, which a topic may have from before it was compacted, are left out.
    """
    kept: pa.Table | None = None
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in filter(len, map(_with_key, records)):
        waiting.append(batch)
        rows += len(batch)
        if rows >= max(COMPACT_ROWS, len(kept) if kept else 0):
            kept, waiting, rows = _last_of_each(kept, waiting), [], 0
    if waiting:
        kept = _last_of_each(kept, waiting)
    return kept


def _with_key(records: pa.RecordBatch) -> pa.RecordBatch:
    keys = records.column("key")
    return records.filter(keys.is_valid()) if keys.null_count else records


def _last_of_each(kept: pa.Table | None, newer: list[pa.RecordBatch]) -> pa.Table:
    whole = pa.Table.from_batches(newer)
    if kept is not None:
        whole = pa.concat_tables([kept, whole])
    # group_by would warn about every buffer that arrived over a socket unaligned.
    codes = whole["key"].combine_chunks().dictionary_encode().indices.to_numpy()
    last = np.empty(codes.max() + 1, np.int64)
    last[codes] = np.arange(len(codes))  # the last assignment to a repeated index wins
    return whole.take(pa.array(last))


def stored_values(broker: Broker, topic: TopicInfo, options: SourceOptions) -> StoredValues | None:
    """Return the encoding of an app's store, if it is recorded.

    Raises InvalidConfig while values are still to be rewritten for a changed declaration, and
    InvalidRequest if the changelog is that of another app.
    """
    app, slash, _ = (options.store or "").partition("/")
    if not slash:
        return None
    check_named(app, topic.name, broker, SystemClock())
    recorded = DeclarationLog(broker, app, SystemClock()).read()
    if unfinished := recorded.unfinished(topic.name, topic.partitions):
        raise InvalidConfig(
            f"store {options.store!r}: values of its partitions {unfinished} are still of an older "
            "declaration, and are rewritten when the app runs; run it first"
        )
    declaration = recorded.stores.get(topic.name)
    if declaration is None:
        return None
    return StoredValues(declaration.form, declaration.expiry, declaration.to_bytes())


def _sample(broker: Broker, topic: TopicInfo, stored: StoredValues) -> list[tuple[bytes, bytes]]:
    """Return some of the newest keys and values of each partition; no tombstones."""
    found: list[tuple[bytes, bytes]] = []
    for tp, end in ends_of(broker, [topic]).items():
        last = end.last_stable_offset
        newest = OffsetRange(*tp, end.topic_id, max(end.log_start, last - SAMPLE_OFFSETS), last)
        # Superseded values are left out, because they may be of an older declaration.
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
    """Return a batch in the columns of `target`, with the partition in the column of that name."""
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
        names = _names_in_table(value.type.names, range_.topic)
        own = {KEY.name: own[KEY.name], **dict(zip(names, value.flatten(), strict=True))}
    where = f"{range_.topic}-{range_.partition}"
    arrays = [
        fit(own[f.name], f, where) if f.name in own else pa.nulls(len(batch), f.type)
        for f in target
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)
