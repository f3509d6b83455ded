"""A worker's side of the wire: its answers when it lags, and to unknown or invalid clients."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import strandline as sl
from strandline.changelog import trust
from strandline.changelog.errors import (
    InvalidRequest,
    OwnerUnavailable,
    RequestTimedOut,
    Unauthenticated,
)
from strandline.changelog.flight import hello
from strandline.changelog.flight.greeting import Greeting
from strandline.framework.container.provider import StoreProvider
from strandline.framework.peers import Admission
from strandline.framework.querying import listener as listeners
from strandline.framework.querying import messages, sockets
from strandline.framework.querying.connections import Connections
from strandline.framework.querying.endpoint import QueryEndpoint
from strandline.framework.querying.listener import LOCAL_LIMITS, NETWORK_LIMITS, Listener
from strandline.framework.querying.messages import (
    MAX_ANSWER_BYTES,
    MAX_HELLO_BYTES,
    MAX_REQUEST_BYTES,
    WIRE_VERSION,
    Answer,
    CountKeys,
    FoundKeys,
    GetKeys,
    KeyCounts,
    KeyValues,
    QueryFailure,
    QueryHello,
    QueryWelcome,
    ReflectedPosition,
    Request,
    Scanned,
    ScanRange,
    StoreDescription,
    decoder,
    encode,
    read_frame,
)
from strandline.framework.querying.workers import WorkerSource
from strandline.statestore import open_store
from strandline.statestore.keys import key_codec
from strandline.statestore.reader import KeyRange
from strandline.statestore.spec import StoreSpec
from tests.queries.shop import Running, Total, shop

Eventually = Callable[..., None]
TOKEN = "a token of enough letters"
NAME = key_codec(str).encode("york")


def answer(request: Request) -> Answer:
    """Answer with the number of partitions asked for."""
    assert isinstance(request, CountKeys)
    if request.store == "broken":
        raise ZeroDivisionError("an error that nobody thought of")
    return KeyCounts(dict.fromkeys(request.partitions, 1))


@pytest.fixture
def endpoint() -> Iterator[QueryEndpoint]:
    made = QueryEndpoint(None)
    made.start(answer)
    yield made
    made.close()


def dial(endpoint: QueryEndpoint) -> socket.socket:
    connection = sockets.connect(endpoint.urls[0], 10.0)
    connection.settimeout(10.0)
    return connection


def received(connection: socket.socket) -> object:
    """Return the worker's message; None if it has closed the connection."""
    frame = read_frame(connection, MAX_REQUEST_BYTES)
    return None if frame is None else decoder(QueryWelcome | KeyCounts | QueryFailure)(frame)


# Answers ---------------------------------------------------------------------------------------


@pytest.fixture
def provider() -> StoreProvider:
    """Provider of the shop's totals, partition 2 at offset 5 of its changelog; is_certain can be
    set."""
    made = shop("/nowhere")
    spec = made.app.declared.tasks["tally"]
    stores = [open_store(replace(handle.spec, engine="memory")) for handle in spec.stores]
    totals = stores[0]
    totals["york"] = Total(1, 1)
    totals.drain()
    totals.committed(5, 0)

    class Instance:
        pass

    instance = Instance()
    instance.spec, instance.stores = spec, stores  # type: ignore[attr-defined]
    provider = StoreProvider(
        "shop", [spec], lambda _, n: instance if n == 2 else None, lambda: certain[0]
    )  # type: ignore[arg-type, return-value]
    certain = [True]
    provider.certain = certain  # type: ignore[attr-defined]
    return provider


def test_partitions_of_other_workers_are_left_out(provider: StoreProvider) -> None:
    got = provider.answer(GetKeys("totals", [0, 2, 3], [NAME, b"Qx"], {}))
    assert isinstance(got, FoundKeys)
    [part] = got.parts
    assert (part.partition, part.at, part.values[1]) == (2, ReflectedPosition("", 5, 0), None)
    assert provider.answer(CountKeys("totals", [1, 2])) == KeyCounts({2: 1})
    assert provider.answer(ScanRange("totals", 1, b"\x01", None, False, 9, None)) == Scanned(
        False, [], None, ReflectedPosition("", 0)
    )


