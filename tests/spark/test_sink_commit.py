"""Commits of staged rows: each batch once, whatever is repeated and wherever a process dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, cast

import pyarrow as pa
import pytest

from strandline.changelog.broker import Broker
from strandline.changelog.client.asking_again import commit_until_known
from strandline.changelog.client.producer import Producer
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    CorruptLog,
    FutureFormat,
    InvalidConfig,
    InvalidRecord,
    OffsetOutOfRange,
    ProducerFenced,
    StrandlineError,
    UnknownTopic,
)
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from strandline.framework.spark.writing import commit as commits
from strandline.framework.spark.writing import staging
from strandline.framework.spark.writing.commit import SinkCommit
from strandline.framework.spark.writing.sinks import TOPIC
from strandline.framework.spark.writing.staging import PREFIX, SinkName
from tests.spark.sinks import (
    Killed,
    MortalBroker,
    Sink,
    batches,
    staged_rows,
    unavailable,
    values,
)


def rows(start: int, end: int) -> list[tuple[str | None, str]]:
    return [(f"k{number % 5}", f"v{number}") for number in range(start, end)]


def once(start: int, end: int) -> Counter[str]:
    return Counter(f"v{number}" for number in range(start, end))


@pytest.fixture
def owner() -> Iterator[Owner]:
    with_topic = Owner(MemoryStorage(), background=False)
    with_topic.create_topic("t", 2)
    yield with_topic
    with_topic.close()


@pytest.fixture
def deletes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each commit delete the staged rows, however few they are."""
    monkeypatch.setattr(commits, "KEPT_BYTES", 0)


# Each batch once --------------------------------------------------------------------------


def test_a_batch_is_the_rows_of_all_its_tasks_in_their_order(owner: Owner) -> None:
    sink = Sink(owner)
    second, first = sink.stage(rows(5, 10)), sink.stage(rows(0, 5))
    assert values(owner) == Counter()
    assert sink.commit(0, [*first, *second])
    assert values(owner) == once(0, 10)
    per_key = [
        [record.value for batch in owner_batches(owner, n) for record in batch.records()]
        for n in range(2)
    ]
    for partition in per_key:
        for key in range(5):
            of_key = [int(v[1:]) for v in partition if int(v[1:]) % 5 == key]
            assert of_key == sorted(of_key)


def owner_batches(owner: Owner, number: int) -> list[Any]:
    return [batch for batch in batches(owner, "t") if batch.partition == number]


def test_rows_are_in_the_partition_that_every_producer_chooses_for_their_key(owner: Owner) -> None:
    sink = Sink(owner)
    sink.commit(0, sink.stage(rows(0, 50)))
    with Producer(owner) as producer:
        for key, _ in rows(0, 5):
            sent = producer.send("t", b"plain", key=key).result()
            [mine] = [
                {
                    batch.partition
                    for batch in owner_batches(owner, n)
                    for r in batch.records()
                    if r.key == sent_key(key)
                }
                for n in [sent.partition]
            ]
            assert mine == {sent.partition}


def sent_key(key: str | None) -> bytes:
    assert key is not None
    return key.encode()


@pytest.mark.usefixtures("deletes_at_once")
@pytest.mark.parametrize("is_same_attempt", [True, False])
def test_a_batch_that_was_committed_is_skipped(owner: Owner, *, is_same_attempt: bool) -> None:
    sink = Sink(owner)
    staged = sink.stage(rows(0, 10))
    assert sink.commit(0, staged)
    again = staged if is_same_attempt else sink.on(owner).stage(rows(0, 10))
    assert not sink.on(owner).commit(0, again)
    assert values(owner) == once(0, 10)
    assert sink.commit(1, sink.stage(rows(10, 20)))
    assert not sink.on(owner).commit(0, sink.stage(rows(0, 10)))
    assert values(owner) == once(0, 20)
    assert staged_rows(owner) == 0


@pytest.mark.usefixtures("deletes_at_once")
def test_rows_of_attempts_that_are_not_committed_are_never_visible(owner: Owner) -> None:
    sink = Sink(owner)
    sink.stage(rows(100, 110))  # failed
    staged = sink.stage(rows(0, 10))
    sink.stage(rows(0, 10))  # speculative
    sink.commit(0, staged)
    assert values(owner) == once(0, 10)
    assert staged_rows(owner) == 0


