"""Tokens and passwords are never shown, whatever characters they have."""

from __future__ import annotations

import json
import pickle
import string
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

import strandline as sl
from strandline.changelog.credentials import read_token, token_of
from strandline.changelog.errors import InvalidConfig, StorageFailed
from strandline.changelog.flight import address
from strandline.changelog.flight.endpoint import new_endpoint
from strandline.changelog.hosts import parse_host_port
from strandline.changelog.kafka.address import parse_url
from strandline.changelog.location import is_encrypted
from strandline.changelog.secret import MASK, Secret, is_secret, masked
from strandline.framework import metrics
from strandline.framework.querying import sockets
from strandline.framework.querying.connections import Connections
from strandline.framework.spark.job_driver import WorkersRun
from strandline.framework.spark.job_settings import SparkPlace
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.worker_slot import SlotTask
from strandline.framework.spark.writing.options import SinkOptions

HIDDEN = "hunter2-open-sesame"
PRINTABLE = "".join(c for c in string.printable if c.isprintable()) + "äß漢😀"


def test_a_secret_is_shown_only_by_reveal() -> None:
    secret = Secret(HIDDEN)
    shown = [
        *(repr(secret), str(secret), f"{secret}", f"{secret:>40}", f"{secret!r}"),
        *(repr([secret]), repr({"token": secret}), json.dumps(secret, default=str)),
        str(pickle.dumps(secret)),
    ]
    assert not [text for text in shown if HIDDEN in text]
    assert pickle.loads(pickle.dumps(secret)).reveal() == MASK
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)
    assert secret.reveal() == HIDDEN
    assert (secret == Secret(HIDDEN), secret == Secret("x"), secret == HIDDEN) == (
        True,
        False,
        False,
    )
    assert (bool(secret), bool(Secret("")), len(secret)) == (True, False, len(HIDDEN))
    assert not vars(Secret).get("__dict__")


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.jaas.config",
        "basic_auth_user_info",
        "bearer_auth_token",
    ],
)
def test_properties_whose_values_are_secret_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["ssl.ca.location", "sasl.username", "client.id", "timeout"])
def test_other_properties_are_not_secret(name: str) -> None:
    assert not is_secret(name)


def test_a_token_may_have_any_printable_character() -> None:
    for token in (PRINTABLE, "a+b", "a b", "%41", "#x", "x?y=z", "a&b", "=", *PRINTABLE):
        url = f"strandline://127.0.0.1:1?token={quote(token, safe='')}"
        assert address.parse_url(url, {}).token == token
        cluster = parse_url(f"kafka://a?sasl.password={quote(token, safe='')}", {})
        assert cluster.secrets["sasl.password"].reveal() == token
    for token in ("a+b", "#x", "x?y=z", "a=b", "a/b:c@d;e,f!~*'()[]{}|<>^`$\\\""):
        assert address.parse_url(f"strandline://127.0.0.1:1?token={token}", {}).token == token
    with pytest.raises(InvalidConfig, match="option token of the URL is not UTF-8") as met:
        address.parse_url("strandline://127.0.0.1:1?token=%FF" + HIDDEN, {})
    assert HIDDEN not in str(met.value)


def test_a_token_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{HIDDEN}\n")
    url = f"strandline://127.0.0.1:1?token-file={file}"
    assert address.parse_url(url, {}).token == HIDDEN
    assert address.parse_url(url, {"STRANDLINE_TOKEN": "another"}).token == HIDDEN
    assert masked(url) == url
    assert token_of({"STRANDLINE_TOKEN_FILE": str(file)}) == HIDDEN
    assert token_of({"STRANDLINE_TOKEN_FILE": str(file), "STRANDLINE_TOKEN": "this"}) == "this"
    assert token_of({}) == ""
    with pytest.raises(InvalidConfig, match="give one of them"):
        address.parse_url(f"{url}&token=x", {})


@pytest.mark.parametrize(
    "content", [b"", b"\n \n", b"\xff" + HIDDEN.encode(), f"{HIDDEN}\n2".encode(), b"a" * 70_000]
)
def test_a_file_without_a_token_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InvalidConfig, match="holds no token") as met:
        read_token(file)
    assert HIDDEN not in str(met.value)
    with pytest.raises(InvalidConfig, match="there is no file"):
        read_token(tmp_path / "none")
    with pytest.raises(StorageFailed, match="read"):
        read_token(tmp_path)


def test_the_location_of_a_log_shows_no_secret(tmp_path: Path) -> None:
    target = address.parse_url(f"strandline://127.0.0.1:1?token={HIDDEN}", {})
    cluster = parse_url(f"kafka://a?sasl.password={HIDDEN}&ssl.key.pem={HIDDEN}", {})
    endpoint = new_endpoint(tmp_path)
    things: list[Any] = [target, cluster, Connections(HIDDEN).__dict__]
    assert not [thing for thing in things if HIDDEN in repr(thing)]
    assert endpoint.token not in repr(endpoint)
    assert "sasl.password" not in cluster.properties


