"""The consumer reads every record of its partitions, in order, from a position that is never
lost."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading

import pyarrow as pa
import pytest

from strandline.changelog.client.consumer import METADATA_MAX_AGE_S, Consumer, OffsetReset
from strandline.changelog.client.cursor import FetchCursor
from strandline.changelog.client.producer import Producer
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    OffsetOutOfRange,
    OwnerUnavailable,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import Batch, CommittedOffset, Fetched, TopicPartition
from tests.log.kit import START_MS, Client, World, columns

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def client(world: World) -> Client:
    return Client(world)


def consumer_of(world: World, *partitions: TopicPartition, **options: object) -> Consumer:
    consumer = Consumer(world.owner, clock=world.clock, **options)  # type: ignore[arg-type]
    consumer.assign(partitions or [T0])
    return consumer


def values(consumer: Consumer, **options: int) -> list[bytes]:
    """Return the values of one poll."""
    batches = consumer.poll(**options)
    return [v for batch in batches for v in batch.columns.column("value").to_pylist()]


# Initial positions ---------------------------------------------------------------------


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [b"a", b"b"]), ("latest", [b"b"])])
def test_without_a_committed_offset_the_reset_policy_sets_the_position(
    world: World, client: Client, reset: OffsetReset, expected: list[bytes]
) -> None:
    client.append(b"a")
    consumer = consumer_of(world, auto_offset_reset=reset)
    position = consumer.position(T0)
    client.append(b"b")
    assert position == (0 if reset == "earliest" else 1)
    assert values(consumer) == expected


def test_the_policy_none_refuses_to_guess(world: World) -> None:
    consumer = consumer_of(world, auto_offset_reset="none")
    with pytest.raises(OffsetOutOfRange, match="seek to an offset from 0 to 0"):
        consumer.poll()
    consumer.seek(T0, 0)
    assert consumer.poll() == []


def test_a_group_continues_at_its_committed_offset(world: World, client: Client) -> None:
    client.append(b"a", b"b", b"c")
    first = consumer_of(world, group="g")
    values(first, max_records=2)
    first.commit()
    second = consumer_of(world, group="g", auto_offset_reset="none")
    assert values(second) == [b"c"]
    assert second.committed()[T0].offset == 2


def test_offsets_can_be_committed_by_hand(world: World, client: Client) -> None:
    client.append(b"a", b"b", b"c")
    consumer = consumer_of(world, T0, T1, group="g")
    consumer.commit({T0: 1, T1: CommittedOffset(0, "note")})
    assert {tp: offset.offset for tp, offset in consumer.committed().items()} == {T0: 1, T1: 0}
    assert consumer.committed([T1])[T1].metadata == "note"


def test_the_offset_of_a_deleted_topic_of_the_same_name_is_ignored(
    world: World, client: Client
) -> None:
    client.append(b"a", b"b")
    old = consumer_of(world, group="g")
    values(old)
    positions = old.positions()
    world.owner.delete_topic("t")
    world.owner.create_topic("t", 2)
    Client(world).append(b"x", b"y", b"z")
    consumer = consumer_of(world, group="g")
    consumer.commit(positions)
    assert values(consumer) == [b"x", b"y", b"z"]


def test_an_offset_about_to_change_is_waited_for(world: World, client: Client) -> None:
    client.append(b"a", b"b", b"c")
    other = Client(world, "x")
    world.owner.add_offsets(other.identity, "g", {T0: CommittedOffset(2)})
    consumer = consumer_of(world, group="g")
    assert consumer.poll() == []
    other.commit()
    assert values(consumer) == [b"c"]


# Reading -------------------------------------------------------------------------------


def test_committed_records_come_in_order_and_the_position_passes_markers(world: World) -> None:
    producer = Client(world, "x")
    producer.append(b"a", b"b")
    producer.commit()
    producer.append(b"aborted")
    producer.abort()
    producer.append(b"open")
    consumer = consumer_of(world)
    assert values(consumer) == [b"a", b"b"]
    assert consumer.position(T0) == 5
    assert consumer.lag() == {T0: 0}
    producer.commit()
    assert values(consumer) == [b"open"]


def test_read_uncommitted_sees_open_and_aborted_records() -> None:
    world = World(durability="os")
    world.owner.create_topic("t", 2)
    producer = Client(world, "x")
    producer.append(b"aborted")
    producer.abort()
    producer.append(b"open")
    consumer = consumer_of(world, isolation="read_uncommitted")
    assert values(consumer) == [b"aborted", b"open"]
    assert consumer.lag() == {T0: 0}


def test_every_record_comes_once_with_any_bounds(world: World, client: Client) -> None:
    sent = [b"%d" % n for n in range(60)]
    for start in range(0, 60, 7):
        client.append(*sent[start : start + 7])
    for limit in (1, 5, 7, 100):
        consumer = consumer_of(world)
        read = []
        while got := values(consumer, max_records=limit):
            assert len(got) <= limit
            read += got
            assert consumer.position(T0) == len(read)
        assert read == sent


def test_records_one_by_one_are_covered_by_a_commit_in_the_loop(
    world: World, client: Client
) -> None:
    client.append(b"a", b"b")
    client.append(b"c", b"d")
    consumer = consumer_of(world, group="g")
    for record in consumer.records(timeout=0):
        consumer.commit()
        assert consumer.committed()[T0].offset == record.offset + 1
        if record.value == b"c":
            break
    assert values(consumer) == [b"d"]


def test_breaking_out_of_a_loop_loses_nothing(world: World, client: Client) -> None:
    client.append(b"a", b"b", b"c")
    consumer = consumer_of(world)
    seen = [next(iter(consumer.records(timeout=0))).value for _ in range(3)]
    assert seen == [b"a", b"b", b"c"]
    assert list(consumer.records(timeout=0)) == []


def test_a_seek_in_the_loop_takes_effect_at_once(world: World, client: Client) -> None:
    client.append(b"a", b"b", b"c")
    consumer = consumer_of(world)
    seen = []
    for record in consumer.records(timeout=0):
        seen.append(record.value)
        if seen == [b"a", b"b"]:
            consumer.seek(T0, 0)
    assert seen == [b"a", b"b", b"a", b"b", b"c"]


def test_a_pause_in_the_loop_takes_effect_at_once(world: World, client: Client) -> None:
    client.append(b"a", b"b", b"c")
    consumer = consumer_of(world)
    for record in consumer.records(timeout=0):
        assert record.value == b"a"
        consumer.pause(T0)
    assert consumer.paused() == [T0]
    assert consumer.poll() == []
    consumer.resume(T0)
    assert values(consumer) == [b"b", b"c"]


def test_a_record_has_all_its_parts(world: World) -> None:
    with Producer(world.owner, clock=world.clock) as producer:
        producer.send("t", b"v", key="k", partition=1, timestamp=5, headers=[("h", b"1")])
    [record] = consumer_of(world, T1).records(timeout=0)
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("t", 1, 0, 5)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))


def test_iteration_ends_when_the_consumer_is_closed(world: World, client: Client) -> None:
    client.append(b"a", b"b")
    consumer = consumer_of(world)
    seen = []
    for record in consumer:
        seen.append(record.value)
        if len(seen) == 2:
            consumer.close()
    assert seen == [b"a", b"b"]


def test_a_long_poll_wakes_up_on_a_commit() -> None:
    with contextlib.closing(Owner(MemoryStorage())) as owner:
        owner.create_topic("t")
        consumer = Consumer(owner)
        consumer.assign([T0])
        got: list[Batch] = []
        thread = threading.Thread(target=lambda: got.extend(consumer.poll(60)))
        thread.start()
        with Producer(owner, transactional_id="x") as producer, producer.transaction():
            producer.send("t", b"a", partition=0)
        thread.join(timeout=30)
        assert len(got) == 1


# Fairness ------------------------------------------------------------------------------


def test_a_busy_partition_does_not_starve_the_others(world: World, client: Client) -> None:
    client.append(*[b"busy"] * 100)
    client.append(b"rare", partition=1)
    consumer = consumer_of(world, T0, T1)
    seen = [values(consumer, max_records=10) for _ in range(2)]
    assert [b"rare"] in [batch[:1] for batch in seen]


def test_partitions_are_fetched_in_turn_when_a_poll_is_bounded(world: World) -> None:
    world.owner.create_topic("wide", 6)
    client = Client(world)
    partitions = [TopicPartition("wide", n) for n in range(6)]
    for n in range(6):
        for _ in range(3):
            client.append(bytes(1000), topic="wide", partition=n)
    consumer = consumer_of(world, *partitions, max_bytes=2000, max_partition_bytes=1000)
    polls = [[batch.partition for batch in consumer.poll()] for _ in range(9)]
    assert all(1 <= len(poll) <= 2 for poll in polls)
    counts = [[n for poll in polls[:k] for n in poll].count(0) for k in (3, 6, 9)]
    assert counts == [1, 2, 3]
    assert sorted(n for poll in polls for n in poll) == sorted([*range(6)] * 3)


def test_an_idle_partition_does_not_hold_up_the_others(world: World) -> None:
    world.owner.create_topic("wide", 4)
    Client(world).append(b"a", topic="wide", partition=3)
    partitions = [TopicPartition("wide", n) for n in range(4)]
    consumer = consumer_of(world, *partitions, max_bytes=1, max_partition_bytes=1)
    assert values(consumer) == [b"a"]


# Positions -----------------------------------------------------------------------------


def test_seeks_move_the_position(world: World, client: Client) -> None:
    for n in range(4):
        client.append(b"%d" % n, times=START_MS + n * 1000)
    consumer = consumer_of(world, T0, T1)
    consumer.seek(T0, 2)
    assert values(consumer) == [b"2", b"3"]
    consumer.seek_to_beginning(T0)
    assert (consumer.position(T0), values(consumer)[0]) == (0, b"0")
    consumer.seek_to_end()
    assert (consumer.position(T0), consumer.position(T1)) == (4, 0)
    consumer.seek_to_time(START_MS + 1500, T0)
    assert consumer.position(T0) == 2
    consumer.seek_to_time(START_MS + 9000)
    assert (consumer.position(T0), consumer.position(T1)) == (4, 0)
    with pytest.raises(OffsetOutOfRange, match="negative"):
        consumer.seek(T0, -1)


@pytest.mark.parametrize(
    "at", [START_MS // 1000, START_MS / 1000, float(START_MS), START_MS * 1000, START_MS * 10**6]
)
def test_a_seek_to_a_time_in_another_unit_is_refused(
    world: World, client: Client, at: float
) -> None:
    client.append(b"a", b"b")
    consumer = consumer_of(world)
    consumer.seek(T0, 1)
    with pytest.raises(InvalidRecord, match=r"times are integers of milliseconds"):
        consumer.seek_to_time(at)  # type: ignore[arg-type]
    assert consumer.position(T0) == 1


def test_a_seek_takes_a_datetime_and_the_beginning(world: World, client: Client) -> None:
    for n in range(3):
        client.append(b"%d" % n, times=START_MS + n)
    consumer = consumer_of(world)
    consumer.seek_to_time(EPOCH + dt.timedelta(milliseconds=START_MS, microseconds=1))
    assert consumer.position(T0) == 1
    consumer.seek_to_time(0)
    assert consumer.position(T0) == 0


def test_a_seek_drops_records_that_were_fetched_ahead(world: World, client: Client) -> None:
    client.append(b"a", b"b", b"c")
    consumer = consumer_of(world)
    assert values(consumer, max_records=1) == [b"a"]
    consumer.seek(T0, 0)
    assert values(consumer) == [b"a", b"b", b"c"]


def test_ends_and_lag_follow_the_position(world: World, client: Client) -> None:
    client.append(b"a", b"b")
    consumer = consumer_of(world, T0, T1)
    assert consumer.beginning_offsets([T0]) == {T0: 0}
    assert consumer.end_offsets([T0, T1]) == {T0: 2, T1: 0}
    assert consumer.lag() == {T0: 2, T1: 0}
    values(consumer, max_records=1)
    assert consumer.lag() == {T0: 1, T1: 0}


def test_a_position_that_fell_out_of_the_log_is_reset(world: World, client: Client) -> None:
    client.append(b"a", b"b")
    client.append(b"c")
    kept = consumer_of(world, T0, T1)
    strict = consumer_of(world, auto_offset_reset="none")
    strict.seek(T0, 0)
    assert kept.position(T0) == 0
    world.owner.delete_records(T0, 2)
    assert values(kept) == [b"c"]
    with pytest.raises(OffsetOutOfRange, match=r"t-0 .* seek to an offset from 2 to 3"):
        strict.poll()


def test_a_reset_does_not_end_a_loop(world: World, client: Client) -> None:
    client.append(b"a", b"b")
    consumer = consumer_of(world)
    consumer.seek(T0, 99)
    assert [record.value for record in consumer.records(timeout=0)] == [b"a", b"b"]


def test_a_recreated_topic_is_read_from_its_beginning(world: World, client: Client) -> None:
    client.append(b"a", b"b")
    consumer = consumer_of(world)
    values(consumer)
    world.owner.delete_topic("t")
    with pytest.raises(UnknownTopic):
        consumer.poll()
    world.owner.create_topic("t", 2)
    Client(world).append(b"x", b"y", b"z")
    assert values(consumer) == [b"x", b"y", b"z"]


def test_a_topic_recreated_between_two_polls_is_noticed_in_time(
    world: World, client: Client
) -> None:
    client.append(b"a", b"b")
    consumer = consumer_of(world)
    values(consumer)
    world.owner.delete_topic("t")
    world.owner.create_topic("t", 2)
    Client(world).append(b"x", b"y", b"z")
    world.clock.advance(int(METADATA_MAX_AGE_S * 1000))
    assert values(consumer) == [b"x", b"y", b"z"]


def test_records_removed_by_compaction_leave_gaps_in_the_offsets() -> None:
    sparse = Batch("t", 0, 3, columns([b"a", b"b", b"c"]), 0, pa.array([3, 7, 9], pa.int64()))
    cursor = FetchCursor("id")
    cursor.seek(3)
    cursor.received(Fetched([sparse], 12, 0, 12, 12))
    first = cursor.take(1)
    assert (first.offsets.to_pylist(), cursor.position) == ([3], 4)
    rest = cursor.take(5)
    assert (rest.offsets.to_pylist(), cursor.position) == ([7, 9], 12)


# Assignment ----------------------------------------------------------------------------


def test_a_subscription_is_all_partitions_and_those_added_later(
    world: World, client: Client
) -> None:
    consumer = Consumer(world.owner, clock=world.clock, auto_offset_reset="latest")
    consumer.subscribe("t")
    assert consumer.assignment() == [T0, T1]
    assert consumer.poll() == []
    world.owner.alter_topic("t", partitions=3)
    client.append(b"new", partition=2)
    client.append(b"also new")
    world.clock.advance(int(METADATA_MAX_AGE_S * 1000))
    assert sorted(values(consumer)) == [b"also new", b"new"]


def test_partitions_that_stay_assigned_keep_their_position(world: World, client: Client) -> None:
    client.append(b"a", b"b")
    consumer = consumer_of(world, T0)
    values(consumer, max_records=1)
    consumer.assign([T1, T0])
    assert values(consumer) == [b"b"]
    consumer.assign([T1])
    with pytest.raises(InvalidRequest, match="t-0 is not assigned"):
        consumer.position(T0)


def test_wrong_calls_are_refused(world: World) -> None:
    consumer = consumer_of(world)
    with pytest.raises(UnknownPartition, match="partitions 0 to 1, got 2"):
        consumer.assign([TopicPartition("t", 2)])
    with pytest.raises(UnknownTopic):
        consumer.subscribe(["nope"])
    with pytest.raises(InvalidRequest, match="no group"):
        consumer.commit()
    for options in ({"isolation": "committed"}, {"auto_offset_reset": "start"}):
        with pytest.raises(InvalidConfig, match="must be one of"):
            Consumer(world.owner, **options)  # type: ignore[arg-type]
    consumer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        consumer.poll()


def test_an_unreachable_owner_is_an_error_after_the_timeout(world: World) -> None:
    consumer = consumer_of(world)
    consumer.poll()
    world.owner.close()
    with pytest.raises(OwnerUnavailable):
        consumer.poll(0.05)
