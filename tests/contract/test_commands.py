"""Commands print the right results on every system that can hold the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.cli.conftest import Command, strandline
from tests.systems import System

__all__ = ["strandline"]


@pytest.fixture
def folder(system: System) -> Path | str:
    """The log that commands use."""
    return system.url


@pytest.mark.long_on_kafka
def test_reset_shows_its_plan_only_if_no_worker_runs(
    strandline: Command, log: Log, first: TopicPartition, name: str, eventually: Callable[..., None]
) -> None:
    log.broker.commit_offsets(name, {first: CommittedOffset(0)})
    with log.consumer(group=name) as member:
        member.subscribe(first.topic)
        eventually(lambda: [member.poll(0), member.assignment][1], what="an assignment")
        refused = strandline("reset", name, "--yes")
        assert refused.code == 1
        assert f"app '{name}' is running" in refused.err
        assert "on Kafka, or with STRANDLINE_INSTANCE set" in refused.err
        assert "forget" not in refused.err
    eventually(lambda: not log.broker.describe_group(name).members, what="its leaving")
    done = strandline("reset", name, "--yes")
    assert (done.code, f"forget 1 committed offsets in {first.topic}" in done.err) == (0, True)


def shown(command: Command, topic: str) -> dict[str, tuple[str, str]]:
    """Return value and source of each setting."""
    rows = command("config", "show", topic, "--json").json
    return {row["name"]: (row["value"], row["source"]) for row in rows}


def test_a_setting_is_shown_with_its_source(
    strandline: Command, log: Log, system: System, topic: str
) -> None:
    strandline("topics", "alter", topic, "--config", "retention.ms=86400000")
    rows = shown(strandline, topic)
    assert rows["retention.ms"] == ("86400000", "topic")
    assert {source for _, source in rows.values()} == {"topic", "default"}
    default = "producer" if system.name == "kafka" else "none"
    assert rows["compression.type"] == (default, "default")
    described = strandline("topics", "describe", topic, "--json").json
    assert described["effective_config"]["compression.type"] == default
    assert (described["config"], described["log_defaults"]) == ({"retention.ms": "86400000"}, {})
    strandline("topics", "alter", topic, "--config", "compression.type=none")
    assert shown(strandline, topic)["compression.type"] == ("none", "topic")


def test_the_source_of_a_cluster_wide_setting_is_the_log(
    strandline: Command, system: System, log: Log, topic: str, eventually: Callable[..., None]
) -> None:
    if system.name == "embedded":
        log.alter_config({"log.cleaner.delete.retention.ms": "1000"})
        assert shown(strandline, topic)["delete.retention.ms"] == ("1000", "log")
        return
    with set_for_all_brokers(system.url, "log.cleaner.delete.retention.ms", "1000"):
        eventually(lambda: shown(strandline, topic)["delete.retention.ms"] == ("1000", "log"))


@contextmanager
def set_for_all_brokers(url: str, name: str, value: str) -> Iterator[None]:
    """Set a cluster-wide setting until the end of the block."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": url.removeprefix("kafka://")})

    def alter(operation: Any, value: str | None) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        brokers = [
            ConfigResource(ResourceType.BROKER, str(number), incremental_configs=[entry])
            for number in admin.list_topics(timeout=30).brokers
        ]
        for done in admin.incremental_alter_configs(brokers).values():
            done.result(30)

    alter(AlterConfigOpType.SET, value)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE, None)


def test_a_setting_of_kafka_alone_is_shown_once_it_is_set(
    strandline: Command, system: System, topic: str
) -> None:
    outcome = strandline("topics", "alter", topic, "--config", "min.insync.replicas=1")
    if system.name == "embedded":
        assert "no topic setting is called 'min.insync.replicas'" in outcome.err
    else:
        assert shown(strandline, topic)["min.insync.replicas"] == ("1", "topic")


def record(**fields: object) -> str:
    return msgspec.json.encode({"value": "x", **fields}).decode()


def test_produce_names_a_line_that_cannot_be_sent_and_the_lines_before_it_are_produced(
    strandline: Command, log: Log, system: System, topic: str, now: int
) -> None:
    wrong = 0 if system.name == "kafka" else -1
    lines = [record(timestamp=now), record(timestamp=wrong), record(timestamp=now)]
    outcome = strandline("produce", topic, stdin="\n".join(lines))
    assert outcome.code == 1
    assert outcome.err.startswith(f"InvalidRecord: line 2: topic {topic!r}: a timestamp is ms")
    assert f"got {wrong} (the lines before it are in)" in outcome.err
    assert len(log.read(topic)) == 1


