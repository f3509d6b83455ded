"""A peer at the TCP port without a token cannot exceed the limits, whatever it sends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.errors import (
    InvalidConfig,
    NotAuthorized,
    OwnerUnavailable,
    Unauthenticated,
)
from strandline.changelog.flight import connection, front, hello, tokens
from strandline.changelog.flight.address import connect
from strandline.changelog.flight.greeting import HTTP2_PREFACE
from strandline.changelog.flight.limits import ListenerLimits, limits_from
from strandline.changelog.flight.messages import WIRE_VERSION, SessionHello, encode
from strandline.changelog.flight.rights import Rights
from strandline.changelog.flight.serve import ServedLog, serve
from strandline.changelog.groups import Subscription
from strandline.changelog.local_storage import LocalStorage

TOKEN = "sixteen-or-more-characters"
FOR_EVER = 1_000_000.0
UNNAMED_PEER = "unix:"
"""Name that gRPC gives a connection whose client has not bound its socket."""
Eventually = Callable[..., Any]


@contextlib.contextmanager
def serving(folder: Path, **limits: Any) -> Iterator[ServedLog]:
    served = serve(
        folder / "log", listen="127.0.0.1:0", token=TOKEN, limits=ListenerLimits(**limits)
    )
    try:
        yield served
    finally:
        served.close()


def port_of(served: ServedLog) -> int:
    return int(served.url.rpartition(":")[2])


def peer_of(served: ServedLog) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(served)), timeout=30)


def is_closed(peer: socket.socket) -> bool:
    """Return True if the server closes the connection. Waits until it does or sends something."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def asks(served: ServedLog) -> None:
    """Check that a client with the token is served."""
    with changelog.open(served.url, token=TOKEN) as log:
        assert log.topics() == []


def is_served(served: ServedLog) -> bool:
    """Return True if a client with the token is served, False if its connection is refused."""
    try:
        asks(served)
    except OwnerUnavailable:
        return False
    return True


def test_a_peer_that_does_not_speak_is_closed_at_the_deadline(tmp_path: Path) -> None:
    with serving(tmp_path, hello_timeout_s=0.2) as served, peer_of(served) as peer:
        assert is_closed(peer)
        asks(served)


def test_the_deadline_applies_to_the_whole_hello_and_not_to_each_byte(
    tmp_path: Path, eventually: Eventually
) -> None:
    with serving(tmp_path, hello_timeout_s=0.1) as served, peer_of(served) as peer:
        sent = []
        opening = hello.pack_opening(hello.ClientOpening("", bytes(32)))

        def dripped() -> bool:
            try:
                peer.sendall(opening[len(sent) :][:1])
            except OSError:
                return True
            sent.append(1)
            return len(sent) > 79

        eventually(dripped)
        assert len(sent) < 79
        assert is_closed(peer)


def test_an_address_competes_with_itself_for_the_pending_connections(
    tmp_path: Path, eventually: Eventually
) -> None:
    limits = {"hello_timeout_s": FOR_EVER, "max_pending": 8, "max_pending_per_address": 4}
    with serving(tmp_path, **limits) as served, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(peer_of(served)) for _ in range(50)]
        assert all(is_closed(peer) for peer in peers[:46])
        assert served._endpoint.pending <= 4
        asks(served)


def test_pending_connections_are_bounded_over_all_addresses(tmp_path: Path) -> None:
    limits = {"hello_timeout_s": FOR_EVER, "max_pending": 8, "max_pending_per_address": 4}
    with serving(tmp_path, **limits) as served, contextlib.ExitStack() as stack:
        peers = []
        for number in range(40):
            source = (f"127.0.0.{10 + number % 20}", 0)
            address = ("127.0.0.1", port_of(served))
            peers.append(socket.create_connection(address, timeout=30, source_address=source))
            stack.enter_context(peers[-1])
        assert sum(is_closed(peer) for peer in peers[:32]) == 32
        asks(served)


def test_closing_does_not_wait_for_peers(tmp_path: Path) -> None:
    """Neither a peer in its hello nor an authenticated one that does not read delays the close."""
    limits = {"hello_timeout_s": FOR_EVER, "stall_timeout_s": FOR_EVER}
    with serving(tmp_path, **limits) as served:
        silent = peer_of(served)
        client, _ = authenticated(served)
        client.sendall(HTTP2_PREFACE + b"\r\n\r\nSM\r\n\r\n")
    assert is_closed(silent)
    with contextlib.suppress(ConnectionResetError):
        while client.recv(4096):
            pass
    assert not [t for t in threading.enumerate() if t.name.startswith("strandline-front")]
    silent.close()
    client.close()


