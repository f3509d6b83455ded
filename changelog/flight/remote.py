"""A log served to other machines: a front, which authenticates, and a private gRPC server."""

from __future__ import annotations

import ssl
import threading

from strandline.changelog.clock import Clock
from strandline.changelog.flight.budgets import Budgets
from strandline.changelog.flight.clients import Authority, Clients
from strandline.changelog.flight.counted_answers import CountedAnswers
from strandline.changelog.flight.front import Front
from strandline.changelog.flight.limits import ListenerLimits
from strandline.changelog.flight.locating import LocatingBroker
from strandline.changelog.flight.private import private_socket, remove_private
from strandline.changelog.flight.server import FlightEndpoint, RemoteClients

REVOKED_WITHIN_S = 0.5
"""Seconds between checks for connections of revoked tokens, whose calls are refused at once."""


class RemoteEndpoint:
    """Server of `broker` at a TCP address, until `close`.

    Args:
        broker: The log.
        address: Host and port to listen on; port 0 selects a free port.
        authority: The accepted tokens.
        tls: Server-side TLS context; None for unencrypted connections.
        limits: Limits on connections, calls and bytes; None for the defaults.
        clock: Measures deadlines.

    Raises:
        OSError: The address cannot be bound.
        InvalidConfig: The process may not open as many descriptors as the limits require.
    """

    def __init__(
        self,
        broker: LocatingBroker,
        address: tuple[str, int],
        authority: Authority,
        *,
        tls: ssl.SSLContext | None = None,
        limits: ListenerLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clients = Clients(authority.is_valid)
        self.budgets = Budgets(limits or ListenerLimits())
        self._backend = private_socket("front.sock")
        try:
            self._endpoint = FlightEndpoint(
                broker,
                f"grpc+unix://{self._backend}",
                token="",
                clock=clock,
                remote=RemoteClients(
                    self.clients,
                    self.budgets,
                    CountedAnswers(self.budgets.answers),
                    authority.granting,
                    broker.locate,
                ),
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
                self.budgets,
                tls=tls,
                clock=clock,
            )
        except BaseException:
            self._close_server()
            raise
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="strandline-tokens", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        """End connections of revoked tokens, including idle ones."""
        while not self._closed.wait(REVOKED_WITHIN_S):
            self.clients.drop_revoked()

    @property
    def port(self) -> int:
        """Number of the TCP port that the server listens on."""
        return self._front.port

    @property
    def pending(self) -> int:
        """Number of connections that are not authenticated yet."""
        return self._front.pending

    def __len__(self) -> int:
        return len(self._endpoint.sessions)

    def close(self) -> None:
        """End all sessions and stop listening, without waiting for peers. Idempotent."""
        self._closed.set()
        # First, because the goodbye reaches the clients through the front.
        self._endpoint.say_goodbye()
        self._front.close()
        self._close_server()
        self._watcher.join()

    def _close_server(self) -> None:
        self._endpoint.close()
        remove_private(self._backend)
