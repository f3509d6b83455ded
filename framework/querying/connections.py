"""A client's connections to workers: each is used by one thread at a time, then kept for reuse."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import Fenced, OwnerUnavailable, RequestTimedOut
from strandline.changelog.flight import messages as log_messages
from strandline.changelog.flight.client_hello import authenticate
from strandline.changelog.rate_limited_log import RateLimitedLog
from strandline.changelog.secret import Secret
from strandline.framework.peers import SLACK_S, Deadline, bounded, send_all
from strandline.framework.querying import sockets
from strandline.framework.querying.messages import (
    MAX_ANSWER_BYTES,
    WIRE_VERSION,
    QueryFailure,
    QueryHello,
    QueryMessage,
    QueryWelcome,
    Request,
    decoder,
    encode,
    read_frame,
)

_log = logging.getLogger("strandline")

MAX_IDLE_CONNECTIONS = 32
"""Maximum number of unused connections to one worker that are kept."""


class WorkerConnection:
    """One connection to a worker, with a timeout for each call. Not thread-safe."""

    __slots__ = ("_timeout", "socket")

    def __init__(self, connected: socket.socket, timeout: float) -> None:
        self.socket = connected
        self._timeout = 0.0
        """Last timeout that `limit` has set."""
        self.socket.settimeout(timeout)

    def limit(self, timeout: float) -> None:
        """Let each call take about `timeout` seconds, enforced by the kernel if possible.

        Then a call is one system call; with a timeout of Python's it is two, because it waits by
        `poll` first. A timeout that is close to the last one is not set again.
        """
        if 0.8 * timeout <= self._timeout <= timeout + SLACK_S:
            return
        self._timeout = timeout
        if not bounded(self.socket, timeout, timeout):
            self.socket.settimeout(timeout)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.socket.close()


class Connections:
    """Sends requests to workers by their URLs. Thread-safe."""

    def __init__(
        self, token: str = "", ca: bytes | None = None, *, encrypted: bool = False
    ) -> None:
        """Create an empty pool.

        Args:
            token: Token that workers on other machines must prove to know; it is never sent.
            ca: Trusted certificates for TLS (PEM); None for those of the system.
            encrypted: Whether the log is accessed by TLS. Then no worker on another machine is
                asked without TLS.
        """
        self._token = Secret(token)
        self._ca = ca
        self._encrypted = encrypted
        self._unencrypted = RateLimitedLog(_log, SystemClock())
        self._idle: dict[str, list[WorkerConnection]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    def reaches(self, url: str) -> bool:
        """Return True if this client may and can connect to a worker at `url`."""
        if self._encrypted and sockets.is_in_clear(url):
            self._unencrypted.note(
                f"the worker at {url!r:.200} listens without TLS, but the log is accessed by TLS, so "
                f"it is not queried; make it listen at tls://"
            )
            return False
        return sockets.is_reachable(url)

    def ask(self, url: str, request: Request, answer: Any, timeout: float) -> Any:
        """Return a worker's answer of type `answer`, which must begin within `timeout` seconds.

        Raises OwnerUnavailable if the worker is gone, RequestTimedOut, and the worker's errors.
        """
        if os.getpid() != self._pid:
            raise Fenced(
                "a forked process cannot use its parent's connection; call connect() in it"
            )
        kept = self._take(url)
        if kept is not None:
            try:
                return self._answered(url, kept, request, answer, timeout)
            except OwnerUnavailable:
                # The worker has closed the idle connection, for example because it was restarted.
                # Then the other idle connections are closed too.
                self._drop(url)
        return self._answered(url, self._connect(url, timeout), request, answer, timeout)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._lock:
            self._closed = True
            idle = [connection for kept in self._idle.values() for connection in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _answered(
        self, url: str, connection: WorkerConnection, request: Request, kind: Any, timeout: float
    ) -> Any:
        answer = _exchange(url, connection, request, kind, timeout)
        self._keep(url, connection)
        return _answer_or_raise(answer)

    def _connect(self, url: str, timeout: float) -> WorkerConnection:
        try:
            connection = WorkerConnection(sockets.connect(url, timeout, self._ca), timeout)
        except OSError as error:
            raise OwnerUnavailable(f"cannot connect to the worker at {url}: {error}") from error
        try:
            self._greet(url, connection, timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    def _greet(self, url: str, connection: WorkerConnection, timeout: float) -> None:
        """Compare versions; over TCP, both sides first prove that they know the token.

        Raises Unauthenticated, and the errors of `_exchange` and of the worker.
        """
        if not url.startswith(sockets.UNIX):
            self._authenticate(url, connection.socket, timeout)
        hello = QueryHello(WIRE_VERSION)
        _answer_or_raise(_exchange(url, connection, hello, QueryWelcome, timeout))

    def _authenticate(self, url: str, connection: socket.socket, timeout: float) -> None:
        deadline = Deadline(timeout)
        binding = sockets.binding(url, sockets.certificate_of(connection))
        token, worker = self._token.reveal(), f"the worker at {url}"
        try:
            authenticate(connection, token, worker, lambda: deadline.left, binding=binding)
        except TimeoutError as error:
            raise RequestTimedOut(f"no answer from {worker} in {timeout:.1f} s") from error
        except OSError as error:
            raise OwnerUnavailable(f"{worker} does not answer: {error}") from error

    def _take(self, url: str) -> WorkerConnection | None:
        with self._lock:
            kept = self._idle.get(url)
            return kept.pop() if kept else None

    def _keep(self, url: str, connection: WorkerConnection) -> None:
        with self._lock:
            kept = self._idle.setdefault(url, [])
            if len(kept) < MAX_IDLE_CONNECTIONS and not self._closed:
                kept.append(connection)
                return
        connection.close()

    def _drop(self, url: str) -> None:
        """Close the idle connections to a worker."""
        with self._lock:
            kept = self._idle.pop(url, [])
        for connection in kept:
            connection.close()


def _exchange(
    url: str, connection: WorkerConnection, request: QueryMessage, kind: Any, timeout: float
) -> Any:
    """Send a request and return its answer; close the connection if that fails."""
    try:
        connection.limit(timeout)
        data = encode(request)
        sent = connection.socket.send(data)
        if sent < len(data):
            send_all(connection.socket, data[sent:], Deadline(timeout))
        frame = read_frame(connection.socket, MAX_ANSWER_BYTES)
        if frame is None:
            raise OwnerUnavailable(f"the worker at {url} closed the connection")
        return _answer_decoder(kind)(frame)
    except (TimeoutError, BlockingIOError) as error:  # Python's timeout, or the kernel's
        connection.close()
        raise RequestTimedOut(f"no answer from the worker at {url} in {timeout:.1f} s") from error
    except OSError as error:
        connection.close()
        raise OwnerUnavailable(f"the worker at {url} does not answer: {error}") from error
    except BaseException:
        connection.close()
        raise


@cache
def _answer_decoder(kind: Any) -> Callable[[bytes | bytearray], Any]:
    return decoder(kind | QueryFailure)


def _answer_or_raise(answer: Any) -> Any:
    if isinstance(answer, QueryFailure):
        raise log_messages.error_of(log_messages.RemoteFailure(answer.kind, answer.message))
    return answer
