"""A topic that is deleted and created again is another topic, on both systems."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import OffsetOutOfRange, UnknownTopic
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.forms import few_on_kafka
from tests.systems import System

OLD = 100
PAST_CACHES_S = 6.0
"""Seconds after which a client of Kafka knows that a topic was replaced."""


def create(log: Log, topic: str, kind: str, count: int) -> None:
    """Create a topic with a number of records of a kind."""
    log.create_topic(topic, partitions=1)
    log.append(topic, [{"key": b"k", "value": f"{kind}-{n}".encode()} for n in range(count)])


def replace(log: Log, topic: str, count: int) -> None:
    log.delete_topic(topic)
    create(log, topic, "new", count)


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
@pytest.mark.parametrize("kind", few_on_kafka(["sync", "async"]))
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


@pytest.mark.long_on_kafka
@pytest.mark.parametrize(
    "guarantee", few_on_kafka(["exactly_once", "at_least_once", "at_most_once"])
)
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
    assert log.broker.committed(group, [tp])[tp].offset == 2


def test_an_offset_that_was_translated_from_another_cluster_is_believed(system: System) -> None:
    """As MirrorMaker does it, with the metadata as they were."""
    log = system.open()
    tp, group = TopicPartition(f"{system.prefix}t", 0), f"{system.prefix}g"
    create(log, tp.topic, "old", 3)
    here = CommittedOffset(2, '{"tasks":{"a":1}}', log.broker.topic(tp.topic).topic_id)
    there = f'{{"topic_id":"{"0f" * 16}@elsewhere","tasks":{{"a":1}}}}'
    given = CommittedOffset(2, there) if system.is_kafka else here._replace(topic_id="")
    log.broker.commit_offsets(group, {tp: given})
    assert log.broker.committed(group, [tp])[tp][:3] == here[:3]


# A topic that another program replaces -------------------------------------------------------


def replaced_by_another(system: System, topic: str, count: int) -> None:
    """Replace a topic in a client that shares nothing with those of the test."""
    with contextlib.closing(changelog.open(system.url)) as other:
        replace(other, topic, count)


@pytest.mark.parametrize("reset", few_on_kafka(["latest", "earliest"]))
def test_a_consumer_takes_up_a_shorter_topic_once(system: System, reset: Any) -> None:
    log = system.open()
    tp = TopicPartition(f"{system.prefix}t", 0)
    create(log, tp.topic, "old", OLD)
    with log.consumer(auto_offset_reset=reset) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert len(list(consumer.records(timeout=0.5))) == OLD
        replaced_by_another(system, tp.topic, OLD // 2)
        begun, read, sent = time.monotonic(), list[bytes](), OLD // 2
        while time.monotonic() - begun < (PAST_CACHES_S if system.is_kafka else 1.0):
            read += [record.value for batch in consumer.poll(0.1) for record in batch.records()]
            log.append(tp.topic, [{"key": b"k", "value": b"new-%d" % sent}])
            sent += 1
        read += [record.value for record in consumer.records(timeout=0.5)]
    first = 0 if reset == "earliest" else OLD // 2
    assert [value for value in read if value.startswith(b"new")] == [
        b"new-%d" % n for n in range(first, sent)
    ]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_subscriber_goes_on_with_fewer_partitions_and_with_more_again(
    system: System, group: str | None, fresh_shapes: None, eventually: Callable[..., None]
) -> None:
    log = system.open()
    topic = f"{system.prefix}t"
    read: list[bytes] = []

    def polled() -> int:
        read.extend(one.value for batch in consumer.poll(0.1) for one in batch.records())
        return len(read)

    log.create_topic(topic, 3)
    for partition in range(3):
        log.append(topic, [{"value": b"old"}] * 5, partition=partition)
    named = None if group is None else f"{system.prefix}{group}"
    with log.consumer(group=named, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        eventually(lambda: polled() == 15, what="the old records")
        for partitions in (1, 3):
            with contextlib.closing(changelog.open(system.url)) as other:
                other.delete_topic(topic)
                other.create_topic(topic, partitions)
                for partition in range(partitions):
                    other.append(topic, [{"value": b"new"}] * 4, partition=partition)
            consumer._topics_checked_at = 0  # as if half a minute had passed
            read.clear()
            wanted = (4 * partitions, partitions)
            eventually(
                lambda wanted=wanted: (polled(), len(consumer.assignment())) == wanted,
                what="the new records",
            )
            if group is not None:
                consumer.commit()
        assert read == [b"new"] * 12


def test_a_client_returns_no_records_of_a_deleted_topic(system: System) -> None:
    """Also if it has received them before the topic was deleted."""
    log = system.open()
    tp = TopicPartition(f"{system.prefix}t", 0)
    create(log, tp.topic, "old", 30_000)
    with log.consumer() as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert consumer.poll(5.0, max_records=1_000)
        at = consumer.position(tp)
    replaced_by_another(system, tp.topic, 30_000)
    values = log.read(tp.topic, start=at, end=at + 100)["value"].to_pylist()
    assert values == [b"new-%d" % n for n in range(at, at + 100)]


@pytest.mark.long_on_kafka
@pytest.mark.parametrize("until", ["idle", "end"])
def test_a_bounded_run_does_not_end_as_if_it_had_read_the_next_topic(
    system: System, until: Any
) -> None:
    log = system.open()
    name = f"{system.prefix}t"
    create(log, name, "old", OLD)
    app = sl.App(f"{system.prefix}app", log=log, state_dir=system.state)
    given, out = app.topic(name, value=bytes), app.topic(f"{system.prefix}out", value=bytes)
    replaced: list[bool] = []

    @app.task(given)
    def copy(record: sl.Record[Any, bytes]) -> None:
        if record.offset == OLD - 1 and not replaced:
            replaced.append(True)
            replaced_by_another(system, name, OLD)
        out.send(record.key, record.value)

    with pytest.raises((OffsetOutOfRange, UnknownTopic)):
        app.run(until=until, progress=False)
    app.run(until=until, progress=False)
    copied = [value for value in out.to_polars()["value"] if value.startswith(b"new")]
    assert copied == [b"new-%d" % n for n in range(OLD)]


def test_an_app_that_starts_again_at_once_counts_nothing_twice(system: System) -> None:
    log = system.open()
    name = f"{system.prefix}t"
    create(log, name, "old", OLD)
    app = sl.App(f"{system.prefix}app", log=log, state_dir=system.state)
    given, counts = app.topic(name, value=bytes), app.counter("counts")

    @app.task(given, stores=[counts])
    def count(record: sl.Record[Any, bytes]) -> None:
        counts.add(record.value[:3].decode(), 1)

    app.run(until="idle", progress=False)
    replaced_by_another(system, name, OLD // 2)
    for _ in range(3):
        with contextlib.suppress(OffsetOutOfRange):
            app.run(until="idle", progress=False)
    assert app.query(counts).to_dict() == {"old": OLD, "new": OLD // 2}


def test_a_late_commit_does_not_replace_an_offset_of_the_next_topic(system: System) -> None:
    log = system.open()
    tp, group = TopicPartition(f"{system.prefix}t", 0), f"{system.prefix}g"
    create(log, tp.topic, "old", OLD)
    with log.consumer(group=group, auto_offset_reset="earliest") as asleep:
        asleep.assign([tp])
        assert len(list(asleep.records(timeout=0.5))) == OLD
        replaced_by_another(system, tp.topic, 2 * OLD)
        with log.consumer(group=group, auto_offset_reset="earliest") as awake:
            awake.assign([tp])
            assert len(list(awake.records(timeout=0.5))) == 2 * OLD
            awake.commit()
        asleep.commit()
        asleep.commit({tp: 7})
        assert log.broker.committed(group, [tp])[tp].offset == 2 * OLD
        with log.producer(transactional_id=f"{system.prefix}x") as producer, producer.transaction():
            producer.send_offsets_to_transaction(asleep.positions(), group)
        assert log.broker.committed(group, [tp])[tp].offset == 2 * OLD


@pytest.mark.parametrize("how", ["consumer", "transaction"])
def test_a_late_commit_of_another_process_does_not_replace_it_either(
    system: System, how: str
) -> None:
    """The process has not heard of the next topic yet."""
    tp, group = TopicPartition(f"{system.prefix}t", 0), f"{system.prefix}g"
    log = system.open()
    create(log, tp.topic, "old", OLD)
    with log.consumer(group=group, auto_offset_reset="earliest") as asleep:
        asleep.assign([tp])
        assert len(list(asleep.records(timeout=0.5))) == OLD
        with contextlib.closing(changelog.open(system.url)) as other:
            replace(other, tp.topic, 2 * OLD)
            with other.consumer(group=group, auto_offset_reset="earliest") as awake:
                awake.assign([tp])
                assert len(list(awake.records(timeout=0.5))) == 2 * OLD
                awake.commit()
            if how == "consumer":
                asleep.commit()
            else:
                own = f"{system.prefix}x"
                with log.producer(transactional_id=own) as producer, producer.transaction():
                    producer.send_offsets_to_transaction(asleep.positions(), group)
            assert other.broker.committed(group, [tp])[tp].offset == 2 * OLD


def test_an_offset_without_an_id_is_believed_at_once(system: System) -> None:
    """As that of another program, while this client has just known the deleted topic."""
    log = system.open()
    tp, group = TopicPartition(f"{system.prefix}t", 0), f"{system.prefix}g"
    create(log, tp.topic, "old", OLD)
    log.read(tp.topic)
    replaced_by_another(system, tp.topic, OLD)
    with contextlib.closing(changelog.open(system.url)) as other:
        other.broker.commit_offsets(group, {tp: CommittedOffset(60)})
    with log.consumer(group=group, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        values = [record.value for record in consumer.records(timeout=0.5)]
    assert values == [b"new-%d" % n for n in range(60, OLD)]


@pytest.mark.parametrize("system", ["kafka"], indirect=True)
def test_metadata_of_each_length_below_the_clusters_limit_is_accepted(system: System) -> None:
    log = system.open()
    tp, group = TopicPartition(f"{system.prefix}t", 0), f"{system.prefix}g"
    create(log, tp.topic, "old", 3)
    topic_id = log.broker.topic(tp.topic).topic_id
    for length in (*range(4_020, 4_032), 4_094, 4_095):
        metadata = '{"a":"' + "x" * (length - 8) + '"}'
        log.broker.commit_offsets(group, {tp: CommittedOffset(2, metadata, topic_id)})
        assert log.broker.committed(group, [tp])[tp].metadata == metadata