def authenticated(served: ServedLog, token: str = TOKEN) -> tuple[socket.socket, str]:
    """Return a connection after its hello, and its credential."""
    peer = peer_of(served)
    opening = hello.pack_opening(hello.ClientOpening("", os.urandom(32)))
    peer.sendall(opening)
    nonce = reply_of(peer)
    peer.sendall(hello.proof_of(token, opening + nonce))
    reply_of(peer)
    return peer, hello.credential_of(token, opening + nonce)


def reply_of(peer: socket.socket) -> bytes:
    status, length = hello.REPLY_HEADER.unpack(peer.recv(3, socket.MSG_WAITALL))
    body = peer.recv(length, socket.MSG_WAITALL)
    assert status == hello.ACCEPTED, body
    return body


def test_a_client_that_reads_nothing_is_closed(tmp_path: Path, eventually: Eventually) -> None:
    with serving(tmp_path, stall_timeout_s=0.2) as served:
        peer, _ = authenticated(served)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(0)
        peer.send(HTTP2_PREFACE + b"\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        ping = b"\0\0\x08\6\0\0\0\0\0" + b"x" * 8

        def closed() -> bool:
            try:
                peer.send(ping * 1000)
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        eventually(closed)
        peer.close()
        asks(served)


def test_a_recorded_hello_cannot_be_replayed(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        opening = hello.pack_opening(hello.ClientOpening("", b"n" * 32))
        with peer_of(served) as peer:
            peer.sendall(opening)
            proof = hello.proof_of(TOKEN, opening + reply_of(peer))
            peer.sendall(proof)
            reply_of(peer)
        with peer_of(served) as peer:
            peer.sendall(opening)
            reply_of(peer)
            peer.sendall(proof)
            status, _ = hello.REPLY_HEADER.unpack(peer.recv(3, socket.MSG_WAITALL))
            assert status == hello.REFUSED


def test_a_credential_expires_with_its_connection(tmp_path: Path, eventually: Eventually) -> None:
    from pyarrow import flight

    with serving(tmp_path) as served:
        peer, credential = authenticated(served)
        eventually(lambda: served._endpoint.clients.find(credential))
        known = served._endpoint.clients.find(credential)
        assert known is not None
        eventually(lambda: known.peer)
        known.peer = UNNAMED_PEER  # as if this test's connection with the backend were its own
        backend = f"grpc+unix://{served._endpoint._backend}"
        client = flight.connect(backend)
        headers = [(b"authorization", f"Bearer {credential}".encode())]
        action = flight.Action("Hello", encode(SessionHello(WIRE_VERSION, 1, "p")))
        list(client.do_action(action, flight.FlightCallOptions(timeout=30, headers=headers)))
        peer.close()
        eventually(lambda: not served._endpoint.clients.find(credential))
        for shown in (headers, [(b"authorization", b"Bearer ")], []):
            with pytest.raises(flight.FlightUnauthenticatedError):
                options = flight.FlightCallOptions(timeout=30, headers=shown)
                list(client.do_action(action, options))
        client.close()


def test_a_credential_is_valid_on_its_own_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose token may do little has seen another client's credential on the network."""
    with serving(tmp_path) as served, changelog.open(served.url, token=TOKEN) as admin:
        admin.create_topic("secret")
        (seen,) = served._endpoint.clients._by_credential
        limited = tokens.create(
            LocalStorage(tmp_path / "log"), "limited", Rights(read=("public",))
        ).token
        with changelog.open(served.url, token=limited) as log, pytest.raises(NotAuthorized):
            log.create_topic("mine")
        shown = connection.call_headers
        monkeypatch.setattr(connection, "call_headers", lambda _own, session: shown(seen, session))
        with changelog.open(served.url, token=limited) as log:
            for call in (lambda: log.create_topic("mine"), lambda: log.read("secret")):
                with pytest.raises(Unauthenticated, match="another connection"):
                    call()
        monkeypatch.undo()
        assert [info.name for info in admin.topics()] == ["secret"]


def test_a_server_that_does_not_know_the_token_is_rejected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(hello.OPENING_BYTES, socket.MSG_WAITALL)
                peer.sendall(hello.REPLY_HEADER.pack(hello.ACCEPTED, 32) + bytes(32))
                peer.recv(hello.PROOF_BYTES, socket.MSG_WAITALL)
                peer.sendall(hello.REPLY_HEADER.pack(hello.ACCEPTED, 32) + bytes(32))
                assert peer.recv(1) == b""  # nothing else is sent to the server

        thread = threading.Thread(target=pretend)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(Unauthenticated, match="does not know the token"):
            connect(f"strandline://127.0.0.1:{port}?token={TOKEN}", deadline=30)
        thread.join(30)
        assert not thread.is_alive()


def test_a_server_that_answers_noise_is_an_error_within_the_deadline() -> None:
    for answer in (
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\xff\xff" + b"x" * 9000,
        b"\1\0\1\xc1",
    ):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def respond(listener: socket.socket = listener, answer: bytes = answer) -> None:
                with contextlib.suppress(OSError):
                    while True:
                        peer, _ = listener.accept()
                        with peer, contextlib.suppress(OSError):
                            peer.sendall(answer)

            thread = threading.Thread(target=respond, daemon=True)
            thread.start()
            with pytest.raises(OwnerUnavailable, match="cannot connect to|did not answer"):
                connect(f"strandline://127.0.0.1:{listener.getsockname()[1]}?token=t", deadline=0.3)
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def test_the_token_is_never_sent(tmp_path: Path) -> None:
    passed: list[bytes] = []
    with serving(tmp_path) as served, socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen_in, args=(listener, served, passed), daemon=True).start()
        url = f"strandline://127.0.0.1:{listener.getsockname()[1]}"
        with changelog.open(url, token=TOKEN) as log:
            log.create_topic("heard")
    spoken = b"".join(passed)
    assert b"heard" in spoken
    assert TOKEN.encode() not in spoken


def listen_in(listener: socket.socket, served: ServedLog, passed: list[bytes]) -> None:
    """Forward bytes between a client and the server, and record them."""
    near, _ = listener.accept()
    far = peer_of(served)

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                passed.append(content)
                target.sendall(content)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=pump, args=(near, far), daemon=True).start()
    pump(far, near)


