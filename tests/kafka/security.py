"""Listeners of a broker that authenticate clients: TLS, SASL, and rights by ACLs.

Clients on the plain listener, or on TLS without a certificate, have all rights. Others have those
granted to them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

LISTENERS = ("SSL", "SASL_SSL")
USERS = {"ada": "ada-secret", "bob": "bob-secret"}


class Secured:
    """Secrets of a broker, in `folder`. Raises FileNotFoundError without `openssl`."""

    def __init__(self, folder: Path) -> None:
        self.authority = _certificate(folder, "broker")
        """File with the certificate, which is its own authority."""
        pem = folder / "keystore.pem"
        pem.write_bytes((folder / "broker.key").read_bytes() + self.authority.read_bytes())
        users = "".join(f' user_{name}="{password}"' for name, password in USERS.items())
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        self.settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{plain}{users};",
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{scram};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def url(self, address: str, properties: Mapping[str, str]) -> str:
        """Return a kafka:// URL that trusts the certificate."""
        trust = {"ssl.ca.location": str(self.authority)}
        return f"kafka://{address}?{urlencode({**trust, **properties})}"

    def as_user(self, address: str, user: str, password: str | None = None, **more: str) -> str:
        """Return the URL for a user of SASL_SSL, by PLAIN unless `more` says otherwise."""
        said = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password or USERS[user],
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        return self.url(address, said)


def _certificate(folder: Path, name: str) -> Path:
    """Create a self-signed certificate for 127.0.0.1, with its key next to it."""
    certificate = folder / f"{name}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / f"{name}.key"), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate
