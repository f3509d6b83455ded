"""Positions: committed ones, positions found by time, and the log start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopic,
)
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, Isolation, TopicPartition
from tests.systems import System


def fill(log: Log, partition: TopicPartition, now: int, count: int = 10) -> None:
    """Append records, one a second from `now` on."""
    rows = [{"value": b"%d" % n, "time": now + 1_000 * n} for n in range(count)]
    for row in rows:
        log.append(
            partition.topic, [{"value": row["value"]}], partition=0, timestamp=int(row["time"])
        )


# Committed ------------------------------------------------------------------------------


def test_committed_offsets_of_a_group_are_visible_to_all_clients(
    system: System, log: Log, first: TopicPartition, second: TopicPartition, name: str
) -> None:
    topic_id = log.topic(first.topic).topic_id
    log.broker.commit_offsets(name, {first: CommittedOffset(3, "met a dragon")})
    log.broker.commit_offsets(name, {second: CommittedOffset(0)})
    other = system.open()
    found = other.broker.committed(name)
    assert {tp: (at.offset, at.metadata, at.topic_id) for tp, at in found.items()} == {
        first: (3, "met a dragon", topic_id),
        second: (0, "", topic_id),
    }
    assert set(other.broker.committed(name, [second])) == {second}
    assert name in other.broker.groups()


def test_a_group_without_commits_has_no_offsets(log: Log, first: TopicPartition, name: str) -> None:
    assert log.broker.committed(name) == {}
    assert log.broker.committed(name, [first]) == {}
    assert name not in log.broker.groups()


def test_a_consumer_continues_at_its_groups_committed_offset(
    log: Log, first: TopicPartition, name: str, now: int
) -> None:
    fill(log, first, now)
    with log.consumer(group=name) as consumer:
        consumer.assign([first])
        batches = consumer.poll(10, max_records=4)
        assert sum(map(len, batches)) <= 4
        consumer.commit()
        position = consumer.position(first)
    with log.consumer(group=name) as consumer:
        consumer.assign([first])
        rest = [record.value for record in consumer.records(timeout=0)]
    assert rest == [b"%d" % n for n in range(position, 10)]


def test_a_committed_offset_may_move_back(log: Log, first: TopicPartition, name: str) -> None:
    for offset in (9, 4):
        log.broker.commit_offsets(name, {first: CommittedOffset(offset)})
        assert log.broker.committed(name)[first].offset == offset


def test_all_offsets_of_a_group_can_be_deleted(
    log: Log, first: TopicPartition, second: TopicPartition, name: str
) -> None:
    log.broker.commit_offsets(name, {first: CommittedOffset(1), second: CommittedOffset(2)})
    log.broker.commit_offsets(name, {first: None, second: None})
    assert log.broker.committed(name) == {}
    log.broker.commit_offsets(name, {first: None})
    log.broker.commit_offsets(name, {first: CommittedOffset(5)})
    assert log.broker.committed(name)[first].offset == 5


def test_a_single_offset_can_be_deleted_except_on_kafka_which_raises(
    system: System, log: Log, first: TopicPartition, second: TopicPartition, name: str
) -> None:
    log.broker.commit_offsets(name, {first: CommittedOffset(1), second: CommittedOffset(2)})
    if system.name == "embedded":
        log.broker.commit_offsets(name, {first: None})
        assert set(log.broker.committed(name)) == {second}
    else:
        with pytest.raises(InvalidRequest, match="all offsets of a group can be deleted, or none"):
            log.broker.commit_offsets(name, {first: None})
        assert set(log.broker.committed(name)) == {first, second}


def test_offsets_are_deleted_with_their_topic(log: Log, first: TopicPartition, name: str) -> None:
    log.broker.commit_offsets(name, {first: CommittedOffset(1)})
    log.delete_topic(first.topic)
    assert log.broker.committed(name) == {}
    log.create_topic(first.topic)
    with log.consumer(group=name) as consumer:
        consumer.assign([first])
        assert consumer.position(first) == 0


def test_invalid_commits_are_refused(log: Log, first: TopicPartition, name: str) -> None:
    commit = log.broker.commit_offsets
    with pytest.raises(UnknownTopic):
        commit(name, {TopicPartition(name + "-nowhere", 0): CommittedOffset(1)})
    with pytest.raises(InvalidRequest):
        commit(name, {first: CommittedOffset(-1)})
    for length in (32_769, 100_000):
        with pytest.raises(InvalidRequest):
            commit(name, {first: CommittedOffset(1, "x" * length)})
    for too_long in ({"topic_id": "x" * 257}, {"incarnation": "x" * 257}):
        with pytest.raises(InvalidRequest, match="at most 256 characters"):
            commit(name, {first: CommittedOffset(1, **too_long)})
    commit(name, {first: CommittedOffset(1, "x" * 4_095)})
    commit(name, {first: None})
    for bad in ("", "a\nb"):
        with pytest.raises(InvalidConfig):
            commit(bad, {first: CommittedOffset(1)})
    assert log.broker.committed(name) == {}


# By time --------------------------------------------------------------------------------


def test_an_offset_is_found_by_time(log: Log, first: TopicPartition, now: int) -> None:
    fill(log, first, now)
    found = [
        log.broker.offset_for_time(first, now + ms) for ms in (-5_000, 0, 1, 4_500, 9_000, 9_001)
    ]
    assert found == [0, 0, 1, 5, 9, None]
    assert log.broker.offset_for_time(first, 0) == 0


def test_a_consumer_seeks_to_a_time(log: Log, first: TopicPartition, now: int) -> None:
    fill(log, first, now)
    with log.consumer() as consumer:
        consumer.assign([first])
        consumer.seek_to_time(now + 6_500)
        assert [record.value for record in consumer.records(timeout=0)] == [b"7", b"8", b"9"]
        consumer.seek_to_time(now + 60_000)
        assert consumer.position(first) == 10


def test_a_search_by_time_ends_at_the_last_stable_offset(
    log: Log, first: TopicPartition, name: str, now: int, eventually: Callable[..., None]
) -> None:
    fill(log, first, now, count=2)
    with log.producer(transactional_id=name) as producer:
        producer.begin_transaction()
        producer.append(first.topic, [{"value": b"open"}], partition=0, timestamp=now + 5_000)

        def uncommitted() -> int | None:
            return log.broker.offset_for_time(first, now + 3_000, isolation="read_uncommitted")

        eventually(lambda: uncommitted() == 2)
        assert log.broker.offset_for_time(first, now + 3_000) is None
        producer.abort_transaction()


def test_a_search_by_time_sees_no_markers_and_no_aborted_records(
    log: Log, first: TopicPartition, name: str, eventually: Callable[..., None]
) -> None:
    """Event times are in the past, and markers have the time of the broker."""
    log.alter_topic(first.topic, config={"retention.ms": "-1"})
    past, minute = 1_600_000_000_000, 60_000

    def transaction(number: int, *, commit: bool = True, shift: int = 0) -> None:
        """Write three records, one a minute, and end the transaction."""
        with log.producer(transactional_id=name) as producer:
            producer.begin_transaction()
            for minutes in range(3 * number, 3 * number + 3):
                row = {"value": b"%d" % minutes}
                time = past + (minutes + shift) * minute
                producer.append(first.topic, [row], partition=0, timestamp=time)
            producer.commit_transaction() if commit else producer.abort_transaction()

    transaction(0)
    transaction(1)
    transaction(50, commit=False)
    transaction(2, shift=100)  # later than what follows
    transaction(3)
    eventually(lambda: len(log.read(first.topic)) == 12)
    where = {row["value"]: row["offset"] for row in log.read(first.topic).to_pylist()}

    def found(minutes: float, isolation: Isolation = "read_committed") -> int | None:
        time = past + int(minutes * minute)
        return log.broker.offset_for_time(first, time, isolation=isolation)

    assert [found(n) for n in range(-1, 6)] == [where[b"%d" % max(0, n)] for n in range(-1, 6)]
    assert found(3.5) == where[b"4"]
    assert found(6) == found(106) == where[b"6"]
    assert found(107) == where[b"7"]
    assert found(108.5) is None
    assert found(151) is None
    assert where[b"5"] < (found(151, "read_uncommitted") or -1) < where[b"6"]
    with log.consumer() as consumer:
        consumer.assign([first])
        consumer.seek_to_time(past + 5 * minute)
        assert [record.value for record in consumer.records(timeout=0)][:2] == [b"5", b"6"]
        consumer.seek_to_time(past + 500 * minute)
        assert list(consumer.records(timeout=0)) == []


# The log's start ------------------------------------------------------------------------


def test_deleted_records_are_out_of_range(log: Log, first: TopicPartition, now: int) -> None:
    fill(log, first, now)
    assert log.broker.delete_records(first, 4) == 4
    assert log.broker.offsets([first])[first].log_start == 4
    assert log.read(first.topic)["value"].to_pylist() == [b"%d" % n for n in range(4, 10)]
    with pytest.raises(OffsetOutOfRange):
        log.broker.fetch({first: 3})
    assert log.broker.delete_records(first, 2) == 4, "it does not move back"
    assert log.broker.delete_records(first, -1) == 10
    assert log.read(first.topic).num_rows == 0
    with pytest.raises(OffsetOutOfRange):
        log.broker.delete_records(first, 11)
    log.append(first.topic, [{"value": b"new"}], partition=0)
    assert log.read(first.topic)["offset"].to_pylist() == [10]


def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(log: Log, name: str) -> None:
    """It keeps the last record of each key, and the state of a store may be made of them."""
    log.create_topic(name, config={"cleanup.policy": "compact"})
    partition = TopicPartition(name, 0)
    log.append(name, [{"key": b"k", "value": b"v"}] * 3)
    with pytest.raises(InvalidRequest):
        log.broker.delete_records(partition, 2)
    assert log.broker.offsets([partition])[partition].log_start == 0
    log.alter_topic(name, config={"cleanup.policy": "compact,delete"})
    assert log.broker.delete_records(partition, 2) == 2


def test_a_consumer_whose_position_is_out_of_range_follows_its_reset_policy(
    log: Log, first: TopicPartition, now: int
) -> None:
    fill(log, first, now)
    earliest, none = log.consumer(), log.consumer(auto_offset_reset="none")
    for consumer in (earliest, none):
        consumer.assign([first])
        consumer.seek(first, 1)
    log.broker.delete_records(first, 8)
    assert [record.value for record in earliest.records(timeout=0)] == [b"8", b"9"]
    with pytest.raises(OffsetOutOfRange):
        none.poll()
    for consumer in (earliest, none):
        consumer.close()