def test_a_client_of_an_older_release_gets_an_error_that_says_so(tmp_path: Path) -> None:
    from pyarrow import flight

    with serving(tmp_path) as served:
        client = flight.connect(f"grpc+tcp://127.0.0.1:{port_of(served)}")
        options = flight.FlightCallOptions(timeout=10)
        with pytest.raises(flight.FlightError, match="426"):
            list(client.do_action(flight.Action("Hello", b""), options))
        client.close()
        with peer_of(served) as peer:
            peer.sendall(HTTP2_PREFACE)
            content = b""
            while part := peer.recv(4096):
                content += part
        assert b"upgrade the client" in content


def test_authenticated_connections_are_bounded(tmp_path: Path, eventually: Eventually) -> None:
    with serving(tmp_path, max_connections_per_address=2) as served:
        peers = [authenticated(served)[0] for _ in range(2)]
        with pytest.raises(OwnerUnavailable, match="--max-connections-per-address"):
            connect(f"{served.url}?token={TOKEN}", deadline=3)
        for peer in peers:
            peer.close()
        eventually(lambda: is_served(served), what="the slots to be free again")


def test_peers_at_the_tcp_port_do_not_starve_processes_on_this_machine(tmp_path: Path) -> None:
    limits = {"hello_timeout_s": FOR_EVER, "max_connections": 1, "max_pending": 4}
    with serving(tmp_path, **limits) as served, contextlib.ExitStack() as stack:
        stack.enter_context(authenticated(served)[0])
        for _ in range(20):
            stack.enter_context(peer_of(served))
        with changelog.open(tmp_path / "log") as log:
            assert log.topics() == []


class Poor(socket.socket):
    """A listener in a process that is out of descriptors for a while."""

    failures = 3

    def accept(self) -> Any:
        if Poor.failures:
            Poor.failures -= 1
            raise OSError(24, "Too many open files")
        return super().accept()


def test_without_descriptors_nothing_is_accepted_until_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listen = front._listen
    monkeypatch.setattr(front, "NO_DESCRIPTOR_PAUSE_S", 0.1)
    monkeypatch.setattr(front, "_listen", lambda at: Poor(fileno=listen(at).detach()))
    with serving(tmp_path) as served:
        asks(served)
    assert caplog.text.count("Too many open files") == 3


