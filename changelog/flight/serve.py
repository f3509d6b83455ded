"""A log folder served over TCP, to other machines."""

from __future__ import annotations

import os
import secrets
import ssl
import threading

import pyarrow as pa

from strandline.changelog.clock import Clock
from strandline.changelog.embedded.context import Durability
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.flight.address import host_port
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.flight.authority import TokenAuthority
from strandline.changelog.flight.client import DEADLINE
from strandline.changelog.flight.failover import FailoverBroker
from strandline.changelog.flight.limits import ListenerLimits, limits_from
from strandline.changelog.flight.metrics import CLIENTS
from strandline.changelog.flight.remote import RemoteEndpoint, server_context
from strandline.changelog.hosts import is_loopback
from strandline.changelog.metrics import MetricReading
from strandline.changelog.storage import LocalStorage

MIN_TOKEN = 16
"""Characters; a shorter one could be guessed."""


class ServedLog:
    """A log that is being served; `close` ends it."""

    def __init__(
        self, broker: FailoverBroker, endpoint: RemoteEndpoint, url: str, token: str
    ) -> None:
        self.broker = broker
        """The log, for use in this process."""
        self.url = url
        """What clients open, without the token."""
        self.token = token
        self._endpoint = endpoint
        self._closed = threading.Event()

    def metrics(self) -> list[MetricReading]:
        """What this process tells of the log, those attached over TCP included."""
        return [*self.broker.metrics(), MetricReading(CLIENTS, ("tcp",), len(self._endpoint))]

    def wait(self) -> None:
        """Return once `close` was called."""
        self._closed.wait()

    def close(self) -> None:
        """Send the clients away and let go of the log."""
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
    """Serve the log in the folder `path` at `listen` ("host:port"; port 0 takes a free one).

    When another process owns the folder, calls are passed on to it.

    Args:
        path: The log's folder, made if it is not there.
        listen: Where to listen.
        token: The admin token, whose clients may do everything; without one a fresh one is made,
            see `ServedLog.token`. At least 16 characters. `strandline tokens` makes tokens with fewer rights.
        tls_certificate: Path of the server's certificate chain, PEM.
        tls_key: Path of its private key, PEM.
        client_ca: Path of the authorities of which clients must show a certificate, PEM; None asks
            for none.
        plaintext: Whether to go without TLS where other machines can connect.
        limits: What clients may take; None for those of the environment, or the defaults.
        durability: See `changelog.open`; counts if this process becomes the owner.
        clock: Tells the time.

    Returns:
        The log that is being served.

    Raises:
        InvalidConfig: An argument is wrong, or the address cannot be listened at.
        CorruptLog: The log's tokens cannot be read (FutureFormat: a later version wrote them).
        StrandlineError: What opening the log raises.
    """
    address = host_port(listen)
    tls = _tls(tls_certificate, tls_key, client_ca)
    if tls is None and not plaintext and is_seen_by_others(listen):
        raise InvalidConfig(
            f"{listen} can be reached from other machines, and without TLS anybody on the way can read "
            "and change the data; give tls_certificate and tls_key, or plaintext=True"
        )
    if token is not None and len(token) < MIN_TOKEN:
        raise InvalidConfig(f"the token has {len(token)} characters; take {MIN_TOKEN} or more")
    shown = token or secrets.token_urlsafe(32)
    allowed = limits or limits_from()
    broker = attach_or_own(path, durability=durability, clock=clock, deadline=DEADLINE)
    host, _, port = address.rpartition(":")
    try:
        authority = TokenAuthority(LocalStorage(path), shown)
        endpoint = RemoteEndpoint(
            broker,
            (host.strip("[]"), int(port)),
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
    url = f"strandline{'+tls' if tls else ''}://{host}:{endpoint.port}"
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
    """Whether other machines can reach what listens at `listen`. Raises InvalidConfig.

    >>> is_seen_by_others("0.0.0.0:0"), is_seen_by_others("localhost")
    (True, False)
    """
    host = host_port(listen).rpartition(":")[0].strip("[]")
    return not is_loopback(host)
