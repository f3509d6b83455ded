"""Authentication of one peer after its connection was accepted, without blocking.

The steps are TLS, the opening and the proof (hello.py). Each call of `Greeting.advance` does as
much as is possible without waiting. All messages have a limited length. Replies fit into the buffer
of a new socket, so a peer that does not accept a reply at once is disconnected.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import ssl
from collections.abc import Callable
from typing import NoReturn

from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidRequest, StrandlineError, Unauthenticated
from strandline.changelog.flight import hello
from strandline.changelog.flight.clients import Authenticate, Client
from strandline.changelog.flight.messages import encode, failure_of

HTTP2_PREFACE = b"PRI * HTTP/2.0"
_TOO_OLD = (
    b"HTTP/1.1 426 Upgrade Required\r\nConnection: close\r\n\r\n"
    b"This port begins with a hello; upgrade the client's strandline.\r\n"
)
"""Answer to clients of older releases, in HTTP/1.1.

An HTTP/2 GOAWAY would make gRPC believe that the server works, and reconnect without a pause.
"""


class Greeting:
    """A peer that is being authenticated.

    Args:
        peer: Its non-blocking socket.
        network: Its network, see `network_of`.
        deadline: Monotonic time at which it is disconnected.
        authenticate: Returns the principal of a token id; None if the token is unknown.
        check_room: Raises OwnerUnavailable if no more peers of a network are accepted; None for
            no limit.
        binding: Beginning of the transcript (`hello.binding`).
    """

    def __init__(
        self,
        peer: socket.socket,
        network: str,
        deadline: float,
        authenticate: Authenticate,
        check_room: Callable[[str], None] | None = None,
        binding: bytes = b"",
    ) -> None:
        self.peer = peer
        self.network = network
        self.deadline = deadline
        self.client: Client | None = None
        """The authenticated client; None before authentication is complete."""
        self._authenticate = authenticate
        self._check_room = check_room
        self._binding = binding
        self._step = self._handshake if isinstance(peer, ssl.SSLSocket) else self._open
        self._received = b""
        self._nonce = secrets.token_bytes(hello.NONCE_BYTES)

    def advance(self) -> int:
        """Continue without blocking, and return the selector events to wait for.

        Raises OSError or StrandlineError if the peer must be disconnected.
        """
        try:
            while self.client is None:
                self._step()
        except (BlockingIOError, ssl.SSLWantReadError):
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        return selectors.EVENT_READ

    def complete(self, clock: Clock) -> Client:
        """Authenticate the peer, and wait for it until the deadline.

        Raises TimeoutError, and OSError or StrandlineError if the peer must be disconnected.
        """
        with selectors.DefaultSelector() as selector:
            key = selector.register(self.peer, selectors.EVENT_READ)
            while self.client is None:
                left = self.deadline - clock.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TimeoutError("the peer has not authenticated in time")
                key = selector.modify(key.fileobj, self.advance())
        return self.client

    def _handshake(self) -> None:
        assert isinstance(self.peer, ssl.SSLSocket)
        self.peer.do_handshake()
        self._step = self._open

    def _open(self) -> None:
        content = self._exactly(hello.OPENING_BYTES, beginning=hello.MAGIC)
        try:
            self._opening = hello.unpack_opening(content)
        except InvalidRequest as error:
            self._refuse(error)
        self._transcript = self._binding + content + self._nonce
        self._reply(hello.ACCEPTED, self._nonce)
        self._step = self._prove

    def _prove(self) -> None:
        proof = self._exactly(hello.PROOF_BYTES)
        caller = self._authenticate(self._opening.token_id)
        verifier = hello.UNKNOWN_TOKEN if caller is None else caller.verifier
        credential = hello.credential_if_proven(verifier, self._transcript, proof)
        if caller is None or credential is None:
            self._refuse(Unauthenticated("the server does not accept this token"))
        if self._check_room is not None:
            try:
                self._check_room(self.network)
            except StrandlineError as error:
                self._refuse(error)
        self._reply(hello.ACCEPTED, hello.signature_of(verifier, self._transcript))
        self.client = Client(caller, credential, self.network)

    def _exactly(self, count: int, beginning: bytes = b"") -> bytes:
        """Return the peer's next `count` bytes. Raises BlockingIOError if some have not arrived.

        A peer whose bytes do not agree with `beginning` is refused without waiting for the rest.
        """
        while len(self._received) < count:
            part = self.peer.recv(count - len(self._received))
            if not part:
                raise ConnectionResetError("the peer has closed the connection")
            self._received += part
            known = min(len(beginning), len(self._received))
            if self._received[:known] != beginning[:known]:
                self._refuse_protocol()
        content, self._received = self._received, b""
        return content

    def _reply(self, status: int, body: bytes) -> None:
        content = hello.REPLY_HEADER.pack(status, len(body)) + body
        if self.peer.send(content) != len(content):
            raise ConnectionError("the peer takes no reply")

    def _refuse_protocol(self) -> NoReturn:
        if HTTP2_PREFACE.startswith(self._received[: len(HTTP2_PREFACE)]):
            # Clients of older releases begin like this; they get an explanation.
            self.peer.send(_TOO_OLD)
            raise InvalidRequest("a client of an older release")
        self._refuse(InvalidRequest(hello.WRONG_VERSION))

    def _refuse(self, error: StrandlineError) -> NoReturn:
        self._reply(hello.REFUSED, encode(failure_of(error)))
        raise error
