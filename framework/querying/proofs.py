"""Proofs by which a client and a worker show each other over TCP that they know the log's token.

    client → worker   Hello(version, nonce)
    worker → client   Challenge(version, nonce)
    client → worker   Proof(HMAC(key, "client" nonces))
    worker → client   Welcome(version, HMAC(key, "worker" nonces))

The token itself is never sent. The key is derived from the token, the URL that the worker
announces, and the certificate of the connection. So a proof for one worker is not valid for another
one, and a group member that announces its own address cannot forward a proof that it receives. A
client sends no request before it has checked the worker's proof.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal

NONCE_BYTES = 32
_PURPOSE = b"strandline queries 2"

Side = Literal[b"client", b"worker"]


def new_nonce() -> bytes:
    """Return random bytes that were never used before."""
    return secrets.token_bytes(NONCE_BYTES)


def key_of(token: str, url: str, certificate: bytes | None) -> bytes:
    """Return the key for one worker: for its announced URL and its TLS certificate (DER)."""
    bound = [_PURPOSE, url.encode(), hashlib.sha256(certificate or b"").digest()]
    return hmac.digest(token.encode(), b"".join(_with_length(part) for part in bound), "sha256")


def proof(key: bytes, side: Side, client_nonce: bytes, worker_nonce: bytes) -> bytes:
    """Return the proof of one side that it knows the key, for these nonces."""
    parts = (side, client_nonce, worker_nonce)
    return hmac.digest(key, b"".join(_with_length(part) for part in parts), "sha256")


def is_proof(
    shown: bytes, key: bytes, side: Side, client_nonce: bytes, worker_nonce: bytes
) -> bool:
    """Return True if `shown` is the proof for these nonces, compared in constant time.

    Nonces that are too short are refused, because their proofs could be repeated.
    """
    if min(len(client_nonce), len(worker_nonce)) < NONCE_BYTES:
        return False
    return hmac.compare_digest(shown, proof(key, side, client_nonce, worker_nonce))


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
