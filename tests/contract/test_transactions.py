"""Transactions: all or nothing, over partitions and offsets, by one producer at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import (
    CoordinatorLoading,
    Fenced,
    InvalidConfig,
    InvalidRecord,
    InvalidTxnState,
    ProducerFenced,
    RecordTooLarge,
    StrandlineError,
    TransactionAborted,
    UnknownTopic,
)
from strandline.changelog.log import Log
from strandline.changelog.records import Append, CommittedOffset, TopicPartition
from strandline.statestore import PartitionStore, ReplayProgress, StoreSpec, open_store
from tests.contract.test_records import batch
from tests.systems import System

Sees = Callable[..., None]
A_CENTURY_MS = 100 * 365 * 24 * 3_600_000


def test_a_committed_transaction_is_visible_in_all_its_partitions(
    log: Log, topic: str, name: str, sees: Sees
) -> None:
    with log.producer(transactional_id=name) as producer:
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
            producer.send(topic, b"b", partition=1)
        sees(topic, b"a", b"b")
        with producer.transaction():
            producer.append(topic, [{"value": b"c"}, {"value": b"d"}], partition=1)
        sees(topic, b"a", b"b", b"c", b"d")


def test_an_aborted_transaction_is_invisible_and_the_next_one_works(
    log: Log, topic: str, name: str, sees: Sees
) -> None:
    with log.producer(transactional_id=name) as producer:
        producer.begin_transaction()
        producer.append(topic, [{"value": b"never"}] * 3, partition=0)
        producer.append(topic, [{"value": b"never"}] * 3, partition=1)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
        sees(topic, b"kept")
    uncommitted = log.read(topic, isolation="read_uncommitted")["value"].to_pylist()
    assert uncommitted.count(b"never") == 6


@pytest.mark.parametrize(
    ("config", "key", "value", "time"),
    [
        ({"message.timestamp.after.max.ms": "3600000"}, b"k", b"v", A_CENTURY_MS),
        ({"max.message.bytes": "2000"}, b"k", b"v" * 5_000, 0),
        ({"cleanup.policy": "compact"}, None, b"v", 0),
    ],
)
def test_the_next_transaction_works_after_one_with_a_refused_record(
    log: Log,
    name: str,
    sees: Sees,
    config: dict[str, str],
    key: bytes | None,
    value: bytes,
    time: int,
) -> None:
    log.create_topic(name, config=config)
    now = SystemClock().now_ms()
    with log.producer(transactional_id=name, delivery_timeout_ms=5_000) as producer:
        for number in range(3):
            producer.begin_transaction()
            with pytest.raises((InvalidRecord, RecordTooLarge)):
                producer.append_columns(name, [key], [value], [now + time])
            producer.abort_transaction()
            with producer.transaction():
                producer.append_columns(name, [b"k"], [b"%d" % number], [now])
    sees(name, b"0", b"1", b"2")


def test_readers_get_past_aborted_records(
    log: Log, first: TopicPartition, name: str, eventually: Callable[..., None]
) -> None:
    """The position moves past aborted records and markers, though no record is returned."""
    with log.producer(transactional_id=name) as producer:
        for _ in range(3):
            producer.begin_transaction()
            producer.append(first.topic, [{"value": b"never"}] * 100, partition=0)
            producer.abort_transaction()

    def stable() -> bool:
        ends = log.broker.offsets([first])[first]
        return ends.last_stable_offset == ends.high_watermark == 303

    eventually(stable, what="that all is decided")
    position, batches = 0, 0
    for _ in range(10):
        fetched = log.broker.fetch({first: position})[first]
        position, batches = fetched.next_offset, batches + len(fetched.batches)
    assert (position, batches) == (303, 0)
    with log.consumer(group=name) as consumer:
        consumer.assign([first])
        assert list(consumer.records(timeout=0.5)) == []
        assert consumer.lag() == {first: 0}


def test_an_open_transaction_holds_readers_back(
    log: Log, first: TopicPartition, name: str, eventually: Callable[..., None], sees: Sees
) -> None:
    log.append(first.topic, [{"value": b"before"}], partition=0)
    with log.producer(transactional_id=name) as producer:
        producer.begin_transaction()
        producer.append(first.topic, [{"value": b"open"}], partition=0)
        log.append(first.topic, [{"value": b"behind"}], partition=0)
        eventually(lambda: log.broker.offsets([first])[first].high_watermark == 3)
        ends = log.broker.offsets([first])[first]
        assert (ends.log_start, ends.last_stable_offset, ends.high_watermark) == (0, 1, 3)
        committed = log.broker.fetch({first: 0})[first]
        assert [v for b in committed.batches for v in b.columns["value"].to_pylist()] == [b"before"]
        assert (committed.next_offset, committed.last_stable_offset) == (1, 1)
        assert log.broker.fetch({first: 2})[first].batches == []
        everything = log.read(first.topic, isolation="read_uncommitted")["value"].to_pylist()
        assert everything == [b"before", b"open", b"behind"]
        producer.commit_transaction()
    sees(first.topic, b"before", b"open", b"behind")


def test_state_includes_commits_after_a_transaction_left_open_by_a_dead_worker(
    system: System, log: Log, name: str, eventually: Callable[..., None]
) -> None:
    log.create_topic(f"{name}-changelog", 1, config={"cleanup.policy": "compact"})
    changelog = TopicPartition(f"{name}-changelog", 0)
    dead = system.open().producer(transactional_id=f"{name}-dead")
    dead.begin_transaction()
    dead.append(changelog.topic, [{"key": b"Qa", "value": b"\x09"}], partition=0)
    with log.producer(transactional_id=name) as living:
        for n in (b"\x01", b"\x02"):
            with living.transaction():
                living.append(changelog.topic, [{"key": b"Qa", "value": n}], partition=0)

    def is_there() -> bool:
        ends = log.broker.offsets([changelog])[changelog]
        return ends.last_stable_offset == 0 and ends.committed_end >= 5

    eventually(is_there, what="that both commits are behind the open transaction")
    store: PartitionStore[str, int] = open_store(StoreSpec("s", engine="memory"))
    waited: list[ReplayProgress] = []

    def end_it(progress: ReplayProgress) -> None:
        if progress.remaining and not waited:
            assert list(store.all()) == []
            dead.abort_transaction()
            waited.append(progress)

    store.restore(log.broker, changelog, end_it)
    assert waited
    assert list(store.all()) == [("a", 2)]
    dead.close()


def test_a_second_producer_with_the_same_id_fences_the_first(
    system: System, log: Log, topic: str, name: str, sees: Sees
) -> None:
    old = log.producer(transactional_id=name)
    old.begin_transaction()
    old.append(topic, [{"value": b"zombie"}], partition=0)
    new = system.open().producer(transactional_id=name)
    with pytest.raises(ProducerFenced):
        old.commit_transaction()
    with new.transaction():
        new.send(topic, b"successor", partition=0)
    sees(topic, b"successor")
    with pytest.raises(Fenced):
        old.begin_transaction()
    old.close()
    new.close()


def test_a_fenced_producer_may_not_append(
    system: System, log: Log, first: TopicPartition, name: str, now: int, sees: Sees
) -> None:
    old = log.broker.init_producer(name)
    first_one = Append(*first, batch(b"x", time=now), old, 0, transactional=True)
    log.broker.append([first_one])
    other = system.open().broker
    new = other.init_producer(name)
    with pytest.raises(Fenced):
        log.broker.append([Append(*first, batch(b"y", time=now), old, 1, transactional=True)])
    with pytest.raises(Fenced):
        log.broker.end_transaction(old, commit=True)
    other.append([Append(*first, batch(b"z", time=now), new, 0, transactional=True)])
    other.end_transaction(new, commit=True)
    sees(first.topic, b"z")


def test_a_second_producer_fences_the_first_within_one_client_too(
    log: Log, first: TopicPartition, name: str, now: int
) -> None:
    old = log.broker.init_producer(name)
    log.broker.append([Append(*first, batch(b"x", time=now), old, 0, transactional=True)])
    log.broker.init_producer(name)
    with pytest.raises(ProducerFenced):
        log.broker.end_transaction(old, commit=True)


def test_the_end_of_a_transaction_may_be_requested_again(
    log: Log, first: TopicPartition, name: str, now: int, sees: Sees
) -> None:
    broker = log.broker
    me = broker.init_producer(name)
    broker.append([Append(*first, batch(b"x", time=now), me, 0, transactional=True)])
    following = broker.end_transaction(me, commit=True)
    assert following != me
    assert broker.end_transaction(me, commit=True) == following
    with pytest.raises(InvalidTxnState):
        broker.end_transaction(me, commit=False)
    with pytest.raises(StrandlineError):
        broker.append([Append(*first, batch(b"late", time=now), me, 1, transactional=True)])
    broker.append([Append(*first, batch(b"y", time=now), following, 0, transactional=True)])
    last = broker.end_transaction(following, commit=False)
    assert broker.end_transaction(following, commit=False) == last
    with pytest.raises(TransactionAborted):
        broker.end_transaction(following, commit=True)
    assert broker.end_transaction(last, commit=True) == last, "nothing was in it"
    sees(first.topic, b"x")


def test_a_repeated_append_in_a_transaction_is_written_once(
    log: Log, first: TopicPartition, name: str, now: int, sees: Sees
) -> None:
    me = log.broker.init_producer(name)
    one = Append(*first, batch(b"x", b"y", time=now), me, 0, transactional=True)
    (answer,) = log.broker.append([one])
    (again,) = log.broker.append([one])
    assert (answer.base_offset, answer.duplicate) == (0, False)
    assert (again.base_offset, again.last_offset, again.duplicate) == (0, 1, True)
    log.broker.end_transaction(me, commit=True)
    sees(first.topic, b"x", b"y")


def test_a_transaction_that_failed_can_only_be_aborted(
    log: Log, topic: str, name: str, sees: Sees
) -> None:
    with log.producer(transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0)
        with pytest.raises(UnknownTopic):
            producer.append_batch(name + "-nowhere", 0, batch(b"x"))
        with pytest.raises(TransactionAborted):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
    sees(topic, b"kept")


def test_a_transaction_open_for_too_long_is_aborted(
    system: System,
    log: Log,
    first: TopicPartition,
    name: str,
    eventually: Callable[..., None],
    sees: Sees,
) -> None:
    producer = log.producer(transactional_id=name, transaction_timeout_ms=1_000)
    producer.begin_transaction()
    producer.append(first.topic, [{"value": b"late"}], partition=0)

    def released() -> bool:
        ends = log.broker.offsets([first])[first]
        return ends.last_stable_offset == ends.high_watermark == 2

    eventually(released, timeout=20, what="that the log aborts it")
    # Kafka does not distinguish this from a second producer with the same id.
    expected = TransactionAborted if system.name == "embedded" else ProducerFenced
    with pytest.raises(expected):
        producer.commit_transaction()
    producer.close()
    with log.producer(transactional_id=name) as again, again.transaction():
        again.send(first.topic, b"kept", partition=0)
    sees(first.topic, b"kept")


@pytest.mark.parametrize("timeout_ms", [0, -1, 2**31 - 1])
def test_a_timeout_outside_of_its_limits_is_refused(log: Log, name: str, timeout_ms: int) -> None:
    with pytest.raises(InvalidConfig):
        log.broker.init_producer(name, timeout_ms=timeout_ms)


@pytest.mark.parametrize("bad", ["", "x" * 1_001, "a\nb"])
def test_a_transactional_id_must_be_a_valid_name(log: Log, bad: str) -> None:
    with pytest.raises(InvalidConfig):
        log.broker.init_producer(bad)


# With committed offsets ----------------------------------------------------------------


def test_offsets_take_effect_with_the_transaction(
    log: Log, first: TopicPartition, name: str, eventually: Callable[..., None]
) -> None:
    with log.producer(transactional_id=name) as producer:
        with producer.transaction():
            producer.send(first.topic, b"x", partition=1)
            producer.send_offsets_to_transaction({first: CommittedOffset(7, "mine")}, name)

        def committed() -> bool:
            try:
                return first in log.broker.committed(name)
            except CoordinatorLoading:
                return False

        eventually(committed)
        found = log.broker.committed(name)
        assert found == {first: CommittedOffset(7, "mine", log.topic(first.topic).topic_id)}


def test_offsets_of_open_and_aborted_transactions_are_not_visible(
    log: Log,
    first: TopicPartition,
    second: TopicPartition,
    name: str,
    eventually: Callable[..., None],
) -> None:
    log.broker.commit_offsets(name, {first: CommittedOffset(1), second: CommittedOffset(2)})
    with log.producer(transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({first: 100}, name)
        with pytest.raises(CoordinatorLoading):
            log.broker.committed(name, [first])
        assert log.broker.committed(name, [second])[second].offset == 2
        assert log.broker.committed(name, [first], require_stable=False)[first].offset == 1
        producer.abort_transaction()

        def stable() -> bool:
            try:
                return log.broker.committed(name, [first])[first].offset == 1
            except CoordinatorLoading:
                return False

        eventually(stable)


def test_a_zombies_offsets_are_not_committed(
    system: System, log: Log, first: TopicPartition, name: str
) -> None:
    old = log.producer(transactional_id=name)
    old.begin_transaction()
    old.send_offsets_to_transaction({first: 5}, name)
    new = system.open().producer(transactional_id=name)
    with pytest.raises(ProducerFenced):
        old.commit_transaction()
    assert log.broker.committed(name, require_stable=False) == {}
    old.close()
    new.close()
