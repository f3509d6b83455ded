"""The metrics of this process, over HTTP, for Prometheus: `GET /metrics`.

One thread answers, one request after another. It looks at what runs here without stopping it.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

from changelog.errors import InvalidConfig
from changelog.hosts import bracketed
from changelog.metrics import CONTENT_TYPE, Reading, exposition

_log = logging.getLogger("strandline")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9464
"""OpenTelemetry's for Prometheus."""
HIGHEST_PORT = 65_535
PATH = "/metrics"
PATIENCE_SECONDS = 5.0
"""How long a client may take to ask, and to read the answer: the next one waits for it."""
POLL_SECONDS = 0.1
"""How soon `close` is noticed."""

Collect = Callable[[], list[Reading]]


class MetricsEndpoint:
    """Serves what `collect` gives, from construction until `close`.

    `address` is "host:port"; see `parse`. Raises InvalidConfig if that is none, or is in use.
    """

    def __init__(self, address: str, collect: Collect) -> None:
        host, port = parse(address)
        try:
            self._server = _Server(host, port, collect)
        except OSError as error:
            raise InvalidConfig(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}; choose an "
                "address of this machine and a port that is free, or port 0, which takes one"
            ) from error
        self.url = f"http://{bracketed(host)}:{self._server.server_address[1]}{PATH}"
        """What Prometheus is to ask."""
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(POLL_SECONDS,),
            name="strandline-metrics",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


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
            f"metrics are served at HOST:PORT, as {DEFAULT_HOST}:{DEFAULT_PORT}; got {address!r}"
        )
    return host or DEFAULT_HOST, DEFAULT_PORT if port is None else port


class _Server(HTTPServer):
    """Knows what to collect."""

    def __init__(self, host: str, port: int, collect: Collect) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.collect = collect
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without asking what this machine is called, which may take long."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Somebody who went away before the answer is none."""
        _log.debug("an answer to %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    timeout = PATIENCE_SECONDS
    server_version = "strandline"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a scrape."""
        if urlsplit(self.path).path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
            return
        try:
            body = exposition(self.server.collect()).encode()
        except Exception:
            _log.exception("the metrics could not be told")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Scrapes come every few seconds: they are not worth a line."""
