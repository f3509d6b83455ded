"""A micro-batch, a batch and a table are read as they were planned, after any change of the log; no
JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import OffsetOutOfRange, StrandlineError
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import TopicPartition
from strandline.framework.spark import open_logs
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.planning import OffsetRange
from strandline.framework.spark.tables import plan_store, read_store
from tests.cleaning import Segments, clean
from tests.spark.writing import Writer

pytest.importorskip("pyspark")

from strandline.framework.spark.source import BatchReader, StoreReader
from strandline.framework.spark.streaming import StreamReader
from strandline.framework.spark.versions import (
    HAS_ADMISSION_CONTROL,
    BatchLimit,
    read_limit,
    to_arrow,
    to_spark,
)

T = TopicPartition("t", 0)
SMALL = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "4096",
    "file.delete.delay.ms": "0",
}
HOUR = 3_600_000
BINARY = to_spark(pa.schema([("key", pa.binary()), ("value", pa.binary())]))
Json = dict[str, Any]

tells_start = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="this Spark does not say where it stands"
)


class OpenLog:
    """The test's owner, returned in place of `open_log`."""

    def __init__(self, broker: Owner) -> None:
        self.broker = broker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Owner:
    owner = Owner(LocalStorage(tmp_path / "log"), clock=clock, background=False)
    owner.create_topic("t", 1, config=SMALL)
    monkeypatch.setattr(open_logs, "open_log", lambda _: OpenLog(owner))
    return owner


def options(**given: str) -> SourceOptions:
    given = given or {"subscribe": "t"}
    return SourceOptions.parse({"path": "/log", "startingOffsets": "earliest"} | given)


def stream(**given: str) -> StreamReader:
    return StreamReader(options(subscribe="t", **given), BINARY)


def latest(reader: StreamReader, start: Json, limit: int | None = None) -> Json:
    """Return the latest offset as Spark gets it, as text."""
    found: Json = json.loads(json.dumps(reader.latestOffset(start, read_limit(BatchLimit(limit)))))
    return found


def rows(reader: Any, partitions: Any) -> list[tuple[bytes, bytes]]:
    return [
        (row["key"], row["value"])
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def write(log: Owner, start: int, end: int, partition: int = 0) -> None:
    """Write three keys, over and over, in segments of a few dozen records."""
    writer = Writer(log)
    for number in range(start, end):
        writer.write([(b"k%d" % (number % 3), b"%d" % number)], partition=partition)


def numbers(start: int, end: int) -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % (number % 3), b"%d" % number) for number in range(start, end)]


def rewritten(log: Owner) -> None:
    assert clean(log, T).tally.superseded > 0


def all_deleted(log: Owner) -> None:
    log.delete_records(T, -1)
    log.tick()


Fate = Callable[[Owner], None]
both = pytest.mark.parametrize("fate", [rewritten, all_deleted])


@tells_start
@both
def test_a_batch_that_a_new_driver_finds_in_the_checkpoint_has_the_same_records(
    log: Owner, fate: Fate
) -> None:
    write(log, 0, 100)
    first = stream()
    start = first.initialOffset()
    end = latest(first, start, 70)
    assert rows(first, first.partitions(start, end)) == numbers(0, 70)
    fate(log)
    second = stream()
    assert rows(second, second.partitions(start, end)) == numbers(0, 70)
    second.commit(end)


def test_the_first_batch_begins_at_the_same_offset_after_the_log_has_grown(
    log: Owner,
) -> None:
    write(log, 0, 10)
    first = stream(startingOffsets="latest")
    start = first.initialOffset()
    write(log, 10, 20)
    end = latest(first, start) if HAS_ADMISSION_CONTROL else first.latestOffset()
    write(log, 20, 30)
    second = stream(startingOffsets="latest")
    moved = second.initialOffset()  # Spark calls again while the batch is not committed
    assert rows(second, second.partitions(moved, end)) == numbers(10, 20)
    second.commit(end)
    following = latest(second, end) if HAS_ADMISSION_CONTROL else second.latestOffset()
    assert rows(second, second.partitions(end, following)) == numbers(20, 30)


