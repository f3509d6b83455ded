"""A worker's side of the wire: what it says to those who are behind, unknown, or not what they say."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import strandline as sl
from changelog.errors import InvalidRequest, OwnerUnavailable, Unauthenticated
from framework.querying import endpoint as endpoints
from framework.querying import sockets
from framework.querying.connections import Connections
from framework.querying.endpoint import Endpoint
from framework.querying.messages import (
    MAX_HELLO,
    MAX_REQUEST,
    WIRE_VERSION,
    Answer,
    At,
    Count,
    Counted,
    Failure,
    Get,
    Got,
    Hello,
    Request,
    Scan,
    Scanned,
    Welcome,
    decode,
    encode,
    read_frame,
)
from framework.querying.provider import StoreProvider
from statestore import open_store
from statestore.keys import key_codec
from tests.queries.shop import Running, Total, shop

Eventually = Callable[..., None]
TOKEN = "a token of enough letters"
NAME = key_codec(str).encode("york")


def answer(request: Request) -> Answer:
    """Counts the partitions asked for."""
    assert isinstance(request, Count)
    if request.store == "broken":
        raise ZeroDivisionError("an error that nobody thought of")
    return Counted(dict.fromkeys(request.partitions, 1))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint(None)
    made.start(answer)
    yield made
    made.close()


def dial(endpoint: Endpoint) -> socket.socket:
    connection = sockets.connect(endpoint.urls[0], 10.0)
    connection.settimeout(10.0)
    return connection


def said(connection: socket.socket) -> object:
    """What the worker says; None if it has closed."""
    frame = read_frame(connection, MAX_REQUEST)
    return None if frame is None else decode(frame, Welcome | Counted | Failure)


# What it answers -------------------------------------------------------------------------------


@pytest.fixture
def provider() -> StoreProvider:
    """Of the shop's totals, partition 2 at offset 5 of its changelog; is_certain can be set."""
    made = shop("/nowhere")
    spec = made.app.declared.tasks["tally"]
    stores = [open_store(replace(handle.spec, engine="memory")) for handle in spec.stores]
    totals = stores[0]
    totals["york"] = Total(1, 1)
    totals.drain()
    totals.committed(5, 0)

    class Instance:
        partition = 2

    instance = Instance()
    instance.spec, instance.stores = spec, stores  # type: ignore[attr-defined]
    provider = StoreProvider("shop", [spec], lambda: [instance], lambda: certain[0])  # type: ignore[list-item]
    certain = [True]
    provider.certain = certain  # type: ignore[attr-defined]
    return provider


def test_what_is_not_here_is_left_out(provider: StoreProvider) -> None:
    got = provider.answer(Get("totals", [0, 2, 3], [NAME, b"Qx"], {}))
    assert isinstance(got, Got)
    [part] = got.parts
    assert (part.partition, part.at, part.values[1]) == (2, At("", 5, 0), None)
    assert provider.answer(Count("totals", [1, 2])) == Counted({2: 1})
    assert provider.answer(Scan("totals", 1, b"\x01", None, False, 9, None)) == Scanned(
        False, [], None, At("", 0)
    )


@pytest.mark.parametrize(
    ("at_least", "reached"), [(At("", 5), True), (At("", 6), False), (At("another", 9), True)]
)
def test_one_that_is_behind_what_a_client_has_seen_has_nothing_to_say(
    provider: StoreProvider, at_least: At, reached: bool
) -> None:
    got = provider.answer(Get("totals", [2], [NAME], {2: at_least}))
    scanned = provider.answer(Scan("totals", 2, b"\x01", None, False, 9, at_least))
    assert isinstance(got, Got)
    assert isinstance(scanned, Scanned)
    assert (len(got.parts), len(scanned.entries)) == ((1, 1) if reached else (0, 0))


def test_one_that_may_have_lost_its_partitions_has_nothing_to_say(provider: StoreProvider) -> None:
    provider.certain[0] = False  # type: ignore[attr-defined]
    assert provider.answer(Get("totals", [2], [NAME], {})) == Got([])
    assert provider.answer(Count("totals", [2])) == Counted({})
    scanned = provider.answer(Scan("totals", 2, b"\x01", None, False, 9, None))
    assert scanned == Scanned(False, [], None, At("", 0))


def test_a_store_of_another_app_is_none_of_its(provider: StoreProvider) -> None:
    with pytest.raises(
        InvalidRequest, match=r"app 'shop' has no store 'other'; its stores: by-day"
    ):
        provider.answer(Count("other", [0]))


# What it says to strangers ---------------------------------------------------------------------


