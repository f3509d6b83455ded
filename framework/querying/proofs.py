"""How a client and a worker show each other over TCP that they know the log's token.

    client → worker   Hello(version, nonce)
    worker → client   Challenge(version, nonce)
    client → worker   Proof(HMAC(key, "client" nonces))
    worker → client   Welcome(version, HMAC(key, "worker" nonces))

The token itself is never sent. The key is derived from the token, the URL that the worker announces,
and the certificate of the connection: a proof for one worker is of no use with another, so a member
that announces an address of its own cannot pass on what it receives. A client sends no request
before the worker has shown its proof.
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
    """Bytes that nobody has seen before."""
    return secrets.token_bytes(NONCE_BYTES)


def key_of(token: str, url: str, certificate: bytes | None) -> bytes:
    """The key of one worker: for the URL that it announces, and its certificate (DER), with TLS."""
    bound = [_PURPOSE, url.encode(), hashlib.sha256(certificate or b"").digest()]
    return hmac.digest(token.encode(), b"".join(_with_length(part) for part in bound), "sha256")


def proof(key: bytes, side: Side, client_nonce: bytes, worker_nonce: bytes) -> bytes:
    """What only one side that knows the key can show for these nonces."""
    parts = (side, client_nonce, worker_nonce)
    return hmac.digest(key, b"".join(_with_length(part) for part in parts), "sha256")


def is_proof(
    shown: bytes, key: bytes, side: Side, client_nonce: bytes, worker_nonce: bytes
) -> bool:
    """Whether `shown` is that proof, compared in constant time; a nonce that is too short proves nothing."""
    if min(len(client_nonce), len(worker_nonce)) < NONCE_BYTES:
        return False
    return hmac.compare_digest(shown, proof(key, side, client_nonce, worker_nonce))


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