def test_partitions_added_before_the_first_commit_are_read_from_their_beginning(
    log: Owner,
) -> None:
    write(log, 0, 10)
    given = {"startingOffsets": '{"t": {"0": 4}}'}
    first = stream(**given)
    start = first.initialOffset()
    end = latest(first, start) if HAS_ADMISSION_CONTROL else first.latestOffset()
    log.alter_topic("t", partitions=2)
    write(log, 10, 20, partition=1)
    second = stream(**given)
    again = second.initialOffset()
    assert rows(second, second.partitions(again, end)) == numbers(4, 10)
    second.commit(end)
    following = latest(second, end) if HAS_ADMISSION_CONTROL else second.latestOffset()
    assert rows(second, second.partitions(end, following)) == numbers(10, 20)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"startingOffsets": '{"t": {"0": 4}}'}, "must name every partition; missing: t-1"),
        ({"startingOffsets": '{"t": {"0": 4, "1": 0, "2": 0}}'}, "not subscribed: t-2"),
        ({"startingTimestamp": str(1 << 42)}, "all records of t-0 are before"),
    ],
)
def test_a_start_that_does_not_fit_the_topic_fails_before_the_first_batch(
    log: Owner, given: dict[str, str], error: str
) -> None:
    log.alter_topic("t", partitions=2)
    write(log, 0, 10)
    reader = stream(**given)
    start = reader.initialOffset()
    with pytest.raises(StrandlineError, match=error):
        latest(reader, start) if HAS_ADMISSION_CONTROL else reader.latestOffset()


@tells_start
@both
def test_offsets_that_spark_has_stored_and_not_planned_yet_are_pinned(
    log: Owner, fate: Fate
) -> None:
    write(log, 0, 100)
    start = (first := stream()).initialOffset()
    end = latest(first, start)
    fate(log)
    second = stream()
    assert rows(second, second.partitions(start, end)) == numbers(0, 100)


@both
def test_a_retried_task_reads_the_same(log: Owner, fate: Fate) -> None:
    write(log, 0, 100)
    reader = stream()
    start, end = reader.initialOffset(), reader.latestOffset()  # as Spark 4.1 calls it
    planned = reader.partitions(start, end)
    assert rows(reader, planned) == numbers(0, 100)
    fate(log)
    assert rows(reader, planned) == numbers(0, 100)
    reader.commit(end)
    assert log._log.context.storage.list_dir("pins") == []


@both
def test_without_pins_records_are_missing_the_second_time(log: Owner, fate: Fate) -> None:
    write(log, 0, 100)
    reader = stream(pinTimeoutMs="0", failOnDataLoss="false")
    start, end = reader.initialOffset(), reader.latestOffset()
    planned = reader.partitions(start, end)
    assert rows(reader, planned) == numbers(0, 100)
    assert log._log.context.storage.list_dir("pins") == []
    fate(log)
    assert len(rows(reader, planned)) < 100


@tells_start
def test_a_query_keeps_the_pin_of_one_batch(log: Owner) -> None:
    storage = log._log.context.storage
    reader = stream()
    start = reader.initialOffset()
    other = stream()
    write(log, 0, 5)
    elsewhere = other.initialOffset()
    latest(other, elsewhere)
    for number in range(1, 4):
        end = latest(reader, start)
        assert [len(storage.list_dir(f"pins/{h}")) for h in storage.list_dir("pins")] == [1, 1]
        reader.partitions(start, end)
        write(log, 5 * number, 5 * number + 5)
        assert latest(reader, end) != end
        start = end
    reader.commit(start)
    assert len(storage.list_dir("pins")) == 2
    end = latest(reader, start)
    reader.commit(end)
    assert len(storage.list_dir("pins")) == 1  # the other query's


@tells_start
def test_the_offset_without_new_records_is_the_same_text(log: Owner) -> None:
    write(log, 0, 5)
    reader = stream()
    start = reader.initialOffset()
    end = latest(reader, start)
    assert json.dumps(latest(stream(), end)) == json.dumps(end)
    old = {key: end[key] for key in ("version", "topics")}  # as before there were pins
    assert latest(stream(), old) == old
    write(log, 5, 9)
    assert latest(stream(), old)["holder"] != ""


def gone(log: Owner, clock: ManualClock) -> None:
    log._log.context.storage.remove_tree("pins")


def expired(log: Owner, clock: ManualClock) -> None:
    clock.advance(25 * HOUR)
    log.tick()