def test_requests_are_answered_one_after_another_on_one_connection(endpoint: Endpoint) -> None:
    with dial(endpoint) as connection:
        connection.sendall(encode(Hello(WIRE_VERSION)))
        assert said(connection) == Welcome(WIRE_VERSION)
        for n in range(3):
            connection.sendall(encode(Count("x", [n])))
            assert said(connection) == Counted({n: 1})


@pytest.mark.parametrize(
    ("hello", "answers"),
    [
        (encode(Hello(WIRE_VERSION + 1)), "run the same release"),
        (encode(Count("x", [1])), "cannot read a message"),
        (b"\x00\x00\x00\x02\xff\xff", "cannot read a message"),
        ((MAX_HELLO + 1).to_bytes(4, "big"), "over the limit"),
        (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
        (encode(Hello(WIRE_VERSION)) + encode(Count("x", [1])), "before it was answered"),
    ],
)
def test_who_does_not_say_hello_is_told_and_sent_away(
    endpoint: Endpoint, hello: bytes, answers: str
) -> None:
    with dial(endpoint) as connection:
        connection.sendall(hello)
        told = said(connection)
        assert isinstance(told, Failure)
        assert answers in told.message
        assert said(connection) is None


@pytest.mark.parametrize(
    ("frame", "answers", "goes_on"),
    [
        (b"\x00\x00\x00\x01\xc1", "cannot read a message", True),
        (b"\x00\x00\x00\x03" + b"\x92\xa1x", "cannot read a message", True),
        ((MAX_REQUEST + 1).to_bytes(4, "big"), "over the limit", False),
        (encode(Count("broken", [])), "the worker failed: ZeroDivisionError", True),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    endpoint: Endpoint, frame: bytes, answers: str, goes_on: bool
) -> None:
    with dial(endpoint) as connection:
        connection.sendall(encode(Hello(WIRE_VERSION)))
        assert said(connection) == Welcome(WIRE_VERSION)
        connection.sendall(frame)
        told = said(connection)
        assert isinstance(told, Failure)
        assert answers in told.message
        if goes_on:
            connection.sendall(encode(Count("x", [1])))
            assert said(connection) == Counted({1: 1})
        else:
            assert said(connection) is None


def test_a_client_that_says_nothing_is_sent_away(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "HELLO_SECONDS", 0.05)
    with dial(endpoint) as connection:
        assert said(connection) is None


def test_there_are_only_so_many_clients(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(endpoints, "MAX_CLIENTS", 2)
    clients = Connections()
    for _ in range(2):  # of the two the pool keeps one
        clients.ask(endpoint.urls[0], Count("x", [1]), Counted, 10.0)
    with dial(endpoint) as one, dial(endpoint) as two:
        one.sendall(encode(Hello(WIRE_VERSION)))
        assert said(one) == Welcome(WIRE_VERSION)
        assert said(two) is None
    clients.close()


def test_a_closed_endpoint_sends_its_clients_away_and_leaves_no_socket(endpoint: Endpoint) -> None:
    clients = Connections()
    [url] = endpoint.urls
    assert clients.ask(url, Count("x", [1]), Counted, 10.0) == Counted({1: 1})
    endpoint.close()
    with pytest.raises(OwnerUnavailable, match="cannot connect to the worker"):
        clients.ask(url, Count("x", [1]), Counted, 10.0)
    path = Path(url.removeprefix(sockets.UNIX))
    assert not path.exists()
    assert not path.exists()
    clients.close()


def test_a_connection_that_the_worker_has_closed_since_is_made_anew(endpoint: Endpoint) -> None:
    clients = Connections()
    [url] = endpoint.urls
    clients.ask(url, Count("x", [1]), Counted, 10.0)
    for client in list(endpoint._clients):
        client.shutdown(socket.SHUT_RDWR)
    assert clients.ask(url, Count("x", [2]), Counted, 10.0) == Counted({2: 1})
    clients.close()


def test_a_forked_child_is_refused(endpoint: Endpoint) -> None:
    clients = Connections()
    clients._pid = os.getpid() + 1  # as if it were the parent's
    with pytest.raises(sl.Fenced, match=r"call connect\(\) in it"):
        clients.ask(endpoint.urls[0], Count("x", [1]), Counted, 10.0)


# Over TCP --------------------------------------------------------------------------------------


@pytest.fixture
def beyond() -> Iterator[Endpoint]:
    made = Endpoint(None, "127.0.0.1:0", TOKEN)
    made.start(answer)
    yield made
    made.close()


def test_over_tcp_there_is_nothing_without_the_token(beyond: Endpoint) -> None:
    here, there = beyond.urls
    assert there.startswith("tcp://127.0.0.1:")
    request = Count("x", [1])
    for token, refusal in (("", "asks for a token"), ("another", "does not accept this token")):
        strangers = Connections(token)
        with pytest.raises(Unauthenticated, match=refusal):
            strangers.ask(there, request, Counted, 10.0)
        assert strangers.ask(here, request, Counted, 10.0) == Counted({1: 1})
        strangers.close()
    friends = Connections(TOKEN)
    assert friends.ask(there, request, Counted, 10.0) == Counted({1: 1})
    friends.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, with a name that leaves room for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_without_a_folder_a_users_sockets_are_in_one_and_the_dead_are_cleared_away(
    short: Path,
) -> None:
    dead, alive = sockets.listen_here(None), sockets.listen_here(None)
    dead.socket.close()
    new = sockets.listen_here(None)
    [folder] = short.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {f"unix://{path}" for path in folder.iterdir()} == {alive.url, new.url}
    for one in (alive, new):
        one.socket.close()


def test_a_users_folder_that_is_somebody_elses_is_not_used(short: Path) -> None:
    (short / f"strandline.{os.getuid()}").symlink_to(short)
    listening = sockets.listen_here(None)
    folder = Path(listening.url.removeprefix("unix://")).parent
    assert folder.parent == short
    assert not folder.is_symlink()
    listening.socket.close()
    sockets.remove(listening.url)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        ("0.0.0.0:0", "can be reached from other machines"),
        ("db.example:0", "can be reached from other machines"),
        ("127.0.0.1", "expected host:port"),
        ("127.0.0.1:99999", "expected host:port"),
        ("http://127.0.0.1:1", r"expected host:port, tcp://"),
        ("tls://127.0.0.1:1", r"expected host:port, tcp://"),
        ("tls://127.0.0.1:1?certificate=none.pem&key=none.pem", "cannot use none.pem"),
        ("192.0.2.1:0", "can be reached"),
        ("tcp://192.0.2.1:0", "cannot listen at"),
    ],
)
def test_an_address_that_will_not_do_is_refused_and_leaves_no_socket(
    address: str, refusal: str, tmp_path: Path
) -> None:
    with pytest.raises(sl.InvalidConfig, match=refusal):
        Endpoint(tmp_path, address, TOKEN)
    assert not list(tmp_path.glob("queries/*"))


@pytest.mark.parametrize("token", ["", "a short one"])
def test_without_a_good_token_it_does_not_listen(token: str) -> None:
    with pytest.raises(sl.InvalidConfig, match="a token of 16 characters or more"):
        Endpoint(None, "127.0.0.1:0", token)


def test_all_addresses_are_told_as_this_machine_s_name() -> None:
    made = Endpoint(None, "tcp://0.0.0.0:0", TOKEN)
    assert made.urls[1].startswith(f"tcp://{socket.gethostname()}:")
    made.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_over_tls_the_worker_must_be_who_it_says(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost"],
        check=True,
        capture_output=True,
    )
    made = Endpoint(None, f"tls://localhost:0?certificate={certificate}&key={key}", TOKEN)
    made.start(answer)
    url = made.urls[1]
    trusting = Connections(TOKEN, certificate.read_bytes())
    for n in range(3):
        assert trusting.ask(url, Count("x", [n]), Counted, 10.0) == Counted({n: 1})
    doubting = Connections(TOKEN)
    with pytest.raises(OwnerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        doubting.ask(url, Count("x", [1]), Counted, 10.0)
    doubting.close()
    made.close()
    with pytest.raises(OwnerUnavailable):
        trusting.ask(url, Count("x", [1]), Counted, 10.0)
    trusting.close()


def test_a_worker_on_another_machine_is_asked_over_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Its Unix socket cannot be seen from here."""
    monkeypatch.setenv("STRANDLINE_TOKEN", TOKEN)
    running = Running(str(tmp_path / "log"), application_server="127.0.0.1:0")
    running.made.sales.append([("york", 3)])
    with sl.connect(running.made.app.broker) as connection:
        monkeypatch.setattr(sockets, "is_reachable", lambda url: not url.startswith("unix"))
        totals = connection.store("shop/totals")
        eventually(lambda: totals.get("york") == Total(1, 3), what="the sale counted")
        assert {url[:6] for url in totals._committed._fleet._urls} == {"tcp://"}
    stranger = sl.connect(running.made.app.broker, token="not this one at all")
    with stranger, pytest.raises(Unauthenticated):
        stranger.store("shop/totals").get("york")
    running.stop()
    running.made.app.close()
