"""Topics are created, described, changed and deleted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import pytest

from strandline.changelog.errors import InvalidConfig, InvalidTopic, TopicExists, UnknownTopic
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from tests.systems import System


def test_a_topic_is_described_as_it_was_created(log: Log, name: str) -> None:
    made = log.create_topic(name, 3, config={"retention.ms": "3600000", "cleanup.policy": "delete"})
    assert (made.name, made.partitions, made.internal) == (name, 3, False)
    assert made.config == {"retention.ms": "3600000", "cleanup.policy": "delete"}
    assert made.effective.retention_ms == 3_600_000
    assert log.topic(name) == made
    assert made in log.topics()


def test_every_client_sees_a_created_topic(system: System, log: Log, topic: str) -> None:
    assert system.open().topic(topic) == log.topic(topic)


def test_a_client_that_is_refused_because_the_topic_exists_can_see_it(
    system: System, name: str
) -> None:
    """Other clients may create the topic at the same time, as workers that start together do."""
    logs = [system.open() for _ in range(4)]
    together = threading.Barrier(len(logs))
    seen: list[int] = []

    def make(log: Log) -> None:
        for number in range(3):
            together.wait(10)
            with suppress(TopicExists):
                log.create_topic(f"{name}-{number}", 40)
            seen.append(log.topic(f"{name}-{number}").partitions)

    with ThreadPoolExecutor(len(logs)) as pool:
        list(pool.map(make, logs))
    assert seen == [40] * 3 * len(logs)


def test_a_topic_exists_once(log: Log, topic: str) -> None:
    with pytest.raises(TopicExists):
        log.create_topic(topic)


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "ä", "x" * 250, "__mine"])
def test_a_bad_name_is_refused(log: Log, bad: str) -> None:
    with pytest.raises(InvalidTopic):
        log.create_topic(bad)
    if bad != "__mine":
        with pytest.raises(UnknownTopic):
            log.topic(bad)


def test_an_unknown_topic_is_unknown_to_every_call(log: Log, name: str) -> None:
    nowhere = TopicPartition(name, 0)
    for call in (
        lambda: log.topic(name),
        lambda: log.delete_topic(name),
        lambda: log.alter_topic(name, {"retention.ms": "1"}),
        lambda: log.append(name, [{"value": b"x"}]),
        lambda: log.read(name),
        lambda: log.broker.fetch({nowhere: 0}),
        lambda: log.broker.offsets([nowhere]),
        lambda: log.broker.offset_for_time(nowhere, 0),
        lambda: log.broker.delete_records(nowhere, 0),
    ):
        with pytest.raises(UnknownTopic):
            call()
    assert name not in [topic.name for topic in log.topics()], "asking has made it"


@pytest.mark.parametrize(
    "config",
    [
        {"no.such.setting": "1"},
        {"retention.ms": "soon"},
        {"cleanup.policy": "keep"},
        {"min.cleanable.dirty.ratio": "2"},
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    ],
)
def test_a_setting_that_is_not_allowed_is_refused(
    log: Log, name: str, topic: str, config: dict[str, str]
) -> None:
    with pytest.raises(InvalidConfig):
        log.create_topic(name + "-other", config=config)
    with pytest.raises(UnknownTopic):
        log.topic(name + "-other")
    with pytest.raises(InvalidConfig):
        log.alter_topic(topic, config)
    assert log.topic(topic).config == {}


@pytest.mark.parametrize("partitions", [0, -1, 1_000_000])
def test_the_number_of_partitions_has_limits(log: Log, name: str, partitions: int) -> None:
    with pytest.raises(InvalidConfig):
        log.create_topic(name, partitions)


def test_settings_are_changed_and_reset(log: Log, topic: str) -> None:
    changed = log.alter_topic(topic, {"retention.ms": "1000", "compression.type": "zstd"})
    assert changed.config == {"retention.ms": "1000", "compression.type": "zstd"}
    back = log.alter_topic(topic, {"retention.ms": None})
    assert back.config == log.topic(topic).config == {"compression.type": "zstd"}


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compression_types_have_the_same_names(log: Log, name: str, compression: str) -> None:
    made = log.create_topic(name, config={"compression.type": compression})
    assert made.config == {"compression.type": compression}
    log.append(name, [{"value": b"x" * 1000}])
    assert log.read(name)["value"].to_pylist() == [b"x" * 1000]


def test_partitions_are_added_but_not_removed(log: Log, topic: str) -> None:
    log.append(topic, [{"value": b"kept"}], partition=1)
    assert log.alter_topic(topic, partitions=4).partitions == 4
    log.append(topic, [{"value": b"new"}], partition=3)
    assert log.read(topic)["value"].to_pylist() == [b"kept", b"new"]
    assert log.alter_topic(topic, partitions=4).partitions == 4
    with pytest.raises(InvalidConfig):
        log.alter_topic(topic, partitions=3)


def test_a_deleted_topic_can_be_created_again_and_is_empty(log: Log, topic: str) -> None:
    before = log.topic(topic)
    log.append(topic, [{"value": b"x"}])
    log.delete_topic(topic)
    with pytest.raises(UnknownTopic):
        log.topic(topic)
    with pytest.raises(UnknownTopic):
        log.append(topic, [{"value": b"x"}])
    again = log.create_topic(topic, 2)
    assert again.topic_id != before.topic_id
    assert log.read(topic).num_rows == 0


@pytest.mark.parametrize("own", ["__consumer_offsets", "__transaction_state"])
def test_the_logs_own_topics_are_protected(log: Log, topic: str, own: str) -> None:
    with log.producer(transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, b"x")
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 0}, topic)
    assert log.topic(own).internal
    assert own not in [t.name for t in log.topics()]
    assert own in [t.name for t in log.topics(internal=True)]
    for call in (
        lambda: log.delete_topic(own),
        lambda: log.append(own, [{"key": b"k", "value": b"x"}], partition=0),
        lambda: log.broker.delete_records(TopicPartition(own, 0), 0),
    ):
        with pytest.raises(InvalidTopic):
            call()


def test_typed_topics_are_refused_on_kafka(system: System, log: Log, name: str) -> None:
    if system.name == "embedded":
        assert log.create_topic(name, schema=pa.schema([("a", pa.int64())])).schema_id == 1
        return
    with pytest.raises(
        InvalidTopic, match="topics of columns are not available on a Kafka cluster"
    ):
        log.create_topic(name, schema=pa.schema([("a", pa.int64())]))
