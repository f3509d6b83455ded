"""Metrics of this process over HTTP for Prometheus: `GET /metrics`.

Metrics are read without stopping the app. A few clients are served at the same time, each on a
thread of its own and within a total time; a further client displaces the oldest of the network that
has the most. Closing waits for none of them. Clients that wait at the same time share one answer,
and there is a pause after each, so no number of requests takes more than a part of one core.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.hosts import HostPort, bracketed, network_of, parse_host_port
from strandline.changelog.metrics import CONTENT_TYPE, MetricReading, exposition
from strandline.changelog.secret import masked
from strandline.framework.peers import Deadline, Newcomers, receive, send_all

_log = logging.getLogger("strandline")

DEFAULT_HOST = "127.0.0.1"
"""Host if the address has none: only this machine can connect."""
DEFAULT_PORT = 9464
"""Port if the address has none: that of OpenTelemetry's Prometheus exporter."""
PATH = "/metrics"
CLIENT_TIMEOUT_S = 5.0
"""Seconds that a client may take to send its request, and again to receive the response."""
MAX_CLIENTS = 16
"""Maximum number of clients at the same time."""
MAX_CLIENTS_EACH = 4
"""Maximum number of clients from one network (see `network_of`) at the same time."""
MAX_REQUEST_BYTES = 16 << 10
"""Maximum length of a request, in bytes."""
PAUSE_FACTOR = 3
"""Pause after the making of an answer, in multiples of the time that it took."""
MAX_PAUSE_S = 3.0
"""Maximum seconds of that pause."""
BACKLOG = 1_024
"""Maximum number of connections that wait to be accepted."""
POLL_S = 0.1
"""Seconds after which `close` is noticed on systems where closing a socket does not end accept."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds that `close` waits for the endpoint's own thread."""

Collect = Callable[[], list[MetricReading]]


class MetricsEndpoint:
    """HTTP endpoint that serves the readings of `collect`, from construction until `close`.

    `address` is "host:port"; see `parse`. Raises InvalidConfig if it is not one, or is in use.
    """

    def __init__(self, address: str, collect: Collect) -> None:
        host, port = parse(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise InvalidConfig(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}; choose an "
                "address of this machine and a port that is free, or port 0, which takes one"
            ) from error
        self.url = f"http://{bracketed(host)}:{self._listening.getsockname()[1]}{PATH}"
        """URL for Prometheus."""
        self._answers = _SharedAnswers(collect)
        self._clients = Newcomers(MAX_CLIENTS, MAX_CLIENTS_EACH, self._answers.look_again)
        self._closed = threading.Event()
        self._listening.settimeout(POLL_S)
        self._thread = threading.Thread(target=self._accept, name="strandline-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. A client that is being served is not waited for."""
        self._closed.set()
        self._answers.close()
        self._listening.close()
        self._thread.join(CLOSE_TIMEOUT_S)

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
                    self._closed.wait(POLL_S)
                continue
            self._admit(client, network_of(peer[0]))

    def _admit(self, client: socket.socket, network: str) -> None:
        if not self._clients.enter(client, network):
            client.close()
            return
        try:
            threading.Thread(
                target=self._serve, args=(client,), name="strandline-scrape", daemon=True
            ).start()
        except RuntimeError:  # the system allows no more threads
            self._clients.leave(client)
            client.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError):
                request = _request(client)
                if request is not None:
                    answer = self._answer(request, client)
                    send_all(client, answer, Deadline(CLIENT_TIMEOUT_S))
        finally:
            self._clients.leave(client)

    def _answer(self, request: bytes, client: socket.socket) -> bytes:
        method, _, rest = request.partition(b" ")
        target, _, version = rest.partition(b" ")
        if method != b"GET" or not version.startswith(b"HTTP/"):
            return _response(HTTPStatus.BAD_REQUEST, f"metrics are at GET {PATH}\n")
        if target.partition(b"?")[0] != PATH.encode():
            return _response(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}\n")
        return self._answers.next(lambda: not self._clients.is_displaced(client))


class _Answer:
    """An answer for all clients that want it before it is made."""

    def __init__(self) -> None:
        self.wanted = 0
        """Number of clients that wait for it."""
        self.content: bytes | None = None
        """The response; None until it is made."""


class _SharedAnswers:
    """Thread that makes an answer when one is wanted, for all clients that wait for it."""

    def __init__(self, collect: Collect, clock: Clock | None = None) -> None:
        self._collect = collect
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._next = _Answer()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="strandline-readings", daemon=True).start()

    def next(self, is_wanted: Callable[[], bool]) -> bytes:
        """Return the next answer; nothing once it is not wanted any more."""
        with self._changed:
            answer = self._next
            answer.wanted += 1
            self._changed.notify_all()
            try:
                while answer.content is None:
                    if self._closed.is_set() or not is_wanted():
                        return b""
                    self._changed.wait()
                return answer.content
            finally:
                answer.wanted -= 1

    def look_again(self) -> None:
        """Make each waiting client look if its answer is still wanted."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the waiting and the thread, without waiting for them."""
        self._closed.set()
        self.look_again()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next.wanted or self._closed.is_set())
            if self._closed.is_set():
                return
            begun = self._clock.monotonic()
            content = self._made()
            took = self._clock.monotonic() - begun
            with self._changed:
                self._next.content, self._next = content, _Answer()
                self._changed.notify_all()
            self._closed.wait(min(PAUSE_FACTOR * took, MAX_PAUSE_S))

    def _made(self) -> bytes:
        try:
            return _response(HTTPStatus.OK, exposition(self._collect()), CONTENT_TYPE)
        except Exception:
            _log.exception("the metrics could not be read")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, "the metrics could not be read\n")


@contextmanager
def served(address: str | None, collect: Collect) -> Iterator[str]:
    """Serve metrics while the block runs and yield the URL; without an address, yield ""."""
    if address is None:
        yield ""
        return
    endpoint = MetricsEndpoint(address, collect)
    _log.info("metrics are at %s", endpoint.url, extra={"url": endpoint.url})
    try:
        yield endpoint.url
    finally:
        endpoint.close()


def parse(address: str) -> HostPort:
    """Return host and port of "host:port"; the defaults are 127.0.0.1 and 9464.

    >>> [tuple(parse(text)) for text in ("0.0.0.0:9000", "[::1]:9000", "localhost", ":9000")]
    [('0.0.0.0', 9000), ('::1', 9000), ('localhost', 9464), ('127.0.0.1', 9000)]
    """
    text = f":{address}" if address.isdecimal() else address
    try:
        return parse_host_port(text, host=DEFAULT_HOST, port=DEFAULT_PORT)
    except InvalidConfig:
        raise InvalidConfig(
            f"metrics are served at HOST:PORT, as {DEFAULT_HOST}:{DEFAULT_PORT}; got {masked(address)!r}"
        ) from None


def _request(client: socket.socket) -> bytes | None:
    """Return the first line of a request whose headers are complete; None if they do not arrive."""
    deadline = Deadline(CLIENT_TIMEOUT_S)
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
