"""Sinks whose log, topics and neighbors change between planning, staging and committing."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import InvalidConfig, SchemaMismatch, UnknownTopic
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.scan import MIN_PARTITION_BYTES
from strandline.framework.spark.writing import commit as commits
from strandline.framework.spark.writing import staging
from strandline.framework.spark.writing.replacement import Replacement
from strandline.framework.spark.writing.sinks import TOPIC, transactional_id
from strandline.framework.spark.writing.staging import PREFIX, StagedRange, StagedTopic, Stager
from strandline.framework.spark.writing.target import prepare
from strandline.statestore.restore import READERS_WAIT_S
from tests.spark.sinks import ROWS, Sink, batches, staged_rows, values

POLLS = 3 * READERS_WAIT_S
"""Number of polls after which a transaction ends: more than a reader of the state waits."""


class EndingSoon:
    """A log in which a transaction of another producer is aborted after some polls."""

    def __init__(self, broker: Broker, other: Producer) -> None:
        self._broker = broker
        self._other = other
        self._left = POLLS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def fetch(self, *args: Any, timeout: float = 0.0, **named: Any) -> Any:
        if timeout:
            self._left -= 1
            if self._left == 0:
                self._other.abort_transaction()
        return self._broker.fetch(*args, timeout=timeout, **named)


@pytest.fixture
def owner() -> Iterator[Owner]:
    with closing(Owner(MemoryStorage(), background=False)) as with_topic:
        with_topic.create_topic("t", 2)
        yield with_topic


def rows(start: int, end: int) -> list[tuple[str | None, str]]:
    return [(f"k{number % 5}", f"v{number}") for number in range(start, end)]


def once(start: int, end: int) -> Counter[str]:
    return Counter(f"v{number}" for number in range(start, end))


def left_topics(owner: Owner) -> list[str]:
    return [topic.name for topic in owner.topics() if topic.name.startswith(PREFIX)]


def opened(owner: Owner, transactional: str, topic: str, partitions: int) -> Producer:
    """Return a producer with an open transaction in some partitions of a topic."""
    producer = Producer(owner, transactional_id=transactional)
    producer.begin_transaction()
    for number in range(partitions):
        producer.append_columns(topic, [b"o"], [b"{}"], [1], partition=number)
    return producer


def staged_late(sink: Sink, owner: Owner, planned: Any) -> list[StagedTopic]:
    """Stage rows as a task does that was planned when the topic was `planned`."""
    stager = Stager(owner, sink.options, sink.name, planned)
    keys, texts = zip(*rows(0, 50), strict=True)
    stager.write(pa.record_batch([pa.array(keys), pa.array(texts)], schema=ROWS))
    return stager.finish()


# The log ----------------------------------------------------------------------------------


def test_a_process_that_goes_on_after_the_log_was_restored_writes_every_batch(
    tmp_path: Path,
) -> None:
    log, backup = tmp_path / "log", tmp_path / "backup"
    with closing(Owner(LocalStorage(log), background=False)) as owner:
        owner.create_topic("t", 2)
        sink = Sink(owner, path="same")
        sink.commit(0, sink.stage(rows(0, 10)))
    shutil.copytree(log, backup)
    with closing(Owner(LocalStorage(log), background=False)) as owner:
        sink = Sink(owner, path="same")
        sink.commit(1, sink.stage(rows(10, 20)))
        sink.commit(2, sink.stage(rows(20, 30)))  # reads the number of the batch before
    with closing(Owner(LocalStorage(backup), background=False)) as owner:
        sink = Sink(owner, path="same")
        assert sink.commit(1, sink.stage(rows(10, 20)))
        assert values(owner) == once(0, 20)


def test_a_lost_driver_of_one_sink_delays_others_and_does_not_fail_them(owner: Owner) -> None:
    lost, sink = Sink(owner, "lost", "lost"), Sink(owner)
    lost.commit(0, [])
    producer = opened(owner, transactional_id("lost"), TOPIC, 1)
    sink.commit(0, sink.stage(rows(0, 10)))
    waiting = sink.on(EndingSoon(owner, producer))
    assert waiting.commit(1, sink.stage(rows(10, 20)))
    assert values(owner) == once(0, 20)


def test_a_repeated_commit_leaves_the_rows_of_the_next_batch(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "KEPT_BYTES", 0)
    lost, live = Sink(owner), Sink(owner)
    staged = lost.stage(rows(0, 10))
    lost.commit(0, staged)
    following = live.stage(rows(10, 20))
    assert not lost.commit(0, staged)
    assert live.commit(1, following)
    assert values(owner) == once(0, 20)
    assert staged_rows(owner) == 0


# Topics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["q", ""])
def test_partitions_that_are_added_after_planning_are_used(owner: Owner, query: str) -> None:
    sink, planned = Sink(owner, query=query), owner.topic("t")
    if not query:
        staging.create(owner, sink.name, planned)
    owner.alter_topic("t", partitions=9)
    sink.commit(0 if query else None, staged_late(sink, owner, planned))
    assert values(owner) == once(0, 50)
    assert {batch.partition for batch in batches(owner, "t")} - {0, 1}


def test_a_larger_limit_of_a_topic_is_used_by_a_stream_that_goes_on(owner: Owner) -> None:
    owner.alter_topic("t", {"max.message.bytes": "2000"})
    sink = Sink(owner)
    sink.commit(0, sink.stage(rows(0, 1)))
    owner.alter_topic("t", {"max.message.bytes": "100000"})
    sink.commit(1, sink.stage([("a", "".join(map(chr, range(256, 8000))))]))
    assert sum(values(owner).values()) == 2


@pytest.mark.parametrize("named_by", ["option", "column"])
def test_topics_that_the_log_keeps_for_itself_are_refused(owner: Owner, named_by: str) -> None:
    Sink(owner).commit(0, [])
    sink = Sink(owner, "other", "other")
    topic = owner.topic(TOPIC) if named_by == "option" else None
    stager = Stager(owner, sink.options, sink.name, topic)
    row = pa.record_batch({"key": ["s"], "value": ["{}"], "topic": [TOPIC]})
    with pytest.raises(InvalidConfig, match="__strandline_sinks' is internal"):
        stager.write(row)


def test_rows_of_a_key_keep_their_order_if_some_of_them_name_its_partition(owner: Owner) -> None:
    with Producer(owner) as producer:
        number = producer.send("t", b"0", key="k").result().partition
    sink = Sink(owner)
    stager = Stager(owner, sink.options, sink.name, owner.topic("t"))
    named = pa.array([number, None, None, number], pa.int32())
    keys, texts = ["k", "k", None, "k"], ["1", "2", "keyless", "3"]
    stager.write(pa.record_batch({"key": keys, "value": texts, "partition": named}))
    sink.commit(0, stager.finish())
    found = [record for batch in batches(owner, "t") for record in batch.records()]
    assert [record.value for record in found if record.key == b"k"] == [b"0", b"1", b"2", b"3"]
    assert len(found) == 5


@pytest.mark.parametrize("kind", [pa.string(), pa.float64()])
def test_partitions_that_are_not_whole_numbers_are_refused_before_a_task_runs(
    owner: Owner, kind: pa.DataType
) -> None:
    frame = pa.schema([("value", pa.string()), ("partition", kind)])
    with pytest.raises(SchemaMismatch, match="the column `partition` has numbers"):
        prepare(owner, Sink(owner).options, frame, overwrite=False)


def test_a_batch_write_without_rows_leaves_no_topic(owner: Owner) -> None:
    job = Sink(owner, "job", query="")
    staging.create(owner, job.name, owner.topic("t"))
    job.commit(None, [])
    assert not left_topics(owner)


def test_a_batch_write_leaves_no_topic_of_an_attempt_that_was_not_chosen(owner: Owner) -> None:
    owner.create_topic("u", 1)
    job = Sink(owner, "job", query="")
    job.stage(rows(0, 10), "u")
    job.commit(None, job.stage(rows(0, 10)))
    assert not left_topics(owner)
    assert values(owner, "u") == Counter()


# Replacing --------------------------------------------------------------------------------


def table(owner: Owner) -> dict[str, str]:
    found: dict[bytes, bytes | None] = {}
    for batch in batches(owner, "t"):
        found |= {record.key: record.value for record in batch.records() if record.key}
    return {key.decode(): value.decode() for key, value in found.items() if value is not None}


def test_records_without_keys_do_not_hinder_a_replacement(owner: Owner) -> None:
    with Producer(owner) as producer:
        for number in range(2):
            producer.append_columns("t", [None], [b"plain"], [1], partition=number)
        producer.send("t", b"old", key="old")
    owner.alter_topic("t", {"cleanup.policy": "compact"})
    sink = Sink(owner)
    sink.commit(0, sink.stage([("a", "1")]), replace=True)
    assert table(owner) == {"a": "1"}


def test_a_replacement_deletes_keys_after_an_open_transaction(owner: Owner) -> None:
    owner.alter_topic("t", {"cleanup.policy": "compact"})
    other, sink = opened(owner, "other", "t", 2), Sink(owner)
    sink.commit(0, sink.stage([(f"k{number}", "1") for number in range(9)]), replace=True)
    waiting = sink.on(EndingSoon(owner, other))
    waiting.commit(1, sink.stage([("k3", "2")]), replace=True)
    assert table(owner) == {"k3": "2"}


def test_keys_are_read_before_the_transaction_whose_time_is_limited(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.alter_topic("t", {"cleanup.policy": "compact"})
    sink, seen = Sink(owner), list[str]()
    read, begin = Replacement.read, Producer.begin_transaction

    def noted(name: str, call: Any) -> Any:
        def called(self: Any) -> Any:
            seen.append(name)
            return call(self)

        return called

    monkeypatch.setattr(Replacement, "read", noted("read", read))
    monkeypatch.setattr(Producer, "begin_transaction", noted("begin", begin))
    sink.commit(0, sink.stage([("a", "1")]), replace=True)
    assert seen == ["read", "begin"]


def test_a_transaction_of_many_small_ranges_gets_more_time(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    real = owner.init_producer

    def noted(*args: Any, timeout_ms: int, **named: Any) -> Any:
        asked.append(timeout_ms)
        return real(*args, timeout_ms=timeout_ms, **named)

    sink = Sink(owner)
    ranges = {0: [StagedRange(0, 1)] * 10_000}
    one = StagedTopic("t", owner.topic("t").topic_id, "gone", "id", ranges=ranges)
    monkeypatch.setattr(owner, "init_producer", noted)
    with pytest.raises(UnknownTopic, match="gone"):
        sink.commit(0, [one])
    assert asked[0] >= 10_000 * 20


def test_a_short_range_is_read_without_much_of_what_follows(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, sizes = Sink(owner), list[int]()
    staged = [topic for number in range(5) for topic in sink.stage(rows(number, number + 1))]
    real = owner.fetch

    def noted(*args: Any, max_bytes: int, **named: Any) -> Any:
        sizes.append(max_bytes)
        return real(*args, max_bytes=max_bytes, **named)

    monkeypatch.setattr(owner, "fetch", noted)
    sink.commit(0, staged)
    assert max(sizes) <= MIN_PARTITION_BYTES
    assert values(owner) == once(0, 5)


@pytest.mark.parametrize(("fetch_bytes", "reads"), [(1, 240), (500, 60), (commits.FETCH_BYTES, 1)])
def test_ranges_of_many_tasks_are_read_together_and_written_in_their_order(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, fetch_bytes: int, reads: int
) -> None:
    sink, tasks, fetches = Sink(owner), 20, list[str]()
    stagers = [Stager(owner, sink.options, sink.name, owner.topic("t")) for _ in range(tasks)]
    for part in range(3):  # tasks stage at the same time, so their ranges alternate
        for task in reversed(range(tasks)):
            texts = [f"v{100 * task + 10 * part + row}" for row in range(4)]
            stagers[task].write(pa.record_batch([["k"] * 4, texts], schema=ROWS))
    real = owner.fetch

    def noted(positions: Any, **named: Any) -> Any:
        fetches.extend(tp.topic for tp in positions)
        return real(positions, **named)

    monkeypatch.setattr(owner, "fetch", noted)
    monkeypatch.setattr(commits, "FETCH_BYTES", fetch_bytes)
    sink.commit(0, [topic for each in stagers for topic in each.finish()])
    assert sum(topic.startswith(PREFIX) for topic in fetches) == reads
    found = [record.value for batch in batches(owner, "t") for record in batch.records()]
    wanted = [
        100 * task + 10 * p + row for task in range(tasks) for p in range(3) for row in range(4)
    ]
    assert found == [b"v%d" % number for number in wanted]
