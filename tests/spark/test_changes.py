"""The change feed of a store has each change once, with the value before it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import InvalidConfig, OffsetOutOfRange
from strandline.framework.spark.changes import changes_schema, previous_values
from strandline.framework.spark.options import SourceOptions
from tests.spark.writing import Writer, write_store

pytest.importorskip("pyspark")

from strandline.framework.spark.source import StrandlineSource
from strandline.framework.spark.streaming import ChangesReader
from strandline.framework.spark.versions import (
    HAS_ADMISSION_CONTROL,
    BatchLimit,
    read_limit,
    to_spark,
)
from tests.spark.test_pinning import log, numbers, rewritten, write

__all__ = ["log"]

pytestmark = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="this Spark does not say where it stands"
)

BINARY = {"key": pa.binary(), "old": pa.binary(), "new": pa.binary(), "offset": pa.int64()}
Json = dict[str, Any]


def feed(schema: dict[str, pa.DataType] | None = None, **given: str) -> ChangesReader:
    options = {"path": "/log", "store": "t", "changes": "true", "startingOffsets": "earliest"}
    return ChangesReader(
        SourceOptions.parse(options | given), to_spark(pa.schema(schema or BINARY))
    )


def following(reader: ChangesReader, start: Json, limit: int | None = None) -> tuple[Json, Any]:
    """Return the end of the next batch, and its rows."""
    end = json.loads(json.dumps(reader.latestOffset(start, read_limit(BatchLimit(limit)))))
    return end, rows(reader, start, end)


def rows(reader: ChangesReader, start: Json, end: Json) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def expected(start: int, end: int) -> list[tuple[Any, ...]]:
    """Return the changes that `write` makes: three keys in turn."""
    return [
        (key, b"%d" % (offset - 3) if offset >= 3 else None, value, offset)
        for offset, (key, value) in enumerate(numbers(0, end))
        if offset >= start
    ]


def test_each_change_has_the_value_before_it(log: Owner) -> None:
    write(log, 0, 10)
    reader = feed()
    end, found = following(reader, reader.initialOffset(), 4)
    assert found == expected(0, 4)
    for last in (5, 8, 10):
        reader.commit(end)
        start, (end, found) = end, following(reader, end, last - found[-1][-1] - 1)
        assert found == expected(start["topics"]["t"]["partitions"]["0"]["offset"], last)


def test_a_deletion_has_no_new_value_and_what_follows_no_old_one(log: Owner) -> None:
    Writer(log).write([(b"a", b"1"), (b"a", None), (b"a", b"2"), (b"b", None)])
    reader = feed()
    end, found = following(reader, reader.initialOffset(), 2)
    assert [row[:3] for row in found] == [(b"a", None, b"1"), (b"a", b"1", None)]
    assert [row[:3] for row in following(reader, end)[1]] == [
        (b"a", None, b"2"),
        (b"b", None, None),
    ]


def test_a_query_that_begins_at_the_end_knows_the_values_before(log: Owner) -> None:
    write(log, 0, 10)
    reader = feed(startingOffsets="latest")
    start = reader.initialOffset()
    write(log, 10, 12)
    assert following(reader, start)[1] == expected(10, 12)


def test_a_repeated_batch_has_the_same_rows_after_a_cleaning(log: Owner) -> None:
    write(log, 0, 100)
    reader = feed()
    start, _ = following(reader, reader.initialOffset(), 80)
    end, found = following(reader, start)
    assert found == expected(80, 100)
    rewritten(log)
    assert rows(reader, start, end) == found
    assert rows(feed(), start, end) == found


def test_changes_that_compaction_has_removed_are_a_loss(log: Owner) -> None:
    write(log, 0, 100)
    reader = feed()
    start, _ = following(reader, reader.initialOffset(), 10)
    reader.commit(start)
    rewritten(log)
    with pytest.raises(OffsetOutOfRange, match=r"compaction has removed.*min\.compaction\.lag\.ms"):
        following(reader, start)
    _, found = following(feed(failOnDataLoss="false"), start)
    assert found[-1] == expected(99, 100)[0]


def test_a_cleaning_between_the_plan_and_the_pin_is_a_loss(
    log: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends are looked up before the records are pinned, and the cleaner may run in between."""
    write(log, 0, 100)
    reader = feed()
    start, _ = following(reader, reader.initialOffset(), 10)
    reader.commit(start)
    hold, cleaned = log.pins.hold, []

    def late(*args: Any, **more: Any) -> Any:
        if not cleaned:
            cleaned.append(rewritten(log))
        return hold(*args, **more)

    monkeypatch.setattr(log.pins, "hold", late)
    with pytest.raises(OffsetOutOfRange, match=r"compaction has removed.*min\.compaction\.lag\.ms"):
        following(reader, start)
    assert log._log.context.storage.list_dir("pins") == []


def test_a_cleaning_before_a_batch_without_a_pin_is_read_is_a_loss(log: Owner) -> None:
    write(log, 0, 100)
    reader = feed(pinTimeoutMs="0")
    start, _ = following(reader, reader.initialOffset(), 10)
    end = json.loads(json.dumps(reader.latestOffset(start, read_limit(BatchLimit()))))
    [planned] = reader.partitions(start, end)
    rewritten(log)
    with pytest.raises(OffsetOutOfRange, match="compaction has removed"):
        list(reader.read(planned))


