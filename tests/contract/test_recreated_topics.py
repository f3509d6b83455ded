"""A topic that is deleted and created again is another topic, on both systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.errors import OffsetOutOfRange, UnknownTopic
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.systems import System

OLD = 100


def create(log: Log, topic: str, kind: str, count: int) -> None:
    """Create a topic with a number of records of a kind."""
    log.create_topic(topic, partitions=1)
    log.append(topic, [{"key": b"k", "value": f"{kind}-{n}".encode()} for n in range(count)])


def replace(log: Log, topic: str, count: int) -> None:
    log.delete_topic(topic)
    create(log, topic, "new", count)


@pytest.fixture
def fresh_shapes(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client of Kafka ask for a topic's id each time, instead of once in five seconds."""
    if system.is_kafka:
        from strandline.changelog.kafka import topics

        monkeypatch.setattr(topics, "SHAPE_MAX_AGE_S", 0.0)


class Copy:
    """An app that copies a topic; at the old topic's last record the topic is replaced."""

    def __init__(self, system: System, log: Log, kind: str, count: int, guarantee: Any) -> None:
        self.log, self.count = log, count
        self.name = f"{system.prefix}t"
        self.replaced = False
        self.app = sl.App(
            f"{system.prefix}app",
            log=system.url,
            state_dir=system.state,
            processing_guarantee=guarantee,
        )
        given = self.app.topic(self.name, value=bytes)
        self.out = self.app.topic(f"{system.prefix}out", value=bytes)

        if kind == "sync":

            @self.app.task(given, name="copy")
            def sync_task(record: sl.Record[Any, bytes]) -> None:
                self.copy(record)

        else:

            @self.app.task(given, name="copy", concurrency=3)
            async def async_task(record: sl.Record[Any, bytes]) -> None:
                self.copy(record)

    def copy(self, record: sl.Record[Any, bytes]) -> None:
        if record.value == b"old-%d" % (OLD - 1) and not self.replaced:
            self.replaced = True
            replace(self.log, self.name, self.count)
        self.out.send(record.key, record.value)

    def run(self) -> list[bytes]:
        """Run the app until it is idle; return all new records that were copied so far."""
        with self.app:
            try:
                self.app.run(until="idle", progress=False)
            finally:
                values = self.out.to_polars()["value"].to_list()
        return [value for value in values if value.startswith(b"new")]


@pytest.mark.usefixtures("fresh_shapes")
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("count", [OLD // 2, OLD + 50])
def test_an_app_skips_nothing_of_a_topic_that_was_created_again(
    system: System, kind: str, count: int
) -> None:
    """The run ends with an error, and the next one reads the new topic from its start."""
    log = system.open()
    create(log, f"{system.prefix}t", "old", OLD)
    with pytest.raises((OffsetOutOfRange, UnknownTopic)):
        Copy(system, log, kind, count, "exactly_once").run()
    for _ in range(2):
        copied = Copy(system, log, kind, count, "exactly_once").run()
        assert copied == [b"new-%d" % n for n in range(count)]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_a_topic_that_grows_past_the_old_ones_offset_is_read_from_its_start(
    system: System, guarantee: str
) -> None:
    log = system.open()
    name = f"{system.prefix}t"
    create(log, name, "old", OLD)
    with pytest.raises((OffsetOutOfRange, UnknownTopic)):
        Copy(system, log, "sync", OLD // 2, guarantee).run()
    log.append(name, [{"key": b"k", "value": b"new-%d" % n} for n in range(OLD // 2, 2 * OLD)])
    copied = Copy(system, log, "sync", 0, guarantee).run()
    assert copied == [b"new-%d" % n for n in range(2 * OLD)]


@pytest.mark.usefixtures("fresh_shapes")
def test_the_position_of_a_deleted_topic_is_none_of_the_next_one(system: System) -> None:
    """Also if the new topic is longer, so that the offset is in it."""
    log = system.open()
    tp = TopicPartition(f"{system.prefix}t", 0)
    group = f"{system.prefix}g"
    create(log, tp.topic, "old", OLD)
    with log.consumer(group=group, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        assert len(list(consumer.records(timeout=0.5))) == OLD
        replace(log, tp.topic, OLD + 50)
        consumer.commit()
    assert log.broker.committed(group, [tp]) == {}
    with log.consumer(group=group, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        values = [record.value for record in consumer.records(timeout=0.5)]
        assert values == [b"new-%d" % n for n in range(OLD + 50)]


@pytest.mark.parametrize(
    "metadata", ["", "a note", "{}", '{"tasks":{"a":5}}', '{"', "{", '{"topic_id":"x"}', "é" * 99]
)
def test_metadata_is_returned_as_it_was_committed(
    system: System, tmp_path: Path, metadata: str
) -> None:
    log = system.open()
    tp, group = TopicPartition(f"{system.prefix}t", 0), f"{system.prefix}g"
    create(log, tp.topic, "old", 3)
    topic_id = log.broker.topic(tp.topic).topic_id
    for given in ("", topic_id):
        log.broker.commit_offsets(group, {tp: CommittedOffset(2, metadata, given)})
        found = log.broker.committed(group, [tp])[tp]
        assert (found.offset, found.metadata, found.topic_id) == (2, metadata, topic_id)
    log.broker.commit_offsets(group, {tp: CommittedOffset(3, metadata, "0f" * 16)})
    is_named = not system.is_kafka or metadata == "" or metadata.startswith('{"')
    assert (tp in log.broker.committed(group, [tp])) is not is_named


def test_an_offset_that_was_translated_from_another_cluster_is_believed(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MirrorMaker does it, with the metadata as they were."""
    log = system.open()
    tp, group = TopicPartition(f"{system.prefix}t", 0), f"{system.prefix}g"
    create(log, tp.topic, "old", 3)
    given = CommittedOffset(2, '{"tasks":{"a":1}}', "0f" * 16)
    if system.is_kafka:
        with monkeypatch.context() as there:
            there.setattr(log.broker._connection, "cluster_id", "elsewhere")  # type: ignore[attr-defined]
            log.broker.commit_offsets(group, {tp: given})
    else:
        log.broker.commit_offsets(group, {tp: given._replace(topic_id="")})
    here = given._replace(topic_id=log.broker.topic(tp.topic).topic_id)
    assert log.broker.committed(group, [tp])[tp][:3] == here[:3]
