"""Goodbyes: messages on the session streams of clients, sent when the owner of a log closes.

A client that receives one ends its session and looks for the next owner, instead of waiting until
its calls fail.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Protocol

from pyarrow import flight

from strandline.changelog.clock import Clock
from strandline.changelog.flight.clients import Client
from strandline.changelog.flight.messages import GOODBYE

GOODBYES_S = 0.5
"""Seconds in which all clients over TCP are sent the goodbye."""


class Goodbye(Protocol):
    """Goodbye to one client. Its methods may be called on any thread."""

    def say(self) -> None:
        """Send the message, or make the thread of the stream send it."""

    def wait_until_said(self, seconds: float) -> None:
        """Wait up to `seconds` until the message is sent."""


class Goodbyes:
    """Goodbyes to all clients that have a session. Thread-safe."""

    def __init__(self) -> None:
        self.all_said = False
        """True once `say_to_all` was called: then no new calls are accepted."""
        self._by_session: dict[str, Goodbye] = {}
        self._lock = threading.Lock()

    def register(self, session_id: str, goodbye: Goodbye) -> None:
        """Note how to say goodbye to the client of a session; say it if the log is closing."""
        # One lock for both, so that a session is either in the list of `say_to_all` or sees
        # `all_said` here.
        with self._lock:
            self._by_session[session_id] = goodbye
            closing = self.all_said
        if closing:
            goodbye.say()

    def forget(self, session_id: str) -> None:
        """Forget a session that has ended."""
        with self._lock:
            self._by_session.pop(session_id, None)

    def say_to_all(self, clock: Clock) -> None:
        """Ask every client to close its session."""
        with self._lock:
            self.all_said = True
            goodbyes = list(self._by_session.values())
        for goodbye in goodbyes:
            goodbye.say()
        deadline = clock.monotonic() + GOODBYES_S
        for goodbye in goodbyes:
            goodbye.wait_until_said(deadline - clock.monotonic())


class RemoteGoodbye:
    """Wakes the session stream of a client over TCP, which then sends the goodbye message."""

    def __init__(self, client: Client) -> None:
        self._woken = threading.Event()
        self._client = client
        self.sent = threading.Event()
        """Set once the message was sent, or never will be."""
        client.at_end(self._woken.set)

    def say(self) -> None:
        self._woken.set()

    def wait_until_said(self, seconds: float) -> None:
        self.sent.wait(max(0.0, seconds))

    def is_asked(self) -> bool:
        """Wait; return True for a goodbye, and False if the client's connection has ended."""
        self._woken.wait()
        return not self._client.ended.is_set()


class StreamGoodbye:
    """Sends the goodbye message on a session stream from another thread.

    The handler calls `forget` before it returns, because a Flight writer must be neither used nor
    released after that. The lock makes `forget` wait for a message that is being written.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._lock = threading.Lock()

    def say(self) -> None:
        with self._lock, contextlib.suppress(flight.FlightError, OSError):
            if self._writer is not None:
                self._writer.write_metadata(GOODBYE)

    def wait_until_said(self, seconds: float) -> None:
        """Return at once, because `say` has sent the message."""

    def forget(self) -> None:
        """Use the writer no more."""
        with self._lock:
            self._writer = None