@pytest.mark.parametrize(
    ("at_least", "reached"),
    [
        (ReflectedPosition("", 5), True),
        (ReflectedPosition("", 6), False),
        (ReflectedPosition("another", 9), True),
    ],
)
def test_a_worker_that_lags_the_client_returns_nothing(
    provider: StoreProvider, at_least: ReflectedPosition, reached: bool
) -> None:
    got = provider.answer(GetKeys("totals", [2], [NAME], {2: at_least}))
    scanned = provider.answer(ScanRange("totals", 2, b"\x01", None, False, 9, at_least))
    assert isinstance(got, FoundKeys)
    assert isinstance(scanned, Scanned)
    assert (len(got.parts), len(scanned.entries)) == ((1, 1) if reached else (0, 0))


def test_a_worker_that_may_have_lost_its_partitions_returns_nothing(
    provider: StoreProvider,
) -> None:
    provider.certain[0] = False  # type: ignore[attr-defined]
    assert provider.answer(GetKeys("totals", [2], [NAME], {})) == FoundKeys([])
    assert provider.answer(CountKeys("totals", [2])) == KeyCounts({})
    scanned = provider.answer(ScanRange("totals", 2, b"\x01", None, False, 9, None))
    assert scanned == Scanned(False, [], None, ReflectedPosition("", 0))


def test_a_store_of_another_app_is_unknown(provider: StoreProvider) -> None:
    with pytest.raises(
        InvalidRequest, match=r"app 'shop' has no store 'other'; its stores: by-day"
    ):
        provider.answer(CountKeys("other", [0]))


# Unknown clients -------------------------------------------------------------------------------


def test_requests_are_answered_one_after_another_on_one_connection(endpoint: QueryEndpoint) -> None:
    with dial(endpoint) as connection:
        connection.sendall(encode(QueryHello(WIRE_VERSION)))
        assert received(connection) == QueryWelcome(WIRE_VERSION)
        for n in range(3):
            connection.sendall(encode(CountKeys("x", [n])))
            assert received(connection) == KeyCounts({n: 1})


