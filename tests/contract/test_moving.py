"""A moved log has the same records in the same order, and every group at the same position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidRequest, TopicExists
from strandline.changelog.log import Log
from strandline.changelog.moving import MovedLog, MoveReport, Selection, move, verify_only
from strandline.changelog.moving.reading import committed_in
from strandline.changelog.records import CommittedOffset, TopicPartition

HUGE = 3 << 20

Eventually = Callable[..., None]


class Logs(NamedTuple):
    """A log to move from, and a log to move to."""

    source: Log
    target: Log
    places: tuple[MovedLog, MovedLog]

    def move(self, topic: str) -> MoveReport:
        """Move a topic and the groups of this test, but not groups of other tests on the same
        brokers."""
        groups = [group for group in self.source.broker.groups() if group.startswith(topic)]
        return move(*self.places, Selection([topic], groups))


@pytest.fixture(params=["folder to folder", "folder to kafka", "kafka to folder"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Logs]:
    """Two logs of the parametrized kinds."""
    urls = [
        str(tmp_path / f"log {number}") if kind == "folder" else request.getfixturevalue("kafka")
        for number, kind in enumerate(request.param.split(" to "))
    ]
    with changelog.open(urls[0]) as source, changelog.open(urls[1]) as target:
        yield Logs(
            source, target, (MovedLog(urls[0], source.broker), MovedLog(urls[1], target.broker))
        )


def filled(log: Log, topic: str, now: int) -> None:
    """Fill a topic with every kind of gap, and every kind of record."""
    log.create_topic(topic, 4, config={"max.message.bytes": str(2 * HUGE)})
    producer = log.producer(transactional_id=f"of {topic}")

    def send(partition: int, value: bytes | None, key: bytes | None = b"k", **more: Any) -> None:
        now_ms = now + len(value or b"")
        producer.send(topic, value, key, partition=partition, timestamp=now_ms, **more)

    for n in range(4):
        with producer.transaction():
            send(0, b"kept %d" % n)
            send(1, None, b"deleted")
            send(1, b"", b"")
        producer.begin_transaction()
        send(0, b"never")
        send(1, b"never")
        producer.flush()
        producer.abort_transaction()
    with producer.transaction():
        send(0, b"without a key", None)
        send(1, b"h", headers=[("a", b"1"), ("a", None), ("ä", b"")])
        send(1, b"\xff" * HUGE, None)
        for n in range(5):
            send(2, b"%d" % n, b"%d" % n)
    producer.close()


def deleted_before(log: Log, tp: TopicPartition, offset: int) -> None:
    log.broker.delete_records(tp, offset)


def content(log: Log, topic: str) -> list[dict[str, Any]]:
    """Return all but the offsets. No headers and an empty list of them are equal."""
    rows: list[dict[str, Any]] = log.read(topic).drop_columns(["offset"]).to_pylist()
    return [{**row, "headers": row.get("headers") or []} for row in rows]


def positions(log: Log, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in range(log.topic(topic).partitions)]


def committed(log: Log, group: str) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of a group. On Kafka a commit may take a moment to show."""
    return committed_in(log.broker, [group], [t.name for t in log.topics()], SystemClock())[group]


def left(rows: list[dict[str, Any]], tp: TopicPartition, offset: int) -> list[bytes | None]:
    """Return the values, of these rows, that a group at this position has still to read."""
    mine = [row for row in rows if row["partition"] == tp.partition]
    return [row["value"] for row in mine if row["offset"] >= offset]


def test_records_are_the_same_and_every_position_is_before_the_same_record(
    logs: Logs, name: str, now: int
) -> None:
    filled(logs.source, name, now)
    deleted_before(logs.source, TopicPartition(name, 2), 2)
    ends = logs.source.broker.offsets(positions(logs.source, name))
    furthest = max(end.last_stable_offset for end in ends.values())
    for at in range(furthest + 1):
        offsets = {
            tp: CommittedOffset(at, f"was {at}")
            for tp, end in ends.items()
            if end.log_start <= at <= end.last_stable_offset
        }
        if offsets:
            logs.source.broker.commit_offsets(f"{name}-{at}", offsets)
    report = logs.move(name)
    assert content(logs.target, name) == content(logs.source, name)
    [topic] = report.topics
    assert (topic.records, report.copied) == (len(logs.source.read(name)),) * 2
    compared, here_rows, there_rows = (
        0,
        *(log.read(name).to_pylist() for log in (logs.source, logs.target)),
    )
    for at in range(furthest + 1):
        here = committed(logs.source, f"{name}-{at}")
        there = committed(logs.target, f"{name}-{at}")
        assert there.keys() == here.keys()
        for tp, offset in there.items():
            assert left(there_rows, tp, offset.offset) == left(here_rows, tp, here[tp].offset)
            assert offset.metadata == f"was {at}"
            compared += 1
    assert compared > 2 * furthest


