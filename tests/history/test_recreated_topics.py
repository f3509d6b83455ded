"""A topic that is deleted and created again, between two calls of a reader, is another topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.client.consumer import Consumer
from strandline.changelog.errors import OffsetOutOfRange, UnknownTopic
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.changelog.scan import scan_by, scan_kept

T0 = TopicPartition("t", 0)
OLD = 100


def create(log: Log, kind: str, count: int) -> None:
    """Create the topic with a number of records of a kind."""
    log.create_topic("t", partitions=1)
    log.append("t", [{"key": b"k", "value": f"{kind}-{n}".encode()} for n in range(count)])


def replace(log: Log, count: int) -> None:
    log.delete_topic("t")
    create(log, "new", count)


def values(consumer: Consumer) -> list[str]:
    """Return the next records' values, until there are no more."""
    return [record.value.decode() for record in consumer.records(timeout=0.2) if record.value]


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with changelog.open(tmp_path / "log") as log:
        create(log, "old", OLD)
        yield log


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("count", [OLD // 2, OLD, OLD + 50])
def test_a_consumer_reads_a_topic_that_was_created_again_from_its_start(
    log: Log, group: str | None, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with log.consumer(group=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"]) if group else consumer.assign([T0])
        assert len(values(consumer)) == OLD
        if group:
            consumer.commit()
        replace(log, count)
        with caplog.at_level(logging.WARNING, "strandline"):
            assert values(consumer) == [f"new-{n}" for n in range(count)]
        assert "deleted and created again; auto_offset_reset='earliest' applies" in caplog.text
        if group:
            consumer.commit()
            assert log.broker.committed("g", [T0])[T0].offset == count
        consumer._topics_checked_at = float("-inf")
        assert values(consumer) == [], "the next look at the topic must not begin again"


def test_a_consumer_without_a_policy_is_told_that_the_topic_is_another_one(log: Log) -> None:
    with log.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert len(values(consumer)) == OLD
        replace(log, OLD + 50)
        with pytest.raises(OffsetOutOfRange, match="has another history"):
            values(consumer)


KINDS = ["sync", "async", "batch", "stream"]


def declared(path: Path, kind: str, before_last: Any) -> tuple[sl.App, sl.Topic[Any, Any]]:
    """Return an app that copies a topic; at the old topic's last record it calls `before_last`."""
    app = sl.App("app", log=str(path / "log"), state_dir=path / "state")
    given, out = app.topic("t", value=bytes), app.topic("out", value=bytes)

    def copied(value: bytes) -> bytes:
        if value == b"old-%d" % (OLD - 1):
            before_last()
        return value

    if kind == "sync":

        @app.task(given)
        def sync_task(record: sl.Record[Any, bytes]) -> None:
            out.send(record.key, copied(record.value))

    elif kind == "async":

        @app.task(given, concurrency=3)
        async def async_task(record: sl.Record[Any, bytes]) -> None:
            out.send(record.key, copied(record.value))

    elif kind == "batch":

        @app.task(given, batch=True)
        def batch_task(batch: sl.Batch) -> None:
            for value in batch.to_arrow()["value"].to_pylist():
                out.send("k", copied(value))

    else:
        schema = pl.Schema({"value": pl.Binary})
        app.stream(given).map(lambda row: {"value": copied(row["value"])}, schema=schema).to(out)
    return app, out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [OLD // 2, OLD, OLD + 50])
def test_an_app_skips_nothing_of_a_topic_that_was_created_again(
    tmp_path: Path, kind: str, count: int
) -> None:
    """The run ends with an error, and the next one reads the new topic from its start."""
    with changelog.open(tmp_path / "log") as log:
        create(log, "old", OLD)
        replaced = []

        def replace_once() -> None:
            if not replaced:
                replaced.append(True)
                replace(log, count)

        app, out = declared(tmp_path, kind, replace_once)
        with app, pytest.raises((OffsetOutOfRange, UnknownTopic)):
            app.run(until="idle", progress=False)
        app, out = declared(tmp_path, kind, replace_once)
        with app:
            app.run(until="idle", progress=False)
            copied = out.to_polars()["value"].to_list()
        new = [value for value in copied if value.startswith(b"new")]
        assert new == [b"new-%d" % n for n in range(count)]
        check = log.broker.committed("app", [TopicPartition("t", 0)])
        assert check[T0].offset == count


def test_the_position_of_a_deleted_topic_is_none_of_the_next_one(log: Log) -> None:
    """Also if the new topic is longer, so that the offset is in it."""
    with log.consumer(group="g", auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        assert len(values(consumer)) == OLD
        replace(log, OLD + 50)
        consumer.commit()
    assert log.broker.committed("g", [T0]) == {}


@pytest.mark.parametrize("look", ["poll", "lag", "position", "end"])
def test_a_consumer_that_has_read_nothing_reads_the_new_topic(log: Log, look: str) -> None:
    """Also from offset 0, and from a committed offset that was only looked up."""
    log.create_topic("empty", partitions=1)
    topic = "empty" if look == "poll" else "t"
    tp = TopicPartition(topic, 0)
    log.broker.commit_offsets("g", {T0: CommittedOffset(OLD)})
    with log.consumer(group="g", auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        if look == "poll":
            assert consumer.poll(0.0) == []
        elif look == "lag":
            consumer.lag()
        elif look == "position":
            consumer.position(tp)
        else:
            consumer.seek_to_end()
        log.delete_topic(topic)
        log.create_topic(topic, partitions=1)
        log.append(topic, [{"key": b"k", "value": b"%d" % n} for n in range(OLD + 50)])
        assert len(values(consumer)) == OLD + 50
        consumer.commit()
        assert log.broker.committed("g", [tp])[tp].offset == OLD + 50


def test_an_app_at_the_start_of_its_input_does_not_go_on_in_a_new_topic(tmp_path: Path) -> None:
    """Its commits would count for the deleted topic, and the records be handled again."""
    with changelog.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=1)
        log.create_topic("other", partitions=1)
        replaced = list[bool]()

        def made() -> tuple[sl.App, sl.Topic[Any, Any]]:
            app = sl.App("app", log=str(tmp_path / "log"), state_dir=tmp_path / "state")
            out = app.topic("out", value=bytes)

            @app.task(app.topic("t", value=bytes))
            def copy(record: sl.Record[Any, bytes]) -> None:
                out.send("k", record.value)

            @app.task(app.topic("other", value=bytes))
            def block(record: sl.Record[Any, bytes]) -> None:
                if not replaced:
                    replaced.append(True)
                    replace(log, 50)

            return app, out

        log.append("other", [{"key": b"k", "value": b"x"}])
        app, out = made()
        with app, pytest.raises((OffsetOutOfRange, UnknownTopic)):
            app.run(until="idle", progress=False)
        for expected in (50, 50):
            app, out = made()
            with app:
                app.run(until="idle", progress=False)
                assert len(out.to_polars()) == expected


def test_an_app_that_starts_while_its_topic_is_replaced_reads_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is replaced after the look at the committed offset."""
    with changelog.open(tmp_path / "log") as log:
        create(log, "old", OLD)
        app, _ = declared(tmp_path, "sync", lambda: None)
        with app:
            assert app.run(until="idle", progress=False) == OLD
        app, out = declared(tmp_path, "sync", lambda: None)
        with app:
            broker, done = app.broker(), list[bool]()
            committed = type(broker).committed

            def committed_before(self: Any, *args: Any, **options: Any) -> Any:
                found = committed(self, *args, **options)
                if self is broker and not done and found:
                    done.append(True)
                    replace(log, OLD + 50)
                return found

            monkeypatch.setattr(type(broker), "committed", committed_before)
            app.run(until="idle", progress=False)
            new = [v for v in out.to_polars()["value"].to_list() if v.startswith(b"new")]
        assert done
        assert len(new) == OLD + 50


@pytest.mark.parametrize("count", [0, OLD // 2, OLD, OLD + 50])
@pytest.mark.parametrize("begun", [False, True])
def test_a_scan_of_a_topic_that_became_shorter_says_so(log: Log, count: int, begun: bool) -> None:
    """Also a scan that has read nothing of the old topic but its end."""

    def fetch(positions: Mapping[TopicPartition, int], _timeout: float) -> Any:
        return log.broker.fetch(positions, max_bytes=1)

    log.append("t", [{"key": b"k", "value": b"old"}] * OLD)
    scanning = scan_by(fetch, {T0: 0 if begun else OLD}, {T0: 2 * OLD})
    if begun:
        assert next(scanning)[T0].next_offset == OLD
    replace(log, count)
    is_before_its_position = count < OLD
    found = None if is_before_its_position else "deleted and created again"
    with pytest.raises(OffsetOutOfRange, match=found):
        list(scanning)


def test_a_scan_continues_after_records_that_were_deleted_meanwhile(log: Log) -> None:
    log.append("t", [{"value": b"old"}] * OLD, partition=0)
    scanning = scan_kept(log.broker, {T0: 0}, {T0: 2 * OLD}, max_bytes=1)
    log.broker.delete_records(T0, OLD + 10)
    offsets = [n for one in scanning for b in one[T0].batches for n in b.offsets.to_pylist()]
    assert offsets == list(range(OLD + 10, 2 * OLD))


def test_a_scan_that_skips_deleted_records_does_not_continue_in_another_topic(log: Log) -> None:
    log.append("t", [{"value": b"old"}] * OLD, partition=0)
    scanning = scan_kept(log.broker, {T0: OLD}, {T0: 2 * OLD})
    replace(log, OLD // 2)
    with pytest.raises(OffsetOutOfRange, match="recreated"):
        list(scanning)
