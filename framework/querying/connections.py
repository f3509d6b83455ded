"""A client's connections to workers: each used by one thread at a time, and kept for the next query."""

from __future__ import annotations

import os
import socket
import threading
from functools import cache
from typing import Any

from changelog.errors import Fenced, OwnerUnavailable, RequestTimedOut
from changelog.flight import messages as log_messages
from framework.querying import sockets
from framework.querying.messages import (
    MAX_ANSWER,
    WIRE_VERSION,
    Failure,
    Hello,
    Request,
    Welcome,
    Wire,
    decode,
    encode,
    read_frame,
)

MAX_IDLE = 32
"""Connections to one worker that are kept while nobody uses them."""


class Connections:
    """Asks workers, by their URLs. Thread-safe."""

    def __init__(self, token: str = "", ca: bytes | None = None) -> None:
        self._token = token
        self._ca = ca
        self._idle: dict[str, list[socket.socket]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    def ask(self, url: str, request: Request, answer: Any, timeout: float) -> Any:
        """A worker's answer, of type `answer`, within `timeout` seconds for each of its parts.

        Raises OwnerUnavailable when the worker is gone, RequestTimedOut, and what the worker raised.
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
                self._drop(
                    url
                )  # it has closed since, and so have the others: the worker may be new
        return self._answered(url, self._connect(url, timeout), request, answer, timeout)

    def close(self) -> None:
        """Close them all; harmless when repeated."""
        with self._lock:
            self._closed = True
            idle = [connection for kept in self._idle.values() for connection in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _answered(
        self, url: str, connection: socket.socket, request: Request, kind: Any, timeout: float
    ) -> Any:
        answer = _exchange(url, connection, request, kind, timeout)
        self._keep(url, connection)
        return _no_failure(answer)

    def _connect(self, url: str, timeout: float) -> socket.socket:
        try:
            connection = sockets.connect(url, timeout, self._ca)
        except OSError as error:
            raise OwnerUnavailable(f"cannot connect to the worker at {url}: {error}") from error
        hello = Hello(WIRE_VERSION, "" if url.startswith(sockets.UNIX) else self._token)
        try:
            _no_failure(_exchange(url, connection, hello, Welcome, timeout))
        except BaseException:
            connection.close()
            raise
        return connection

    def _take(self, url: str) -> socket.socket | None:
        with self._lock:
            kept = self._idle.get(url)
            return kept.pop() if kept else None

    def _keep(self, url: str, connection: socket.socket) -> None:
        with self._lock:
            kept = self._idle.setdefault(url, [])
            if len(kept) < MAX_IDLE and not self._closed:
                kept.append(connection)
                return
        connection.close()

    def _drop(self, url: str) -> None:
        """Those that are kept were closed too."""
        with self._lock:
            kept = self._idle.pop(url, [])
        for connection in kept:
            connection.close()


def _exchange(url: str, connection: socket.socket, request: Wire, kind: Any, timeout: float) -> Any:
    """Send a request and read its answer; without one the connection is closed."""
    try:
        connection.settimeout(timeout)
        connection.sendall(encode(request))
        frame = read_frame(connection, MAX_ANSWER)
        if frame is None:
            raise OwnerUnavailable(f"the worker at {url} closed the connection")
        return decode(frame, _or_failure(kind))
    except TimeoutError as error:
        connection.close()
        raise RequestTimedOut(f"no answer from the worker at {url} in {timeout:.1f} s") from error
    except OSError as error:
        connection.close()
        raise OwnerUnavailable(f"the worker at {url} does not answer: {error}") from error
    except BaseException:
        connection.close()
        raise


@cache
def _or_failure(kind: Any) -> Any:
    return kind | Failure


def _no_failure(answer: Any) -> Any:
    if isinstance(answer, Failure):
        raise log_messages.error_of(log_messages.Failure(answer.kind, answer.message))
    return answer