def test_a_peer_that_finds_a_fault_does_not_end_the_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a fault")

    with serving(tmp_path) as served:
        with monkeypatch.context() as patched, peer_of(served) as peer:
            patched.setattr(hello, "unpack_opening", fails)
            peer.sendall(hello.pack_opening(hello.ClientOpening("", bytes(32))))
            assert is_closed(peer)
        asks(served)
    assert "a fault" in caplog.text


def test_the_temporary_folder_may_have_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with serving(tmp_path) as served:
        asks(served)
    assert list(long.iterdir()) == []


def test_limits_that_need_too_many_descriptors_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (400, 500))
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    with pytest.raises(InvalidConfig, match="lower --max-connections"):
        serve(tmp_path / "log", listen="127.0.0.1:0")


def test_limits_come_from_the_environment() -> None:
    given = {"STRANDLINE_MAX_CONNECTIONS": "5", "STRANDLINE_HELLO_TIMEOUT": "2.5"}
    limits = limits_from(given, max_pending=3)
    assert (limits.max_connections, limits.hello_timeout_s, limits.max_pending) == (5, 2.5, 3)
    for name, value in (
        ("MAX_CONNECTIONS", "x"),
        ("MAX_CONNECTIONS", "0"),
        ("STALL_TIMEOUT", "nan"),
    ):
        with pytest.raises(InvalidConfig, match=f"STRANDLINE_{name}"):
            limits_from({f"STRANDLINE_{name}": value})


# Resources that a peer without a token can use -----------------------------------------------

SERVER = """
import json, os, sys
from strandline.changelog.flight.serve import serve

def taken():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {"threads": int(status["Threads"]), "kib": int(status["VmRSS"].split()[0]),
            "peak_kib": int(status["VmHWM"].split()[0]), "files": len(os.listdir("/proc/self/fd"))}

served = serve(sys.argv[1], listen="127.0.0.1:0", token="sixteen-or-more-characters")
print(served.url.rpartition(":")[2], flush=True)
for _ in sys.stdin:
    print(json.dumps(taken()), flush=True)
served.close()
"""

SLOW_END = """
import sys, threading, time
from strandline.changelog.embedded.groups.groups import GroupCoordinator
from strandline.changelog.flight.serve import serve
from strandline.changelog.flight.server import FlightEndpoint

left, leaving = GroupCoordinator.leave, threading.Event()

def leave(self, members):
    leaving.set()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        pass
    left(self, members)

GroupCoordinator.leave = leave
FlightEndpoint.close.__defaults__ = (0.1,)
served = serve(sys.argv[1], listen="127.0.0.1:0", token="sixteen-or-more-characters")
print(served.url.rpartition(":")[2], flush=True)
assert leaving.wait(60)
served.close()
"""
"""A server that closes while a member leaves, which takes longer than calls in progress get."""

PATH = b"/arrow.flight.protocol.FlightService/DoAction"
HEADERS = (
    b"\x83\x86\x41\x01a"  # POST, http, an authority
    + b"\x04%c%s" % (len(PATH), PATH)
    + b"\0\x0ccontent-type\x10application/grpc\0\x02te\x08trailers"
)
"""Headers of a call without a token."""


