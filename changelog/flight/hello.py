"""The hello at the beginning of a TCP connection: both sides prove that they know the token.

It begins connections to a served log and to workers that answer queries. The bytes are in
docs/security.md. The computation is that of SCRAM (RFC 5802): the token is never sent, and the
verifier that the server stores (`Verifier`) is not sufficient to act as a client.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from typing import NamedTuple

from strandline.changelog.errors import InvalidRequest

MAGIC = b"strandline hello"
VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
REPLY_HEADER = struct.Struct(">BH")
"""Status and length of a reply."""
ACCEPTED, REFUSED = 0, 1

WRONG_VERSION = (
    f"a connection begins with a hello of version {VERSION}; run the same release of strandline on "
    "both sides"
)
"""Message of the error for a peer that begins with something else."""
_OPENING = struct.Struct(">16sB31s32s")
OPENING_BYTES = _OPENING.size
_MADE = re.compile(r"sl_([0-9a-z]{1,31})_\S+", re.ASCII)


class Verifier(NamedTuple):
    """Values that a server stores instead of a token."""

    stored_key: bytes
    server_key: bytes


class ClientOpening(NamedTuple):
    """First message of a client."""

    token_id: str
    nonce: bytes


def verifier_of(token: str) -> Verifier:
    """Return the values by which a server checks proofs of `token`."""
    client_key = _mac(token.encode(), b"strandline client")
    return Verifier(_hash(client_key), _mac(token.encode(), b"strandline server"))


UNKNOWN_TOKEN = Verifier(_stored := bytes(32), _stored)
"""Verifier used for an unknown token, so that an unknown id takes as long as a wrong proof."""


def token_id(token: str) -> str:
    """Return the id in a token made by `strandline tokens`; "" for any other token.

    >>> token_id("sl_4f1c_secret"), token_id("chosen by a person")
    ('4f1c', '')
    """
    made = _MADE.fullmatch(token)
    return made[1] if made else ""


def pack_opening(opening: ClientOpening) -> bytes:
    """Return the bytes of a client's first message."""
    return _OPENING.pack(MAGIC, VERSION, opening.token_id.encode("ascii"), opening.nonce)


def unpack_opening(content: bytes) -> ClientOpening:
    """Return the content of a client's first message. Raises InvalidRequest."""
    magic, version, token, nonce = _OPENING.unpack(content)
    if magic != MAGIC or version != VERSION:
        raise InvalidRequest(WRONG_VERSION)
    return ClientOpening(token.rstrip(b"\0").decode("ascii", "replace"), nonce)


def binding(purpose: bytes, url: str, certificate: bytes | None) -> bytes:
    """Return bytes that begin a transcript, so that its proofs are valid for one server only.

    Args:
        purpose: Protocol for which the hello is made.
        url: URL to which the client connects, as the server announces it.
        certificate: The server's TLS certificate (DER); None without TLS.
    """
    parts = (purpose, url.encode(), _hash(certificate or b""))
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def proof_of(token: str, transcript: bytes) -> bytes:
    """Return a client's proof that it knows `token`."""
    client_key = _mac(token.encode(), b"strandline client")
    return _xor(client_key, _mac(_hash(client_key), transcript))


def credential_if_proven(verifier: Verifier, transcript: bytes, proof: bytes) -> str | None:
    """Return the connection's credential if `proof` is right, else None."""
    client_key = _xor(proof, _mac(verifier.stored_key, transcript))
    if not hmac.compare_digest(_hash(client_key), verifier.stored_key):
        return None
    return _credential(client_key, transcript)


def credential_of(token: str, transcript: bytes) -> str:
    """Return the connection's credential as computed by a client, from `token`."""
    return _credential(_mac(token.encode(), b"strandline client"), transcript)


def signature_of(verifier: Verifier, transcript: bytes) -> bytes:
    """Return the server's proof that it knows the token's verifier."""
    return _mac(verifier.server_key, transcript)


def is_signature(signature: bytes, token: str, transcript: bytes) -> bool:
    """Return True if `signature` proves that the server knows the verifier of `token`."""
    return hmac.compare_digest(signature, signature_of(verifier_of(token), transcript))


def _credential(client_key: bytes, transcript: bytes) -> str:
    return _mac(client_key, b"credential" + transcript).hex()


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
