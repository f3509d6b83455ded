"""Messages of librdkafka: their levels, their frequency, and their use in errors."""

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
def client_logs(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> ClientLogs:
    """Log filter of a cluster that has answered before."""
    caplog.set_level(logging.DEBUG, "strandline.kafka")
    made = ClientLogs("kafka://db", logging.getLogger("strandline.kafka"), clock)
    made.met = True
    return made


def line(client_logs: ClientLogs, kind: str, text: str, level: int = logging.ERROR) -> None:
    client_logs.log(level, "%s [%s] %s", kind, "rdkafka#producer-1", f"[thrd:db:9092/1]: {text}")


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_each_kind_of_message_is_logged_once_and_then_summed_up(
    client_logs: ClientLogs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(274):
        line(client_logs, "FAIL", REFUSED)
        line(client_logs, "CLUSTERID", "Broker 1 reports different ClusterId", logging.WARNING)
    clock.advance(int(EVERY_SECONDS * 1000))
    line(client_logs, "FAIL", REFUSED)
    plain = (
        "kafka://db: librdkafka: FAIL: db:9092: Connect to 10.0.0.7:9092 failed: Connection refused"
    )
    assert logged(caplog) == [
        ("INFO", plain),
        ("WARNING", "kafka://db: librdkafka: CLUSTERID: Broker 1 reports different ClusterId"),
        ("INFO", f"{plain} (and 273 before it)"),
    ]


@pytest.mark.parametrize("kind", ["TXNERR", "GETPID", "REQTMOUT", "SESSTMOUT", "FAIL"])
def test_problems_that_librdkafka_solves_itself_are_no_warnings(
    client_logs: ClientLogs, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    line(
        client_logs,
        kind,
        "Failed to acquire transactional PID: Coordinator load in progress: retrying",
    )
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_fatal_errors_are_logged_as_critical(
    client_logs: ClientLogs, caplog: pytest.LogCaptureFixture
) -> None:
    line(client_logs, "TXNERR", "Fatal transaction error: epoch exhausted", logging.CRITICAL)
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


def test_a_producer_that_was_replaced_is_no_warning(
    client_logs: ClientLogs, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers that start together take one transactional id from each other, and go on."""
    text = "Fatal error: Local: This instance has been fenced by a newer instance"
    line(client_logs, "FATAL", text, logging.CRITICAL)
    client_logs.event(KafkaError(KafkaError._FATAL, text, fatal=True))
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_an_unreachable_cluster_is_a_warning_with_its_cause(
    client_logs: ClientLogs, caplog: pytest.LogCaptureFixture
) -> None:
    client_logs.event(KafkaError(KafkaError._TRANSPORT, REFUSED))
    client_logs.event(DOWN)
    client_logs.event(DOWN)
    assert logged(caplog) == [
        (
            "WARNING",
            (
                "kafka://db: no broker answers; the client goes on trying: db:9092: Connect to "
                "10.0.0.7:9092 failed: Connection refused"
            ),
        )
    ]


def test_an_unreachable_cluster_is_not_logged_right_after_an_answer(
    client_logs: ClientLogs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that was not in use reports old events late."""
    client_logs.answered()
    client_logs.event(DOWN)
    assert logged(caplog) == []
    clock.advance(int(QUIET_SECONDS * 1000))
    client_logs.event(DOWN)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError._SSL])
def test_a_failed_authentication_is_a_warning(
    client_logs: ClientLogs, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    client_logs.event(
        KafkaError(code, "db:9092/1: SASL authentication error: gone (after 2ms in state AUTH)")
    )
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("db:9092: SASL authentication error: gone")


def test_before_the_first_answer_there_are_no_warnings(
    client_logs: ClientLogs, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening the log fails, and its error has the reason."""
    client_logs.met = False
    client_logs.event(KafkaError(KafkaError._TRANSPORT, REFUSED))
    client_logs.event(DOWN)
    line(client_logs, "CLUSTERID", "Broker 1 reports different ClusterId", logging.WARNING)
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_an_error_without_its_cause_gets_the_logged_one(
    client_logs: ClientLogs, clock: ManualClock
) -> None:
    client_logs.event(KafkaError(KafkaError._TRANSPORT, REFUSED))
    late = KafkaError(
        KafkaError._TIMED_OUT, "Failed while waiting for controller: Local: Timed out"
    )
    error = failure(late, "kafka://db: listing", client_logs.cause)
    assert isinstance(error, RequestTimedOut)
    assert "Timed out (db:9092: Connect to 10.0.0.7:9092 failed: Connection refused);" in str(error)
    other = failure(KafkaError(KafkaError.TOPIC_EXCEPTION, "no"), "kafka://db", client_logs.cause)
    assert isinstance(other, InvalidTopic)
    assert "refused" not in str(other)
    clock.advance(int(CAUSE_SECONDS * 1000) + 1)
    assert client_logs.cause == "", "it is another one by now"


def test_an_answer_is_registered_before_old_events_are_polled() -> None:
    """A consumer that was idle during an outage reports it at its next poll, when it is over."""
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
