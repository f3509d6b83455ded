"""Ranges and tables read from a log in memory: each committed record once, the last value of each
key."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    OffsetOutOfRange,
    SchemaMismatch,
)
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import Append, CommittedOffset, TopicPartition, columns_schema
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.planning import OffsetRange
from strandline.framework.spark.reading import describe, ends_of, read_range, resolve
from strandline.framework.spark.tables import (
    BINARY,
    PARTITION,
    check_columns,
    latest_by_key,
    plan_store,
    read_store,
    store_schema,
)
from strandline.statestore.keys import key_codec
from strandline.statestore.values import ValueCodec
from tests.cleaning import Segments, ignore
from tests.spark.writing import Writer, write_store
from tests.state.kit import Meanwhile

T = TopicPartition("t", 0)


@pytest.fixture
def log(storage: MemoryStorage, clock: ManualClock) -> Owner:
    owner = Owner(storage, clock=clock, background=False)
    owner.create_topic("t", 1)
    return owner


def values_of(log: Owner, start: int, end: int, *, fail: bool = True) -> list[bytes]:
    topic_id = log.topic("t").topic_id
    batches = read_range(log, OffsetRange("t", 0, topic_id, start, end), fail_on_data_loss=fail)
    return [value for batch in batches for value in batch.columns["value"].to_pylist()]


def test_a_range_ends_where_it_was_planned_to_end(log: Owner) -> None:
    writer = Writer(log)
    for number in range(6):
        writer.write([(None, b"%d" % number), (None, b"%d'" % number)])
    assert values_of(log, 3, 8) == [b"1'", b"2", b"2'", b"3", b"3'"]
    assert values_of(log, 3, 8) == values_of(log, 3, 8)


def test_aborted_and_open_transactions_are_not_read(log: Owner) -> None:
    plain, aborted, committed = Writer(log), Writer(log, "one"), Writer(log, "two")
    aborted.write([(None, b"aborted")])
    committed.write([(None, b"committed")])
    plain.write([(None, b"plain")])
    aborted.end(commit=False)
    committed.end(commit=True)
    still_open = Writer(log, "three")
    still_open.write([(None, b"open")])
    plain.write([(None, b"after")])
    ends = ends_of(log, describe(log, ("t",)))[T]
    assert values_of(log, 0, ends.last_stable_offset) == [b"committed", b"plain"]


def test_deleted_records_are_a_loss_or_skipped(log: Owner) -> None:
    Writer(log).write([(None, b"%d" % n) for n in range(5)])
    log.delete_records(T, 2)
    with pytest.raises(OffsetOutOfRange, match=r"begins at 2.*failOnDataLoss"):
        values_of(log, 0, 5)
    assert values_of(log, 0, 5, fail=False) == [b"2", b"3", b"4"]


def test_a_log_that_is_shorter_than_planned_is_a_loss(log: Owner) -> None:
    Writer(log).write([(None, b"%d" % n) for n in range(5)])
    with pytest.raises(OffsetOutOfRange, match="ends at 5"):
        values_of(log, 0, 7)
    assert values_of(log, 3, 7, fail=False) == [b"3", b"4"]


def test_another_topic_of_the_same_name_is_not_read(log: Owner) -> None:
    Writer(log).write([(None, b"old")])
    old = log.topic("t").topic_id
    log.delete_topic("t")
    log.create_topic("t", 1)
    Writer(log).write([(None, b"new")])
    stale = OffsetRange("t", 0, old, 0, 1)
    assert list(read_range(log, stale, fail_on_data_loss=False)) == []
    with pytest.raises(OffsetOutOfRange, match="created again"):
        list(read_range(log, stale, fail_on_data_loss=True))


# Times


def positions(log: Owner, **given: str) -> dict[int, int]:
    options = SourceOptions.parse({"path": "/log", "subscribe": "t"} | given)
    where = options.starting if options.starting is not None else options.ending
    assert where is not None
    found = resolve(log, where, ends_of(log, describe(log, ("t",))), "")
    return {tp.partition: at.offset for tp, at in found.items()}


@pytest.fixture
def timed(log: Owner) -> Owner:
    """Partition 0 has records of the times 10, 20, 30 and 25; partition 1 has one of time 5."""
    log.alter_topic("t", {"retention.ms": "-1"}, partitions=2)
    producer = log.init_producer()
    for partition, times in ((0, [10, 20, 30, 25]), (1, [5])):
        columns = pa.record_batch(
            [pa.array(times, pa.int64()), *(pa.nulls(len(times), pa.binary()) for _ in range(2))],
            schema=columns_schema(pa.binary(), headers=False),
        )
        log.append([Append("t", partition, columns, producer, 0)])
    return log


def test_a_read_begins_at_the_first_record_of_a_time(timed: Owner) -> None:
    assert positions(timed, startingTimestamp="0") == {0: 0, 1: 0}
    assert positions(timed, startingTimestamp="5") == {0: 0, 1: 0}
    with pytest.raises(InvalidConfig, match="all records of t-1 are before 21"):
        positions(timed, startingTimestamp="21")
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert positions(timed, startingTimestamp="21", **strategy) == {0: 2, 1: 1}
    each = '{"t": {"0": 26, "1": 1}}'
    assert positions(timed, startingOffsetsByTimestamp=each) == {0: 2, 1: 0}
    with pytest.raises(InvalidConfig, match="startingOffsetsByTimestamp must name every partition"):
        positions(timed, startingOffsetsByTimestamp='{"t": {"0": 26}}')


def test_a_read_ends_before_the_first_record_of_a_time(timed: Owner) -> None:
    assert positions(timed, endingTimestamp="30") == {0: 2, 1: 1}
    assert positions(timed, endingOffsetsByTimestamp='{"t": {"0": 99, "1": 2}}') == {0: 4, 1: 0}


# The latest state


def table_of(log: Owner, options: SourceOptions, schema: pa.Schema | None = None) -> list[object]:
    target = store_schema(log, options) if schema is None else schema
    rows: list[object] = []
    for each in plan_store(log, options):
        for batch in read_store(log, each, target, options):
            assert batch.schema == target
            for row in batch.to_pylist():
                if options.is_app_store and schema is None:
                    assert row.pop("partition") == each.partition
                rows.append(row)
    return rows


@pytest.fixture
def store(log: Owner) -> SourceOptions:
    """The store app/totals, with its changelog."""
    log.create_topic("app-totals-changelog", 1, config={"cleanup.policy": "compact"})
    return SourceOptions.parse({"path": "/log", "store": "app/totals"})


def write(log: Owner, kind: object, changes: Iterable[tuple[object, object]]) -> None:
    write_store(log, "app-totals-changelog", kind, changes)


def test_a_store_is_the_last_value_of_each_key(log: Owner, store: SourceOptions) -> None:
    write(log, str, [("AA", {"n": 1}), ("B6", {"n": 1}), ("AA", {"n": 2}), ("DL", {"n": 9})])
    write(log, str, [("DL", None), ("B6", {"n": 2})])
    assert table_of(log, store) == [
        {"key": "AA", "value": {"n": 2}},
        {"key": "B6", "value": {"n": 2}},
    ]


def test_superseded_rows_are_dropped_as_the_log_is_read(
    log: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.framework.spark.tables.COMPACT_ROWS", 10)
    writer = Writer(log)
    model: dict[bytes, bytes | None] = {}
    for number in range(100):
        change = {b"%d" % (number % 7): b"%d" % number, b"%d" % (number % 5): None}
        writer.write(change.items())
        model |= change
    topic_id = log.topic("t").topic_id
    whole = OffsetRange("t", 0, topic_id, 0, ends_of(log, describe(log, ("t",)))[T].high_watermark)
    table = latest_by_key(read_range(log, whole, fail_on_data_loss=True))
    assert table is not None
    found = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert found == {key: value for key, value in model.items() if value is not None}


def changes(kind: Segments, *keys: str) -> None:
    for number, key in enumerate(keys):
        kind.change(key, number)


@pytest.fixture
def cleaned(monkeypatch: pytest.MonkeyPatch) -> Segments:
    """A changelog that is read one commit at a time."""
    monkeypatch.setattr("strandline.framework.spark.reading.FETCH_BYTES", 1)
    return Segments()


def planned(cleaned: Segments) -> OffsetRange:
    [found] = plan_store(cleaned.owner, STATE)
    return found


def read(broker: object, range_: OffsetRange) -> dict[bytes, bytes]:
    rows = read_store(broker, range_, BINARY, STATE)  # type: ignore[arg-type]
    return {row["key"]: row["value"] for batch in rows for row in batch.to_pylist()}


def stored(model: dict[str, int]) -> dict[bytes, bytes]:
    return {b"Q" + key.encode(): bytes((value,)) for key, value in model.items()}


STATE = SourceOptions.parse(
    {"path": "/log", "store": "app/store", "decode": "false", "pinTimeoutMs": "0"}
)
"""Options without a pin, because with one nothing can happen meanwhile (test_pinning)."""


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_table_that_takes_longer_than_tombstones_stay_is_reread(
    cleaned: Segments, monkeypatch: pytest.MonkeyPatch, *, looked_at: bool
) -> None:
    changes(cleaned, "a", "zombie", "b", "c")
    if not looked_at:
        ignore(monkeypatch, "purged_end")
    purge = Meanwhile(cleaned.owner, "fetch", 3, lambda: cleaned.delete_and_purge("zombie"))
    found = read(purge, planned(cleaned))
    assert (b"Qzombie" in found) is not looked_at
    if looked_at:
        assert found == stored(cleaned.model)


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("when", ["between planning and reading", "while it is read"])
def test_a_table_shows_one_moment_even_if_its_topic_is_cleaned(
    cleaned: Segments, monkeypatch: pytest.MonkeyPatch, when: str, *, goes_on: bool
) -> None:
    """A replaced value before the end is gone, and its successor is after the end: neither would be
    read."""
    changes(cleaned, "a", "k", "b")

    def supersede() -> None:
        changes(cleaned, "c", "k", "d")
        cleaned.clean()

    range_ = planned(cleaned)
    before = dict(cleaned.model)
    assert read(cleaned.owner, range_) == stored(before)
    if not goes_on:
        ignore(monkeypatch, "superseding_end")
    broker = cleaned.owner
    if when == "while it is read":
        broker = Meanwhile(cleaned.owner, "fetch", 2, supersede)  # type: ignore[assignment]
    else:
        supersede()
    found = read(broker, range_)
    assert (b"Qk" in found) is goes_on
    if goes_on:
        assert found == stored(cleaned.model)
        assert read(cleaned.owner, range_) == found  # a retried task


def test_tuple_keys_become_structs_and_mixed_numbers_doubles(
    log: Owner, store: SourceOptions
) -> None:
    write(log, tuple[str, int], [(("JFK", 1), 1), (("LGA", 2), 2.5)])
    assert table_of(log, store) == [
        {"key": {"_1": "JFK", "_2": 1}, "value": 1.0},
        {"key": {"_1": "LGA", "_2": 2}, "value": 2.5},
    ]


def test_an_empty_store_has_no_types_yet(log: Owner, store: SourceOptions) -> None:
    assert store_schema(log, store).types == [pa.binary(), pa.binary(), pa.int32()]
    assert table_of(log, store) == []


def test_values_of_several_types_require_an_explicit_type(log: Owner, store: SourceOptions) -> None:
    write(log, str, [("a", 1), ("b", "two")])
    with pytest.raises(InvalidRecord, match=r"\.schema\("):
        store_schema(log, store)


def test_values_of_a_users_serde_are_read_as_bytes(log: Owner, store: SourceOptions) -> None:
    Writer(log).write([(key_codec(int).encode(7), b"{json")], "app-totals-changelog")
    with pytest.raises(InvalidRecord, match="decode"):
        store_schema(log, store)
    raw = SourceOptions.parse({"path": "/log", "store": "app/totals", "decode": "false"})
    assert table_of(log, raw) == [{"key": key_codec(int).encode(7), "value": b"{json"}]


def test_a_value_that_does_not_fit_the_type_is_never_silently_null(
    log: Owner, store: SourceOptions
) -> None:
    kind = pa.struct([("n", pa.int64())])
    schema = pa.schema([pa.field("key", pa.string()), pa.field("value", kind)])
    write(log, str, [("a", {"n": 1, "more": 2})])
    with pytest.raises(InvalidRecord, match="no field more"):
        table_of(log, store, schema)
    write(log, str, [("a", {"n": "one"})])
    with pytest.raises(InvalidRecord, match="does not fit"):
        table_of(log, store, schema)


def test_expired_values_are_not_shown(log: Owner, store: SourceOptions) -> None:
    now = int(datetime.now(UTC).timestamp() * 1000)
    for key, made_at in (("old", now - 60_000), ("new", now + 3_600_000)):
        codec = ValueCodec(None, ttl_ms=1000, now=lambda at=made_at: at)  # type: ignore[misc]
        data = codec.dumps(codec.hold({"n": 1}))
        Writer(log).write([(key_codec(str).encode(key), data)], "app-totals-changelog")
    assert table_of(log, store) == [{"key": "new", "value": {"n": 1}}]


def test_a_key_in_several_partitions_has_a_row_for_each(log: Owner) -> None:
    log.create_topic("app-parts-changelog", 2, config={"cleanup.policy": "compact"})
    for number in range(2):
        write_store(log, "app-parts-changelog", str, [("x", number)], partition=number)
    options = {"path": "/log", "store": "app/parts"}
    both = SourceOptions.parse(options)
    ranges = plan_store(log, both)
    target = store_schema(log, both)
    rows = [row for r in ranges for b in read_store(log, r, target, both) for row in b.to_pylist()]
    assert rows == [{"key": "x", "value": n, "partition": n} for n in range(2)]
    one = SourceOptions.parse(options | {"partition": "1"})
    assert table_of(log, one) == [{"key": "x", "value": 1}]
    with pytest.raises(InvalidRequest, match="there is no partition 2"):
        plan_store(log, SourceOptions.parse(options | {"partition": "2"}))


def test_a_schema_without_partition_requires_a_store_placed_by_key(log: Owner) -> None:
    log.create_topic("app-parts-changelog", 2, config={"cleanup.policy": "compact"})
    log.create_topic("input", 2)
    options = {"path": "/log", "store": "app/parts"}
    both, columns = SourceOptions.parse(options), [pa.field("key", pa.string())]
    check_columns(log, both, pa.schema(columns))
    write_store(log, "app-parts-changelog", str, [("x", 1)], partition=1)
    with pytest.raises(InvalidConfig, match="add `partition int`"):
        check_columns(log, both, pa.schema(columns))
    check_columns(log, both, pa.schema([*columns, PARTITION]))
    check_columns(log, SourceOptions.parse(options | {"partition": "1"}), pa.schema(columns))
    for metadata, is_placed in (("", False), ('{"placed":{"parts":3}}', False), (PLACED, True)):
        log.commit_offsets("app", {TopicPartition("input", 1): CommittedOffset(0, metadata)})
        with nullcontext() if is_placed else pytest.raises(InvalidConfig):
            check_columns(log, both, pa.schema(columns))


PLACED = '{"placed":{"parts":2}}'


def test_a_schema_with_columns_that_no_store_has_is_refused(
    log: Owner, store: SourceOptions
) -> None:
    write(log, str, [("a", {"n": 1})])
    given = pa.schema([pa.field("key", pa.string()), pa.field("n", pa.int64()), PARTITION])
    with pytest.raises(
        InvalidConfig, match="fields of a value are named inside it.* has no column n"
    ):
        check_columns(log, store, given)


def test_a_compacted_topic_can_be_read_as_a_table(log: Owner) -> None:
    log.alter_topic("t", config={"cleanup.policy": "compact"})
    Writer(log).write([(b"a", b"1"), (b"b", b"2"), (b"a", None)])
    options = SourceOptions.parse({"path": "/log", "store": "t"})
    assert table_of(log, options) == [{"key": b"b", "value": b"2"}]


def test_a_topics_own_column_called_key_does_not_replace_the_records_key(log: Owner) -> None:
    own = pa.schema([("key", pa.int64()), ("value", pa.float64())])
    log.create_topic("own", 1, schema=own, config={"cleanup.policy": "compact"})
    Writer(log).write_rows([{"key": 7, "value": 0.5}, {"key": 8, "value": 1.5}], own, "own")
    options = SourceOptions.parse({"path": "/log", "store": "own"})
    assert table_of(log, options) == [{"key": b"k", "value_key": 8, "value": 1.5}]
    given = pa.schema([("key", pa.string())])
    check_columns(log, options, given)
    assert table_of(log, options, given) == [{"key": "k"}]

    log.alter_topic("own", schema=own.append(pa.field("value_key", pa.string())))
    with pytest.raises(SchemaMismatch, match="columns 'key' and 'value_key'.*subscribe"):
        store_schema(log, options)


def test_a_column_that_differs_from_the_key_in_case_has_another_name_in_the_table(
    log: Owner,
) -> None:
    own = pa.schema([("Key", pa.int64())])
    log.create_topic("own", 1, schema=own, config={"cleanup.policy": "compact"})
    Writer(log).write_rows([{"Key": 7}], own, "own")
    options = SourceOptions.parse({"path": "/log", "store": "own"})
    assert table_of(log, options) == [{"key": b"k", "value_Key": 7}]


@pytest.mark.parametrize(
    ("topic", "columns", "problem"),
    [
        ("typed", [("n", pa.int64()), ("m", pa.int64())], "topic typed has no column m"),
        ("typed", [("value", pa.binary())], "topic typed has no column value"),
        ("typed", [("at", pa.struct([("x", pa.int64())]))], r"no field at\.x.*at\.y"),
        ("bytes", [("vlaue", pa.binary())], "topic bytes has no column vlaue.*'value'"),
        ("typed", [("n", pa.string()), ("key", pa.string())], ""),
        ("bytes", [("value", pa.string())], ""),
    ],
)
def test_columns_that_a_compacted_topic_lacks_are_refused(
    log: Owner, topic: str, columns: list[tuple[str, pa.DataType]], problem: str
) -> None:
    typed = pa.schema([("n", pa.int64()), ("at", pa.struct([("y", pa.int64())]))])
    for name, schema in (("typed", typed), ("bytes", None)):
        log.create_topic(name, 1, schema=schema, config={"cleanup.policy": "compact"})
    options = SourceOptions.parse({"path": "/log", "store": topic})
    with pytest.raises(InvalidConfig, match=problem) if problem else nullcontext():
        check_columns(log, options, pa.schema(columns))


def test_a_topic_that_is_not_compacted_cannot_be_read_as_a_table(log: Owner) -> None:
    with pytest.raises(InvalidConfig, match="not compacted"):
        plan_store(log, SourceOptions.parse({"path": "/log", "store": "t"}))
