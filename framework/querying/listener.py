"""One address where a worker answers queries: its clients, a thread for each, and its limits.

Each listener has its own limits, so that peers on the network cannot starve clients on this
machine. Every wait for a peer has a total deadline, and closing waits for no peer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import (
    InvalidRequest,
    RequestTimedOut,
    StrandlineError,
)
from strandline.changelog.flight import hello
from strandline.changelog.flight.clients import Principal
from strandline.changelog.flight.greeting import Greeting
from strandline.changelog.flight.messages import failure_of
from strandline.changelog.hosts import network_of
from strandline.changelog.printable import printable
from strandline.framework.peers import (
    AT_ONCE_BYTES,
    Admission,
    Deadline,
    Newcomers,
    SharedBudget,
    bounded,
    end_connection,
    send_all,
)
from strandline.framework.querying import sockets
from strandline.framework.querying.messages import (
    MAX_HELLO_BYTES,
    MAX_REQUEST_BYTES,
    MIN_BYTES_PER_S,
    REQUEST_SECONDS,
    WIRE_VERSION,
    Answer,
    QueryFailure,
    QueryHello,
    QueryMessage,
    QueryWelcome,
    Request,
    decoder,
    encode,
    read_frame,
)
from strandline.statestore.reader import PAGE_BYTES

_log = logging.getLogger("strandline")

HELLO_SECONDS = 5.0
"""Seconds in which a client must authenticate, TLS included."""
IDLE_SECONDS = 60.0
"""Seconds without a request after which a connection is closed; clients reconnect on demand."""
SEND_SECONDS = 10.0
"""Seconds in which a client must accept an answer, in addition to its size's share.

