"""A state continues in the history it was built from, and is replayed in any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strandline.changelog.client.producer import Producer
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from strandline.statestore import PartitionStore, StoreSpec, open_store
from strandline.statestore.engines.memory import MemoryEngine

SPEC: StoreSpec[str, int] = StoreSpec("s", key=str, value=int)


def commit(store: PartitionStore[Any, Any], producer: Producer, where: TopicPartition) -> None:
    """Commit as a worker does."""
    batch = store.drain()
    assert batch is not None
    with producer.transaction():
        (written,) = producer.append_batches([(where, batch.columns(1_700_000_000_000), 0)])
    store.committed(written.last_offset + 1, written.leader_epoch, written.incarnation)


@pytest.fixture
def changelog(log: Log, name: str) -> TopicPartition:
    return TopicPartition(log.create_topic(name, 1, config={"cleanup.policy": "compact"}).name, 0)


@pytest.fixture
def engine(log: Log, changelog: TopicPartition, name: str) -> MemoryEngine:
    """Return the engine of a store after three commits of two keys each."""
    engine = MemoryEngine()
    store = open_store(SPEC, engine=engine)
    store.restore(log.broker, changelog)
    with log.producer(transactional_id=name) as producer:
        for n in range(3):
            store["a"], store[f"{n}"] = n, n
            commit(store, producer, changelog)
    store.checkpoint()
    return engine


def restored(
    log: Log, changelog: TopicPartition, engine: MemoryEngine
) -> tuple[str, dict[Any, Any]]:
    store = open_store(SPEC, engine=engine)
    done = store.restore(log.broker, changelog)
    return done.plan.action, dict(store.all())


WHOLE = {"0": 0, "1": 1, "2": 2, "a": 2}


def test_a_state_continues_after_commits_and_after_a_restore(
    log: Log, changelog: TopicPartition, engine: MemoryEngine
) -> None:
    for _ in range(2):
        assert restored(log, changelog, engine) == ("resume", WHOLE)


def tampered(engine: MemoryEngine, **changes: Any) -> None:
    """Change the value of a key, as in another history, and the position."""
    position = engine.position()
    assert position is not None
    key = next(key for key, _ in engine.scan(b"\x01", None, reverse=False))
    engine.write([key], [b"of another history"], replace(position, **changes))


@pytest.mark.parametrize("change", [{"incarnation": "another"}, {"topic_id": "another"}])
def test_a_state_of_another_history_is_replayed(
    log: Log, changelog: TopicPartition, engine: MemoryEngine, change: dict[str, str]
) -> None:
    tampered(engine, **change)
    assert restored(log, changelog, engine) == ("rebuild", WHOLE)


@pytest.mark.parametrize("system", ["kafka"], indirect=True)
def test_on_kafka_a_state_without_the_last_record_before_its_position_is_replayed(
    log: Log, changelog: TopicPartition, engine: MemoryEngine
) -> None:
    position = engine.position()
    assert position is not None
    for key in [key for key, _ in engine.scan(b"\x01", None, reverse=False)]:
        engine.write([key], [b"of another history"], position)
    assert restored(log, changelog, engine) == ("rebuild", WHOLE)
    engine.write([], [], replace(position, leader_epoch=7))
    log_epoch = log.broker.offsets([changelog])[changelog].leader_epoch
    assert log_epoch < 7
    assert restored(log, changelog, engine) == ("rebuild", WHOLE)


def test_a_state_that_was_moved_to_another_partition_is_replayed(log: Log, name: str) -> None:
    topic = log.create_topic(name, 2, config={"cleanup.policy": "compact"}).name
    partitions, engines = [TopicPartition(topic, number) for number in (0, 1)], []
    with log.producer(transactional_id=name) as producer:
        for tp in partitions:
            engine = MemoryEngine()
            store = open_store(SPEC, engine=engine)
            store.restore(log.broker, tp)
            for n in range(3):
                store[f"{tp.partition}-{n}"] = n
                commit(store, producer, tp)
            store.checkpoint()
            engines.append(engine)
    for tp, engine in zip(partitions, reversed(engines), strict=True):
        expected = {f"{tp.partition}-{n}": n for n in range(3)}
        assert restored(log, tp, engine) == ("rebuild", expected)
        assert restored(log, tp, engine) == ("resume", expected)