def test_produce_names_the_first_line_that_the_log_refuses(
    strandline: Command, log: Log, topic: str, now: int
) -> None:
    strandline("topics", "alter", topic, "--config", "message.timestamp.after.max.ms=3600000")
    far = record(timestamp=now + 86_400_000, partition=1)
    lines = [record(timestamp=now, partition=0), far, record(timestamp=now, partition=0)]
    outcome = strandline("produce", topic, stdin="\n".join(lines))
    assert outcome.code == 1
    assert outcome.err.startswith("InvalidRecord: line 2, or one sent with it: ")
    assert "(the lines before it are in)" in outcome.err
    assert len(log.read(topic)) == 2


def test_the_error_about_cluster_settings_names_the_right_way(
    strandline: Command, system: System, name: str
) -> None:
    def refusal(setting: str) -> str:
        outcome = strandline("topics", "create", name, "--config", setting)
        assert outcome.code == 1
        return outcome.err

    if system.name == "kafka":
        assert "give it in the URL, as kafka://host?replication.factor=1" in refusal(
            "replication.factor=1"
        )
        assert "at least 1048576" in refusal("segment.bytes=1000")
    else:
        assert "no topic setting is called" in refusal("replication.factor=1")
        assert "from 4096" in refusal("segment.bytes=1000")


def test_deleting_a_missing_topic_does_not_suggest_creating_it(
    strandline: Command, log: Log, name: str
) -> None:
    outcome = strandline("topics", "delete", name, "--yes")
    assert outcome.code == 1
    assert "check the spelling, or create it if there shall be one" in outcome.err


OFFSETS = {"earliest": 0, "latest": 10, "4": 4, "-3": 7, "2026-01-01T00:00:00.005": 5, "99": 10}


@pytest.mark.parametrize("to", OFFSETS)
def test_a_group_is_reset_to_an_offset(
    strandline: Command, log: Log, first: TopicPartition, name: str, to: str
) -> None:
    fill(log, first)
    log.broker.commit_offsets(name, {first: CommittedOffset(2)})
    asked = strandline("groups", "reset", name, "--to", to)
    assert (asked.code, "nothing was changed" in asked.err) == (1, True)
    assert log.broker.committed(name)[first].offset == 2
    done = strandline("groups", "reset", name, "--to", to, "--yes", "--json").json
    expected = {"topic": first.topic, "partition": 0, "offset": 2, "new": OFFSETS[to]}
    assert expected in done["offsets"]
    assert log.broker.committed(name)[first].offset == OFFSETS[to]
    with log.consumer(group=name) as member:
        member.assign([first])
        assert member.position(first) == OFFSETS[to]


def test_only_a_chosen_topic_is_reset_even_if_the_group_is_new(
    strandline: Command, log: Log, first: TopicPartition, name: str
) -> None:
    fill(log, first)
    unknown = strandline("groups", "reset", name, "--to", "latest", "--yes")
    assert (unknown.code, "has committed offsets" in unknown.err) == (1, True)
    options = ("--to", "3", "--topic", first.topic, "--partition", "0", "--yes")
    assert strandline("groups", "reset", name, *options).code == 0
    assert {tp: at.offset for tp, at in log.broker.committed(name).items()} == {first: 3}


@pytest.mark.long_on_kafka
def test_a_group_with_members_is_not_reset(
    strandline: Command, log: Log, first: TopicPartition, name: str, eventually: Callable[..., None]
) -> None:
    fill(log, first)
    log.broker.commit_offsets(name, {first: CommittedOffset(2)})
    with log.consumer(group=name) as member:
        member.subscribe(first.topic)
        eventually(lambda: [member.poll(0), member.assignment][1], what="an assignment")
        refused = strandline("groups", "reset", name, "--to", "latest", "--yes")
        assert (refused.code, f"group '{name}' is running" in refused.err) == (1, True)
        assert log.broker.committed(name)[first].offset == 2


def fill(log: Log, first: TopicPartition) -> None:
    """Append ten records, one at each of the first milliseconds of 2026, and keep them."""
    log.alter_topic(first.topic, config={"retention.ms": "-1"})
    records = [{"value": b"x", "timestamp": 1_767_225_600_000 + at} for at in range(10)]
    log.append(first.topic, records, partition=first.partition)
