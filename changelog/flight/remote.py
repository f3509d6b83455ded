"""A log served to other machines: a front, and behind it a gRPC server for what the front lets in."""

from __future__ import annotations

import os
import ssl
import threading

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.flight.budgets import Budgets
from strandline.changelog.flight.clients import Authority, Clients
from strandline.changelog.flight.front import Front
from strandline.changelog.flight.limits import ListenerLimits
from strandline.changelog.flight.private import private_socket, remove_private
from strandline.changelog.flight.server import FlightEndpoint

REVOKED_WITHIN_S = 0.5
"""Seconds after which a connection has ended whose token was revoked. Its calls are refused at once."""


class RemoteEndpoint:
    """Serves `broker` at a TCP address until `close`.

    Args:
        broker: The log.
        address: Host and port to listen at; port 0 takes a free one.
        authority: Knows the tokens.
        tls: Context of the server's side of TLS; None for connections in clear.
        limits: What peers may take.
        clock: Measures deadlines.

    Raises:
        OSError: The address cannot be listened at.
        InvalidConfig: The process may not have as many descriptors as the limits allow for.
    """

    def __init__(
        self,
        broker: Broker,
        address: tuple[str, int],
        authority: Authority,
        *,
        tls: ssl.SSLContext | None = None,
        limits: ListenerLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clients = Clients(authority.is_valid)
        allowed = limits or ListenerLimits()
        budgets = Budgets(allowed)
        self._backend = private_socket("front.sock")
        try:
            self._endpoint = FlightEndpoint(
                broker,
                f"grpc+unix://{self._backend}",
                token="",
                clock=clock,
                clients=self.clients,
                budgets=budgets,
                granting=authority.granting,
            )
        except BaseException:
            remove_private(self._backend)
            raise
        try:
            self._front = Front(
                address,
                self._backend,
                authority.authenticate,
                self.clients,
                budgets,
                tls=tls,
                limits=allowed,
                clock=clock,
            )
        except BaseException:
            self._close_server()
            raise
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="strandline-tokens", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        """End connections whose tokens are revoked, also those that make no call."""
        while not self._closed.wait(REVOKED_WITHIN_S):
            self.clients.drop_revoked()

    @property
    def port(self) -> int:
        """The TCP port that is listened on (useful with port 0)."""
        return self._front.port

    @property
    def pending(self) -> int:
        """Number of connections that are not authenticated yet."""
        return self._front.pending

    def __len__(self) -> int:
        return len(self._endpoint.sessions)

    def close(self) -> None:
        """Send the clients away, and listen no more. Waits for no peer; harmless when repeated."""
        self._closed.set()
        self._endpoint.say_goodbye()
        self._front.close()
        self._close_server()
        self._watcher.join()

    def _close_server(self) -> None:
        self._endpoint.close()
        remove_private(self._backend)


def server_context(
    certificate: str | os.PathLike[str],
    key: str | os.PathLike[str],
    client_ca: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """Return the server's side of TLS 1.2 or later.

    Args:
        certificate: Path of the certificate chain, PEM.
        key: Path of its private key, PEM.
        client_ca: Path of the authorities that clients' certificates must come from, PEM; None
            asks clients for no certificate.

    Raises:
        InvalidConfig: A file is not there, or is not what it should be.
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
