"""The metrics of this process, over HTTP, for Prometheus: `GET /metrics`.

It looks at what runs here without stopping it. A few clients are answered at the same time, each on
a thread of its own and within a total time; more are sent away. The end waits for none of them.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import urlsplit

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.hosts import bracketed
from strandline.changelog.metrics import CONTENT_TYPE, MetricReading, exposition
from strandline.changelog.secret import masked
from strandline.framework.peers import Admission, Deadline, receive, send_all

_log = logging.getLogger("strandline")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9464
"""OpenTelemetry's for Prometheus."""
HIGHEST_PORT = 65_535
PATH = "/metrics"
PATIENCE_SECONDS = 5.0
"""How long a client may take to ask, and as long again to take the answer, in all."""
MAX_CLIENTS = 16
"""Clients at the same time."""
MAX_CLIENTS_EACH = 4
"""Of them from one address."""
MAX_REQUEST_BYTES = 16 << 10
POLL_SECONDS = 0.1
"""How soon `close` is noticed, where a closed socket does not say so."""
CLOSING_SECONDS = 2.0
"""How long `close` waits for its own thread."""

Collect = Callable[[], list[MetricReading]]


class MetricsEndpoint:
    """Serves what `collect` gives, from construction until `close`.

    `address` is "host:port"; see `parse`. Raises InvalidConfig if that is none, or is in use.
    """

    def __init__(self, address: str, collect: Collect) -> None:
        host, port = parse(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, port), family=family)
        except OSError as error:
            raise InvalidConfig(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}; choose an "
                "address of this machine and a port that is free, or port 0, which takes one"
            ) from error
        self.url = f"http://{bracketed(host)}:{self._listening.getsockname()[1]}{PATH}"
        """What Prometheus is to ask."""
        self._collect = collect
        self._collecting = threading.Lock()
        self._admission = Admission(MAX_CLIENTS, MAX_CLIENTS_EACH)
        self._closed = threading.Event()
        self._listening.settimeout(POLL_SECONDS)
        self._thread = threading.Thread(target=self._accept, name="strandline-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; a client that is being answered is not waited for."""
        self._closed.set()
        self._listening.close()
        self._thread.join(CLOSING_SECONDS)

    # Its own threads ------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, peer = self._listening.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closed.is_set():
                    _log.warning("a client of the metrics cannot be accepted: %s", error)
                    self._closed.wait(POLL_SECONDS)
                continue
            self._admit(client, str(peer[0]))

    def _admit(self, client: socket.socket, address: str) -> None:
        if not self._admission.enter(address):
            client.close()
            return
        try:
            threading.Thread(
                target=self._serve, args=(client, address), name="strandline-scrape", daemon=True
            ).start()
        except RuntimeError:  # there may be no more threads
            self._admission.leave(address)
            client.close()

    def _serve(self, client: socket.socket, address: str) -> None:
        try:
            with client, contextlib.suppress(OSError):
                request = _request(client)
                if request is not None:
                    send_all(client, self._answer(request), Deadline(PATIENCE_SECONDS))
        finally:
            self._admission.leave(address)

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        target, _, version = rest.partition(b" ")
        if method != b"GET" or not version.startswith(b"HTTP/"):
            return _response(HTTPStatus.BAD_REQUEST, f"metrics are at GET {PATH}\n")
        if target.partition(b"?")[0] != PATH.encode():
            return _response(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}\n")
        try:
            with self._collecting:
                return _response(HTTPStatus.OK, exposition(self._collect()), CONTENT_TYPE)
        except Exception:
            _log.exception("the metrics could not be told")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, "the metrics could not be told\n")


@contextmanager
def served(address: str | None, collect: Collect) -> Iterator[str]:
    """An endpoint, while the block runs, and its URL; without an address none, and no URL."""
    if address is None:
        yield ""
        return
    endpoint = MetricsEndpoint(address, collect)
    _log.info("metrics are at %s", endpoint.url, extra={"url": endpoint.url})
    try:
        yield endpoint.url
    finally:
        endpoint.close()


def parse(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; without a host 127.0.0.1, without a port 9464.

    >>> parse("0.0.0.0:9000"), parse("[::1]:9000"), parse("localhost"), parse(":9000"), parse("9000")
    (('0.0.0.0', 9000), ('::1', 9000), ('localhost', 9464), ('127.0.0.1', 9000), ('127.0.0.1', 9000))
    """
    text = f":{address}" if address.isdecimal() else address
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if not text or parts.netloc != text or "@" in text or (host is None and port is None):
        raise InvalidConfig(
            f"metrics are served at HOST:PORT, as {DEFAULT_HOST}:{DEFAULT_PORT}; got {masked(address)!r}"
        )
    return host or DEFAULT_HOST, DEFAULT_PORT if port is None else port


def _request(client: socket.socket) -> bytes | None:
    """The first line of a request, read to the end of its headers; None if it does not come whole."""
    deadline = Deadline(PATIENCE_SECONDS)
    received = bytearray()
    while b"\r\n\r\n" not in received and b"\n\n" not in received:
        data = receive(client, MAX_REQUEST_BYTES, deadline)
        received += data
        if not data or len(received) > MAX_REQUEST_BYTES:
            return None
    return bytes(received.splitlines()[0]) if received.strip() else b""


def _response(status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> bytes:
    body = text.encode()
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Server: strandline",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
