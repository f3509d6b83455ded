"""The client's side of the hello (hello.py), on a connected socket."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

from strandline.changelog.credentials import HOW_TO_GIVE_ONE
from strandline.changelog.errors import UNREADABLE, StrandlineError, Unauthenticated
from strandline.changelog.flight import hello
from strandline.changelog.flight.limits import MAX_REPLY_BYTES
from strandline.changelog.flight.messages import RemoteFailure, decode, error_of

SecondsLeft = Callable[[], float]
"""Function that returns the seconds until a deadline, and raises TimeoutError after it."""


def authenticate(
    peer: socket.socket, token: str, server: str, left: SecondsLeft, *, binding: bytes = b""
) -> str:
    """Authenticate both sides of a new connection, and return the connection's credential.

    Args:
        peer: Socket connected with the server, after the TLS handshake if there is one.
        token: Token that the client proves to know; it is not sent.
        server: Name of the server in errors.
        left: Returns the seconds that remain for the hello.
        binding: Beginning of the transcript (`hello.binding`).

    Raises:
        OSError: The connection failed, or the server speaks another protocol.
        Unauthenticated: There is no token, the server refuses it, or does not know it itself.
        StrandlineError: Another error with which the server has answered.
    """
    if not token:
        raise Unauthenticated(f"{server} asks for a token; {HOW_TO_GIVE_ONE}")
    opening = hello.pack_opening(
        hello.ClientOpening(hello.token_id(token), secrets.token_bytes(hello.NONCE_BYTES))
    )
    peer.sendall(opening)
    transcript = binding + opening + _reply(peer, hello.NONCE_BYTES, left)
    peer.sendall(hello.proof_of(token, transcript))
    signature = _reply(peer, hello.PROOF_BYTES, left)
    if not hello.is_signature(signature, token, transcript):
        raise Unauthenticated(
            f"{server} does not know the token, so it is another server than expected"
        )
    return hello.credential_of(token, transcript)


def _reply(peer: socket.socket, size: int, left: SecondsLeft) -> bytes:
    """Return the `size` bytes of an accepting reply. Raises the server's error otherwise."""
    status, length = hello.REPLY_HEADER.unpack(_exactly(peer, hello.REPLY_HEADER.size, left))
    is_accepted = status == hello.ACCEPTED
    if length > MAX_REPLY_BYTES or (is_accepted and length != size):
        raise ConnectionError(NOT_OURS)
    body = _exactly(peer, length, left)
    if is_accepted:
        return body
    try:
        failure: RemoteFailure = decode(body, RemoteFailure)
    except (StrandlineError, *UNREADABLE):
        raise ConnectionError(NOT_OURS) from None
    raise error_of(failure)


def _exactly(peer: socket.socket, count: int, left: SecondsLeft) -> bytes:
    content = b""
    while len(content) < count:
        peer.settimeout(left())
        part = peer.recv(count - len(content))
        if not part:
            raise ConnectionError("the server has closed the connection during the hello")
        content += part
    return content


NOT_OURS = (
    "the server does not speak this protocol; run the same release of strandline on both sides"
)
