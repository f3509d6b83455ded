"""Records are appended, numbered, and read as they were sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.errors import (
    InvalidRecord,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordTooLarge,
    StrandlineError,
    UnknownPartition,
)
from strandline.changelog.log import Log
from strandline.changelog.records import HEADERS_TYPE, Append, TopicPartition
from tests.systems import System


def batch(*values: bytes | None, time: int = 1_000) -> pa.RecordBatch:
    """Return a batch of records without keys."""
    columns = [
        pa.array([time] * len(values), pa.int64()),
        pa.nulls(len(values), pa.binary()),
        pa.array(values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["timestamp", "key", "value"])


def values(log: Log, partition: TopicPartition, start: int = 0) -> list[bytes | None]:
    """Return the values of one fetch."""
    fetched = log.broker.fetch({partition: start})[partition]
    return [v for b in fetched.batches for v in b.columns.column("value").to_pylist()]


def test_records_have_offsets_in_their_order(log: Log, topic: str) -> None:
    with log.producer() as producer:
        futures = [producer.send(topic, b"%d" % n, partition=0) for n in range(1_000)]
        assert [future.result(10).offset for future in futures] == list(range(1_000))
    table = log.read(topic)
    assert table["offset"].to_pylist() == list(range(1_000))
    assert table["value"].to_pylist() == [b"%d" % n for n in range(1_000)]


def test_a_record_is_read_as_it_was_sent(log: Log, topic: str, now: int) -> None:
    headers = [("trace", b"1"), ("trace", b""), ("none", None), ("naïve", b"\x00\xff")]
    with log.producer() as producer:
        sent = producer.send(topic, b"v", b"k", partition=1, timestamp=now, headers=headers)
        assert (sent.result(10).partition, sent.result(10).timestamp) == (1, now)
    with log.consumer() as consumer:
        consumer.subscribe(topic)
        (record,) = consumer.records(timeout=0)
    assert (record.topic, record.partition, record.offset) == (topic, 1, 0)
    assert (record.timestamp, record.key, record.value) == (now, b"k", b"v")
    assert list(record.headers) == headers


@pytest.mark.parametrize("key", [None, b"", b"k"])
@pytest.mark.parametrize("value", [None, b"", b"v"])
def test_null_and_empty_values_differ(
    log: Log, topic: str, key: bytes | None, value: bytes | None
) -> None:
    log.append(topic, [{"key": key, "value": value}, {"key": b"x", "value": b"y"}], partition=0)
    table = log.read(topic)
    assert table["key"].to_pylist() == [key, b"x"]
    assert table["value"].to_pylist() == [value, b"y"]


def test_some_records_of_a_batch_have_headers(log: Log, first: TopicPartition, now: int) -> None:
    heads = pa.array([None, [{"key": "h", "value": b"1"}], []], HEADERS_TYPE)
    columns = batch(b"a", b"b", b"c", time=now).append_column("headers", heads)
    with log.producer() as producer:
        producer.append_batch(*first, columns)
    with log.consumer() as consumer:
        consumer.assign([first])
        got = [list(record.headers) for record in consumer.records(timeout=0)]
    assert got == [[], [("h", b"1")], []]


def test_a_key_chooses_the_same_partition_everywhere(log: Log, name: str) -> None:
    log.create_topic(name, 7)
    keys = [b"key-%d" % n for n in range(50)]
    log.append(name, [{"key": key, "value": b""} for key in keys])
    with log.producer() as producer:
        for key in keys:
            producer.send(name, b"", key)
    table = log.read(name).select(["partition", "key"]).to_pylist()
    assert len(table) == 100
    assert {(row["key"], row["partition"]) for row in table} == {
        (key, partition_for(key, 7)) for key in keys
    }


def test_batches_are_kept_apart_and_in_order(log: Log, first: TopicPartition, now: int) -> None:
    with log.producer() as producer:
        pieces = [(first, batch(b"%d" % n, b"%d" % n, time=now), 0) for n in range(12)]
        answers = producer.append_batches(pieces)
    assert [(a.base_offset, a.last_offset) for a in answers] == [
        (2 * n, 2 * n + 1) for n in range(12)
    ]
    assert values(log, first) == [b"%d" % n for n in range(12) for _ in range(2)]


def test_batches_of_concurrent_producers_do_not_mix(
    system: System, log: Log, first: TopicPartition, now: int
) -> None:
    """The offsets of a batch are consecutive, even if other producers write at the same time."""
    logs = [system.open(), system.open(), log]
    answers: list[tuple[bytes, int, int]] = []

    def write(own: Log, mark: bytes) -> None:
        with own.producer() as producer:
            for _ in range(10):
                (one,) = producer.append_batch(*first, batch(*[mark] * 500, time=now))
                answers.append((mark, one.base_offset, one.last_offset))

    threads = [threading.Thread(target=write, args=(logs[n % 3], b"%d" % n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 60
    table = log.read(first.topic)["value"].to_pylist()
    assert len(table) == 30_000
    for mark, base, last in answers:
        assert table[base : last + 1] == [mark] * 500


def test_a_call_that_is_repeated_writes_nothing(log: Log, first: TopicPartition, now: int) -> None:
    me = log.broker.init_producer()
    calls = [Append(*first, batch(b"%d" % n, time=now), me, base_sequence=n) for n in range(3)]
    answers = [log.broker.append([call])[0] for call in calls]
    again = log.broker.append(calls)
    assert [(a.base_offset, a.last_offset) for a in again] == [(n, n) for n in range(3)]
    assert [a.duplicate for a in answers] == [False] * 3
    assert [a.duplicate for a in again] == [True] * 3
    assert values(log, first) == [b"0", b"1", b"2"]


def test_a_gap_in_the_sequence_is_refused(log: Log, first: TopicPartition, now: int) -> None:
    me = log.broker.init_producer()
    log.broker.append([Append(*first, batch(b"a", time=now), me, base_sequence=0)])
    with pytest.raises(OutOfOrderSequence):
        log.broker.append([Append(*first, batch(b"b", time=now), me, base_sequence=2)])
    log.broker.append([Append(*first, batch(b"c", time=now), me, base_sequence=1)])
    assert values(log, first) == [b"a", b"c"]


def test_batches_before_a_refused_one_are_written(
    log: Log, first: TopicPartition, now: int
) -> None:
    me = log.broker.init_producer()
    good = Append(*first, batch(b"a", time=now), me, base_sequence=0)
    nowhere = Append(first.topic, 9, batch(b"b", time=now), me, base_sequence=0)
    last = Append(*first, batch(b"c", time=now), me, base_sequence=1)
    with pytest.raises(UnknownPartition):
        log.broker.append([good, nowhere, last])
    assert values(log, first) == [b"a"]
    assert [a.duplicate for a in log.broker.append([good, last])] == [True, False]
    assert values(log, first) == [b"a", b"c"]


def test_a_batch_after_a_refused_one_is_written_once_when_it_is_sent_again(
    log: Log, name: str, now: int
) -> None:
    log.create_topic(name, 2, config={"max.message.bytes": "10000"})
    me = log.broker.init_producer()
    large = Append(name, 0, batch(b"x" * 20_000, time=now), me, 0)
    behind = Append(name, 1, batch(b"behind", time=now), me, 0)
    with pytest.raises(RecordTooLarge):
        log.broker.append([large, behind])
    answers = [log.broker.append([behind])[0] for _ in range(2)]
    assert [(a.base_offset, a.duplicate) for a in answers] == [(0, False), (0, True)]
    assert log.read(name)["value"].to_pylist() == [b"behind"]


def test_a_record_over_the_limit_is_refused_and_the_producer_works(log: Log, name: str) -> None:
    log.create_topic(name, config={"max.message.bytes": "10000"})
    with log.producer() as producer:
        producer.send(name, b"a").result(10)
        with pytest.raises(RecordTooLarge):
            producer.send(name, b"x" * 20_000)
        with pytest.raises(RecordTooLarge):
            producer.append(name, [{"value": b"x" * 20_000}])
        futures = [producer.send(name, b"b" * 1_000) for _ in range(50)]
        assert [future.result(10).offset for future in futures] == list(range(1, 51))


def test_the_log_itself_refuses_a_batch_over_the_limit(log: Log, name: str, now: int) -> None:
    log.create_topic(name, config={"max.message.bytes": "10000"})
    me = log.broker.init_producer()
    with pytest.raises(RecordTooLarge):
        log.broker.append([Append(name, 0, batch(b"x" * 20_000, time=now), me, 0)])
    assert log.broker.append([Append(name, 0, batch(b"x", time=now), me, 0)])[0].base_offset == 0


def test_a_compacted_topic_requires_keys(log: Log, name: str, now: int) -> None:
    log.create_topic(name, config={"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord):
        log.append(name, [{"value": b"x"}])
    me = log.broker.init_producer()
    with pytest.raises(InvalidRecord):
        log.broker.append([Append(name, 0, batch(b"x", time=now), me, 0)])
    log.append(name, [{"key": b"k", "value": b"x"}])
    assert log.read(name)["value"].to_pylist() == [b"x"]


def test_an_unknown_partition_is_unknown_to_every_call(log: Log, topic: str, now: int) -> None:
    nowhere = TopicPartition(topic, 2)
    me = log.broker.init_producer()
    for call in (
        lambda: log.append(topic, [{"value": b"x"}], partition=2),
        lambda: log.broker.append([Append(*nowhere, batch(b"x", time=now), me, 0)]),
        lambda: log.broker.fetch({nowhere: 0}),
        lambda: log.broker.offsets([nowhere]),
    ):
        with pytest.raises(UnknownPartition):
            call()


def test_a_fetch_continues_where_the_last_one_ended(
    log: Log, first: TopicPartition, second: TopicPartition
) -> None:
    rows = [{"value": b"%06d" % n} for n in range(5_000)]
    for partition in (0, 1):
        log.append(first.topic, rows, partition=partition)
    positions = {first: 0, second: 100}
    got: dict[TopicPartition, list[bytes]] = {first: [], second: []}
    while positions != {first: 5_000, second: 5_000}:
        before = dict(positions)
        for tp, fetched in log.broker.fetch(positions, max_bytes=10_000).items():
            positions[tp] = fetched.next_offset
            for one in fetched.batches:
                got[tp] += one.columns["value"].to_pylist()
        assert positions != before
    in_order = [row["value"] for row in rows]
    assert got[first] == in_order
    # A batch is returned whole: the reader skips records before its position.
    assert got[second][-4_900:] == in_order[100:]


def test_a_fetch_at_the_end_is_empty_and_beyond_it_out_of_range(
    log: Log, first: TopicPartition, second: TopicPartition
) -> None:
    log.append(first.topic, [{"value": b"x"}] * 3, partition=0)
    fetched = log.broker.fetch({first: 3, second: 0})
    assert [one.batches for one in fetched.values()] == [[], []]
    assert [one.next_offset for one in fetched.values()] == [3, 0]
    for wrong in (4, -1):
        with pytest.raises(OffsetOutOfRange):
            log.broker.fetch({first: wrong})


def test_a_recreated_topic_is_read_from_its_beginning(log: Log, first: TopicPartition) -> None:
    log.append(first.topic, [{"value": b"old"}] * 3, partition=0)
    assert log.broker.fetch({first: 3}, timeout=0.2)[first].batches == []
    log.delete_topic(first.topic)
    log.create_topic(first.topic, 2)
    log.append(first.topic, [{"value": b"%d" % n} for n in range(5)], partition=0)
    fetched = log.broker.fetch({first: 3})[first]
    (got,) = (one.clip(3, 5).columns["value"].to_pylist() for one in fetched.batches)
    assert (got, fetched.next_offset) == ([b"3", b"4"], 5)


@pytest.mark.long_on_kafka
def test_a_readers_state_of_a_deleted_topic_does_not_affect_the_next_one(
    log: Log, first: TopicPartition, second: TopicPartition
) -> None:
    log.append(first.topic, [{"value": b"old"}] * 3, partition=0)
    log.broker.fetch({first: 3, second: 0}, timeout=0.2)
    log.append(second.topic, [{"value": b"old"}], partition=1)
    log.broker.fetch({first: 3}, timeout=0.5)
    log.delete_topic(first.topic)
    log.create_topic(first.topic, 2)
    log.append(first.topic, [{"value": b"new"}], partition=0)
    for _ in range(6):
        assert log.broker.fetch({second: 0}, timeout=0.3)[second].batches == []
    log.append(first.topic, [{"value": b"newer"}] * 2, partition=0)
    for _ in range(6):
        assert log.broker.fetch({first: 3}, timeout=0.3)[first].batches == []


def test_a_long_poll_wakes_up_for_a_record(
    system: System, log: Log, first: TopicPartition, second: TopicPartition
) -> None:
    other = system.open()
    other.append(first.topic, [{"value": b"before"}], partition=0)
    timer = threading.Timer(
        0.3, lambda: other.append(first.topic, [{"value": b"new"}], partition=0)
    )
    begun = time.monotonic()
    timer.start()
    fetched = log.broker.fetch({first: 1, second: 0}, timeout=30)
    assert 0.2 < time.monotonic() - begun < 10
    timer.join()
    assert [b.columns["value"].to_pylist() for b in fetched[first].batches] == [[b"new"]]
    assert fetched[first].next_offset == 2


def test_a_long_poll_ends_after_its_timeout(log: Log, first: TopicPartition) -> None:
    begun = time.monotonic()
    assert log.broker.fetch({first: 0}, timeout=0.3)[first].batches == []
    assert 0.25 < time.monotonic() - begun < 5


@pytest.mark.long_on_kafka
def test_random_reads_take_no_longer_than_sequential_ones(log: Log, name: str) -> None:
    """Each fetch begins at another position than the previous one's end."""
    topic = log.create_topic(f"{name}-places", 24).name
    places = [TopicPartition(topic, number) for number in range(24)]
    for place in places:
        log.append(topic, [{"value": b"x"}] * 10, partition=place.partition)
    log.broker.fetch({places[0]: 0})  # the first fetch waits for a leader
    begun = time.monotonic()
    for position in range(3):
        for place in places:
            assert log.broker.fetch({place: position})[place].batches
    assert time.monotonic() - begun < 15  # with a wait of half a second each it would be 36


def test_a_closed_log_raises(log: Log, topic: str) -> None:
    log.close()
    log.close()
    with pytest.raises(StrandlineError, match="closed"):
        log.topic(topic)


@pytest.mark.long_on_kafka
def test_many_consumers_read_at_the_same_time(
    log: Log, topic: str, eventually: Callable[..., None]
) -> None:
    log.append(topic, [{"key": b"%d" % n, "value": b"%d" % n} for n in range(2_000)])
    seen: list[int] = []

    def read() -> None:
        seen.append(log.read(topic).num_rows)

    threads = [threading.Thread(target=read) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [2_000] * 12
