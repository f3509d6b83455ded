"""Connections of executor slots, on the driver's side.

Each slot of a job has one connection. An attempt that Spark has given up and its successor may both
be connected for a while. Peers that do not know the job's secret cost a bounded number of threads,
for a bounded time, and cannot keep a slot from connecting: a new peer displaces the oldest one that
has not proved that it knows the secret.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
from queue import Queue
from typing import NamedTuple

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.hosts import network_of
from strandline.framework.peers import Admission, Deadline, Newcomers, send_all
from strandline.framework.spark.slot_messages import (
    ALIVE,
    HEARTBEAT_S,
    STOP,
    ConnectionRefused,
    LineStream,
    SlotHello,
    SlotMessage,
    close_now,
    decoded_message,
    is_proof,
)

_log = logging.getLogger("strandline")

HELLO_S = 10.0
"""Seconds in which a peer must send its hello."""
SPARE_PEERS = 16
"""Number of connections beyond two for each worker: of slots, and of peers without a proof."""
JOB = "job"
"""Name under which all slots are counted, because they prove the same secret."""
MAX_EVENTS = 1_000
"""Number of events after which slots are no longer read, until the driver has handled some."""
POLL_S = 0.1
"""Seconds after which `close` is noticed on systems where closing a socket does not end accept."""


class SlotLink:
    """Connection to a slot that has proved that it belongs to the job."""

    def __init__(self, connection: socket.socket, hello: SlotHello) -> None:
        self.hello = hello
        # A socket of its own, because a timeout of the reading one would apply to writes as well.
        self._writing = connection.dup()
        self._writing.settimeout(0.0)

    def send(self, line: bytes) -> None:
        """Send a short line; drop it if the slot does not read, or is gone."""
        with contextlib.suppress(OSError):
            self._writing.send(line)

    def close(self) -> None:
        """Close the connection, after which the slot ends its worker in order."""
        close_now(self._writing)


class SlotEvent(NamedTuple):
    """Event of a connection."""

    link: SlotLink
    message: SlotMessage | None
    """Message of the slot, its hello first; None if the connection has ended."""


class SlotListener:
    """Listener for the slots of a job, from construction until `close`.

    Args:
        host: Address to listen at.
        port: Port to listen at; 0 for any free one.
        secret: Secret of the job.
        workers: Number of workers of the job.

    Raises:
        InvalidConfig: The address cannot be listened at.
    """

    def __init__(self, host: str, port: int, secret: str, workers: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, port), family=family)
        except OSError as error:
            raise InvalidConfig(
                f"the driver cannot listen for its workers at {host}:{port}: "
                f"{error.strerror or error}; spark.driver.bindAddress is to be an address of this "
                "machine, and spark.strandline.port a free port"
            ) from error
        self.port = int(self._listening.getsockname()[1])
        self.events: Queue[SlotEvent] = Queue(MAX_EVENTS)
        self._secret = secret
        most = 2 * workers + SPARE_PEERS
        self._unproved = Newcomers(most, most)
        self._proved = Admission(most, most)
        self._links: set[SlotLink] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._listening.settimeout(POLL_S)
        for work in (self._accept, self._beat):
            threading.Thread(target=work, name="strandline-slots", daemon=True).start()

    def stop_workers(self) -> None:
        """Ask all connected slots to end their workers in order; at once when asked again."""
        self._send(STOP)

    @property
    def connected(self) -> int:
        """Number of connected slots."""
        with self._lock:
            return len(self._links)

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self._listening.close()
        with self._lock:
            for link in self._links:
                link.close()

    # Its own threads ------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, peer = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                self._closed.wait(POLL_S)
                continue
            self._admit(connection, network_of(peer[0]))

    def _admit(self, connection: socket.socket, network: str) -> None:
        """Serve a peer on its own thread, or close its connection if a limit is reached."""
        try:
            if self._unproved.enter(connection, network):
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
                return
        except RuntimeError as error:  # the system allows no more threads
            _log.warning("cannot start a thread for a slot: %s", error)
        self._unproved.leave(connection)
        connection.close()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            self._send(ALIVE)

    def _send(self, line: bytes) -> None:
        with self._lock:
            links = list(self._links)
        for link in links:
            link.send(line)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, ConnectionRefused):
                stream = LineStream(connection)
                hello = self._greeted(connection, stream)
                if self._unproved.leave(connection) and self._proved.enter(JOB):
                    try:
                        self._follow(SlotLink(connection, hello), stream)
                    finally:
                        self._proved.leave(JOB)
        finally:
            connection.close()
            self._unproved.leave(connection)

    def _greeted(self, connection: socket.socket, stream: LineStream) -> SlotHello:
        """Return the hello of a slot that knows the secret. Raises ConnectionRefused."""
        deadline, challenge = Deadline(HELLO_S), secrets.token_hex(16)
        send_all(connection, challenge.encode() + b"\n", deadline)
        hello = decoded_message(stream.one(deadline))
        if not isinstance(hello, SlotHello) or not is_proof(hello.proof, self._secret, challenge):
            raise ConnectionRefused("the peer does not know the secret")
        return hello

    def _follow(self, link: SlotLink, stream: LineStream) -> None:
        with self._lock:
            self._links.add(link)
        self.events.put(SlotEvent(link, link.hello))
        try:
            for line in stream.lines():
                self.events.put(SlotEvent(link, decoded_message(line)))
        finally:
            with self._lock:
                self._links.discard(link)
            link.close()
            self.events.put(SlotEvent(link, None))