def test_a_batch_without_rows_is_recorded_too(owner: Owner) -> None:
    sink = Sink(owner)
    assert sink.commit(0, [])
    assert not sink.on(owner).commit(0, sink.stage(rows(0, 3)))
    assert values(owner) == Counter()


@pytest.mark.usefixtures("deletes_at_once")
@pytest.mark.parametrize("after", [False, True])
def test_a_driver_that_dies_at_any_call_and_comes_back_writes_each_row_once(*, after: bool) -> None:
    deaths = 0
    for call in range(100):
        with closing(Owner(MemoryStorage(), background=False)) as owner:
            owner.create_topic("t", 2)
            sink = Sink(owner)
            sink.commit(0, sink.stage(rows(0, 10)))
            mortal = MortalBroker(owner, call, after=after)
            dying = sink.on(mortal)
            try:
                dying.commit(1, dying.stage(rows(10, 20)))
            except Killed:
                deaths += 1
            assert values(owner) in (once(0, 10), once(0, 20))
            was_written = values(owner) == once(0, 20)
            again = sink.on(owner)  # Spark runs the batch again
            assert again.commit(1, again.stage(rows(10, 20))) is not was_written
            again.commit(2, again.stage(rows(20, 30)))
            assert values(owner) == once(0, 30)
            assert staged_rows(owner) == 0
            if not mortal.is_dead:
                break
    assert deaths > 6


@pytest.mark.parametrize("after", [False, True])
def test_a_batch_write_that_dies_at_any_call_is_there_whole_or_not_at_all(*, after: bool) -> None:
    for call in range(100):
        with closing(Owner(MemoryStorage(), background=False)) as owner:
            owner.create_topic("t", 2)
            mortal = MortalBroker(owner, call, after=after)
            dying = Sink(owner, query="").on(mortal)
            try:
                dying.commit(None, dying.stage(rows(0, 10)))
            except Killed:
                # Spark calls `abort`, also after a commit that has failed.
                SinkCommit(owner, dying.path, dying.name).abort()
            with Producer(owner, transactional_id=f"strandline-sink-{dying.sink_id}"):
                pass  # ends the transaction that the dead driver has left
            assert values(owner) in (Counter(), once(0, 10))
            assert not [topic for topic in owner.topics() if topic.name.startswith(PREFIX)]
            if not mortal.is_dead:
                assert values(owner) == once(0, 10)
                break


# Others ---------------------------------------------------------------------------------


