"""Address and credentials of a log that other processes own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from strandline.changelog.flight.endpoint import OwnerEndpoint
from strandline.changelog.flight.messages import (
    SESSION_HEADER,
)
from strandline.changelog.flight.relay import Relay, TlsClient


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """Address and credentials of a log."""

    location: str
    token: str = field(repr=False)
    name: str
    """Name of the log in errors: its folder or URL."""
    endpoint: OwnerEndpoint | None = field(default=None, repr=False)
    """Content of the folder's endpoint file; None for a remote log."""
    folder: Path | None = None
    """Folder of the log; None if this process cannot read it."""
    ca: bytes | None = None
    """Trusted certificates for TLS (PEM); None for those of the system."""
    certificate: str | None = None
    """Path of the client's own TLS certificate (PEM)."""
    key: str | None = None
    """Path of the private key of `certificate` (PEM)."""


def relay_to(target: ConnectionTarget, deadline: float) -> Relay | None:
    """Return an authenticated relay to a log served over TCP; None for a Unix socket."""
    parts = urlsplit(target.location)
    if parts.scheme not in ("grpc+tcp", "grpc+tls"):
        return None
    tls = TlsClient(target.ca, target.certificate, target.key)
    return Relay(
        parts.hostname or "",
        parts.port or 0,
        token=target.token,
        tls=tls if parts.scheme == "grpc+tls" else None,
        name=target.name,
        deadline_s=deadline,
    )


# Without this option, a new connection would share the socket of an old one that is blocked.
CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def call_headers(credential: str, session: str = "") -> list[tuple[bytes, bytes]]:
    """Return the headers of a call."""
    headers = []
    if credential:
        headers.append((b"authorization", f"Bearer {credential}".encode()))
    if session:
        headers.append((SESSION_HEADER.encode(), session.encode()))
    return headers