def test_moving_again_copies_only_new_records(logs: Logs, name: str) -> None:
    logs.source.create_topic(name, 2)
    logs.source.append(name, [{"key": b"%d" % n, "value": b"first"} for n in range(20)])
    group, tp = f"{name}-group", TopicPartition(name, 0)
    logs.source.broker.commit_offsets(group, {tp: CommittedOffset(1)})
    assert logs.move(name).copied == 20
    assert logs.move(name).copied == 0
    logs.source.append(name, [{"key": b"%d" % n, "value": b"second"} for n in range(20)])
    end = logs.source.offsets(name)[0].last_stable_offset
    logs.source.broker.commit_offsets(group, {tp: CommittedOffset(end)})
    assert logs.move(name).copied == 20
    assert content(logs.target, name) == content(logs.source, name)
    offset = committed(logs.target, group)[tp].offset
    assert left(logs.target.read(name).to_pylist(), tp, offset) == []
    verify_only(*logs.places, Selection([name]))


def test_a_topic_gets_its_settings_after_the_comparison(logs: Logs, name: str) -> None:
    given = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "86400000",
        "segment.bytes": str(2 << 20),
        "message.timestamp.type": "LogAppendTime",
    }
    logs.source.create_topic(name, config=given)
    logs.source.append(name, [{"key": b"a", "value": b"1"}])
    [topic] = logs.move(name).topics
    assert topic.left_out == {}
    had, has = (log.topic(name).effective for log in (logs.source, logs.target))
    assert {key: logs.target.topic(name).config.get(key) for key in given} == given
    assert (has.max_message_bytes, has.delete_retention_ms) == (
        had.max_message_bytes,
        had.delete_retention_ms,
    )
    assert content(logs.target, name) == content(logs.source, name)


def test_topics_in_use_in_the_source_are_not_moved(
    logs: Logs, name: str, eventually: Eventually
) -> None:
    logs.source.create_topic(name)
    logs.source.append(name, [{"value": b"1"}])
    group = f"{name}-group"
    with logs.source.consumer(group=group) as consumer:
        consumer.subscribe([name])
        eventually(lambda: consumer.poll(0.1), what="that it reads")
        consumer.commit()
        with pytest.raises(InvalidRequest, match=f"'{group}' has members"):
            logs.move(name)
    assert name not in [info.name for info in logs.target.topics()]
    assert logs.move(name).copied == 1


def test_topics_in_use_in_the_target_are_not_changed(logs: Logs, name: str) -> None:
    logs.target.create_topic(name)
    logs.source.create_topic(name)
    logs.source.append(name, [{"value": b"moved"}])
    with pytest.raises(TopicExists, match="exists and is not a copy"):
        logs.move(name)
    logs.target.delete_topic(name)
    group, tp = f"{name}-group", TopicPartition(name, 0)
    logs.source.broker.commit_offsets(group, {tp: CommittedOffset(0)})
    logs.move(name)
    logs.target.broker.commit_offsets(group, {tp: CommittedOffset(1)})
    with pytest.raises(InvalidRequest, match="continued in the target"):
        logs.move(name)
    logs.target.append(name, [{"value": b"new"}])
    with pytest.raises(InvalidRequest, match="it is in use"):
        logs.move(name)
    assert [row["value"] for row in content(logs.target, name)] == [b"moved", b"new"]
    assert committed(logs.target, group)[tp].offset == 1
    verify_only(*logs.places, Selection([name]))


def test_settings_that_a_cluster_refuses_are_named(kafka: str, name: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    with changelog.open(folder) as here, changelog.open(kafka) as there:
        given = {"segment.bytes": "65536", "segment.ms": "3600000", "cleanup.policy": "compact"}
        here.create_topic(name, config=given)
        report = move(
            MovedLog(folder, here.broker),
            MovedLog(kafka, there.broker),
            Selection([name], ["nobody"]),
        )
        [topic] = report.topics
        assert list(topic.left_out) == ["segment.bytes"]
        config = there.topic(name).config
        assert config["segment.ms"] == "3600000"
        assert config["cleanup.policy"] == "compact"
