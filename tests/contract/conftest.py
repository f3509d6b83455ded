"""Fixtures of tests that run on every system that can hold a log: the contract of `Broker`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from tests.systems import System


@pytest.fixture
def log(system: System) -> Log:
    """An open log."""
    return system.open()


@pytest.fixture
def topic(log: Log, name: str) -> str:
    """A topic of two partitions."""
    return log.create_topic(name, 2).name


@pytest.fixture
def first(topic: str) -> TopicPartition:
    """First partition of the topic."""
    return TopicPartition(topic, 0)


@pytest.fixture
def second(topic: str) -> TopicPartition:
    """Second partition of the topic."""
    return TopicPartition(topic, 1)


@pytest.fixture
def offsets_may_exceed_the_end() -> bool:
    return True


@pytest.fixture
def sees(log: Log, eventually: Callable[..., None]) -> Callable[..., None]:
    """Function that waits until a topic has exactly these values for read_committed, by partition.

    The end of a transaction may take a moment to become visible: Kafka answers once it is decided.
    """

    def wait(topic: str, *values: bytes | None) -> None:
        got: list[bytes | None] = []

        def same() -> bool:
            got[:] = log.read(topic)["value"].to_pylist()
            return got == list(values)

        eventually(same, timeout=10, what=f"that {topic} has {values}, not {got},")

    return wait


@pytest.fixture
def fresh_shapes(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client of Kafka ask for a topic's id each time, instead of once in five seconds."""
    if system.is_kafka:
        from strandline.changelog.kafka import topics

        monkeypatch.setattr(topics, "SHAPE_MAX_AGE_S", 0.0)