@pytest.mark.parametrize(
    "url", [f"kafka://a?sasl.password={HIDDEN}", f"strandline://127.0.0.1:1?token={HIDDEN}"]
)
def test_spark_gets_no_option_with_a_secret(url: str) -> None:
    for parse in (
        lambda: SourceOptions.parse({"path": url, "subscribe": "t"}),
        lambda: SinkOptions.parse({"path": url, "topic": "t"}),
    ):
        with pytest.raises(InvalidConfig, match=r"has secrets in it.*STRANDLINE_TOKEN") as met:
            parse()
        assert HIDDEN not in str(met.value)


def test_kafka_properties_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"STRANDLINE_KAFKA": f"sasl.password={HIDDEN}&security.protocol=SASL_SSL&client.id=a"}
    cluster = parse_url("kafka://a?client.id=b", given)
    assert cluster.secrets["sasl.password"].reveal() == HIDDEN
    assert (cluster.properties["client.id"], cluster.properties["security.protocol"]) == (
        "b",
        "SASL_SSL",
    )
    assert not is_encrypted("kafka://a")
    monkeypatch.setenv("STRANDLINE_KAFKA", given["STRANDLINE_KAFKA"])
    assert is_encrypted("kafka://a")


@pytest.mark.parametrize(
    "refused",
    [
        lambda: address.parse_url(f"strandline://me:{HIDDEN}@host:1", {}),
        lambda: address.parse_url(f"strandline://host:1?token={HIDDEN}&other=1", {}),
        lambda: address.parse_url(f"strandline://host:1/path?token={HIDDEN}", {}),
        lambda: parse_url(f"kafka://me:{HIDDEN}@host", {}),
        lambda: parse_url(f"kafka://host?acks=1&sasl.password={HIDDEN}", {}),
        lambda: sl.App("x", log=f"kafak://me:{HIDDEN}@host?password={HIDDEN}"),
        lambda: sl.SchemaRegistry(f"htp://me:{HIDDEN}@host"),
        lambda: SourceOptions.parse({"path": f"kafka://h?sasl.password={HIDDEN}"}),
        lambda: sockets.listen_network(f"me:{HIDDEN}@host:1"),
        lambda: sockets.listen_network(f"tls://host:1?password={HIDDEN}"),
        lambda: parse_host_port(f"me:{HIDDEN}@host"),
        lambda: metrics.parse(f"me:{HIDDEN}@host:1"),
        # Hosts that `urlsplit` refuses with a ValueError, which shows the first one's password.
        lambda: address.parse_url(f"strandline://me:{HIDDEN}@h℀:1", {}),
        lambda: address.parse_url(f"strandline://me:{HIDDEN}@[::1", {}),
        lambda: sl.SchemaRegistry(f"http://me:{HIDDEN}@h℀"),
        lambda: sockets.listen_network(f"tcp://me:{HIDDEN}@h℀:1"),
        lambda: parse_url(f"kafka://me:{HIDDEN}@h℀:1", {}),
    ],
)
def test_an_error_shows_no_secret(refused: Any) -> None:
    with pytest.raises(InvalidConfig) as met:
        refused()
    error: BaseException | None = met.value
    while error is not None:
        assert HIDDEN not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_registry_shows_no_secret() -> None:
    registry = sl.SchemaRegistry(
        f"http://me:{HIDDEN}@127.0.0.1:1", basic_auth_user_info=f"me:{HIDDEN}", timeout=1
    )
    assert HIDDEN not in f"{registry!r} {registry.url} {registry.__dict__}"
    assert "127.0.0.1:1" in registry.url
    with pytest.raises(sl.StrandlineError) as met:
        registry.schema(1)
    assert HIDDEN not in str(met.value)
    assert met.value.__cause__ is None


def test_urls_anywhere_in_a_text_are_masked() -> None:
    text = f"GET https://me:{HIDDEN}@host/x?a=1&token={HIDDEN} (password {HIDDEN})"
    assert masked(text, [Secret(HIDDEN)]) == ("GET https://***@host/x?a=1&token=*** (password ***)")
    assert masked("mail me@home: nothing to hide") == "mail me@home: nothing to hide"


def test_the_work_of_spark_slots_shows_no_secret() -> None:
    secret = "a-secret-of-enough-letters"
    url = f"strandline://db:7361?token={secret}"
    task = SlotTask(
        *("shop:app", [f"--x={secret}"], False, ("db", 1), secret, {"STRANDLINE_LOG": url}, None),
        has_scratch_state=False,
    )
    place = SparkPlace("yarn", 1, {"spark.ssl.keyPassword": secret})
    for shown in (task, WorkersRun("shop", "shop:app", url), place):
        assert secret not in f"{shown!r} {shown}"