@tells_start
@pytest.mark.parametrize("lose", [gone, expired])
def test_a_missing_pin_is_a_loss(log: Owner, clock: ManualClock, lose: Any) -> None:
    write(log, 0, 100)
    start = (first := stream()).initialOffset()
    end = latest(first, start)
    planned = first.partitions(start, end)
    rewritten(log)
    left = rows(plain := stream(pinTimeoutMs="0"), plain.partitions(start, end))
    assert 3 < len(left) < 100
    lose(log, clock)
    with pytest.raises(OffsetOutOfRange, match=r"the pin is gone.*failOnDataLoss"):
        stream().partitions(start, end)
    with pytest.raises(OffsetOutOfRange, match=r"as it was planned, but there is no pin"):
        rows(first, planned)
    lenient = stream(failOnDataLoss="false")
    assert rows(lenient, planned) == left
    assert rows(lenient, lenient.partitions(start, end)) == left
    again = stream().partitions(start, end)  # pinned once more
    all_deleted(log)
    assert rows(lenient, again) == left


@tells_start
def test_a_pin_in_use_does_not_expire(log: Owner, clock: ManualClock) -> None:
    write(log, 0, 20)
    start = (reader := stream()).initialOffset()
    end = latest(reader, start)
    planned = reader.partitions(start, end)
    for _ in range(4):
        clock.advance(23 * HOUR)
        assert rows(reader, planned) == numbers(0, 20)
        log.tick()


@tells_start
def test_records_deleted_before_they_were_planned_are_a_loss(log: Owner) -> None:
    write(log, 0, 20)
    start = (reader := stream()).initialOffset()
    log.delete_records(T, 7)
    with pytest.raises(OffsetOutOfRange, match="records from 0 on were deleted"):
        latest(reader, start)
    lenient = stream(failOnDataLoss="false")
    end = latest(lenient, start)
    assert rows(lenient, lenient.partitions(start, end)) == numbers(7, 20)


def test_records_deleted_between_planning_and_pinning_are_planned_again(
    log: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, 0, 20)
    hold, calls = log.pins.hold, []

    def late(*args: Any, **more: Any) -> Any:
        if not calls:
            calls.append(log.delete_records(T, 7))
        return hold(*args, **more)

    monkeypatch.setattr(log.pins, "hold", late)
    reader = BatchReader(options(subscribe="t"), BINARY)
    assert rows(reader, reader.partitions()) == numbers(7, 20)


# Batches and tables


@both
def test_a_batch_is_read_as_it_was_planned(log: Owner, fate: Fate) -> None:
    write(log, 0, 100)
    reader = BatchReader(options(subscribe="t"), BINARY)
    planned = reader.partitions()
    fate(log)
    assert rows(reader, planned) == rows(reader, planned) == numbers(0, 100)


@both
def test_a_table_is_read_as_of_its_planning(log: Owner, fate: Fate) -> None:
    write(log, 0, 99)
    reader = StoreReader(SourceOptions.parse({"path": "/log", "store": "t"}), BINARY)
    planned = reader.partitions()
    Writer(log).write([(b"k0", None), (b"k1", b"later")])
    fate(log)
    assert sorted(rows(reader, planned)) == numbers(96, 99)


@pytest.fixture
def changelog() -> Segments:
    """Changelog of a store, each change in a segment of its own."""
    found = Segments()
    for number, key in enumerate(("a", "zombie", "k", "b")):
        found.change(key, number)
    return found


STATE = SourceOptions.parse({"path": "/log", "store": "app/store", "decode": "false"})


