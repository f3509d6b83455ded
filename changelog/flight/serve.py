"""Serving a log folder over TCP to other machines."""

from __future__ import annotations

import os
import secrets
import ssl
import threading

import pyarrow as pa

from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.flight.address import DEFAULT_PORT
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.flight.authority import TokenAuthority
from strandline.changelog.flight.client import DEADLINE_S
from strandline.changelog.flight.failover import FailoverBroker
from strandline.changelog.flight.limits import ListenerLimits, limits_from
from strandline.changelog.flight.metrics import CLIENTS
from strandline.changelog.flight.remote import RemoteEndpoint
from strandline.changelog.hosts import bracketed, is_loopback, parse_host_port
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.metrics import MetricReading
from strandline.changelog.storage import Durability
from strandline.changelog.tls import server_context

MIN_TOKEN_CHARS = 16
"""Minimum number of characters of a token; shorter ones could be guessed."""


class ServedLog:
    """A log that is being served until `close`."""

    def __init__(
        self, broker: FailoverBroker, endpoint: RemoteEndpoint, url: str, token: str
    ) -> None:
        self.broker = broker
        """Broker of the log, for use in this process."""
        self.url = url
        """URL that clients open, without the token."""
        self.token = token
        self._endpoint = endpoint
        self._closed = threading.Event()

    def metrics(self) -> list[MetricReading]:
        """Return this process's metrics of the log, including the number of TCP clients."""
        return [*self.broker.metrics(), MetricReading(CLIENTS, ("tcp",), len(self._endpoint))]

    def wait(self) -> None:
        """Wait until `close` is called."""
        self._closed.wait()

    def close(self) -> None:
        """End all sessions and close the log."""
        self._endpoint.close()
        self.broker.close()
        self._closed.set()


def serve(
    path: str | os.PathLike[str],
    *,
    listen: str,
    token: str | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    client_ca: str | os.PathLike[str] | None = None,
    plaintext: bool = False,
    limits: ListenerLimits | None = None,
    durability: Durability = "fsync",
    clock: Clock | None = None,
) -> ServedLog:
    """Serve the log in the folder `path` at the address `listen`.

    If another process owns the folder, calls are forwarded to it.

    Args:
        path: Folder of the log, created if need be.
        listen: Address to listen on, "host:port"; port 0 selects a free port.
        token: Admin token of at least 16 characters, whose clients may do everything. By default
            a new one is made (`ServedLog.token`). `strandline tokens` makes tokens with limited
            rights.
        tls_certificate: Path of the server's certificate chain (PEM).
        tls_key: Path of its private key (PEM).
        client_ca: Path of the authorities' certificates that must have signed those of clients
            (PEM); None if clients need no certificate.
        plaintext: Whether other machines may connect without TLS.
        limits: Limits on clients; None for those of the environment, or the defaults.
        durability: Durability of appends if this process becomes the owner, see `changelog.open`.
        clock: Measures time.

    Returns:
        The log that is being served.

    Raises:
        InvalidConfig: An argument is wrong, or the address cannot be bound.
        CorruptLog: The log's tokens cannot be read.
        FutureFormat: A later version wrote the log's tokens.
        StrandlineError: Any other error of opening the log.
    """
    address = parse_host_port(listen, port=DEFAULT_PORT)
    tls = _tls(tls_certificate, tls_key, client_ca)
    if tls is None and not plaintext and is_seen_by_others(listen):
        raise InvalidConfig(
            f"{listen} can be reached from other machines, and without TLS the data can be read and "
            "changed on the network; give tls_certificate and tls_key, or plaintext=True"
        )
    if token is not None and len(token) < MIN_TOKEN_CHARS:
        raise InvalidConfig(f"the token has {len(token)} characters; use {MIN_TOKEN_CHARS} or more")
    shown = token or secrets.token_urlsafe(32)
    allowed = limits or limits_from()
    broker = attach_or_own(path, durability=durability, clock=clock, deadline=DEADLINE_S)
    try:
        authority = TokenAuthority(LocalStorage(path), shown)
        endpoint = RemoteEndpoint(
            broker,
            address,
            authority,
            tls=tls,
            limits=allowed,
            clock=clock,
        )
    except BaseException as error:
        broker.close()
        if isinstance(error, OSError | pa.ArrowException):
            raise InvalidConfig(f"cannot listen at {listen}: {error}") from error
        raise
    url = f"strandline{'+tls' if tls else ''}://{bracketed(address.host)}:{endpoint.port}"
    return ServedLog(broker, endpoint, url, shown)


def _tls(
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    client_ca: str | os.PathLike[str] | None,
) -> ssl.SSLContext | None:
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise InvalidConfig("TLS needs both tls_certificate and tls_key, each a PEM file")
    return server_context(certificate, key, client_ca)


def is_seen_by_others(listen: str) -> bool:
    """Return True if other machines can connect to the address `listen`. Raises InvalidConfig.

    >>> is_seen_by_others("0.0.0.0:0"), is_seen_by_others("localhost")
    (True, False)
    """
    return not is_loopback(parse_host_port(listen, port=DEFAULT_PORT).host)
