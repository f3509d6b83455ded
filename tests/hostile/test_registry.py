"""Answers of a schema registry take bounded memory and time."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from strandline.changelog.errors import RegistryUnavailable
from strandline.framework.formats import registry
from strandline.framework.formats.registry import SchemaRegistry
from tests.hostile.bombs import measured

pytest.importorskip("confluent_kafka.schema_registry")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Serve = Callable[[Callable[[socket.socket], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a function's answers to all requests. Returns the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def start(answer: Callable[[socket.socket], None]) -> str:
            def answered(peer: socket.socket) -> None:
                with closing(peer), suppress(OSError):
                    peer.recv(65536)
                    answer(peer)

            def run() -> None:
                with suppress(OSError):
                    while True:
                        peer, _ = listener.accept()
                        threading.Thread(target=answered, args=(peer,), daemon=True).start()

            threading.Thread(target=run, daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def test_an_endless_answer_is_cut_off(serve: Serve) -> None:
    def endless(peer: socket.socket) -> None:
        peer.sendall(HEAD + b'\r\n{"schema": "')
        for _ in range(4_096):  # 256 MiB
            peer.sendall(b"x" * 65_536)

    url = serve(endless)
    assert SchemaRegistry(url).client  # imports the client's packages
    with (
        measured() as taken,
        pytest.raises(RegistryUnavailable, match="more than 16,777,216 bytes"),
    ):
        SchemaRegistry(url).schema(1)
    assert taken.python < 64 << 20


def test_an_answer_that_unpacks_to_too_much_is_refused(serve: Serve) -> None:
    content = gzip.compress(b" " * (64 << 20))
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(content)
    url = serve(lambda peer: peer.sendall(head + content))
    assert SchemaRegistry(url).client
    with measured() as taken, pytest.raises(RegistryUnavailable, match="gzip"):
        SchemaRegistry(url).schema(1)
    assert taken.python < 16 << 20


def test_an_answer_that_arrives_too_slowly_is_cut_off(serve: Serve) -> None:
    stop = threading.Event()

    def drips(peer: socket.socket) -> None:
        peer.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
        while not stop.wait(0.01):
            peer.sendall(b" ")

    with pytest.raises(RegistryUnavailable, match="within 0.5 s"):
        SchemaRegistry(serve(drips), timeout=0.5).schema(1)
    stop.set()


def test_a_head_that_arrives_byte_by_byte_is_cut_off(serve: Serve) -> None:
    """And a registry that does so at each call is not called for ever."""
    stop = threading.Event()

    def drips(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\n")
        while not stop.wait(0.01):
            peer.sendall(b"x")

    registered = SchemaRegistry(serve(drips), timeout=0.2)
    for _ in range(registry.MAX_ABANDONED):
        with pytest.raises(RegistryUnavailable, match="within 0.6 s"):
            registered.schema(1)
    with pytest.raises(RegistryUnavailable, match="responses that do not end"):
        registered.schema(1)
    stop.set()


def test_a_normal_answer_is_accepted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_ANSWER_BYTES", 20)
    body = b'{"schema": "\\"int\\""}'
    url = serve(lambda peer: peer.sendall(HEAD + b"Connection: close\r\n\r\n" + body))
    assert len(body) == 21
    with pytest.raises(RegistryUnavailable):
        SchemaRegistry(url).schema(1)
    monkeypatch.setattr(registry, "MAX_ANSWER_BYTES", 21)
    assert SchemaRegistry(url).schema(1).text == '"int"'
