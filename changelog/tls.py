"""TLS of the servers that listen on TCP: the log's, and a worker's for queries."""

from __future__ import annotations

import os
import ssl

from strandline.changelog.errors import InvalidConfig


def server_context(
    certificate: str | os.PathLike[str],
    key: str | os.PathLike[str],
    client_ca: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """Return a server-side context for TLS 1.2 or later.

    Args:
        certificate: Path of the certificate chain (PEM).
        key: Path of its private key (PEM).
        client_ca: Path of the authorities' certificates that must have signed those of clients
            (PEM); None if clients need no certificate.

    Raises:
        InvalidConfig: A file is missing or has the wrong content.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (certificate, key, client_ca):
        if path is not None and not os.path.isfile(path):
            raise InvalidConfig(f"there is no file {path}; give the path of a PEM file")
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        given = ", ".join(str(path) for path in (certificate, key, client_ca) if path is not None)
        raise InvalidConfig(f"cannot use the PEM files {given} for TLS: {error}") from error
    return context