def started_by(script: str, folder: Path, repository: Path) -> subprocess.Popen[str]:
    """Start a server of the log in `folder` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder / "log")],
        cwd=repository,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def process(tmp_path: Path, repository: Path) -> Iterator[subprocess.Popen[str]]:
    with started_by(SERVER, tmp_path, repository) as started:
        yield started
        assert started.stdin is not None
        started.stdin.close()
        assert started.wait(30) == 0


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def taken(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: dict[str, int] = json.loads(read(process))
    return found


def resets(peer: socket.socket) -> None:
    """Open 3,000 calls and reset each at once."""
    peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
    for number in range(1, 6_000, 2):  # streams of a client have odd numbers
        peer.sendall(frame(1, 4, number, HEADERS) + frame(3, 0, number, b"\0\0\0\x08"))


def large(peer: socket.socket) -> None:
    """Make a call of 256 MB, as gRPC does."""
    from pyarrow import flight

    client = flight.connect(f"grpc+tcp://127.0.0.1:{peer.getpeername()[1]}")
    options = flight.FlightCallOptions(timeout=10)
    with contextlib.suppress(flight.FlightError, OSError):
        list(client.do_action(flight.Action("ListTopics", bytes(256 << 20)), options))
    client.close()


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def silent(peer: socket.socket) -> None:
    """Send nothing."""


def noise(peer: socket.socket) -> None:
    """Send 16 MB of noise."""
    for _ in range(256):
        peer.sendall(b"strandline hello" * 4096)


@pytest.mark.skipif(sys.platform != "linux", reason="measures by /proc")
@pytest.mark.parametrize(("attack", "peers"), [(resets, 4), (large, 1), (silent, 600), (noise, 32)])
def test_a_peer_without_a_token_takes_bounded_resources(
    process: subprocess.Popen[str], attack: Callable[[socket.socket], None], peers: int
) -> None:
    port = int(read(process))
    before = taken(process)
    with contextlib.ExitStack() as stack:
        for _ in range(peers):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            with contextlib.suppress(OSError):
                attack(peer)
        during = taken(process)
    assert during["threads"] <= before["threads"] + 2
    assert during["files"] <= before["files"] + 64
    assert during["peak_kib"] <= before["peak_kib"] + (16 << 10)
    with changelog.open(f"strandline://127.0.0.1:{port}", token=TOKEN) as log:
        assert log.topics() == []


# TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def pems(tmp_path: Path) -> Path:
    """Folder with a certificate authority, and certificates issued to a server and to a client."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-keyout")
    try:
        # Python 3.13 asks for what an authority's key may be used for (VERIFY_X509_STRICT).
        openssl(
            *(*new, "ca.key", "-x509", "-days", "2", "-out", "ca.pem", "-subj", "/CN=authority"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )
    except FileNotFoundError:
        pytest.skip("makes its certificates with openssl")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(*new, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            *(
                "x509",
                "-req",
                "-in",
                f"{name}.csr",
                "-CA",
                "ca.pem",
                "-CAkey",
                "ca.key",
                "-days",
                "2",
            ),
            *("-CAcreateserial", "-out", f"{name}.pem", "-extfile", "names"),
        )
    return tmp_path


def test_clients_without_a_required_certificate_are_rejected(pems: Path) -> None:
    served = serve(
        pems / "log",
        listen="127.0.0.1:0",
        token=TOKEN,
        tls_certificate=pems / "server.pem",
        tls_key=pems / "server.key",
        client_ca=pems / "ca.pem",
    )
    url = f"{served.url}?token={TOKEN}&ca={pems}/ca.pem"
    with changelog.open(f"{url}&cert={pems}/client.pem&key={pems}/client.key") as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", os.urandom(20 << 20))
        with log.consumer() as consumer:
            consumer.subscribe("t")
            assert len(consumer.poll(timeout=30)) == 1
    with pytest.raises(OwnerUnavailable, match="requires certificates of its clients"):
        connect(url, deadline=1)
    with pytest.raises(InvalidConfig, match="PEM files"):
        connect(f"{url}&cert={pems}/client.key&key={pems}/client.key", deadline=1)
    served.close()


def test_tls_that_stops_in_its_handshake_is_closed_at_the_deadline(pems: Path) -> None:
    served = serve(
        pems / "log",
        listen="127.0.0.1:0",
        token=TOKEN,
        tls_certificate=pems / "server.pem",
        tls_key=pems / "server.key",
        limits=ListenerLimits(hello_timeout_s=0.3),
    )
    with peer_of(served) as peer:
        peer.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert is_closed(peer)
    with peer_of(served) as peer:
        context = ssl.create_default_context(cafile=str(pems / "ca.pem"))
        with context.wrap_socket(peer, server_hostname="127.0.0.1") as inside:
            assert inside.recv(1) == b""  # after TLS, no hello was sent
    with changelog.open(f"{served.url}?token={TOKEN}&ca={pems}/ca.pem") as log:
        assert log.topics() == []
    served.close()


def test_a_server_that_closes_during_a_long_call_ends_in_order(
    tmp_path: Path, repository: Path
) -> None:
    """An interpreter that ends while a thread of gRPC runs Python code aborts the process."""
    with started_by(SLOW_END, tmp_path, repository) as started:
        url = f"strandline://127.0.0.1:{int(read(started))}?token=sixteen-or-more-characters"
        with changelog.open(url) as log:
            log.create_topic("t")
            log.broker.join_group("g", Subscription(["t"]))
        assert started.wait(60) == 0