def test_a_commit_is_fenced_by_a_later_one_of_the_same_sink(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Sink(owner), Sink(owner)
    staged = old.stage(rows(0, 10))
    real = commit_until_known

    def overtaken(producer: Producer) -> None:
        monkeypatch.setattr(commits, "commit_until_known", real)
        assert new.commit(0, new.stage(rows(0, 10)))
        real(producer)

    monkeypatch.setattr(commits, "commit_until_known", overtaken)
    with pytest.raises(ProducerFenced, match="sink 's': another program commits for it"):
        old.commit(0, staged)
    assert values(owner) == once(0, 10)


def test_a_second_query_with_a_sink_id_is_refused(owner: Owner) -> None:
    first, second = Sink(owner, query="one"), Sink(owner, query="two")
    first.commit(0, first.stage(rows(0, 10)))
    staged = second.stage(rows(10, 20))
    with pytest.raises(InvalidConfig, match="sink 's' is of query one.*Use another sinkId"):
        second.commit(0, staged)
    first.commit(1, first.stage(rows(20, 30)))
    assert values(owner) == once(0, 10) + once(20, 30)


def test_sinks_with_different_ids_do_not_know_each_other(owner: Owner) -> None:
    one, two = Sink(owner, "one", "one"), Sink(owner, "two", "two")
    staged = one.stage(rows(0, 10))
    two.commit(0, two.stage(rows(10, 20)))
    one.commit(0, staged)
    assert values(owner) == once(0, 20)


def test_numbered_batch_writes_skip_what_was_written(owner: Owner) -> None:
    def write(number: int, start: int) -> bool:
        job = Sink(owner, "jobs", query="")
        return job.commit(number, job.stage(rows(start, start + 10)))

    assert write(7, 0)
    assert not write(7, 0)
    assert write(20, 10)
    assert not write(8, 0)
    assert values(owner) == once(0, 20)


# Damage to the log ---------------------------------------------------------------------


def test_a_log_that_lacks_batches_is_an_error_or_a_warning(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink(owner)
    staged = sink.stage(rows(0, 10))
    with pytest.raises(OffsetOutOfRange, match="batch 4 of query q follows no batch of sink 's'"):
        sink.commit(4, staged)
    assert values(owner) == Counter()
    assert sink.commit(4, staged, fail_on_data_loss=False)
    staged = sink.stage(rows(10, 20))
    with pytest.raises(OffsetOutOfRange, match="batch 6 of query q follows batch 4"):
        sink.commit(6, staged)
    assert values(owner) == once(0, 10)
    assert sink.commit(6, staged, fail_on_data_loss=False)
    assert "follows batch 4" in caplog.text
    assert values(owner) == once(0, 20)


@pytest.mark.usefixtures("deletes_at_once")
def test_a_topic_that_was_created_again_meanwhile_is_refused(owner: Owner) -> None:
    sink = Sink(owner)
    staged = sink.stage(rows(0, 10))
    owner.delete_topic("t")
    owner.create_topic("t", 2)
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        sink.commit(0, staged)
    assert sink.commit(0, sink.stage(rows(0, 10)))
    assert values(owner) == once(0, 10)
    assert staged_rows(owner) == 0


def test_staged_rows_are_deleted_once_they_need_space(owner: Owner) -> None:
    sink = Sink(owner)
    for number in range(3):
        sink.commit(number, sink.stage(rows(10 * number, 10 * (number + 1))))
    assert staged_rows(owner) == 30
    large = [(key, "x" * commits.KEPT_BYTES) for key, _ in rows(0, 5)]
    sink.commit(3, sink.stage(large))
    assert staged_rows(owner) == 0
    assert values(owner) == once(0, 30) + Counter([value for _, value in large])


def test_staged_rows_that_are_gone_fail_the_batch(owner: Owner) -> None:
    sink = Sink(owner)
    staged = sink.stage(rows(0, 10))
    [tp] = [TopicPartition(staged[0].staging, n) for n in list(staged[0].ranges)[:1]]
    owner.delete_records(tp, -1)
    with pytest.raises(OffsetOutOfRange):
        sink.commit(0, staged)
    owner.delete_topic(staged[0].staging)
    with pytest.raises((OffsetOutOfRange, UnknownTopic)):
        sink.commit(0, staged)
    assert values(owner) == Counter()


def test_partitions_and_columns_that_are_added_during_a_query_are_used(owner: Owner) -> None:
    sink = Sink(owner)
    sink.commit(0, sink.stage(rows(0, 10)))
    owner.alter_topic("t", partitions=5)
    sink.commit(1, sink.stage(rows(10, 20)))
    assert values(owner) == once(0, 20)


def test_a_damaged_number_is_named(owner: Owner) -> None:
    sink = Sink(owner)
    sink.commit(0, [])
    for value, kind in [
        (b"{", CorruptLog),
        (b'{"batch":1,"query":"q","at":1,"version":9}', FutureFormat),
    ]:
        with Producer(owner) as producer:
            producer.send(TOPIC, value, key="s")
        with pytest.raises(kind, match="last batch of sink 's'"):
            sink.commit(1, [])


# Staging ----------------------------------------------------------------------------------


def test_old_times_do_not_make_staged_rows_expire(owner: Owner) -> None:
    sink = Sink(owner, timestamp="timestamp")
    stager = staging.Stager(owner, sink.options, sink.name, owner.topic("t"))
    times = pa.array([86_400_000], pa.timestamp("ms", "UTC"))
    stager.write(pa.record_batch({"value": pa.array(["v0"]), "timestamp": times}))
    staged = stager.finish()
    assert owner.topic(staged[0].staging).effective.retention_ms == -1
    sink.commit(0, staged)
    assert values(owner) == once(0, 1)


class AbortsJob:
    """A broker of a task whose job is aborted after one of its calls.

    Args:
        owner: The log.
        name: Name of the job's sink.
        call: Number of the call, from 0 on.
    """

    def __init__(self, owner: Owner, name: SinkName, call: int) -> None:
        self._owner = owner
        self._name = name
        self._left = call

    @property
    def is_aborted(self) -> bool:
        """True if the job was aborted."""
        return self._left < 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._owner, name)
        return self._aborting(attribute) if callable(attribute) else attribute

    def _aborting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            found = call(*args, **named)
            if self._left == 0:
                SinkCommit(self._owner, "", self._name).abort()
            self._left -= 1
            return found

        return counted


def test_a_task_that_outlives_its_job_leaves_no_staging_topic() -> None:
    for call in range(100):
        with closing(Owner(MemoryStorage(), background=False)) as owner:
            owner.create_topic("t", 2)
            job, target = Sink(owner, query=""), owner.topic("t")
            staging.create(owner, job.name, target)
            owner.alter_topic("t", {"max.message.bytes": "9999999"}, partitions=3)
            broker = AbortsJob(owner, job.name, call)
            stager = staging.Stager(cast("Broker", broker), job.options, job.name, target)
            with suppress(StrandlineError):
                stager.write(pa.record_batch({"value": ["v0"]}))
                stager.finish()
            if not broker.is_aborted:
                assert call > 2
                break
            assert not [topic for topic in owner.topics() if topic.name.startswith(PREFIX)]


@pytest.mark.usefixtures("deletes_at_once")
def test_what_lost_drivers_have_left_is_deleted_by_later_writes(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, stream = Sink(owner, "lost", query=""), Sink(owner, "other", "other")
    lost.stage(rows(0, 10))
    stream.commit(0, stream.stage(rows(10, 20)))
    job = Sink(owner, "now", query="")
    job.commit(None, job.stage(rows(20, 30)))
    assert staged_rows(owner) == 10
    monkeypatch.setattr(staging, "JOB_LIFETIME_MS", -1000)
    later = Sink(owner, "later", query="")
    later.commit(None, later.stage(rows(30, 40)))
    left = {topic.name for topic in owner.topics() if topic.name.startswith(PREFIX)}
    assert left == {stream.name.topic(owner.topic("t"))}


def test_a_failure_to_clean_up_does_not_fail_a_commit(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(commits, "KEPT_BYTES", 0)
    sink = Sink(owner)
    staged = sink.stage(rows(0, 10))
    with monkeypatch.context() as during:
        during.setattr(owner, "delete_records", unavailable)
        assert sink.commit(0, staged)
    assert "deleted by the next commit" in caplog.text
    sink.commit(1, sink.stage(rows(10, 20)))
    assert values(owner) == once(0, 20)
    assert staged_rows(owner) == 0


def test_staging_topics_of_one_sink_and_target_have_one_name() -> None:
    with closing(Owner(MemoryStorage(), background=False)) as owner:
        topic = owner.create_topic("x" * 240)
        name = SinkName.of_stream("sink" * 200)
        assert name.topic(topic) == SinkName.of_stream("sink" * 200).topic(topic)
        assert len(name.topic(topic)) < 100
        assert SinkName.of_job().topic(topic) != SinkName.of_job().topic(topic)


# Replacing --------------------------------------------------------------------------------


def table(broker: Broker) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for batch in batches(broker, "t"):
        for record in batch.records():
            found[record.key.decode()] = record.value and record.value.decode()
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture
def compacted(owner: Owner) -> Owner:
    owner.alter_topic("t", {"cleanup.policy": "compact"})
    return owner


def test_a_replacement_upserts_its_keys_and_deletes_the_others(compacted: Owner) -> None:
    sink = Sink(compacted)
    sink.commit(0, sink.stage([("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]), replace=True)
    sink.commit(1, sink.stage([("b", "2"), ("e", "2")]), replace=True)
    assert table(compacted) == {"b": "2", "e": "2"}
    before = sum(values(compacted).values())
    sink.commit(2, sink.stage([("b", "3")]), replace=True)
    assert sum(values(compacted).values()) == before + 2  # one value, one tombstone
    sink.commit(3, [], replace=True)
    assert table(compacted) == {}


def test_a_row_without_a_key_is_refused_by_a_compacted_topic(compacted: Owner) -> None:
    with pytest.raises(InvalidRecord, match="its records need keys"):
        Sink(compacted).stage([("a", "1"), (None, "2")])
