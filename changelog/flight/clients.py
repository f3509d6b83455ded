"""The authenticated clients of a TCP listener, by the credential that their gRPC calls carry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from strandline.changelog.flight.grants import Granting
from strandline.changelog.flight.hello import Verifier
from strandline.changelog.flight.rights import NONE, AuthorizedToken, Rights


@dataclass(frozen=True, slots=True)
class Principal:
    """Identity of a client: the token by which it has authenticated."""

    name: str
    verifier: Verifier
    token_id: str = ""
    """Id that is part of the token; "" for the admin token."""
    rights: Rights = NONE

    @property
    def holder(self) -> AuthorizedToken:
        """The token and its rights, for checking them."""
        return AuthorizedToken(self.name, self.token_id, self.rights)


class Authority(Protocol):
    """The tokens that a server accepts."""

    @property
    def granting(self) -> Granting:
        """Issuer and checker of grants."""
        ...

    def authenticate(self, token_id: str) -> Principal | None:
        """Return the principal of a token id ("" for the admin token); None if it is unknown."""
        ...

    def is_valid(self, caller: Principal) -> bool:
        """Return True if an authenticated token has not been revoked since."""
        ...


Authenticate = Callable[[str], Principal | None]
"""Returns the principal of a token id ("" for the admin token); None if it is unknown."""


class Client:
    """One authenticated connection."""

    def __init__(self, caller: Principal, credential: str, network: str) -> None:
        self.caller = caller
        self.credential = credential
        self.network = network
        self.peer = ""
        """Name of the connection at the gRPC server, as its calls report it; "" before it has one.

        A call with this client's credential on any other connection is refused: without TLS the
        credential can be seen on the network path.
        """
        self.ended = threading.Event()
        """Set once the connection has ended."""
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._dropped = False
        self._exceeded = ""
        self._has_session = False
        self._calls = 0
        self._after_calls: Callable[[], None] | None = None
        self._at_end: list[Callable[[], None]] = []

    @property
    def is_gone(self) -> bool:
        """True if the connection was dropped or has ended; its calls may still run."""
        return self._dropped or self.ended.is_set()

    @property
    def exceeded(self) -> str:
        """Limit because of which the connection was dropped, in words; "" if there was none."""
        return self._exceeded

    def at_end(self, call: Callable[[], None]) -> None:
        """Call a function once the connection has ended, at once if it has already."""
        with self._lock:
            self._at_end.append(call)
            if not self.ended.is_set():
                return
        call()

    def end(self) -> None:
        """Record that the connection has ended."""
        with self._lock:
            self.ended.set()
            calls = list(self._at_end)
        for call in calls:
            call()

    def begin_session(self) -> bool:
        """Record that the client has a session; return False if it already had one."""
        with self._lock:
            had, self._has_session = self._has_session, True
            return not had

    def begin(self, stop: Callable[[], None]) -> bool:
        """Set the function that stops the connection; return False if it was dropped already.

        The lock orders this with `drop`: a drop before it is seen here, a drop after it stops the
        connection.
        """
        with self._lock:
            self._stop = stop
            return not self._dropped

    def drop(self, exceeded: str = "") -> None:
        """End the connection without waiting for the peer.

        Args:
            exceeded: Limit that is the reason, in words; "" for another reason.
        """
        with self._lock:
            if not self._dropped:
                self._exceeded = exceeded
            self._dropped = True
            stop = self._stop
        if stop is not None:
            stop()

    def begin_call(self) -> bool:
        """Count a call that the server runs; return False if the client is gone.

        Call `end_call` afterwards.
        """
        with self._lock:
            if self.is_gone:
                return False
            self._calls += 1
            return True

    def end_call(self) -> None:
        """Record that a call has ended."""
        with self._lock:
            self._calls -= 1
            after = self._ready()
        if after is not None:
            after()

    def after_calls(self, action: Callable[[], None]) -> None:
        """Run `action` once the connection has ended and no call of the client runs any more."""
        with self._lock:
            self._after_calls = action
            after = self._ready()
        if after is not None:
            after()

    def _ready(self) -> Callable[[], None] | None:
        """Return the action that is due, once. The caller holds the lock."""
        if self._calls or self._after_calls is None:
            return None
        action, self._after_calls = self._after_calls, None
        return action


class Clients:
    """Registry of all authenticated connections of one listener.

    Args:
        is_valid: Returns True if a token is still valid. By default no token is.
    """

    def __init__(self, is_valid: Callable[[Principal], bool] = lambda _caller: False) -> None:
        self._is_valid = is_valid
        self._lock = threading.Lock()
        self._by_credential: dict[str, Client] = {}

    def __len__(self) -> int:
        return len(self._by_credential)

    def of_network(self, network: str) -> int:
        """Return the number of connections from a network."""
        with self._lock:
            return sum(one.network == network for one in self._by_credential.values())

    def find(self, credential: str) -> Client | None:
        """Return the client with this credential; None if there is none or its token is revoked."""
        client = self._by_credential.get(credential)
        if client is None or self._is_valid(client.caller):
            return client
        client.drop()
        return None

    def add(self, client: Client) -> None:
        """Register an authenticated connection."""
        with self._lock:
            self._by_credential[client.credential] = client

    def remove(self, client: Client) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._by_credential.pop(client.credential, None)
        client.end()

    def drop_revoked(self) -> None:
        """End the connections of revoked tokens without waiting for the peers."""
        with self._lock:
            clients = list(self._by_credential.values())
        for client in clients:
            if not self._is_valid(client.caller):
                client.drop()

    def drop_all(self) -> None:
        """End all connections without waiting for the peers."""
        with self._lock:
            clients = list(self._by_credential.values())
        for client in clients:
            client.drop()
