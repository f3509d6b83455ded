"""What librdkafka says of itself: how loud, how often, and what an error takes from it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import InvalidTopic, OwnerUnavailable, RequestTimedOut
from strandline.changelog.kafka.client_logs import (
    CAUSE_SECONDS,
    EVERY_SECONDS,
    QUIET_SECONDS,
    ClientLogs,
)
from strandline.changelog.kafka.failures import failure
from strandline.changelog.kafka.metadata_consumer import MetadataConsumers

REFUSED = (
    "db:9092/bootstrap: Connect to ipv4#10.0.0.7:9092 failed: Connection refused (after 0ms in "
    "state CONNECT)"
)
DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")


@pytest.fixture
def heard(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> ClientLogs:
    """That of a cluster which has answered before."""
    caplog.set_level(logging.DEBUG, "strandline.kafka")
    made = ClientLogs("kafka://db", logging.getLogger("strandline.kafka"), clock)
    made.met = True
    return made


def line(heard: ClientLogs, kind: str, text: str, level: int = logging.ERROR) -> None:
    heard.log(level, "%s [%s] %s", kind, "rdkafka#producer-1", f"[thrd:db:9092/1]: {text}")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_each_kind_is_said_once_and_then_as_a_sum(
    heard: ClientLogs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(274):
        line(heard, "FAIL", REFUSED)
        line(heard, "CLUSTERID", "Broker 1 reports different ClusterId", logging.WARNING)
    clock.advance(int(EVERY_SECONDS * 1000))
    line(heard, "FAIL", REFUSED)
    plain = (
        "kafka://db: librdkafka: FAIL: db:9092: Connect to 10.0.0.7:9092 failed: Connection refused"
    )
    assert said(caplog) == [
        ("INFO", plain),
        ("WARNING", "kafka://db: librdkafka: CLUSTERID: Broker 1 reports different ClusterId"),
        ("INFO", f"{plain} (and 273 before it)"),
    ]


@pytest.mark.parametrize("kind", ["TXNERR", "GETPID", "REQTMOUT", "SESSTMOUT", "FAIL"])
def test_what_it_mends_itself_is_no_warning(
    heard: ClientLogs, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    line(heard, kind, "Failed to acquire transactional PID: Coordinator load in progress: retrying")
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_what_has_ended_a_client_is_one_whatever_its_kind(
    heard: ClientLogs, caplog: pytest.LogCaptureFixture
) -> None:
    line(heard, "TXNERR", "Fatal transaction error: fenced", logging.CRITICAL)
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


def test_that_no_broker_answers_is_a_warning_with_its_cause(
    heard: ClientLogs, caplog: pytest.LogCaptureFixture
) -> None:
    heard.event(KafkaError(KafkaError._TRANSPORT, REFUSED))
    heard.event(DOWN)
    heard.event(DOWN)
    assert said(caplog) == [
        (
            "WARNING",
            (
                "kafka://db: no broker answers; the client goes on trying: db:9092: Connect to "
                "10.0.0.7:9092 failed: Connection refused"
            ),
        )
    ]


def test_that_no_broker_answers_is_old_when_one_has_just_now(
    heard: ClientLogs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that was not in use hands out what befell it long ago."""
    heard.answered()
    heard.event(DOWN)
    assert said(caplog) == []
    clock.advance(int(QUIET_SECONDS * 1000))
    heard.event(DOWN)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError._SSL])
def test_whom_the_cluster_does_not_let_in_any_more_hears_of_it(
    heard: ClientLogs, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    heard.event(
        KafkaError(code, "db:9092/1: SASL authentication error: gone (after 2ms in state AUTH)")
    )
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("db:9092: SASL authentication error: gone")


def test_before_the_first_answer_there_are_no_warnings(
    heard: ClientLogs, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening the log fails, and its error says why."""
    heard.met = False
    heard.event(KafkaError(KafkaError._TRANSPORT, REFUSED))
    heard.event(DOWN)
    line(heard, "CLUSTERID", "Broker 1 reports different ClusterId", logging.WARNING)
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_an_error_that_hides_its_cause_is_given_it(heard: ClientLogs, clock: ManualClock) -> None:
    heard.event(KafkaError(KafkaError._TRANSPORT, REFUSED))
    late = KafkaError(
        KafkaError._TIMED_OUT, "Failed while waiting for controller: Local: Timed out"
    )
    error = failure(late, "kafka://db: listing", heard.cause)
    assert isinstance(error, RequestTimedOut)
    assert "Timed out (db:9092: Connect to 10.0.0.7:9092 failed: Connection refused);" in str(error)
    other = failure(KafkaError(KafkaError.TOPIC_EXCEPTION, "no"), "kafka://db", heard.cause)
    assert isinstance(other, InvalidTopic)
    assert "refused" not in str(other)
    clock.advance(int(CAUSE_SECONDS * 1000) + 1)
    assert heard.cause == "", "it is another one by now"


def test_an_answer_is_noted_before_old_trouble_is_heard() -> None:
    """A consumer that nobody used during an outage tells of it at its next poll: it is no news then."""
    happened: list[str] = []

    class Idle:
        def poll(self, _: float) -> None:
            happened.append("polled")

    connection: Any = SimpleNamespace(
        client=lambda *_: Idle(), answered=lambda: happened.append("answered"), closed=False
    )
    asking = MetadataConsumers(connection)
    with asking.consumer("read_committed"):
        pass
    with pytest.raises(OwnerUnavailable), asking.consumer("read_committed"):
        raise OwnerUnavailable("no answer")
    assert happened == ["answered", "polled", "polled"]
