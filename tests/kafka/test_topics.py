"""Changes of one topic by several processes at the same time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.kafka.topics import KafkaTopics


def test_processes_may_add_the_same_partitions_at_the_same_time(
    kafka: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has described the topic before one of them changes it."""
    described = threading.Barrier(2)
    add = KafkaTopics._add_partitions

    def add_together(self: KafkaTopics, *given: Any) -> None:
        described.wait(30)
        add(self, *given)

    monkeypatch.setattr(KafkaTopics, "_add_partitions", add_together)
    found: list[Any] = []

    def grow(partitions: int) -> None:
        with changelog.open(kafka) as log:
            try:
                found.append(log.broker.alter_topic(name, partitions=partitions).partitions)
            except BaseException as error:
                found.append(error)

    with changelog.open(kafka) as log:
        log.create_topic(name, 2)
        both = [threading.Thread(target=grow, args=[4]) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join(60)
        assert found == [4, 4]
        assert log.broker.topic(name).partitions == 4
        with pytest.raises(InvalidConfig, match="cannot shrink"):
            log.broker.alter_topic(name, partitions=3)


def test_settings_are_recognized_however_kafka_writes_them(kafka: str, name: str) -> None:
    given = {
        "cleanup.policy": "delete, compact",
        "retention.ms": "+0600000",
        "min.cleanable.dirty.ratio": "0.250",
        "compression.type": "none",
    }
    with changelog.open(kafka) as log:
        log.create_topic(name, 1)
        effective = log.broker.alter_topic(name, config=given).effective
        assert effective.cleanup_policy == "compact,delete"
        assert (effective.retention_ms, effective.min_cleanable_dirty_ratio) == (600_000, 0.25)
        shown = {setting.name: setting.source for setting in log.broker.topic(name).settings()}
        assert all(shown[setting] == "topic" for setting in given)
        changed: dict[str, str | None] = {**given, "retention.ms": None}
        altered = log.broker.alter_topic(name, config=changed)
        assert "retention.ms" not in altered.config
