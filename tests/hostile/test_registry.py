"""Answers of a schema registry take bounded memory and time."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.errors import RegistryUnavailable
from strandline.framework.formats import registry
from strandline.framework.formats.registry import RegisteredSchema, SchemaRegistry
from tests.hostile.bombs import measured

pytest.importorskip("confluent_kafka.schema_registry")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Serve = Callable[[Callable[[socket.socket], None]], str]


def read_request(peer: socket.socket) -> None:
    """Read a request with its body, as far as it comes."""
    length = 0
    with peer.makefile("rb") as content:
        for line in iter(content.readline, b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            if line == b"\r\n":
                break
        content.read(length)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a function's answers to all requests. Returns the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def start(answer: Callable[[socket.socket], None]) -> str:
            def answered(peer: socket.socket) -> None:
                with closing(peer), suppress(OSError):
                    read_request(peer)
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


WRONG = {
    "a page": b"<html>Sign in</html>",
    "another object": b"{}",
    "a list": b"[]",
    "nothing": b"",
    "null": b"null",
    "text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "a wrong id": b'{"id": "seven", "schema": 7}',
    "a negative id": b'{"id": -1, "schema": null}',
    "a large id": b'{"id": 4294967296, "schema": ["string"]}',
    "a long number": b'{"id": ' + b"7" * 5_000 + b', "schema": false}',
}
"""Bodies of responses with status 200 that no registry sends."""
RIGHT = b'{"id": 7, "schema": "\\"int\\""}'


def answering(body: bytes, status: bytes = b"200 OK") -> Callable[[socket.socket], None]:
    head = b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n\r\n"
    return lambda peer: peer.sendall(head + body)


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("auto_register", [True, False])
def test_an_answer_that_no_registry_gives_is_none_and_is_not_kept(
    serve: Serve, body: bytes, *, auto_register: bool
) -> None:
    """A record would be skipped or become a dead letter for what a proxy answers."""
    answers = [answering(body)]
    url = serve(lambda peer: answers[0](peer))
    registered = SchemaRegistry(url, auto_register=auto_register)
    schema = RegisteredSchema("AVRO", '"int"')
    with pytest.raises(RegistryUnavailable, match="does not answer as a schema registry"):
        registered.id_of("t-value", schema)
    with pytest.raises(RegistryUnavailable, match="does not answer as a schema registry"):
        registered.schema(7)
    answers[0] = answering(RIGHT)
    assert registered.id_of("t-value", schema) == 7
    assert registered.schema(7) == schema


def test_a_proxy_that_does_not_know_the_path_decides_about_no_record(serve: Serve) -> None:
    registered = SchemaRegistry(serve(answering(b"<html>no</html>", b"404 Not Found")))
    with pytest.raises(RegistryUnavailable, match="is the URL that of a registry"):
        registered.schema(7)


def test_a_long_error_is_shown_in_part(serve: Serve) -> None:
    registered = SchemaRegistry(serve(answering(b"x" * 1_000_000, b"500 Oops")))
    with pytest.raises(RegistryUnavailable) as raised:
        registered.schema(7)
    assert len(str(raised.value)) < 1_000


def test_a_secret_where_an_error_is_cut_is_not_shown_in_part(serve: Serve) -> None:
    secret = "correct-horse-battery-staple"
    for before in range(registry.MAX_ERROR_CHARS - 60, registry.MAX_ERROR_CHARS, 5):
        body = b"x" * before + f"me:{secret}".encode()
        url = serve(answering(body, b"500 Oops"))
        with pytest.raises(RegistryUnavailable) as raised:
            SchemaRegistry(url, basic_auth_user_info=f"me:{secret}").schema(7)
        assert "me:c" not in str(raised.value)


@pytest.mark.parametrize("on_error", ["skip", "dead_letter", "fail"])
def test_records_wait_while_a_proxy_answers_for_the_registry(
    serve: Serve, tmp_path: Path, on_error: Any
) -> None:
    asked: list[int] = []

    def answer(peer: socket.socket) -> None:
        asked.append(1)
        answering(RIGHT if len(asked) > 3 else WRONG["a page"])(peer)

    registered = SchemaRegistry(serve(answer))
    app = sl.App("app", log=tmp_path / "log", state_dir=tmp_path / "state")
    numbers = app.topic("numbers", value=int)
    written = app.topic("written", value=int, serde=sl.JsonSerde(registry=registered))

    @app.task(numbers, on_error=on_error)
    def write(record: sl.Record[Any, int]) -> None:
        written.send(record.key, record.value)

    numbers.append((None, number) for number in range(20))
    app.run(until="end")
    assert len(asked) > 3
    assert written.to_polars()["value"].to_list() == list(range(20))