def test_a_new_query_begins_with_the_values_that_a_cleaned_log_still_has(log: Owner) -> None:
    write(log, 0, 100)
    rewritten(log)
    reader = feed()
    _, found = following(reader, reader.initialOffset())
    assert {row[0]: row[2] for row in found} == dict(numbers(0, 100))


def test_keys_and_values_of_a_store_are_decoded(log: Owner) -> None:
    topic = "app-totals-changelog"
    log.create_topic(topic, 1, config={"cleanup.policy": "compact"})
    write_store(log, topic, str, [("x", {"n": 1}), ("y", {"n": 2}), ("x", {"n": 3}), ("y", None)])
    options = SourceOptions.parse({"path": "/log", "store": "app/totals", "changes": "true"})
    schema = changes_schema(log, options)
    assert schema.names == ["key", "old", "new", "partition", "offset", "timestamp"]
    reader = feed({f.name: f.type for f in schema}, store="app/totals")
    _, found = following(reader, reader.initialOffset())
    assert [row[:5] for row in found] == [
        ("x", None, {"n": 1}, 0, 0),
        ("y", None, {"n": 2}, 0, 1),
        ("x", {"n": 1}, {"n": 3}, 0, 2),
        ("y", {"n": 2}, None, 0, 3),
    ]


def test_values_of_a_typed_topic_are_structs(log: Owner) -> None:
    typed = pa.schema([("n", pa.int64())])
    log.create_topic("typed", 1, schema=typed, config={"cleanup.policy": "compact"})
    Writer(log).write_rows([{"n": 1}, {"n": 2}, None], typed, "typed")
    options = SourceOptions.parse({"path": "/log", "store": "typed", "changes": "true"})
    reader = feed({f.name: f.type for f in changes_schema(log, options)}, store="typed")
    _, found = following(reader, reader.initialOffset())
    assert [row[1:3] for row in found] == [
        (None, {"n": 1}),
        ({"n": 1}, {"n": 2}),
        ({"n": 2}, None),
    ]


def test_own_columns_called_key_and_value_are_fields_of_the_values(log: Owner) -> None:
    own = pa.schema([("key", pa.int64()), ("value", pa.float64())])
    log.create_topic("own", 1, schema=own, config={"cleanup.policy": "compact"})
    records = [{"key": 7, "value": 0.5}, {"key": 8, "value": 1.5}]
    Writer(log).write_rows(records, own, "own")
    options = SourceOptions.parse({"path": "/log", "store": "own", "changes": "true"})
    schema = changes_schema(log, options)
    assert schema.field("new").type == pa.struct(own)
    reader = feed({f.name: f.type for f in schema}, store="own")
    _, found = following(reader, reader.initialOffset())
    assert [row[:3] for row in found] == [(b"k", None, records[0]), (b"k", *records)]


def test_fields_of_values_that_a_typed_topic_lacks_are_refused(log: Owner) -> None:
    typed = pa.schema([("n", pa.int64())])
    log.create_topic("typed", 1, schema=typed, config={"cleanup.policy": "compact"})
    reader = feed({"new": pa.struct([("m", pa.int64())])}, store="typed")
    with pytest.raises(InvalidConfig, match=r"topic typed has no field new\.m.*new\.n"):
        following(reader, reader.initialOffset())


def test_a_recreated_topic_is_read_from_its_beginning(log: Owner, clock: ManualClock) -> None:
    write(log, 0, 10)
    reader = feed(failOnDataLoss="false")
    end, _ = following(reader, reader.initialOffset())
    log.delete_topic("t")
    log.create_topic("t", 1, config={"cleanup.policy": "compact"})
    write(log, 0, 12)
    assert following(reader, end)[1] == expected(0, 12)


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=2))),
    st.integers(0, 20),
)
def test_previous_values_are_those_of_a_dict(
    records: list[tuple[bytes, bytes | None]], cut: int
) -> None:
    def table(pairs: Any) -> pa.Table:
        columns = [pa.array([pair[n] for pair in pairs], pa.binary()) for n in (0, 1)]
        return pa.Table.from_arrays(columns, names=["key", "value"])

    latest, changes = dict(records[:cut]), records[cut:]
    wanted = []
    state = dict(latest)
    for key, value in changes:
        wanted.append(state.get(key))
        state[key] = value
    assert previous_values(table(latest.items()), table(changes)).to_pylist() == wanted


def test_changes_are_for_streams() -> None:
    options = {"path": "/log", "store": "t", "changes": "true"}
    with pytest.raises(InvalidConfig, match="readStream"):
        StrandlineSource(options).reader(to_spark(pa.schema(BINARY)))
    with pytest.raises(InvalidConfig, match="endingOffsets can be used with subscribe only"):
        StrandlineSource(options | {"endingOffsets": "latest"}).schema()
    with pytest.raises(InvalidConfig, match="changes can be used with store only"):
        StrandlineSource({"path": "/log", "subscribe": "t", "changes": "true"}).schema()


def test_columns_that_no_change_has_are_refused() -> None:
    with pytest.raises(
        InvalidConfig, match="a change feed has no column value.*its columns: key, new"
    ):
        feed({"key": pa.binary(), "value": pa.binary()})