def state(changelog: Segments, range_: OffsetRange) -> dict[str, int]:
    batches = read_store(changelog.owner, range_, to_arrow(BINARY), STATE)
    found = [(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()]
    return {key.removeprefix(b"Q").decode(): value[0] for key, value in found}


def test_a_table_does_not_show_later_deletions_and_changes(changelog: Segments) -> None:
    [range_] = plan_store(changelog.owner, STATE)
    before = dict(changelog.model)
    changelog.change("k", 9)
    changelog.delete_and_purge("zombie")
    assert changelog.model != before
    assert state(changelog, range_) == state(changelog, range_) == before


def test_a_table_that_is_cleaned_before_it_is_pinned_is_planned_again(
    changelog: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a value would be missing whose successor is after the end."""
    hold, calls = changelog.owner.pins.hold, []

    def late(*args: Any, **more: Any) -> Any:
        if not calls:
            calls.append(1)
            changelog.change("k", 9)
            changelog.change("c", 1)
            changelog.clean()
        return hold(*args, **more)

    monkeypatch.setattr(changelog.owner.pins, "hold", late)
    [range_] = plan_store(changelog.owner, STATE)
    assert state(changelog, range_) == changelog.model
    storage = changelog.owner._log.context.storage
    assert len(storage.list_dir("pins")) == 1


def test_a_table_whose_pin_is_missing_is_a_loss_or_shows_a_later_moment(
    changelog: Segments,
) -> None:
    [range_] = plan_store(changelog.owner, STATE)
    changelog.delete_and_purge("zombie")
    changelog.owner._log.context.storage.remove_tree("pins")
    with pytest.raises(OffsetOutOfRange, match="as it was planned"):
        state(changelog, range_)
    batches = read_store(
        changelog.owner, range_, to_arrow(BINARY), replace(STATE, fail_on_data_loss=False)
    )
    keys = [row["key"] for batch in batches for row in batch.to_pylist()]
    assert b"Qzombie" not in keys
    assert len(keys) == len(changelog.model)


def test_the_pin_of_a_batch_is_released_when_it_is_no_longer_read(
    log: Owner, clock: ManualClock
) -> None:
    write(log, 0, 20)
    reader = BatchReader(options(subscribe="t"), BINARY)
    planned = reader.partitions()
    for _ in range(3):
        clock.advance(HOUR - 1)
        log.tick()
        assert rows(reader, planned) == numbers(0, 20)
    clock.advance(HOUR)
    log.tick()
    assert log._log.context.storage.list_dir("pins") == []


def sizes(log: Owner, reader: StreamReader, start: Json) -> Iterator[int]:
    """Yield the number of records of each batch until everything is read."""
    while (end := latest_bytes(reader, start)) != start:
        yield len(rows(reader, reader.partitions(start, end)))
        reader.commit(end)
        start = end


def latest_bytes(reader: StreamReader, start: Json) -> Json:
    found: Json = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    return found


@tells_start
def test_a_limit_of_bytes_gives_batches_of_about_that_size(log: Owner) -> None:
    log.create_topic("b", 1)
    Writer(log).write([(b"k", b"x" * 1000)] * 2000, "b")
    for limit, least, most in ((100_000, 50, 150), (1, 1, 1), (10**9, 2000, 2000)):
        reader = StreamReader(options(subscribe="b", maxBytesPerTrigger=str(limit)), BINARY)
        found = [*islice(sizes(log, reader, reader.initialOffset()), 5)]
        assert all(least <= count <= most for count in found), (limit, found)


@tells_start
def test_a_limit_of_offsets_and_one_of_bytes_both_hold(log: Owner) -> None:
    log.create_topic("b", 1)
    Writer(log).write([(b"k", b"x" * 1000)] * 2000, "b")
    given = {"maxBytesPerTrigger": "100000", "maxOffsetsPerTrigger": "7"}
    reader = StreamReader(options(subscribe="b", **given), BINARY)
    assert next(sizes(log, reader, reader.initialOffset())) == 7
    given["maxOffsetsPerTrigger"] = "700"
    reader = StreamReader(options(subscribe="b", **given), BINARY)
    assert next(sizes(log, reader, reader.initialOffset())) < 150


@tells_start
@pytest.mark.parametrize("restarted", [False, True])
def test_a_partition_added_to_a_running_query_is_read_from_its_beginning(
    log: Owner, *, restarted: bool
) -> None:
    reader = StreamReader(options(subscribe="t", startingOffsets="latest"), BINARY)
    write(log, 0, 10)
    start = reader.initialOffset()
    write(log, 10, 20)
    end = latest(reader, start)
    assert rows(reader, reader.partitions(start, end)) == numbers(10, 20)
    reader.commit(end)
    log.alter_topic("t", partitions=3)
    Writer(log).write([(b"new", b"1")], "t", partition=1)
    if restarted:
        reader = StreamReader(options(subscribe="t", startingOffsets="latest"), BINARY)
    Writer(log).write([(b"new", b"2")], "t", partition=2)
    following = latest(reader, end)
    found = rows(reader, reader.partitions(end, following))
    assert found == [(b"new", b"1"), (b"new", b"2")]
    assert latest(reader, following) == following


@tells_start
def test_a_partition_added_before_the_first_batch_is_read_from_its_beginning(log: Owner) -> None:
    reader = StreamReader(options(subscribe="t", startingOffsets="latest"), BINARY)
    write(log, 0, 10)
    start = reader.initialOffset()
    log.alter_topic("t", partitions=2)
    Writer(log).write([(b"new", b"1")], "t", partition=1)
    end = latest(reader, start, 1)
    assert rows(reader, reader.partitions(start, end)) == [(b"new", b"1")]


def test_a_large_partition_is_read_by_several_tasks_and_small_ones_by_one(log: Owner) -> None:
    log.create_topic("b", 4)
    for partition in range(4):
        Writer(log).write([(b"k", b"%d" % n) for n in range(100)], "b", partition=partition)
    reader = BatchReader(options(subscribe="b"), BINARY)
    [together] = reader.partitions()
    assert len(rows(reader, [together])) == 400
    divided = BatchReader(options(subscribe="b", minPartitions="10"), BINARY)
    planned = divided.partitions()
    assert len(planned) == 10
    assert rows(divided, planned) == rows(reader, [together])


def table(log: Owner, **given: str) -> dict[bytes, bytes]:
    found = SourceOptions.parse({"path": "/log", "store": "t"} | given)
    reader = StoreReader(found, BINARY)
    return dict(rows(reader, reader.partitions()))


def test_a_table_is_read_as_of_an_offset(log: Owner) -> None:
    write(log, 0, 10)
    for end in (1, 2, 5, 9, 10):
        assert table(log, asOfOffsets=json.dumps({"t": {"0": end}})) == dict(numbers(0, end))
    assert table(log, asOfOffsets='{"t": {"0": -1}}') == dict(numbers(0, 10)) == table(log)


def test_a_table_is_read_as_of_a_time(log: Owner, clock: ManualClock) -> None:
    log.alter_topic("t", {"message.timestamp.type": "LogAppendTime"})
    write(log, 0, 5)
    first = clock.now_ms()
    clock.advance(10)
    write(log, 5, 10)
    assert table(log, asOfTimestamp=str(first)) == dict(numbers(0, 5))
    assert table(log, asOfTimestamp=str(first + 9)) == dict(numbers(0, 5))
    assert table(log, asOfTimestamp=str(first + 10)) == dict(numbers(0, 10))
    assert table(log, asOfTimestamp=str(first - 1)) == {}


def test_a_state_that_compaction_has_removed_is_refused_and_a_later_one_is_not(log: Owner) -> None:
    write(log, 0, 100)
    rewritten(log)
    superseding = log.offsets([T])[T].superseding_end
    assert 0 < superseding < 100
    with pytest.raises(OffsetOutOfRange, match=f"up to offset {superseding}"):
        table(log, asOfOffsets=json.dumps({"t": {"0": superseding - 1}}))
    for end in (superseding, superseding + 1, 100):
        assert table(log, asOfOffsets=json.dumps({"t": {"0": end}})) == dict(numbers(0, end))


def test_an_earlier_state_is_read_as_planned_although_the_log_is_cleaned(log: Owner) -> None:
    write(log, 0, 100)
    reader = StoreReader(
        SourceOptions.parse({"path": "/log", "store": "t", "asOfOffsets": '{"t": {"0": 7}}'}),
        BINARY,
    )
    planned = reader.partitions()
    rewritten(log)
    assert dict(rows(reader, planned)) == dict(numbers(0, 7))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"asOfOffsets": '{"t": {"0": 11}}'}, "it ends at 10"),
        ({"asOfOffsets": '{"t": {"0": 2}}'}, "records before 3 were deleted"),
        ({"asOfOffsets": '{"t": {"0": -2}}'}, "would be empty"),
        ({"asOfOffsets": '{"t": {"1": 2}}'}, "missing: t-0"),
        ({"asOfOffsets": '{"t": {"0": 5}}', "pinTimeoutMs": "0"}, "need a pin"),
        ({"asOfOffsets": '{"t": {"0": 5}}', "asOfTimestamp": "5"}, "not both"),
    ],
)
def test_a_state_that_there_is_not_is_refused(log: Owner, given: dict[str, str], said: str) -> None:
    write(log, 0, 10)
    log.delete_records(T, 3)
    with pytest.raises(StrandlineError, match=said):
        table(log, **given)
