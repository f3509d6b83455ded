"""A worker's side of queries: listens, and answers each client on a thread of its own.

The task's thread takes no part in it. What the two share is the interpreter, and what
`statestore.reader` says.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from changelog.errors import (
    InvalidConfig,
    InvalidRequest,
    StorageFailed,
    StrandlineError,
    Unauthenticated,
)
from changelog.flight.messages import (
    failure_of,
)
from framework.querying import sockets
from framework.querying.messages import (
    MAX_HELLO,
    MAX_REQUEST,
    WIRE_VERSION,
    Answer,
    Failure,
    Hello,
    Request,
    Welcome,
    decode,
    encode,
    read_frame,
)

_log = logging.getLogger("strandline")

MAX_CLIENTS = 256
"""Connections at a time; more are closed at once, and tried again."""
HELLO_SECONDS = 5.0
"""How long a client may take to say who it is."""
ACCEPT_SECONDS = 0.5
"""How often it looks whether it is to end, where a closed socket does not say so."""
END_SECONDS = 3.0


class Endpoint:
    """Listens from construction, answers once `start`ed, until `close`.

    `log` is the log's folder, if it is on this machine. `listen` is an address beside the
    Unix socket (`sockets.listen_beyond`); whoever comes there must show `token`. Raises InvalidConfig.
    """

    def __init__(self, log: Path | None, listen: str | None = None, token: str = "") -> None:
        self._token = token
        self._listening: list[sockets.Listening] = []
        self._answer: Callable[[Request], Answer] = _not_yet
        self._clients: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        if listen is not None:
            _check_token(token, listen)
        try:
            self._listening.append(sockets.listen_here(log))
        except StorageFailed as error:
            _log.warning("no queries on this machine: %s", error)
        if listen is not None:
            try:
                self._listening.append(sockets.listen_beyond(listen))
            except BaseException:
                self.close()
                raise

    @property
    def urls(self) -> Sequence[str]:
        """Where it listens, the nearest first."""
        return [listening.url for listening in self._listening]

    def start(self, answer: Callable[[Request], Answer]) -> None:
        """Answer requests by `answer`, which is called on many threads."""
        self._answer = answer
        for listening in self._listening:
            listening.socket.settimeout(ACCEPT_SECONDS)
            self._thread(self._accept, listening)

    def close(self) -> None:
        """Listen no more, and send clients away; harmless when repeated."""
        with self._lock:
            self._closed = True
            clients = list(self._clients)
        for listening in self._listening:
            sockets.remove(listening.url)
            _end(listening.socket)
            listening.socket.close()
        for client in clients:
            _end(client)

    # Its own threads ------------------------------------------------------------------

    def _accept(self, listening: sockets.Listening) -> None:
        while not self._closed:
            try:
                client, _ = listening.socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closed:
                    _log.warning("queries are answered no more: %s", error)
                return
            if self._admit(client):
                self._thread(self._serve, client, listening)
            else:
                client.close()

    def _admit(self, client: socket.socket) -> bool:
        with self._lock:
            if self._closed or len(self._clients) >= MAX_CLIENTS:
                return False
            self._clients.add(client)
            return True

    def _serve(self, client: socket.socket, listening: sockets.Listening) -> None:
        try:
            with contextlib.suppress(OSError):
                client.settimeout(HELLO_SECONDS)
                if listening.tls is not None:
                    client = wrapped = self._wrapped(client, listening.tls)
                    wrapped.do_handshake()
                self._converse(client, listening)
        finally:
            client.close()
            with self._lock:
                self._clients.discard(client)

    def _wrapped(self, client: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        """The client's connection with TLS around it, which takes its place."""
        wrapped = tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._clients.discard(client)
            self._clients.add(wrapped)
        return wrapped

    def _converse(self, client: socket.socket, listening: sockets.Listening) -> None:
        if self._closed:
            return  # it came too late to be sent away
        if self._welcome(client, not listening.url.startswith(sockets.UNIX)):
            client.settimeout(None)
            while self._serve_one(client):
                pass

    def _welcome(self, client: socket.socket, asks_for_token: bool) -> bool:
        try:
            frame = read_frame(client, MAX_HELLO)
            if frame is None:
                return False
            hello: Hello = decode(frame, Hello)
            if asks_for_token and not hmac.compare_digest(
                hello.token.encode(), self._token.encode()
            ):
                raise Unauthenticated(
                    "the worker does not accept this token"
                    if hello.token
                    else "the worker asks for a token; give it as token=… or in STRANDLINE_TOKEN"
                )
            if hello.version != WIRE_VERSION:
                raise InvalidRequest(
                    f"the client speaks version {hello.version} of queries, the worker version "
                    f"{WIRE_VERSION}; run the same release of strandline in both"
                )
        except StrandlineError as error:
            client.sendall(encode(_failed(error)))
            return False
        client.sendall(encode(Welcome(WIRE_VERSION)))
        return True

    def _serve_one(self, client: socket.socket) -> bool:
        """Answer the next request; False if there is none."""
        goes_on = False
        try:
            frame = read_frame(client, MAX_REQUEST)
            if frame is None:
                return False
            goes_on = True
            answer: Answer | Failure = self._answer(decode(frame, Request))
        except OSError:
            raise
        except Exception as error:
            if not isinstance(error, StrandlineError):
                _log.error("a query failed in an unexpected way:\n%s", traceback.format_exc())
            answer = _failed(error)
        client.sendall(encode(answer))
        return goes_on

    def _thread(self, target: Callable[..., None], *arguments: object) -> None:
        name = f"strandline-query-{target.__name__.strip('_')}"
        threading.Thread(target=target, args=arguments, name=name, daemon=True).start()


def _check_token(token: str, listen: str) -> None:
    from changelog.flight.serve import MIN_TOKEN  # it imports Flight

    if len(token) < MIN_TOKEN:
        raise InvalidConfig(
            f"queries at {listen} need a token of {MIN_TOKEN} characters or more, got {len(token)}: set "
            f"STRANDLINE_TOKEN, for the worker and its clients"
        )


def _failed(error: Exception) -> Failure:
    failure = failure_of(error)
    return Failure(
        failure.kind, failure.message.replace("the log's owner failed", "the worker failed")
    )


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _not_yet(request: Request) -> Answer:
    raise InvalidRequest(f"not ready for {type(request).__name__}")
