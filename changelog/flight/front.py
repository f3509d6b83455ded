"""The front of a log served over TCP: authenticates peers before gRPC receives any of their bytes.

One thread accepts all connections and performs TLS and the hello (hello.py) with each of them,
without blocking. A peer that is not authenticated therefore costs one descriptor and a small
buffer, for a limited time. Each authenticated connection gets its own thread, which copies bytes
between the peer and the private Unix socket of the gRPC server (splice.py).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import selectors
import socket
import ssl
import threading
from collections import Counter

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidConfig, OwnerUnavailable, StrandlineError
from strandline.changelog.flight.budgets import Budgets
from strandline.changelog.flight.clients import Authenticate, Client, Clients
from strandline.changelog.flight.greeting import Greeting
from strandline.changelog.flight.http2 import FlowMeter
from strandline.changelog.flight.limits import (
    DESCRIPTORS_OF_THE_LOG,
    NO_DESCRIPTOR_PAUSE_S,
    ListenerLimits,
)
from strandline.changelog.flight.splice import Splice, end_if_peer_vanishes
from strandline.changelog.hosts import network_of
from strandline.changelog.rate_limited_log import RateLimitedLog

_log = logging.getLogger(__name__)


class Front:
    """Listener that connects authenticated peers with the gRPC server at `backend`.

    Args:
        address: Host and port to listen on; port 0 selects a free port.
        backend: Path of the gRPC server's Unix socket, in a folder of its own.
        authenticate: Returns the principal of a token id; None if the token is unknown.
        clients: Registry of authenticated connections.
        budgets: Limits of the listener, and the calls and bytes in flight.
        tls: Server-side TLS context; None for unencrypted connections.
        clock: Measures deadlines.

    Raises:
        OSError: The address cannot be bound.
        InvalidConfig: The process may not open as many descriptors as the limits require.
    """

    def __init__(
        self,
        address: tuple[str, int],
        backend: str,
        authenticate: Authenticate,
        clients: Clients,
        budgets: Budgets,
        *,
        tls: ssl.SSLContext | None,
        clock: Clock | None = None,
    ) -> None:
        self._backend = backend
        self._numbers = itertools.count()
        self._authenticate = authenticate
        self._clients = clients
        self._budgets = budgets
        self._tls = tls
        self._limits = budgets.limits
        self._clock = clock or SystemClock()
        self._lost = RateLimitedLog(_log, self._clock)
        """Log of the connections that have ended because of a limit."""
        _make_room_for_descriptors(self._limits)
        self._listener = _listen(address)
        self.port = int(self._listener.getsockname()[1])
        self._pending: dict[socket.socket, Greeting] = {}
        self._accept_again_at: float | None = None
        self._closed = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="strandline-front", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Number of connections that are not authenticated yet."""
        return len(self._pending)

    def close(self) -> None:
        """Stop listening and end all connections, without waiting for peers. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(OSError):  # the thread may have ended and closed the socket
            self._waker.send(b"\0")
        self._thread.join()
        self._waker.close()
        self._clients.drop_all()
        self._lost.close()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                for key, _ in self._selector.select(self._next_deadline()):
                    self._handle(key)
                self._expire()
        finally:
            for greeting in list(self._pending.values()):
                self._forget(greeting)
            self._selector.close()
            for one in (self._listener, self._woken):
                one.close()

    def _handle(self, key: selectors.SelectorKey) -> None:
        try:
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Greeting) and key.data.peer in self._pending:
                self._advance(key.data)
        except Exception:
            # An unexpected error with one peer must not end the listener for all others.
            _log.exception("a connection failed in an unexpected way")
            if isinstance(key.data, Greeting) and key.data.peer in self._pending:
                self._forget(key.data)

    def _next_deadline(self) -> float | None:
        """Return the seconds until the next deadline; None if there is none."""
        deadlines = [greeting.deadline for greeting in self._pending.values()]
        if self._accept_again_at is not None:
            deadlines.append(self._accept_again_at)
        return max(0.0, min(deadlines) - self._clock.monotonic()) if deadlines else None

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for greeting in [g for g in self._pending.values() if g.deadline <= now]:
            self._forget(greeting)
        if self._accept_again_at is not None and self._accept_again_at <= now:
            self._accept_again_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    # Connections that are not authenticated yet ---------------------------------------------

    def _accept(self) -> None:
        try:
            peer, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            # The listener is paused, because the pending connection keeps it readable: without
            # a pause this thread would loop without waiting.
            _log.warning("cannot accept connections at the moment: %s", error)
            self._selector.unregister(self._listener)
            self._accept_again_at = self._clock.monotonic() + NO_DESCRIPTOR_PAUSE_S
            return
        try:
            peer.settimeout(0)
            end_if_peer_vanishes(peer)
            if self._tls is not None:
                peer = self._tls.wrap_socket(peer, server_side=True, do_handshake_on_connect=False)
        except OSError:
            peer.close()
            return
        deadline = self._clock.monotonic() + self._limits.hello_timeout_s
        greeting = Greeting(
            peer, network_of(address[0]), deadline, self._authenticate, self._check_room
        )
        self._evict_if_full(greeting.network)
        self._pending[peer] = greeting
        self._selector.register(peer, selectors.EVENT_READ, greeting)

    def _evict_if_full(self, network: str) -> None:
        """Close a pending connection if there are too many.

        It is the oldest one of `network` if that has reached its limit. If the total limit is
        reached, it is the oldest one of the network that has the most.
        """
        each = Counter(greeting.network for greeting in self._pending.values())
        if each[network] >= self._limits.max_pending_per_address:
            crowded = network
        elif len(self._pending) >= self._limits.max_pending:
            crowded = each.most_common(1)[0][0]
        else:
            return
        self._forget(next(g for g in self._pending.values() if g.network == crowded))

    def _advance(self, greeting: Greeting) -> None:
        try:
            wanted = greeting.advance()
        except (OSError, StrandlineError, ValueError) as error:
            _log.debug("refused a peer from %s: %s", greeting.network, error)
            self._forget(greeting)
            return
        if greeting.client is None:
            self._selector.modify(greeting.peer, wanted, greeting)
            return
        self._selector.unregister(greeting.peer)
        del self._pending[greeting.peer]
        self._connect(greeting.peer, greeting.client)

    def _forget(self, greeting: Greeting) -> None:
        del self._pending[greeting.peer]
        with contextlib.suppress(OSError, KeyError, ValueError):
            self._selector.unregister(greeting.peer)
        greeting.peer.close()

    # Authenticated connections --------------------------------------------------------------

    def _check_room(self, network: str) -> None:
        """Raise OwnerUnavailable if there is no room for one more authenticated connection."""
        for count, limit, whose in (
            (len(self._clients), self._limits.max_connections, ""),
            (
                self._clients.of_network(network),
                self._limits.max_connections_per_address,
                f" from {network}",
            ),
        ):
            if count >= limit:
                raise OwnerUnavailable(
                    f"the log's owner has {count} connections{whose}, which is the limit; close some, or "
                    "raise --max-connections and --max-connections-per-address of `strandline serve`"
                )

    def _connect(self, peer: socket.socket, client: Client) -> None:
        self._clients.add(client)
        thread = threading.Thread(
            target=self._serve, args=(peer, client), name="strandline-connection", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("cannot start a thread for a connection: %s", error)
            self._clients.remove(client)
            peer.close()

    def _serve(self, peer: socket.socket, client: Client) -> None:
        far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect_backend(far, client)
            meter = FlowMeter(client, self._budgets, self._clock)
            splice = Splice(
                peer,
                far,
                to_far=meter.from_client,
                to_near=meter.from_server,
                stall_s=self._limits.stall_timeout_s,
            )

            def stop() -> None:
                splice.stop()
                self._budgets.wake()

            if client.begin(stop):
                why = splice.run()
                self._log_end(client, client.exceeded or why, cut_off=splice.cut_off)
            else:
                self._log_end(client, client.exceeded, cut_off=False)
        except OSError as error:
            _log.warning("cannot connect a client with the log: %s", error)
        finally:
            peer.close()
            far.close()
            self._clients.remove(client)
            self._budgets.end(client)

    def _connect_backend(self, far: socket.socket, client: Client) -> None:
        """Connect with the gRPC server, under a name that tells it the client. Raises OSError.

        A Unix socket that connects has no name unless it is bound. A bound one keeps its name when
        the file is removed.
        """
        name = os.path.join(os.path.dirname(self._backend), str(next(self._numbers)))
        far.bind(name)
        try:
            client.peer = f"unix:{name}"
            far.connect(self._backend)
        finally:
            os.unlink(name)

    def _log_end(self, client: Client, why: str, *, cut_off: bool) -> None:
        """Log the end of a connection: a warning if it exceeded a limit."""
        if cut_off or client.exceeded:
            self._lost.note(
                f"ended the connection of {client.caller.name} from {client.network}: {why}"
            )
        else:
            _log.debug("connection of %s from %s: %s", client.caller.name, client.network, why)


def _listen(address: tuple[str, int]) -> socket.socket:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = host == "::" and socket.has_dualstack_ipv6()
    listener = socket.create_server(
        (host, port), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=dual
    )
    listener.settimeout(0)
    return listener


def _make_room_for_descriptors(limits: ListenerLimits) -> None:
    """Raise the soft limit of open descriptors, so that peers cannot use up the log's own."""
    needed = limits.descriptors + DESCRIPTORS_OF_THE_LOG
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InvalidConfig(
            f"{limits.max_connections} connections need {needed} descriptors, and this process may "
            f"have {hard}; raise the limit (ulimit -n), or lower --max-connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