The share is the size divided by MIN_BYTES_PER_S.
"""
ACCEPT_SECONDS = 0.5
"""Seconds between checks for `close`, on systems where closing a socket does not end `accept`."""
PAUSE_SECONDS = 0.1
"""Seconds to wait after a failed `accept`, for example without free descriptors."""

Answering = Callable[[Request], Answer]


@dataclass(frozen=True)
class QueryLimits:
    """Limits on all clients of one listener together."""

    clients: int
    """Maximum number of connections; more are closed at once."""
    clients_each: int
    """Maximum number of connections from one network (see `network_of`)."""
    unknown: int
    """Maximum number of connections that are not authenticated; a new one displaces an old one."""
    unknown_each: int
    """Maximum number of unauthenticated connections from one network."""
    requests: int
    """Maximum number of requests that are answered at the same time; more requests wait."""
    request_bytes: int
    """Maximum bytes of requests that are being received or answered."""
    answer_bytes: int
    """Maximum bytes of answers that are being sent, without one page of each answer."""


LOCAL_LIMITS = QueryLimits(
    256, 256, 256, 256, requests=32, request_bytes=64 << 20, answer_bytes=256 << 20
)
NETWORK_LIMITS = QueryLimits(
    256, 64, 32, 8, requests=16, request_bytes=32 << 20, answer_bytes=64 << 20
)


class Listener:
    """Answers the clients of one address from `start` until `close`.

    Clients on other machines must prove that they know `token`.
    """

    def __init__(
        self, listening: sockets.ListeningSocket, token: str, limits: QueryLimits | None = None
    ) -> None:
        self.url = listening.url
        self._listening = listening
        self._is_local = listening.url.startswith(sockets.UNIX)
        limits = limits or (LOCAL_LIMITS if self._is_local else NETWORK_LIMITS)
        self._worker = Principal("queries", hello.verifier_of(token), hello.token_id(token))
        self._binding = sockets.binding(listening.url, listening.certificate)
        self._answer: Answering = _not_yet
        self._connected = Admission(limits.clients, limits.clients_each)
        self._unauthenticated = Newcomers(limits.unknown, limits.unknown_each)
        self._requests = SharedBudget(limits.requests)
        self._request_bytes = SharedBudget(limits.request_bytes)
        self._answer_bytes = SharedBudget(limits.answer_bytes)
        self._clients: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def start(self, answer: Answering) -> None:
        """Begin to answer requests by `answer`, which is called on many threads."""
        self._answer = answer
        self._listening.socket.settimeout(ACCEPT_SECONDS)
        self._thread(self._accept)

    def close(self) -> None:
        """Stop listening and disconnect clients, without waiting for them. Idempotent."""
        self._closed.set()
        with self._lock:
            clients = list(self._clients)
        sockets.remove(self.url)
        end_connection(self._listening.socket)
        self._listening.socket.close()
        for client in clients:
            end_connection(client)

    # Threads of the listener ----------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, peer = self._listening.socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._closed.is_set():
                    return
                _log.warning("cannot accept a client of queries: %s", error)
                self._closed.wait(PAUSE_SECONDS)
                continue
            self._admit(client, "" if self._is_local else network_of(peer[0]))

    def _admit(self, client: socket.socket, network: str) -> None:
        """Serve a client on its own thread, or close its connection if a limit is reached."""
        if not self._connected.enter(network):
            client.close()
            return
        try:
            client = self._with_tls(client)
            if self._unauthenticated.enter(client, network):
                self._thread(self._serve, client, network)
                return
        except OSError:  # the peer has closed the connection
            pass
        except RuntimeError as error:  # the limit of threads is reached
            _log.warning("cannot start a thread for a client of queries: %s", error)
        self._unauthenticated.leave(client)
        self._connected.leave(network)
        client.close()

    def _with_tls(self, client: socket.socket) -> socket.socket:
        """Return the client's connection, wrapped in TLS if configured."""
        if self._listening.tls is None:
            return client
        return self._listening.tls.wrap_socket(
            client, server_side=True, do_handshake_on_connect=False
        )

    def _serve(self, client: socket.socket, network: str) -> None:
        with ExitStack() as end:
            end.callback(self._connected.leave, network)
            end.callback(self._unauthenticated.leave, client)
            end.callback(self._forget, client)
            with self._lock:
                self._clients.add(client)
            with contextlib.suppress(OSError):
                is_welcome = not self._closed.is_set() and self._greet(client, network)
                if self._unauthenticated.leave(client) and is_welcome:
                    self._serve_all(client)

    def _forget(self, client: socket.socket) -> None:
        client.close()
        with self._lock:
            self._clients.discard(client)

    def _greet(self, client: socket.socket, network: str) -> bool:
        """Authenticate a client on the network, and compare versions with it.

        Returns:
            True if its requests are to be answered.
        """
        deadline = Deadline(HELLO_SECONDS)
        try:
            if not self._is_local:
                self._authenticate(client, network, deadline)
            received = read_frame(client, MAX_HELLO_BYTES, deadline)
            if received is None:
                return False
            version = decoder(QueryHello)(received).version
            if version != WIRE_VERSION:
                raise InvalidRequest(
                    f"the client speaks version {version} of queries, the worker version "
                    f"{WIRE_VERSION}; run the same release of strandline in both"
                )
        except StrandlineError as error:
            _send(client, _failed(error))
            return False
        _send(client, QueryWelcome(WIRE_VERSION))
        return True

    def _authenticate(self, client: socket.socket, network: str, deadline: Deadline) -> None:
        client.settimeout(0)
        until = _CLOCK.monotonic() + deadline.left
        greeting = Greeting(client, network, until, self._principal, binding=self._binding)
        try:
            greeting.complete(_CLOCK)
        except StrandlineError as error:
            raise ConnectionError(str(error)) from error  # the greeting has sent it to the client
        client.settimeout(deadline.left)

    def _principal(self, token_id: str) -> Principal | None:
        return self._worker if token_id == self._worker.token_id else None

    def _serve_all(self, client: socket.socket) -> None:
        """Answer requests one after another until the connection must be closed."""
        if not bounded(client, IDLE_SECONDS, SEND_SECONDS):
            client.settimeout(IDLE_SECONDS)
        while self._serve_one(client):
            pass

    def _serve_one(self, client: socket.socket) -> bool:
        """Answer the next request; return False if the connection must be closed."""
        taken: list[int] = []

        def take(size: int) -> None:
            self._request_bytes.take(size, REQUEST_SECONDS)
            taken.append(size)

        try:
            frame = read_frame(client, MAX_REQUEST_BYTES, taking=take)
            if frame is not None:
                self._reply(client, frame)
            return frame is not None
        except InvalidRequest as error:
            _send(client, _failed(error))
            return False
        finally:
            for size in taken:
                self._request_bytes.give(size)

    def _reply(self, client: socket.socket, frame: bytes | bytearray) -> None:
        """Send the answer to a request.

        Each request in progress may send one page; only the bytes after that are counted.
        """
        try:
            self._requests.take(1, REQUEST_SECONDS)
        except TimeoutError:
            _send(client, _failed(_BUSY))
            return
        try:
            answer = encode(self._answered(frame))
            if len(answer) <= AT_ONCE_BYTES:
                sent = client.send(answer)
                if sent < len(answer):
                    _send_bytes(client, answer[sent:])
                return
            self._reply_long(client, answer)
        finally:
            self._requests.give(1)

    def _reply_long(self, client: socket.socket, answer: bytes) -> None:
        extra = min(max(0, len(answer) - PAGE_BYTES), self._answer_bytes.total)
        try:
            self._answer_bytes.take(extra, REQUEST_SECONDS)
        except TimeoutError:
            _send(client, _failed(_BUSY))
            return
        try:
            _send_bytes(client, answer)
        finally:
            self._answer_bytes.give(extra)

    def _answered(self, frame: bytes | bytearray) -> Answer | QueryFailure:
        try:
            return self._answer(_decode_request(frame))
        except Exception as error:
            if not isinstance(error, StrandlineError):
                text = printable(traceback.format_exc())
                _log.error("a query failed in an unexpected way:\n%s", text)
            return _failed(error)

    def _thread(self, target: Callable[..., None], *arguments: object) -> None:
        name = f"strandline-query-{target.__name__.strip('_')}"
        threading.Thread(target=target, args=arguments, name=name, daemon=True).start()


def _send(client: socket.socket, message: QueryMessage) -> None:
    _send_bytes(client, encode(message))


def _send_bytes(client: socket.socket, data: bytes) -> None:
    send_all(client, data, Deadline(SEND_SECONDS + len(data) / MIN_BYTES_PER_S))


def _failed(error: Exception) -> QueryFailure:
    failure = failure_of(error)
    return QueryFailure(
        failure.kind, failure.message.replace("the log's owner failed", "the worker failed")
    )


def _not_yet(request: Request) -> Answer:
    raise InvalidRequest(f"the worker is not ready for {type(request).__name__}")


_CLOCK = SystemClock()
_decode_request = decoder(Request)
_BUSY = RequestTimedOut(
    f"the worker (process {os.getpid()}) has more queries than it may answer at once; try again"
)
