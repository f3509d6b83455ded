"""TLS, SASL and ACLs: properties of the URL reach librdkafka, and refusals are clear errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import Unauthenticated
from tests.kafka.apps import totals
from tests.kafka.brokers import Running
from tests.kafka.security import Secured

AT_ONCE_S = 5.0
"""Seconds within which a refusal is reported, far less than for a silent broker (10 s)."""


@pytest.fixture
def secured(running: Running) -> Secured:
    if running.secured is None:
        pytest.skip("the broker is not ours to ask who is there (STRANDLINE_TEST_KAFKA)")
    return running.secured


@pytest.fixture
def address(running: Running) -> Callable[[str], str]:
    """Function that returns the broker's address by listener."""
    assert running.broker is not None
    return running.broker.addresses.__getitem__


@pytest.fixture
def grant(kafka: str, name: str) -> Iterator[Callable[..., None]]:
    """Function that gives a user a right until the end of the test."""
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": kafka.removeprefix("kafka://")})

    def given(user: str, kind: str, prefix: str, *operations: str) -> None:
        bindings = [
            AclBinding(
                ResourceType[kind],
                prefix,
                ResourcePatternType.PREFIXED,
                f"User:{user}",
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for future in admin.create_acls(bindings).values():
            future.result(10)

    yield given
    every = AclBindingFilter(
        *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None),
        *(AclOperation.ANY, AclPermissionType.ANY),
    )
    for future in admin.delete_acls([every]).values():
        future.result(10)


def all_rights(grant: Callable[..., None], user: str, prefix: str) -> None:
    """Grant the rights that an app needs according to docs/guide/kafka.md."""
    grant(user, "TOPIC", prefix, "CREATE", "DESCRIBE", "READ", "WRITE", "DESCRIBE_CONFIGS")
    grant(user, "GROUP", prefix, "READ", "DESCRIBE")
    grant(user, "TRANSACTIONAL_ID", prefix, "WRITE", "DESCRIBE")


def test_an_app_runs_over_tls_with_a_password_and_the_rights_that_the_guide_names(
    secured: Secured,
    address: Callable[[str], str],
    grant: Callable[..., None],
    name: str,
    tmp_path: Path,
) -> None:
    all_rights(grant, "ada", name)
    made = totals(name, secured.as_user(address("SASL_SSL"), "ada"), tmp_path)
    given = [(f"k{n % 5}", n) for n in range(50)]
    with made.app:
        made.words.append(given)
        assert made.app.run(until="idle") == 50
        made.judge(given)


def test_scram_and_tls_without_sasl_work(
    secured: Secured, address: Callable[[str], str], running: Running, name: str
) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": address("PLAINTEXT")})
    said = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion("eve", said, b"eve-secret")
    for future in admin.alter_user_scram_credentials([user]).values():
        future.result(10)
    url = secured.as_user(address("SASL_SSL"), "eve", "eve-secret", sasl_mechanism="SCRAM-SHA-256")
    with changelog.open(url) as log, pytest.raises(Unauthenticated, match=name):
        log.create_topic(name)
    with changelog.open(secured.url(address("SSL"), {"security.protocol": "SSL"})) as log:
        log.create_topic(name)  # clients without a name have all rights
        log.append(name, [{"value": b"x"}])


def test_a_failed_authentication_is_reported_at_once(
    secured: Secured, address: Callable[[str], str]
) -> None:
    sasl = address("SASL_SSL")
    clock = SystemClock()
    for url, reason in (
        (f"kafka://{address('SSL')}?security.protocol=SSL", "certificate"),
        (secured.as_user(sasl, "ada", "wrong-secret"), "(?i)authentication failed"),
        (secured.as_user(sasl, "ada", sasl_mechanism="SCRAM-SHA-512"), "mechanism"),
    ):
        begun = clock.monotonic()
        with pytest.raises(Unauthenticated, match=reason) as refused:
            changelog.open(url)
        assert clock.monotonic() - begun < AT_ONCE_S
        assert "secret" not in str(refused.value)


def test_a_missing_right_is_named(
    secured: Secured,
    address: Callable[[str], str],
    kafka: str,
    grant: Callable[..., None],
    name: str,
) -> None:
    with changelog.open(kafka) as log:
        log.create_topic(name)
    with changelog.open(secured.as_user(address("SASL_SSL"), "bob")) as log:
        for call in (
            lambda: log.create_topic(f"{name}-other"),
            lambda: log.append(name, [{"value": b"x"}]),
            lambda: log.read(name),
            lambda: log.delete_topic(name),
        ):
            with pytest.raises(Unauthenticated, match=name):
                call()
        grant("bob", "TOPIC", name, "DESCRIBE", "READ", "DESCRIBE_CONFIGS")
        assert len(log.read(name)) == 0
        with pytest.raises(Unauthenticated, match=name):
            log.append(name, [{"value": b"x"}])
        with pytest.raises(Unauthenticated, match=name):
            log.producer(transactional_id=name)


@pytest.mark.long
def test_an_app_without_a_right_stops_with_its_name_and_continues_once_it_is_granted(
    secured: Secured,
    address: Callable[[str], str],
    kafka: str,
    grant: Callable[..., None],
    name: str,
    tmp_path: Path,
) -> None:
    given = [(f"k{n % 3}", n) for n in range(9)]
    with totals(name, kafka, tmp_path / "super").app as app:
        app.prepare()
    all_rights(grant, "ada", name)
    made = totals(name, secured.as_user(address("SASL_SSL"), "ada"), tmp_path / "ada")
    with made.app:
        made.words.append(given)
        assert made.app.run(until="idle") == 9
        made.judge(given)
    grant("bob", "TOPIC", name, "DESCRIBE", "READ", "DESCRIBE_CONFIGS")
    grant("bob", "TOPIC", f"{name}-words", "WRITE")
    grant("bob", "GROUP", name, "READ", "DESCRIBE")
    grant("bob", "TRANSACTIONAL_ID", name, "WRITE", "DESCRIBE")
    made = totals(name, secured.as_user(address("SASL_SSL"), "bob"), tmp_path / "bob")
    with made.app:
        made.words.append(given)
        with pytest.raises(Unauthenticated, match=f"{name}-(out|seen|members)"):
            made.app.run(until="idle")
        all_rights(grant, "bob", name)
        made.app.run(until="idle")
        made.judge([*given, *given])
