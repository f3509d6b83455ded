"""The producer writes every record exactly once, or its future has the reason why not."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.changelog.client.partitioner import partition_for
from strandline.changelog.client.producer import Producer, ProducerPhase, RecordMetadata
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    DiskFull,
    InvalidRecord,
    InvalidRequest,
    InvalidTxnState,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    Retriable,
    SchemaMismatch,
    StorageFailed,
    TransactionAborted,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.forms import examples
from tests.log.kit import START_MS, World, columns
from tests.log.line import LOST_ANSWER, LOST_CALL, UNSAFE_AFTERWARDS, Fault, Line

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
NEVER = 10_000_000
"""Milliseconds. As linger_ms it means that nothing is sent before it must be."""


def key_for(partition: int, partitions: int = 2) -> str:
    return next(k for k in "abcdefgh" if partition_for(k.encode(), partitions) == partition)


@pytest.fixture
def line(world: World) -> Line:
    return Line(world)


@pytest.fixture
def producer(line: Line) -> Iterator[Producer]:
    with Producer(
        line.broker, clock=line.world.clock, linger_ms=NEVER, delivery_timeout_ms=50
    ) as made:
        yield made


@pytest.fixture
def transactional(line: Line) -> Iterator[Producer]:
    clock = line.world.clock
    with Producer(line.broker, clock=clock, transactional_id="x", delivery_timeout_ms=50) as made:
        yield made


# Sending -------------------------------------------------------------------------------


def test_a_future_has_the_partition_and_offset_of_the_record(
    world: World, producer: Producer
) -> None:
    first = producer.send("t", b"a", partition=1)
    second = producer.send("t", b"b", partition=1, timestamp=77)
    producer.flush()
    assert first.result() == RecordMetadata("t", 1, 0, START_MS)
    assert second.result() == RecordMetadata("t", 1, 1, 77)
    assert world.values(partition=1) == [b"a", b"b"]


def test_records_are_sent_without_a_flush_once_they_have_lingered(world: World) -> None:
    with Producer(world.owner, linger_ms=1) as producer:
        assert producer.send("t", b"a", partition=0).result(timeout=30).offset == 0


def test_a_full_batch_does_not_linger(world: World) -> None:
    with Producer(world.owner, linger_ms=NEVER, batch_bytes=100) as producer:
        futures = [producer.send("t", bytes(60), partition=0) for _ in range(2)]
        assert [future.result(timeout=30).offset for future in futures] == [0, 1]


def test_send_sends_the_batch_itself_when_the_buffer_is_full(world: World) -> None:
    with Producer(world.owner, linger_ms=NEVER, buffer_bytes=100) as producer:
        assert not producer.send("t", bytes(10), partition=0).done()
        assert producer.send("t", bytes(90), partition=0).done()


@pytest.mark.parametrize("key", ["a", "ü", b"\xff", 7, -1, 2.5])
def test_a_key_chooses_the_partition_that_kafka_chooses(producer: Producer, key: Any) -> None:
    from strandline.changelog.client.keys import encode_key

    encoded = encode_key(key)
    assert encoded is not None
    sent = producer.send("t", b"v", key=key)
    producer.flush()
    assert sent.result().partition == partition_for(encoded, 2)


def test_headers_tombstones_and_empty_values_arrive(world: World, producer: Producer) -> None:
    producer.send("t", None, key="k", partition=0, headers=[("h", b"1"), ("h", None)])
    producer.send("t", b"", key="k", partition=0)
    producer.flush()
    [batch] = world.owner.fetch({T0: 0})[T0].batches
    first, second = batch.records()
    assert (first.value, first.headers) == (None, (("h", b"1"), ("h", None)))
    assert (second.value, second.headers) == (b"", ())


def test_keyless_records_of_a_batch_stay_together_and_batches_spread(world: World) -> None:
    world.owner.create_topic("wide", 8)
    with Producer(world.owner, linger_ms=NEVER, partitioner_seed="s") as producer:
        batches = []
        for _ in range(20):
            sent = [producer.send("wide", b"v") for _ in range(5)]
            producer.flush()
            batches.append({future.result().partition for future in sent})
    assert all(len(partitions) == 1 for partitions in batches)
    assert len(set.union(*batches)) > 4


def test_a_new_partition_count_is_noticed(world: World, producer: Producer) -> None:
    with pytest.raises(UnknownPartition, match="partitions 0 to 1, got 2"):
        producer.send("t", b"v", partition=2)
    world.owner.alter_topic("t", partitions=3)
    world.clock.advance(60_000)
    producer.send("t", b"v", partition=2)
    producer.flush()
    assert world.values(partition=2) == [b"v"]


@pytest.mark.parametrize(
    ("topic", "record", "error"),
    [
        ("nope", {"value": b"v"}, UnknownTopic),
        ("t", {"value": "text"}, InvalidRecord),
        ("t", {"value": b"v", "key": object()}, InvalidRecord),
        ("t", {"value": b"v", "key": 1 << 63}, InvalidRecord),
        ("t", {"value": b"v", "headers": [("h", "text")]}, InvalidRecord),
        ("t", {"value": b"v", "timestamp": -1}, InvalidRecord),
        ("compacted", {"value": b"v"}, InvalidRecord),
        ("small", {"value": bytes(1001)}, RecordTooLarge),
        ("typed", {"value": b"v"}, InvalidRecord),
        ("typed", {"value": {"m": 1}}, SchemaMismatch),
    ],
)
def test_a_record_that_can_never_be_stored_is_refused_at_once(
    world: World, producer: Producer, topic: str, record: dict[str, Any], error: type[Exception]
) -> None:
    world.owner.create_topic("compacted", config={"cleanup.policy": "compact"})
    world.owner.create_topic("small", config={"max.message.bytes": "1000"})
    world.owner.create_topic("typed", schema=pa.schema([("n", pa.int32())]))
    with pytest.raises(error):
        producer.send(topic, **record)


def test_rows_of_a_typed_topic(world: World, producer: Producer) -> None:
    world.owner.create_topic("typed", schema=pa.schema([("n", pa.int32()), ("s", pa.string())]))
    producer.send("typed", {"s": "x", "n": 1}, key="k")
    producer.send("typed", None, key="k")
    producer.flush()
    assert world.values("typed") == [{"n": 1, "s": "x"}, None]


def test_a_row_that_does_not_fit_fails_alone(world: World, producer: Producer) -> None:
    world.owner.create_topic("typed", schema=pa.schema([("n", pa.int32())]))
    futures = [producer.send("typed", {"n": n}) for n in (1, "two", 3, 1 << 40, 5)]
    producer.flush()
    refused = [type(future.exception()) for future in futures]
    assert refused == [type(None), SchemaMismatch, type(None), SchemaMismatch, type(None)]
    assert [row["n"] for row in world.values("typed")] == [1, 3, 5]  # type: ignore[index]


def test_an_extended_schema_is_noticed_and_buffered_rows_keep_the_old_one(
    world: World, producer: Producer
) -> None:
    schema = pa.schema([("n", pa.int32())])
    world.owner.create_topic("typed", schema=schema)
    producer.send("typed", {"n": 1})
    world.owner.alter_topic("typed", schema=schema.append(pa.field("s", pa.string())))
    producer.send("typed", {"n": 2, "s": "x"})
    producer.append("typed", [{"n": 3, "s": "y"}])
    assert [tuple(row.values()) for row in world.values("typed")] == [  # type: ignore[union-attr]
        (1, None),
        (2, "x"),
        (3, "y"),
    ]


# In bulk -------------------------------------------------------------------------------


def test_a_data_frame_lands_by_key_in_the_order_of_its_rows(
    world: World, producer: Producer
) -> None:
    keys = [f"user-{i % 17}" for i in range(2000)]
    frame = pl.DataFrame({"user": keys, "value": [b"%d" % i for i in range(2000)]})
    appended = producer.append("t", frame, key="user")
    expected: list[list[bytes]] = [[], []]
    for i, key in enumerate(keys):
        expected[partition_for(key.encode(), 2)].append(b"%d" % i)
    assert [world.values(partition=0), world.values(partition=1)] == expected
    assert {(b.partition, b.last_offset + 1) for b in appended} == {
        (n, len(values)) for n, values in enumerate(expected)
    }


def test_bulk_appends_come_after_records_sent_before(world: World, producer: Producer) -> None:
    producer.send("t", b"1", partition=0)
    producer.append("t", [{"value": b"2"}], partition=0)
    producer.send("t", b"3", partition=0)
    producer.append_batch("t", 0, columns([b"4"]))
    assert world.values() == [b"1", b"2", b"3", b"4"]


def test_lists_go_out_as_one_batch_a_partition(line: Line, producer: Producer) -> None:
    keys = [b"%d" % i for i in range(100)]
    producer.append_columns("t", keys, keys, [START_MS] * 100)
    assert Counter(append.partition for append in line.appends) == {0: 1, 1: 1}
    expected = [k for k in keys if partition_for(k, 2) == 0]
    assert line.world.values() == expected


def test_lists_of_different_lengths_are_refused(producer: Producer) -> None:
    with pytest.raises(InvalidRecord, match="differ in length"):
        producer.append_columns("t", [b"k"], [b"v", b"w"], [1, 2])


def test_batches_are_split_to_the_maximum_size_of_the_topic(line: Line, producer: Producer) -> None:
    line.world.owner.create_topic("small", config={"max.message.bytes": "20000"})
    values = [b"%0100d" % i for i in range(1000)]
    producer.append("small", pa.table({"value": values}))
    assert line.world.values("small") == values
    assert len(line.appends) < 20
    for value in values:
        producer.send("small", value)
    producer.flush()
    assert line.world.values("small") == values * 2


def test_no_frame_is_larger_than_16_mib_unless_one_record_is(
    line: Line, producer: Producer
) -> None:
    small, large = bytes(10 << 20), bytes(20 << 20)
    producer.append("t", pa.table({"value": [small, small, large, small]}), partition=0)
    rows = [append.columns.num_rows for append in line.appends]
    assert rows == [1, 1, 1, 1]
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        producer.append("t", pa.table({"value": [bytes((100 << 20) + 1)]}))


# Faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LOST_CALL, LOST_ANSWER])
def test_a_retry_neither_loses_nor_repeats(line: Line, producer: Producer, fault: Fault) -> None:
    line.faults = [fault, fault]
    futures = [producer.send("t", b"%d" % n, partition=n % 2) for n in range(4)]
    producer.flush()
    assert [future.result().offset for future in futures] == [0, 0, 1, 1]
    assert [line.world.values(), line.world.values(partition=1)] == [[b"0", b"2"], [b"1", b"3"]]
    sequences = {(append.partition, append.base_sequence) for append in line.appends}
    assert sequences == {(0, 0), (1, 0)}


@pytest.mark.parametrize("fault", [LOST_CALL, LOST_ANSWER])
def test_many_batches_of_a_partition_survive_a_retry(
    line: Line, producer: Producer, fault: Fault
) -> None:
    line.world.owner.create_topic("small", config={"max.message.bytes": "5000"})
    line.faults = [fault, fault, None, fault]
    values = [b"%0100d" % i for i in range(1000)]
    producer.append("small", pa.table({"value": values}))
    assert line.world.values("small") == values


def test_an_unknown_outcome_is_reported_and_later_records_are_not_mistaken_for_it(
    line: Line, producer: Producer
) -> None:
    producer.append("t", [{"value": b"first"}], partition=0)
    before = producer.identity
    line.faults = [LOST_ANSWER, *[LOST_CALL] * 20]
    lost = producer.send("t", b"lost", partition=0)
    producer.flush()
    with pytest.raises(RequestTimedOut, match="is not known"):
        lost.result()
    line.faults = []
    after = producer.send("t", b"other", partition=0)
    producer.flush()
    assert after.result().offset == 2
    assert line.world.values() == [b"first", b"lost", b"other"]
    assert producer.identity != before


def test_a_refused_batch_uses_up_no_sequence(line: Line, producer: Producer) -> None:
    line.world.owner.create_topic("timely", config={"message.timestamp.after.max.ms": "1000"})
    producer.append("timely", [{"value": b"1"}])
    identity = producer.identity
    with pytest.raises(InvalidRecord, match=r"after\.max\.ms"):
        producer.append("timely", [{"value": b"2", "timestamp": START_MS + 2000}])
    producer.append("timely", [{"value": b"3"}])
    assert line.world.values("timely") == [b"1", b"3"]
    assert producer.identity == identity
    assert [append.base_sequence for append in line.appends] == [0, 1, 1]


def test_a_refused_batch_fails_no_other(line: Line, producer: Producer) -> None:
    line.world.owner.create_topic("timely", config={"message.timestamp.after.max.ms": "1000"})
    futures = [
        producer.send("t", b"1", partition=0),
        producer.send("timely", b"2", timestamp=START_MS + 2000),
        producer.send("t", b"3", partition=1),
    ]
    producer.flush()
    assert [type(future.exception()) for future in futures] == [
        type(None),
        InvalidRecord,
        type(None),
    ]
    again = producer.send("t", b"4", partition=0)
    producer.flush()
    assert again.result().offset == 1
    assert line.world.values() == [b"1", b"4"]
    assert line.world.values(partition=1) == [b"3"]


def test_a_refusal_after_a_lost_answer_is_an_unknown_outcome(
    line: Line, producer: Producer
) -> None:
    producer.send("t", b"0", partition=0)
    producer.flush()
    before = producer.identity
    line.faults = [LOST_ANSWER, InvalidRecord("changed its mind")]
    sent = producer.send("t", b"1", partition=0)
    producer.flush()
    with pytest.raises(RequestTimedOut, match="changed its mind"):
        sent.result()
    producer.send("t", b"2", partition=0)
    producer.flush()
    assert line.world.values() == [b"0", b"1", b"2"]
    assert producer.identity != before


def test_a_full_disk_fails_the_batch_and_the_producer_continues(
    line: Line, producer: Producer
) -> None:
    line.faults = [DiskFull("no space")]
    with pytest.raises(DiskFull):
        producer.append("t", [{"value": b"1"}], partition=0)
    producer.append("t", [{"value": b"2"}], partition=0)
    assert line.world.values() == [b"2"]


def test_after_an_unknown_outcome_nothing_else_takes_its_sequence(line: Line) -> None:
    large = [bytes([n]) * (9 << 20) for n in range(2)]
    line.faults = [InvalidRecord("not this call"), UNSAFE_AFTERWARDS]
    with Producer(line.broker, linger_ms=NEVER, batch_bytes=32 << 20) as producer:
        sent = [producer.send("t", value, partition=0) for value in large]
    assert [append.columns.num_rows for append in line.appends] == [1, 1, 1]
    assert [type(future.exception()) for future in sent] == [StorageFailed, StorageFailed]
    assert line.world.values() == large[:1]


def test_sequences_wrap_after_2_to_the_31_less_1(line: Line, producer: Producer) -> None:
    producer._sender.init()
    producer._sender._sequences[T0] = 2**31 - 2
    for values in ([b"1", b"2", b"3"], [b"4"]):
        producer.append("t", [{"value": value} for value in values], partition=0)
    assert [append.base_sequence for append in line.appends] == [2**31 - 2, 1]
    assert line.world.values() == [b"1", b"2", b"3", b"4"]


FAULTS = st.sampled_from(
    [
        None,
        None,
        None,
        LOST_CALL,
        LOST_ANSWER,
        UNSAFE_AFTERWARDS,
        InvalidRecord("refused"),
        DiskFull("full"),
    ]
)
STEPS = st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=25)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, faults=st.lists(FAULTS, max_size=25))
def test_futures_are_right_after_any_faults(
    steps: list[tuple[int, bool]], faults: list[Fault]
) -> None:
    world = World()
    world.owner.create_topic("t", 2)
    line = Line(world)
    line.faults = faults
    producer = Producer(line.broker, clock=world.clock, linger_ms=NEVER, delivery_timeout_ms=15)
    sent = []
    for number, (partition, flush) in enumerate(steps):
        sent.append(producer.send("t", b"%d" % number, partition=partition))
        if flush:
            producer.flush()
    producer.close()
    for partition in (0, 1):
        stored = world.values(partition=partition)
        assert len(set(stored)) == len(stored)
        numbers = [int(value or b"") for value in stored]
        assert numbers == sorted(numbers)
        for number, future in enumerate(sent):
            error = future.exception()
            if steps[number][0] == partition and error is None:
                assert stored[future.result().offset] == b"%d" % number
            elif isinstance(error, InvalidRecord):
                assert number not in numbers


# Transactions --------------------------------------------------------------------------


def test_a_transaction_becomes_visible_whole_with_its_offsets(
    world: World, transactional: Producer
) -> None:
    with transactional.transaction():
        transactional.send("t", b"1", partition=0)
        transactional.append("t", [{"value": b"2"}], partition=1)
        transactional.send_offsets_to_transaction({T0: 5, T1: CommittedOffset(6, "m")}, "g")
        assert world.values(partition=1) == []
    assert [world.values(), world.values(partition=1)] == [[b"1"], [b"2"]]
    committed = world.owner.committed("g")
    assert (committed[T0].offset, committed[T1].offset, committed[T1].metadata) == (5, 6, "m")


def test_an_exception_in_the_block_leaves_no_trace(world: World, transactional: Producer) -> None:
    unsent = []

    def work() -> None:
        with transactional.transaction():
            transactional.append("t", [{"value": b"1"}], partition=0)
            unsent.append(transactional.send("t", b"2", partition=0))
            transactional.send_offsets_to_transaction({T0: 5}, "g")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with pytest.raises(TransactionAborted):
        unsent[0].result()
    assert world.values() == []
    assert world.owner.committed("g") == {}
    with transactional.transaction():
        transactional.send("t", b"3", partition=0)
    assert world.values() == [b"3"]


def test_sequences_start_again_with_each_transaction(line: Line, transactional: Producer) -> None:
    for _ in range(3):
        with transactional.transaction():
            transactional.append("t", [{"value": b"1"}, {"value": b"2"}], partition=0)
            transactional.append("t", [{"value": b"3"}], partition=0)
    epochs = [append.producer.epoch for append in line.appends if append.producer]
    assert [append.base_sequence for append in line.appends] == [0, 2] * 3
    assert epochs == [0, 0, 1, 1, 2, 2]


def test_an_empty_transaction_makes_no_call_to_the_log(line: Line, transactional: Producer) -> None:
    line.end_faults = [DiskFull("must not be reached")] * 2
    with transactional.transaction():
        pass
    transactional.begin_transaction()
    transactional.abort_transaction()


def test_calls_in_the_wrong_state_are_refused(producer: Producer, transactional: Producer) -> None:
    with pytest.raises(InvalidTxnState, match="transactional_id"):
        producer.begin_transaction()
    for call in (
        lambda: transactional.send("t", b"1"),
        lambda: transactional.append("t", [{"value": b"1"}]),
        lambda: transactional.send_offsets_to_transaction({T0: 1}, "g"),
        transactional.commit_transaction,
        transactional.abort_transaction,
    ):
        with pytest.raises(InvalidTxnState, match="begin_transaction"):
            call()
    transactional.begin_transaction()
    with pytest.raises(InvalidTxnState, match="a transaction is open"):
        transactional.begin_transaction()


def test_after_a_failure_only_aborting_is_left(line: Line, transactional: Producer) -> None:
    line.world.owner.create_topic("timely", config={"message.timestamp.after.max.ms": "1000"})
    transactional.begin_transaction()
    transactional.append("t", [{"value": b"1"}], partition=0)
    late = transactional.send("timely", b"2", timestamp=START_MS + 2000)
    with pytest.raises(TransactionAborted, match=r"after\.max\.ms"):
        transactional.commit_transaction()
    assert isinstance(late.exception(), InvalidRecord)
    for call in (lambda: transactional.send("t", b"3"), transactional.commit_transaction):
        with pytest.raises(TransactionAborted, match="abort_transaction"):
            call()
    transactional.abort_transaction()
    assert line.world.values() == []
    with transactional.transaction():
        transactional.send("t", b"4", partition=0)
    assert line.world.values() == [b"4"]


def test_a_record_refused_by_send_leaves_the_transaction_unchanged(
    world: World, transactional: Producer
) -> None:
    with transactional.transaction():
        transactional.send("t", b"1", partition=0)
        with pytest.raises(InvalidRecord):
            transactional.send("t", "text", partition=0)
    assert world.values() == [b"1"]


def test_a_full_batch_is_sent_before_the_commit(line: Line) -> None:
    with (
        Producer(
            line.broker, clock=line.world.clock, transactional_id="x", batch_bytes=100
        ) as producer,
        producer.transaction(),
    ):
        assert not producer.send("t", bytes(10), partition=0).done()
        assert producer.send("t", bytes(90), partition=0).done()


@pytest.mark.parametrize("fault", [LOST_CALL, LOST_ANSWER])
def test_a_commit_whose_call_or_answer_is_lost_takes_effect_once(
    line: Line, transactional: Producer, fault: Fault
) -> None:
    line.end_faults = [fault, fault]
    with transactional.transaction():
        transactional.send("t", b"1", partition=0)
    with transactional.transaction():
        transactional.send("t", b"2", partition=0)
    assert line.world.values() == [b"1", b"2"]


def test_a_commit_in_doubt_can_be_repeated(line: Line, transactional: Producer) -> None:
    line.end_faults = [LOST_ANSWER, *[LOST_CALL] * 30]
    with pytest.raises(Retriable), transactional.transaction():
        transactional.send("t", b"1", partition=0)
    assert transactional.state is ProducerPhase.IN_DOUBT
    with pytest.raises(InvalidTxnState):
        transactional.send("t", b"2", partition=0)
    line.end_faults = []
    transactional.commit_transaction()
    with transactional.transaction():
        transactional.send("t", b"2", partition=0)
    assert line.world.values() == [b"1", b"2"]


def test_aborting_a_committed_transaction_raises(line: Line, transactional: Producer) -> None:
    line.end_faults = [LOST_ANSWER, *[LOST_CALL] * 30]
    with pytest.raises(Retriable), transactional.transaction():
        transactional.send("t", b"1", partition=0)
    line.end_faults = []
    with pytest.raises(InvalidTxnState, match="committed"):
        transactional.abort_transaction()
    assert line.world.values() == [b"1"]


def test_a_transaction_that_took_too_long_is_rolled_back_and_the_producer_continues(
    world: World, transactional: Producer
) -> None:
    transactional.begin_transaction()
    transactional.append("t", [{"value": b"1"}], partition=0)
    world.clock.advance(10_001)
    world.owner.tick()
    with pytest.raises(TransactionAborted):
        transactional.commit_transaction()
    transactional.abort_transaction()
    with transactional.transaction():
        transactional.send("t", b"2", partition=0)
    assert world.values() == [b"2"]


def test_a_newer_instance_fences_an_older_one_for_good(world: World, line: Line) -> None:
    old = Producer(line.broker, clock=world.clock, transactional_id="x")
    old.begin_transaction()
    old.append("t", [{"value": b"old"}], partition=0)
    with Producer(line.broker, clock=world.clock, transactional_id="x") as new:
        with new.transaction():
            new.send("t", b"new", partition=0)
        for call in (old.commit_transaction, old.abort_transaction, old.begin_transaction):
            with pytest.raises(ProducerFenced):
                call()
        assert old.state is ProducerPhase.FENCED
        with new.transaction():
            new.send("t", b"newer", partition=0)
    old.close()
    assert world.values() == [b"new", b"newer"]


def test_when_the_owner_dies_the_transaction_is_rolled_back_and_the_next_one_works(
    world: World, transactional: Producer
) -> None:
    transactional.begin_transaction()
    transactional.append("t", [{"value": b"1"}], partition=0)
    world.crash()
    with pytest.raises(TransactionAborted):
        transactional.commit_transaction()
    transactional.abort_transaction()
    with transactional.transaction():
        transactional.send("t", b"2", partition=0)
    assert world.values() == [b"2"]


def test_a_plain_producer_outlives_its_owner(world: World, producer: Producer) -> None:
    producer.append("t", [{"value": b"1"}], partition=0)
    world.crash()
    producer.append("t", [{"value": b"2"}], partition=0)
    assert world.values() == [b"1", b"2"]


# Threads and the end -------------------------------------------------------------------


def test_threads_may_share_a_producer(world: World) -> None:
    world.owner.create_topic("busy", 4)
    sent: list[RecordMetadata] = []

    def work(producer: Producer, name: int) -> None:
        futures = [producer.send("busy", b"%d %d" % (name, n)) for n in range(200)]
        producer.append("busy", [{"value": b"%d bulk" % name}])
        sent.extend(future.result(timeout=30) for future in futures)

    with Producer(world.owner, linger_ms=1, batch_bytes=500) as producer:
        threads = [threading.Thread(target=work, args=(producer, name)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert len({(record.partition, record.offset) for record in sent}) == 6 * 200
    values = [value for n in range(4) for value in world.values("busy", n)]
    assert len(values) == len(set(values)) == 6 * 201


def test_a_callback_may_use_the_producer(world: World, producer: Producer) -> None:
    first = producer.send("t", b"1", partition=0)
    first.add_done_callback(lambda _: producer.send("t", b"2", partition=0))
    first.add_done_callback(lambda _: producer.flush())
    producer.flush()
    assert world.values() == [b"1", b"2"]


def test_flush_times_out_without_losing_the_records(world: World) -> None:
    line = Line(world)
    with Producer(line.broker, linger_ms=NEVER, delivery_timeout_ms=30_000) as producer:
        line.faults = [LOST_CALL] * 3
        sent = producer.send("t", b"1", partition=0)
        with pytest.raises(RequestTimedOut, match="still being sent"):
            producer.flush(timeout=0)
        assert sent.result(timeout=30).offset == 0
        producer.flush(timeout=30)


def test_a_cancelled_future_does_not_disturb_the_others(world: World, producer: Producer) -> None:
    first, second = (producer.send("t", value, partition=0) for value in (b"1", b"2"))
    first.cancel()
    producer.flush()
    assert second.result().offset == 1
    assert world.values() == [b"1", b"2"]


def test_close_sends_buffered_records_and_ends_the_producer(world: World) -> None:
    producer = Producer(world.owner, linger_ms=NEVER)
    sent = producer.send("t", b"1", partition=0)
    producer.close()
    producer.close()
    assert sent.result().offset == 0
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send("t", b"2")


def test_close_aborts_an_open_transaction(world: World) -> None:
    producer = Producer(world.owner, clock=world.clock, transactional_id="x")
    producer.begin_transaction()
    producer.append("t", [{"value": b"1"}], partition=0)
    producer.close()
    ends = world.owner.offsets([T0])[T0]
    assert world.values() == []
    assert ends.last_stable_offset == ends.high_watermark


def test_a_producer_that_was_never_closed_reports_lost_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = Owner(MemoryStorage(), background=False)
    owner.create_topic("t")
    producer = Producer(owner, transactional_id="p")
    producer.begin_transaction()
    for _ in range(3):
        producer.send("t", b"v")
    gc.disable()  # otherwise it may run, and warn, before the block
    try:
        del producer
        with pytest.warns(ResourceWarning, match=r"3 records that were not sent.*flush\(\)"):
            gc.collect()
    finally:
        gc.enable()
    assert "3 records that were not sent" in caplog.text


@pytest.mark.parametrize("end", ["close", "flush", "abort_transaction"])
def test_a_closed_producer_reports_nothing(end: str) -> None:
    owner = Owner(MemoryStorage(), background=False)
    owner.create_topic("t")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        producer = Producer(owner, transactional_id="p")
        producer.begin_transaction()
        producer.send("t", b"v")
        getattr(producer, end)()
        del producer
        gc.collect()
    assert not [one for one in said if one.category is ResourceWarning]


def test_a_process_that_ends_with_unsent_records_reports_them(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from strandline import changelog\n"
        "log = changelog.open(sys.argv[1], durability='os')\n"
        "log.create_topic('t')\n"
        "producer = log.producer(linger_ms=60_000)\n"
        "producer.send('t', b'v')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert "1 records that were not sent" in done.stderr
