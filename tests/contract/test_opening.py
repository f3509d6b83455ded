"""Opening a log on a Kafka cluster: its URL, and the errors when it cannot be opened."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, MissingDependency, OwnerUnavailable
from strandline.changelog.kafka.address import OURS, parse_url
from strandline.changelog.location import shown


def test_a_url_names_servers_and_properties() -> None:
    cluster = parse_url("kafka://a:1,b,[::1]:2?sasl.username=me&sasl.password=p%40ss")
    assert cluster.name == "kafka://a:1,b,[::1]:2"
    assert cluster.properties == {
        "bootstrap.servers": "a:1,b:9092,[::1]:2",
        "sasl.username": "me",
    }
    assert {name: value.reveal() for name, value in cluster.secrets.items()} == {
        "sasl.password": "p@ss"
    }
    assert parse_url("kafka://a?replication.factor=3").replication_factor == 3


@pytest.mark.parametrize(
    "url",
    [
        "kafka://",
        "kafka://a,,b",
        "kafka://a:port",
        "kafka://a/topic",
        "kafka://me:hunter2@a:1",
        "kafka://a?acks=0",
        "kafka://a?linger.ms=5",
        "kafka://a?enable.idempotence=false",
        "kafka://a?replication.factor=none",
        "kafka://a?group.id=shop",
    ],
)
def test_an_implausible_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_url(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("group.id=foo", r"group\.id is set .*the name of the app is its group"),
        ("session.timeout.ms=9", r"session_timeout_ms=…\), and App\(…\) likewise"),
        ("acks=1", "order, atomicity and isolation stand on it"),
    ],
)
def test_a_property_set_by_strandline_is_refused_with_the_alternative(
    given: str, says: str
) -> None:
    with pytest.raises(InvalidConfig, match=says):
        parse_url(f"kafka://a?{given}")


def test_no_property_of_the_url_is_overruled_silently(
    kafka: str, name: str, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    """Properties that Strandline sets itself cannot be set in the URL."""
    from strandline.changelog.kafka import connection

    own: set[str] = set()
    made = connection.KafkaConnection.client

    def client(self: connection.KafkaConnection, kind: Any, properties: Any) -> Any:
        own.update(properties)
        return made(self, kind, properties)

    monkeypatch.setattr(connection.KafkaConnection, "client", client)
    with changelog.open(kafka) as log:
        log.create_topic(name)
        log.append(name, [{"value": b"a"}])
        with (
            log.consumer(group=name, instance="one") as consumer,
            log.producer(transactional_id=name) as producer,
        ):
            consumer.subscribe(name)
            eventually(lambda: [consumer.poll(0), consumer.assignment][1])
            with producer.transaction():
                producer.send(name, b"b")
                producer.send_offsets_to_transaction(consumer.positions(), consumer.member)
            consumer.commit()
    passed_on = {"message.timeout.ms", "client.id"}
    assert own - passed_on <= set(OURS)
    assert own >= {"group.id", "group.instance.id", "transactional.id", "linger.ms"}


@pytest.mark.parametrize("which", ["ssl.ca.location", "ssl.certificate.location"])
def test_a_missing_file_is_named(which: str) -> None:
    with pytest.raises(
        InvalidConfig, match=rf"kafka://a: {which} names no/such\.pem, which is not"
    ):
        changelog.open(f"kafka://a?security.protocol=SSL&{which}=no/such.pem")


def test_secrets_are_not_shown() -> None:
    url = "kafka://a?sasl.password=hunter2"
    assert "hunter2" not in repr(parse_url(url))
    assert shown(url) == "kafka://a"


def test_the_error_about_a_missing_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("strandline.changelog.kafka.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingDependency, match=r"pip install 'strandline\[kafka\]'"):
        changelog.open("kafka://127.0.0.1:1")


def test_a_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluent_kafka.libversion", lambda: ("2.15.1", 0x020F01FF))
    with pytest.raises(
        MissingDependency, match=r"2\.16\.0 or later.* contains 2\.15\.1: pip install"
    ):
        changelog.open("kafka://127.0.0.1:1")


def test_an_unknown_property_is_named(kafka: str) -> None:
    with pytest.raises(InvalidConfig, match=r"no\.such\.thing"):
        changelog.open(f"{kafka}?no.such.thing=1")


@pytest.mark.parametrize(
    ("servers", "why"),
    [("127.0.0.1:1", "Connection refused"), ("nowhere.invalid:9092", "Failed to resolve")],
)
def test_an_unreachable_cluster_is_reported_in_time_with_the_reason(
    kafka: str,
    servers: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from strandline.changelog.kafka import connection

    monkeypatch.setattr(connection, "MEET_S", 0.5)
    clock = SystemClock()
    begun = clock.monotonic()
    said = rf"kafka://{servers}: no broker answers: {servers}: .*{why}.*brokers run"
    with pytest.raises(OwnerUnavailable, match=said):
        changelog.open(f"kafka://{servers}?sasl.password=hunter2")
    assert clock.monotonic() - begun < 5
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.config(),
        lambda log: log.alter_config({"log.retention.hours": "1"}),
        lambda log: log.broker.clean(),
        lambda log: log.broker.cleaning(),
    ],
)
def test_calls_that_only_the_cluster_can_make_are_refused(kafka: str, call: Any) -> None:
    with (
        changelog.open(kafka) as log,
        pytest.raises(
            changelog.errors.InvalidRequest, match="a Kafka cluster keeps that to itself"
        ),
    ):
        call(log)


def test_pins_are_refused_on_kafka(kafka: str) -> None:
    with changelog.open(kafka) as log:
        assert log.broker.pins is None
