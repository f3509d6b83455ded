"""The same tests on every system that may hold a log: what they show is what `Broker` promises.

Kafka: a real broker, started once (`benchmarks/kafka_broker.py`), or the one that the variable
STRANDLINE_KAFKA names (host:port). Where confluent-kafka or Java is missing these tests are
skipped; with CI=true they fail.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

import changelog
from changelog.log import Log
from changelog.records import TopicPartition

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "num.partitions": "1",
    "group.min.session.timeout.ms": "500",
}


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


class Running(NamedTuple):
    """A broker of Kafka's."""

    url: str
    process: int | None
    """Its process id, if it is ours."""


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The broker that all tests share."""
    if importlib.util.find_spec("confluent_kafka") is None:
        _missing("the package confluent-kafka is not installed")
    if address := os.environ.get("STRANDLINE_KAFKA"):
        yield Running(f"kafka://{address}", None)
        return
    from benchmarks.kafka_broker import broker

    core = min(os.sched_getaffinity(0))
    with ExitStack() as closing:
        folder = tmp_path_factory.mktemp("kafka") / "broker"
        try:
            started = closing.enter_context(broker(folder, core, SETTINGS))
        except FileNotFoundError as error:
            _missing(str(error))
        yield Running(f"kafka://{started.address}", started.process.pid)


@pytest.fixture
def kafka(running: Running) -> str:
    """The URL of a broker."""
    return running.url


def _missing(why: str) -> NoReturn:
    """Without Kafka there is nothing to compare with: a reason to skip, but not where it counts."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}, and CI=true asks for all systems")
    pytest.skip(why)


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


_names = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that nobody has used, for a topic, a group or a producer."""
    return f"test-{os.getpid()}-{next(_names)}"


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
def now() -> int:
    """Milliseconds since 1970; a minute ago, so that later ones are no future."""
    return int(time.time() * 1000) - 60_000


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