@pytest.mark.parametrize(
    ("hello", "answers"),
    [
        (encode(QueryHello(WIRE_VERSION + 1)), "run the same release"),
        (encode(CountKeys("x", [1])), "cannot read a message"),
        (b"\x00\x00\x00\x02\xff\xff", "cannot read a message"),
        ((MAX_HELLO_BYTES + 1).to_bytes(4, "big"), "over the limit"),
        (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
        (
            encode(QueryHello(WIRE_VERSION)) + encode(CountKeys("x", [1])),
            "before the previous one was answered",
        ),
    ],
)
def test_a_client_without_a_hello_gets_an_error_and_is_disconnected(
    endpoint: QueryEndpoint, hello: bytes, answers: str
) -> None:
    with dial(endpoint) as connection:
        connection.sendall(hello)
        told = received(connection)
        assert isinstance(told, QueryFailure)
        assert answers in told.message
        assert received(connection) is None


@pytest.mark.parametrize(
    ("frame", "answers", "goes_on"),
    [
        (b"\x00\x00\x00\x01\xc1", "cannot read a message", True),
        (b"\x00\x00\x00\x03" + b"\x92\xa1x", "cannot read a message", True),
        ((MAX_REQUEST_BYTES + 1).to_bytes(4, "big"), "over the limit", False),
        (encode(CountKeys("broken", [])), "the worker failed: ZeroDivisionError", True),
    ],
)
def test_an_invalid_request_is_refused(
    endpoint: QueryEndpoint, frame: bytes, answers: str, goes_on: bool
) -> None:
    with dial(endpoint) as connection:
        connection.sendall(encode(QueryHello(WIRE_VERSION)))
        assert received(connection) == QueryWelcome(WIRE_VERSION)
        connection.sendall(frame)
        told = received(connection)
        assert isinstance(told, QueryFailure)
        assert answers in told.message
        if goes_on:
            connection.sendall(encode(CountKeys("x", [1])))
            assert received(connection) == KeyCounts({1: 1})
        else:
            assert received(connection) is None


def test_a_silent_client_is_disconnected(
    endpoint: QueryEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "HELLO_SECONDS", 0.05)
    with dial(endpoint) as connection:
        assert received(connection) is None


def test_the_number_of_clients_is_bounded(endpoint: QueryEndpoint) -> None:
    [listener] = endpoint._listeners
    listener._connected = Admission(2, 2)
    clients = Connections()
    for _ in range(2):  # the pool keeps one of the two
        clients.ask(endpoint.urls[0], CountKeys("x", [1]), KeyCounts, 10.0)
    with dial(endpoint) as one, dial(endpoint) as two:
        one.sendall(encode(QueryHello(WIRE_VERSION)))
        assert received(one) == QueryWelcome(WIRE_VERSION)
        assert received(two) is None
    clients.close()


def test_a_closed_endpoint_disconnects_its_clients_and_leaves_no_socket(
    endpoint: QueryEndpoint,
) -> None:
    clients = Connections()
    [url] = endpoint.urls
    assert clients.ask(url, CountKeys("x", [1]), KeyCounts, 10.0) == KeyCounts({1: 1})
    endpoint.close()
    with pytest.raises(OwnerUnavailable, match="cannot connect to the worker"):
        clients.ask(url, CountKeys("x", [1]), KeyCounts, 10.0)
    path = Path(url.removeprefix(sockets.UNIX))
    assert not path.exists()
    assert not path.exists()
    clients.close()


def test_a_connection_closed_by_the_worker_is_replaced(
    endpoint: QueryEndpoint,
) -> None:
    clients = Connections()
    [url] = endpoint.urls
    clients.ask(url, CountKeys("x", [1]), KeyCounts, 10.0)
    for client in list(endpoint._listeners[0]._clients):
        client.shutdown(socket.SHUT_RDWR)
    assert clients.ask(url, CountKeys("x", [2]), KeyCounts, 10.0) == KeyCounts({2: 1})
    clients.close()


@pytest.mark.parametrize("timeout", [0.05, 0.2])
def test_a_worker_that_does_not_answer_is_given_up_after_the_timeout_of_the_request(
    endpoint: QueryEndpoint, timeout: float
) -> None:
    clients, ended = Connections(), threading.Event()
    clients.ask(endpoint.urls[0], CountKeys("x", [1]), KeyCounts, 10.0)  # a connection to reuse
    endpoint._listeners[0]._answer = lambda request: ended.wait(30) and answer(request)
    started = time.monotonic()
    with pytest.raises(RequestTimedOut, match=f"no answer from the worker .* in {timeout:.1f} s"):
        clients.ask(endpoint.urls[0], CountKeys("x", [1]), KeyCounts, timeout)
    assert 0.7 * timeout < time.monotonic() - started < 10
    ended.set()
    assert clients.ask(endpoint.urls[0], CountKeys("x", [2]), KeyCounts, 10.0) == KeyCounts({2: 1})
    clients.close()


def test_a_connection_is_used_again_after_a_long_answer(endpoint: QueryEndpoint) -> None:
    clients = Connections()
    long = KeyCounts(dict.fromkeys(range(200_000), 1))
    endpoint._listeners[0]._answer = lambda request: long
    for _ in range(3):
        assert clients.ask(endpoint.urls[0], CountKeys("x", [1]), KeyCounts, 10.0) == long
    [kept] = clients._idle[endpoint.urls[0]]
    endpoint._listeners[0]._answer = answer
    clients.ask(endpoint.urls[0], CountKeys("x", [1]), KeyCounts, 10.0)
    assert kept.socket.gettimeout() is None  # the kernel enforces it again
    clients.close()


def test_a_forked_child_is_refused(endpoint: QueryEndpoint) -> None:
    clients = Connections()
    clients._pid = os.getpid() + 1  # pretends to be the child of a fork
    with pytest.raises(sl.Fenced, match=r"call connect\(\) in it"):
        clients.ask(endpoint.urls[0], CountKeys("x", [1]), KeyCounts, 10.0)


# Over TCP --------------------------------------------------------------------------------------


@pytest.fixture
def beyond() -> Iterator[QueryEndpoint]:
    made = QueryEndpoint(None, "127.0.0.1:0", TOKEN)
    made.start(answer)
    yield made
    made.close()


def test_clients_over_tcp_need_the_token(beyond: QueryEndpoint) -> None:
    here, there = beyond.urls
    assert there.startswith("tcp://127.0.0.1:")
    request = CountKeys("x", [1])
    for token, refusal in (("", "asks for a token"), ("another", "does not accept this token")):
        strangers = Connections(token)
        with pytest.raises(Unauthenticated, match=refusal):
            strangers.ask(there, request, KeyCounts, 10.0)
        assert strangers.ask(here, request, KeyCounts, 10.0) == KeyCounts({1: 1})
        strangers.close()
    friends = Connections(TOKEN)
    assert friends.ask(there, request, KeyCounts, 10.0) == KeyCounts({1: 1})
    friends.close()


class Tap:
    """Forwards a connection, and records the bytes in both directions."""

    def __init__(self, url: str) -> None:
        self.seen = b""
        self._url = url
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listening.accept()
            worker = sockets.connect(self._url, 10.0)
            for source, target in ((client, worker), (worker, client)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


def test_the_token_is_not_sent_and_a_proof_is_valid_for_one_address_only(
    beyond: QueryEndpoint,
) -> None:
    """A member may announce an address of its own, and relay the bytes it receives to a worker."""
    there = beyond.urls[1]
    tap = Tap(there)
    friends = Connections(TOKEN)
    with pytest.raises(Unauthenticated, match="does not accept this token"):
        friends.ask(tap.url, CountKeys("x", [1]), KeyCounts, 10.0)
    assert len(tap.seen) > 100
    assert TOKEN.encode() not in tap.seen
    tap.close()
    friends.close()


def test_a_server_that_does_not_know_the_token_gets_no_request() -> None:
    received: list[bytes] = []

    def pretend(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client:
            for size in (hello.OPENING_BYTES, hello.PROOF_BYTES):
                received.append(client.recv(size, socket.MSG_WAITALL))
                client.sendall(hello.REPLY_HEADER.pack(hello.ACCEPTED, 32) + b"n" * 32)
            received.append(client.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=pretend, args=(listening,))
        thread.start()
        clients = Connections(TOKEN)
        url = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(Unauthenticated, match="does not know the token"):
            clients.ask(url, GetKeys("secret-store", [1], [b"k"], {}), FoundKeys, 10.0)
        thread.join(10.0)
    assert [len(data) for data in received] == [hello.OPENING_BYTES, hello.PROOF_BYTES, 0]
    assert not any(TOKEN.encode() in data for data in received)


@pytest.mark.parametrize(
    "answer",
    [
        encode(QueryWelcome(WIRE_VERSION)),
        hello.REPLY_HEADER.pack(hello.ACCEPTED, 0),
        hello.REPLY_HEADER.pack(hello.REFUSED, 2) + b"no",
        hello.REPLY_HEADER.pack(hello.REFUSED, 0xFFFF) + bytes(0xFFFF),
    ],
)
def test_a_server_of_another_protocol_is_an_error_at_once(answer: bytes) -> None:
    def pretend(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client, contextlib.suppress(OSError):
            client.sendall(answer)
            client.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=pretend, args=(listening,), daemon=True).start()
        clients = Connections(TOKEN)
        url = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(OwnerUnavailable):
            clients.ask(url, CountKeys("x", [1]), KeyCounts, 10.0)


def test_a_binding_depends_on_purpose_address_and_certificate() -> None:
    one = sockets.binding("tcp://a:1", None)
    others = [
        sockets.binding("tcp://a:2", None),
        sockets.binding("tcp://a:1", b"certificate"),
        hello.binding(b"another protocol", "tcp://a:1", None),
        hello.binding(b"strandline queries" + b"\0\0\0\x09tcp://a:1", "", None),
    ]
    assert len({one, *others}) == 5


def test_clients_of_former_versions_get_an_error_and_are_disconnected(
    beyond: QueryEndpoint,
) -> None:
    """Version 1 sent the token in its first message, version 2 a nonce."""
    here, there = beyond.urls
    first = msgspec.msgpack.encode(["Hello", 2, "", bytes(32)])
    for url in (here, there):
        with sockets.connect(url, 10.0) as connection:
            connection.sendall(len(first).to_bytes(4, "big") + first)
            answered = b""
            while data := connection.recv(1 << 16):
                answered += data
            assert b"run the same release" in answered


# Limits ----------------------------------------------------------------------------------------


def test_remote_peers_do_not_use_up_the_limits_of_local_clients(
    beyond: QueryEndpoint, eventually: Eventually
) -> None:
    here, there = beyond.urls
    with contextlib.ExitStack() as held:
        silent = [
            held.enter_context(sockets.connect(there, 10.0))
            for _ in range(NETWORK_LIMITS.unknown_each + 4)
        ]
        eventually(lambda: any(is_closed(one) for one in silent), what="one too many sent away")
        clients = Connections(TOKEN)
        assert clients.ask(here, CountKeys("x", [1]), KeyCounts, 10.0) == KeyCounts({1: 1})
        clients.close()
    friends = Connections(TOKEN)

    def answered() -> bool:
        with contextlib.suppress(OwnerUnavailable):
            return bool(friends.ask(there, CountKeys("x", [1]), KeyCounts, 10.0))
        return False

    eventually(answered, what="room for another")
    friends.close()


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_client_that_sends_too_slowly_is_disconnected(
    beyond: QueryEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "HELLO_SECONDS", 0.3)
    pause = threading.Event()
    with sockets.connect(beyond.urls[1], 10.0) as connection:
        connection.sendall((1_000).to_bytes(4, "big"))
        for _ in range(1_000):
            try:
                connection.sendall(b"x")
            except OSError:
                break
            pause.wait(0.01)
        else:
            pytest.fail("it was waited for, though it never finished")


def test_a_client_that_does_not_read_is_disconnected_and_closing_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(listeners, "SEND_SECONDS", 0.2)
    made = QueryEndpoint(None)
    made.start(lambda _: FoundKeys([KeyValues(0, [bytes(1 << 20)] * 4, ("", 0))]))
    with dial(made) as connection:
        connection.sendall(encode(QueryHello(WIRE_VERSION)))
        assert received(connection) == QueryWelcome(WIRE_VERSION)
        connection.sendall(encode(GetKeys("x", [0], [b"k"], {})))
        [listener] = made._listeners
        eventually(lambda: listener._clients, what="the client served")
        monkeypatch.setattr(listeners, "MIN_BYTES_PER_S", 1)
        made.close()
        eventually(lambda: not listener._clients, what="the client gone")


def test_the_number_of_simultaneous_requests_is_bounded_and_further_ones_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "REQUEST_SECONDS", 0.2)
    limits = replace(LOCAL_LIMITS, requests=1)
    gate, inside = threading.Event(), threading.Event()

    def slow(request: Request) -> Answer:
        inside.set()
        assert gate.wait(30)
        return answer(request)

    made = Listener(sockets.listen_local(None), "", limits)
    made.start(slow)
    clients = Connections()
    first = threading.Thread(
        target=clients.ask, args=(made.url, CountKeys("x", [1]), KeyCounts, 30.0)
    )
    first.start()
    assert inside.wait(30)
    with pytest.raises(RequestTimedOut, match="more queries than it may answer at once"):
        clients.ask(made.url, CountKeys("x", [1]), KeyCounts, 30.0)
    gate.set()
    first.join(30)
    assert clients.ask(made.url, CountKeys("x", [2]), KeyCounts, 30.0) == KeyCounts({2: 1})
    clients.close()
    made.close()


def test_an_announced_size_takes_no_memory() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall((1 << 29).to_bytes(4, "big") + b"x")
        there.close()
        before = memory()
        assert read_frame(here, 1 << 30) is None
        assert memory() - before < 64 << 20


def memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("size", [10, 100_000, 1 << 20])
def test_a_long_answer_comes_in_pages(size: int) -> None:
    """A small request cannot make the worker build a large answer at once."""
    store = open_store(StoreSpec("raw", key=str, value=bytes, engine="memory"))
    keys = [f"{n:03}" for n in range(60)]
    for n, key in enumerate(keys):
        store[key] = bytes([n]) * size
    store.drain()
    store.committed(5)
    made = shop("/nowhere")
    spec = made.app.declared.tasks["tally"]

    class Instance:
        stores = [store] * len(spec.stores)

    instances: Any = {0: Instance(), 1: Instance()}
    provider = StoreProvider("shop", [spec], lambda _, n: instances.get(n), lambda: True)
    answers: list[int] = []

    class Here(Connections):
        def ask(self, url: str, request: Any, answer: Any, timeout: float) -> Any:
            got = provider.answer(request)
            answers.append(len(encode(got)))
            return got

    class Group:
        def gather(self, store: str, inputs: Any, partitions: Any, ask: Any) -> None:
            call = partial(Here().ask, timeout=1.0)
            left = set(partitions)
            while left:
                left -= set(ask(call, "", sorted(left)))

    names = [key_codec(str).encode(key) for key in [*keys, "missing"]]
    found = WorkerSource(Group(), "raw", ["sales"]).read([0, 1], names)  # type: ignore[arg-type]
    wanted = [*(bytes([n]) * size for n in range(60)), None]
    assert found == {0: wanted, 1: wanted}
    assert max(answers) <= (1 << 20) + size + 4_096
    got = provider.answer(GetKeys("raw", [0, 1] * 4_000, names, {}))
    assert len(encode(got)) <= (1 << 20) + size + 4_096


def test_small_values_do_not_make_a_worker_read_large_ones_at_once() -> None:
    store = open_store(StoreSpec("raw", key=str, value=bytes, engine="memory"))
    store["large"], size = b"x" * (1 << 20), 1 << 20
    store.drain()
    store.committed(5)
    spec = shop("/nowhere").app.declared.tasks["tally"]

    class Instance:
        stores = [store] * len(spec.stores)

    instances: Any = {0: Instance()}
    provider = StoreProvider("shop", [spec], lambda _, n: instances.get(n), lambda: True)
    missing, large = (key_codec(str).encode(key) for key in ("missing", "large"))
    got = provider.answer(GetKeys("raw", [0], [missing] * 100 + [large] * 1_000, {}))
    assert isinstance(got, FoundKeys)
    assert got.full
    assert len(encode(got)) <= (1 << 20) + size + 4_096
    [part] = got.parts
    assert part.values[:100] == [None] * 100


def test_a_claimed_size_gains_a_worker_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "REQUEST_SECONDS", 0.3)
    near, far = socket.socketpair()
    near.settimeout(10)

    def drip() -> None:
        with far, contextlib.suppress(OSError):
            far.sendall(MAX_ANSWER_BYTES.to_bytes(4, "big"))
            while True:
                far.sendall(b"x")
                threading.Event().wait(0.02)

    threading.Thread(target=drip, daemon=True).start()
    before = time.monotonic()
    with near, pytest.raises(TimeoutError):
        read_frame(near, MAX_ANSWER_BYTES)
    assert time.monotonic() - before < 8


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder for temporary files whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_sockets_without_a_log_folder_are_in_a_folder_per_user_and_stale_ones_are_removed(
    short: Path,
) -> None:
    dead, alive = sockets.listen_local(None), sockets.listen_local(None)
    dead.socket.close()
    new = sockets.listen_local(None)
    [folder] = short.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {f"unix://{path}" for path in folder.iterdir()} == {alive.url, new.url}
    for one in (alive, new):
        one.socket.close()


def test_a_socket_folder_of_another_user_is_not_used(short: Path) -> None:
    (short / f"strandline.{os.getuid()}").symlink_to(short)
    listening = sockets.listen_local(None)
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
        ("tls://127.0.0.1:1?certificate=none.pem&key=none.pem", "there is no file none.pem"),
        ("192.0.2.1:0", "can be reached"),
        ("tcp://192.0.2.1:0", "cannot listen at"),
    ],
)
def test_an_unusable_address_is_refused_and_leaves_no_socket(
    address: str, refusal: str, tmp_path: Path
) -> None:
    with pytest.raises(sl.InvalidConfig, match=refusal):
        QueryEndpoint(tmp_path, address, TOKEN)
    assert not list(tmp_path.glob("queries/*"))


