"""The same tests on every system that may hold a log: what they show is what `Broker` promises.

Kafka is a real broker ([brokers.py](../kafka/brokers.py)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import changelog
from changelog.log import Log
from changelog.records import TopicPartition


@dataclass
class System:
    """One system under test."""

    name: str
    url: str
    _opened: list[Log] = field(default_factory=list)

    def open(self) -> Log:
        """One more client, closed after the test."""
        self._opened.append(changelog.open(self.url))
        return self._opened[-1]

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()


@pytest.fixture(params=["embedded", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[System]:
    """Each system in turn."""
    name = str(request.param)
    url = request.getfixturevalue("kafka") if name == "kafka" else str(tmp_path / "log")
    tested = System(name, url)
    yield tested
    tested.close()


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
    """Its first partition."""
    return TopicPartition(topic, 0)


@pytest.fixture
def second(topic: str) -> TopicPartition:
    """Its second partition."""
    return TopicPartition(topic, 1)


@pytest.fixture
def groups_are_put_by_hand() -> bool:
    return True


@pytest.fixture
def sees(log: Log, eventually: Callable[..., None]) -> Callable[..., None]:
    """Wait until a topic has just these values, partition by partition, for read_committed.

    A transaction's end may take a moment to show (Kafka answers when it is decided).
    """

    def wait(topic: str, *values: bytes | None) -> None:
        got: list[bytes | None] = []

        def same() -> bool:
            got[:] = log.read(topic)["value"].to_pylist()
            return got == list(values)

        eventually(same, timeout=10, what=f"that {topic} has {values}, not {got},")

    return wait
