"""The broker that tests share.

It is started by the first test that requests it, or is the one that STRANDLINE_TEST_KAFKA names
(host:port). These tests are skipped if confluent-kafka or Java is missing; with CI=true they fail.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple, NoReturn

import pytest

from benchmarks.kafka_broker import CLIENTS, BrokerProcess, cluster
from tests.kafka.security import LISTENERS, Secured

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.state.log.num.partitions": "4",
}
SOON_NOTICED = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""Settings with which a dead or frozen broker soon loses its leaderships."""


class Running(NamedTuple):
    """A Kafka broker."""

    url: str
    broker: BrokerProcess | None
    """Broker started here; None if STRANDLINE_TEST_KAFKA names one."""
    secured: Secured | None = None
    """Secured listeners; None if STRANDLINE_TEST_KAFKA names a broker."""


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The broker that all tests share."""
    _require_client()
    if address := os.environ.get("STRANDLINE_TEST_KAFKA"):
        yield Running(f"kafka://{address}", None)
        return
    folder = tmp_path_factory.mktemp("kafka")
    with ExitStack() as stack:
        try:
            secured = Secured(folder)
            [only] = stack.enter_context(
                cluster(
                    folder / "one",
                    1,
                    {**SETTINGS, **secured.settings},
                    listeners=(CLIENTS, *LISTENERS),
                )
            )
        except FileNotFoundError as error:
            _missing(str(error))
        yield Running(f"kafka://{only.address}", only, secured)


@pytest.fixture
def kafka(running: Running) -> str:
    """URL of the broker."""
    return running.url


_names = itertools.count()


@pytest.fixture
def name() -> str:
    """An unused name for a topic, a group or a producer."""
    return f"test-{os.getpid()}-{next(_names)}"


@pytest.fixture
def now() -> int:
    """Milliseconds since the epoch, a minute ago, so that slightly later times are not in the
    future."""
    return int(time.time() * 1000) - 60_000


def _require_client() -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        _missing("the package confluent-kafka is not installed")


def _missing(why: str) -> NoReturn:
    """Skip the test, or fail if CI=true, because Kafka is missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}, and CI=true asks for all systems")
    pytest.skip(why)