def test_remote_queries_use_tls_if_the_log_is_reached_by_tls(
    tmp_path: Path,
) -> None:
    with pytest.raises(sl.InvalidConfig, match="use\n? ?tls://0.0.0.0:0"):
        QueryEndpoint(None, "tcp://0.0.0.0:0", TOKEN, encrypted=True)
    made = QueryEndpoint(None, "127.0.0.1:0", TOKEN, encrypted=True)
    made.close()
    clients = Connections(TOKEN, encrypted=True)
    assert clients.reaches("tcp://127.0.0.1:7400")
    assert clients.reaches("tls://10.0.0.5:7400")
    for url in ("tcp://10.0.0.5:7400", "tcp://worker:7400", "tcp://nonsense", "http://127.0.0.1:1"):
        assert not clients.reaches(url)
    assert Connections(TOKEN).reaches("tcp://10.0.0.5:7400")
    clients.close()


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the kernel does not tell")
@pytest.mark.parametrize("user", [54_321, 54_320])
def test_a_socket_of_another_user_is_not_used(
    user: int, endpoint: QueryEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that runs as root uses none either, because any group member announces any path."""
    monkeypatch.setattr(trust, "_ROOT", 54_320)
    asked = endpoint.urls[0], CountKeys("x", [1]), KeyCounts, 10.0
    with monkeypatch.context() as other:
        other.setattr("os.geteuid", lambda: user)
        with pytest.raises(OwnerUnavailable, match=rf"user \d+ listens at unix.* as user {user};"):
            Connections().ask(*asked)
        other.setenv("STRANDLINE_TRUST", "1")
        assert Connections().ask(*asked) == KeyCounts({1: 1})


@pytest.mark.parametrize("token", ["", "a short one"])
def test_a_worker_without_a_valid_token_does_not_listen(token: str) -> None:
    with pytest.raises(sl.InvalidConfig, match="a token of 16 characters or more"):
        QueryEndpoint(None, "127.0.0.1:0", token)


def test_listening_on_all_addresses_is_announced_as_the_machines_name() -> None:
    made = QueryEndpoint(None, "tcp://0.0.0.0:0", TOKEN)
    assert made.urls[1].startswith(f"tcp://{socket.gethostname()}:")
    made.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Files of a certificate for localhost, and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost"],
        check=True,
        capture_output=True,
    )
    return certificate, key


def test_an_endpoint_may_close_during_a_handshake(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its thread would fail, or continue without encryption."""
    file, key = certificate
    made = QueryEndpoint(None, f"tls://localhost:0?certificate={file}&key={key}", TOKEN)
    made.start(answer)
    handshake, errors, has_ended = Greeting._handshake, list[BaseException](), threading.Event()

    def closed_before(greeting: Greeting) -> None:
        made.close()
        try:
            handshake(greeting)
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            has_ended.set()

    monkeypatch.setattr(Greeting, "_handshake", closed_before)
    with pytest.raises(OwnerUnavailable):
        Connections(TOKEN, file.read_bytes()).ask(
            made.urls[1], CountKeys("x", [1]), KeyCounts, 10.0
        )
    assert has_ended.wait(30)
    assert [isinstance(error, OSError) for error in errors] == [True]


def test_the_worker_must_prove_its_identity_over_tls(certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    made = QueryEndpoint(None, f"tls://localhost:0?certificate={file}&key={key}", TOKEN)
    made.start(answer)
    url = made.urls[1]
    trusting = Connections(TOKEN, file.read_bytes())
    for n in range(3):
        assert trusting.ask(url, CountKeys("x", [n]), KeyCounts, 10.0) == KeyCounts({n: 1})
    doubting = Connections(TOKEN)
    with pytest.raises(OwnerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        doubting.ask(url, CountKeys("x", [1]), KeyCounts, 10.0)
    doubting.close()
    made.close()
    with pytest.raises(OwnerUnavailable):
        trusting.ask(url, CountKeys("x", [1]), KeyCounts, 10.0)
    trusting.close()


def test_a_worker_on_another_machine_is_queried_over_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """The worker's Unix socket cannot be reached from here."""
    monkeypatch.setenv("STRANDLINE_TOKEN", TOKEN)
    running = Running(str(tmp_path / "log"), application_server="127.0.0.1:0")
    running.made.sales.append([("york", 3)])
    with sl.connect(running.made.app.broker()) as connection:
        monkeypatch.setattr(sockets, "is_reachable", lambda url: not url.startswith("unix"))
        totals = connection.store("shop/totals", value=Total)
        eventually(lambda: totals.get("york") == Total(1, 3), what="the sale counted")
        assert {url[:6] for url in totals._committed._fleet._urls} == {"tcp://"}
    stranger = sl.connect(running.made.app.broker(), token="not this one at all")
    with stranger, pytest.raises(Unauthenticated):
        stranger.store("shop/totals", value=Total).get("york")
    running.stop()
    running.made.app.close()


@pytest.mark.parametrize(
    ("reverse", "rest"),
    [
        (False, (b"b", b"y")),
        (False, (b"a", b"y")),
        (False, (b"c", None)),
        (True, (b"b", b"y")),
        (True, (b"b", None)),
        (True, (b"a", b"x")),
    ],
)
def test_a_worker_cannot_make_a_scan_endless(reverse: bool, rest: tuple[bytes, Any]) -> None:
    class Group:
        def gather(self, store: str, inputs: Any, partitions: Any, ask: Any) -> None:
            ask(lambda *_: Scanned(True, [], rest, ReflectedPosition("", 0)), "", [0])

    source = WorkerSource(Group(), "raw", ["sales"])  # type: ignore[arg-type]
    with pytest.raises(OwnerUnavailable, match="read already"):
        source.page(0, KeyRange(b"b", b"y", reverse), 10)


@pytest.mark.parametrize(("reverse", "rest"), [(False, (b"c", b"y")), (True, (b"b", b"x"))])
def test_a_scan_goes_on_after_a_page_without_entries(
    reverse: bool, rest: tuple[bytes, bytes]
) -> None:
    class Group:
        def gather(self, store: str, inputs: Any, partitions: Any, ask: Any) -> None:
            ask(lambda *_: Scanned(True, [], rest, ReflectedPosition("", 0)), "", [0])

    source = WorkerSource(Group(), "raw", ["sales"])  # type: ignore[arg-type]
    assert source.page(0, KeyRange(b"b", b"y", reverse), 10) == ([], KeyRange(*rest, reverse))


@pytest.mark.parametrize("what", ["inputs", "figures"])
def test_the_names_in_the_description_of_a_store_are_bounded(what: str) -> None:
    """A client would decode and build any number of them."""
    decode = messages.decoder(StoreDescription)
    for count in (messages.MAX_NAMES, messages.MAX_NAMES + 1):
        names = [f"n{number}" for number in range(count)]
        figures = {name: ("sum", name) for name in names} if what == "figures" else None
        inputs = names if what == "inputs" else ["t"]
        sent = StoreDescription(inputs, "str", "typed", "", figures, None)
        body = messages.encode(sent)[messages.HEAD_BYTES :]
        if count > messages.MAX_NAMES:
            with pytest.raises(InvalidRequest, match="10000"):
                decode(body)
        else:
            assert decode(body) == sent


def test_a_store_with_a_large_value_is_read_one_value_at_a_time() -> None:
    """Otherwise a request of 100 bytes takes memory for many values, and answers with one."""
    store = open_store(StoreSpec("raw", key=str, value=bytes, engine="memory"))
    store["large"] = b"x" * (1 << 20)
    store.drain()
    store.committed(5)
    spec = shop("/nowhere").app.declared.tasks["tally"]
    steps: list[int] = []

    class Reader:
        position = store.reader.position

        def get_many(self, keys: Any) -> Any:
            steps.append(len(keys))
            return store.reader.get_many(keys)

    class Instance:
        stores = [type("Counting", (), {"reader": Reader()})()] * len(spec.stores)

    instances: Any = {0: Instance()}
    provider = StoreProvider("shop", [spec], lambda _, n: instances.get(n), lambda: True)
    missing, large = (key_codec(str).encode(key) for key in ("missing", "large"))
    provider.answer(GetKeys("raw", [0], [large] * 100, {}))
    assert steps == [16]
    steps.clear()
    provider.answer(GetKeys("raw", [0], [missing, missing, large, large], {}))
    assert steps == [1, 1, 1]
    assert not provider._several.locked()
