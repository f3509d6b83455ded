"""A log served over TCP, with token and TLS."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from strandline import changelog
from strandline.changelog.credentials import TOKEN_VARIABLE
from strandline.changelog.errors import (
    InvalidConfig,
    OwnerUnavailable,
    StrandlineError,
    Unauthenticated,
)
from strandline.changelog.flight.address import connect, parse_url
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.flight.serve import serve
from strandline.changelog.location import is_served
from strandline.changelog.records import Append, TopicPartition

TOKEN = "a token that is long enough"


@pytest.fixture
def served(tmp_path):
    served = serve(tmp_path / "log", listen="127.0.0.1:0", token=TOKEN)
    yield served
    served.close()


def test_a_remote_client_has_the_same_interface(served, columns):
    with_token = f"{served.url}?token={TOKEN}".replace(" ", "%20")
    client = connect(with_token, deadline=10)
    client.create_topic("t")
    client.append([Append("t", 0, columns(2), client.init_producer(), 0)])
    assert (
        len(served.broker.fetch({TopicPartition("t", 0): 0})[TopicPartition("t", 0)].batches) == 1
    )
    client.close()


def test_the_token_may_come_from_the_environment(served, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    client = connect(served.url, deadline=10)
    assert all(info.internal for info in client.topics())
    client.close()


def test_the_token_may_be_an_argument(served):
    with changelog.open(served.url, token=served.token) as log:
        assert log.topics() == []


def test_a_url_of_another_kind_is_not_taken_for_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig, match="a log is a folder, strandline://"):
        changelog.open("http://127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


def test_calls_with_a_missing_or_wrong_token_are_refused(served):
    with pytest.raises(Unauthenticated, match="STRANDLINE_TOKEN"):
        connect(served.url, deadline=5)
    with pytest.raises(Unauthenticated, match="does not accept"):
        connect(f"{served.url}?token=wrong", deadline=5)


def test_a_token_is_created_if_none_is_given(tmp_path):
    served = serve(tmp_path / "log", listen="localhost:0")
    assert len(served.token) > 40
    served.close()


def test_connecting_without_a_server_is_an_error(tmp_path):
    with pytest.raises(OwnerUnavailable, match="strandline://127.0.0.1:1"):
        connect("strandline://127.0.0.1:1?token=x", deadline=2)


def test_addresses_beyond_this_machine_require_tls(tmp_path):
    with pytest.raises(InvalidConfig, match="plaintext=True"):
        serve(tmp_path / "log", listen="0.0.0.0:0")
    with pytest.raises(InvalidConfig, match="both tls_certificate and tls_key"):
        serve(tmp_path / "log", listen="127.0.0.1:0", tls_key="k")
    with pytest.raises(InvalidConfig, match="no file"):
        serve(tmp_path / "log", listen="127.0.0.1:0", tls_key="k", tls_certificate="c")
    with pytest.raises(InvalidConfig, match="16 or more"):
        serve(tmp_path / "log", listen="127.0.0.1:0", token="short")


def test_a_port_in_use_is_reported(served, tmp_path):
    with pytest.raises(InvalidConfig, match="cannot listen"):
        serve(tmp_path / "other", listen=served.url.removeprefix("strandline://"))
    attach_or_own(tmp_path / "other", role="own").close()  # the folder is free again


def test_a_folder_owned_by_another_process_is_served_through_its_owner(start, tmp_path, columns):
    owner = start()
    served = serve(tmp_path / "log", listen="127.0.0.1:0", token=TOKEN)
    assert not served.broker.owning
    client = connect(f"{served.url}?token={TOKEN}".replace(" ", "%20"), deadline=10)
    client.create_topic("t")
    assert owner.ask("topics") == "t"
    client.close()
    served.close()


def test_a_client_reconnects_when_the_server_is_back(tmp_path):
    served = serve(tmp_path / "log", listen="127.0.0.1:0", token=TOKEN)
    client = connect(f"{served.url}?token={TOKEN}".replace(" ", "%20"), deadline=10)
    client.create_topic("t")
    served.close()
    again = serve(tmp_path / "log", listen=served.url.removeprefix("strandline://"), token=TOKEN)
    assert client.topic("t").name == "t"
    client.close()
    again.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_log_is_served_over_tls(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )
    served = serve(
        tmp_path / "log",
        listen="localhost:0",
        token=TOKEN,
        tls_certificate=certificate,
        tls_key=key,
    )
    assert served.url.startswith("strandline+tls://localhost:")
    token = TOKEN.replace(" ", "%20")
    client = connect(f"{served.url}?token={token}&ca={certificate}", deadline=10)
    client.create_topic("t")
    client.close()
    with pytest.raises(StrandlineError):  # an untrusted certificate
        connect(f"{served.url}?token={token}", deadline=2)
    plain = served.url.replace("+tls", "")
    with pytest.raises(StrandlineError):
        connect(f"{plain}?token={token}", deadline=2)
    served.close()


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("strandline://db:9", "grpc+tcp://db:9"),
        ("grpc://db", "grpc+tcp://db:7361"),
        ("grpc+tls://[::1]:9", "grpc+tls://[::1]:9"),
    ],
)
def test_valid_urls_are_parsed(url, location):
    assert is_served(url)
    assert parse_url(url, {}).location == location


@pytest.mark.parametrize(
    "url",
    ["strandline://", "strandline://h/p", "strandline://h?tls=1", "strandline://h?ca=x", "x://h"],
)
def test_invalid_urls_are_refused(url):
    with pytest.raises(InvalidConfig):
        parse_url(url, {})


def test_errors_never_contain_the_token(served):
    with pytest.raises(OwnerUnavailable) as caught:
        connect("strandline://127.0.0.1:1?token=secretsecret", deadline=1)
    assert "secretsecret" not in str(caught.value)


ALONE = ["unshare", "--user", "--map-root-user", "--net"]
"""Command prefix that runs a program in its own network, where that is allowed."""

VANISHING = """
import os, subprocess, sys, time
from strandline.changelog.errors import OwnerUnavailable
from strandline.changelog.flight.connection import FlightConnection
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.requests import (ListTopics)
from strandline.changelog.flight.serve import serve
from strandline.changelog.location import is_served

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
served = serve(sys.argv[1], listen="127.0.0.1:0")
location = served.url.replace("strandline", "grpc+tcp")
connection = FlightConnection(ConnectionTarget(location, served.token, "far"), deadline=1, connect_within=10)
connection.ask(ListTopics())
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
end = time.monotonic() + 40
while not connection.session.lost and time.monotonic() < end:
    start = time.monotonic()
    try:
        connection.ask(ListTopics())
    except OwnerUnavailable as error:
        print(f"{time.monotonic() - start:.0f} {error}")
print("lost" if connection.session.lost else "not lost", flush=True)
os._exit(0)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_machine_that_vanishes_is_noticed(tmp_path, repository):
    try:
        subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network of its own here: {error}")
    done = subprocess.run(
        [*ALONE, sys.executable, "-c", VANISHING, str(tmp_path / "log")],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *refused, last = done.stdout.splitlines()
    assert last == "lost"
    assert refused[0] == "1 far did not answer (waited 1.0 s)"
    assert all(int(line.split()[0]) <= 1 for line in refused)
