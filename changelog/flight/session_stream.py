"""The stream that keeps a client's session open: its end tells each side that the other is gone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, NoReturn

from pyarrow import flight

from strandline.changelog.errors import OwnerUnavailable
from strandline.changelog.flight.connection_target import (
    CHANNEL_OPTIONS,
    ConnectionTarget,
    call_headers,
    relay_to,
)
from strandline.changelog.flight.flight_calls import (
    FOREIGN_ERRORS,
    alarm,
    cancel_stream,
    no_answer,
    translated,
)
from strandline.changelog.flight.messages import (
    GOODBYE,
    HELLO,
    SESSION,
    WIRE_VERSION,
    SessionEnded,
    SessionHello,
    SessionWelcome,
    decode,
    encode,
)
from strandline.changelog.flight.relay import Relay

_HANG_UP_S = 2.0
"""Seconds to wait for the end of the watching thread."""


class SessionStream:
    """Stream that stays open as long as both client and owner live.

    A thread reads it, so each side notices at once when the other ends.
    """

    def __init__(self, target: ConnectionTarget, deadline: float) -> None:
        self._target = target
        self._lost = threading.Event()
        self._closing = threading.Lock()
        self.reason = f"the log {target.name} was closed by this process"
        self._relay = relay_to(target, deadline)
        location = target.location if self._relay is None else self._relay.location
        self.credential = target.token if self._relay is None else self._relay.credential
        """Sent with each call."""
        self.client = flight.connect(location, generic_options=CHANNEL_OPTIONS)
        try:
            self.welcome = self._begin(deadline)
        except BaseException:
            self._disconnect(self.client)
            raise
        self._watcher = threading.Thread(target=self._watch, name="strandline-session", daemon=True)
        self._watcher.start()

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    @property
    def relayed(self) -> bool:
        """True if the log is served over TCP."""
        return self._relay is not None

    def close(self) -> None:
        with self._closing:
            if self.client is None:
                return
            client, self.client = self.client, None
        # Set before the stream is cancelled, because the first reason stays: the watcher would
        # otherwise report that the owner is gone.
        self._lost.set()
        cancel_stream(self._reader)
        if threading.current_thread() is not self._watcher:
            self._watcher.join(_HANG_UP_S)
        self._disconnect(client)

    def _disconnect(self, client: Any) -> None:
        if self._relay is not None:
            self._relay.close()
        client.close()

    def mark_lost(self, reason: str) -> None:
        """Mark the connection as lost, with the reason for errors; the first reason stays."""
        if not self._lost.is_set():
            self.reason = reason
            self._lost.set()

    def raise_translated(self, error: Exception, call: str, deadline: float) -> NoReturn:
        """Raise the owner's error, or OwnerUnavailable if the owner is gone."""
        raised = translated(error, self._target, call, deadline)
        if isinstance(error, flight.FlightUnauthenticatedError):  # it began with this token
            raised = SessionEnded(f"another process owns {self._target.name} now")
        if self.lost and not getattr(error, "extra_info", None):
            # Another thread has noticed the owner's end and closed the connection during this call.
            raise OwnerUnavailable(self.reason) from error
        if isinstance(raised, SessionEnded):
            self.mark_lost(str(raised))
            raise OwnerUnavailable(self.reason) from error
        raise raised from error

    def _begin(self, deadline: float) -> SessionWelcome:
        hello = SessionHello(WIRE_VERSION, os.getpid(), os.path.basename(sys.argv[0] or "python"))
        options = flight.FlightCallOptions(headers=call_headers(self.credential))
        # The stream has no deadline since it stays open, and opening it would wait for the
        # connection without limit. So a call with a deadline goes first, and a timer cancels the
        # stream if the owner's answer is late.
        late = threading.Event()
        try:
            hello_options = flight.FlightCallOptions(
                timeout=deadline, headers=call_headers(self.credential)
            )
            list(self.client.do_action(flight.Action(HELLO, encode(hello)), hello_options))
            if self._relay is None:
                answer = self._exchange(hello, options, deadline, late)
            else:
                answer = self._get(self._relay, hello, options, deadline, late)
        except (*FOREIGN_ERRORS, StopIteration) as error:
            if late.is_set():
                raise no_answer(self._target, deadline) from error
            raised = translated(error, self._target, "open", deadline)
            gone = isinstance(raised, SessionEnded)
            raise (OwnerUnavailable(str(raised)) if gone else raised) from error
        welcome: SessionWelcome = decode(answer, SessionWelcome)
        return welcome

    def _exchange(
        self, hello: SessionHello, options: Any, deadline: float, late: threading.Event
    ) -> Any:
        """Open the stream over the Unix socket; return the owner's answer."""
        descriptor = flight.FlightDescriptor.for_command(SESSION)
        self._writer, self._reader = self.client.do_exchange(descriptor, options)
        with alarm(deadline, late, lambda: cancel_stream(self._reader)):
            self._writer.write_metadata(encode(hello))
            return self._reader.read_chunk().app_metadata

    def _get(
        self,
        relay: Relay,
        hello: SessionHello,
        options: Any,
        deadline: float,
        late: threading.Event,
    ) -> Any:
        """Open the stream over TCP; return the owner's answer.

        The hello is in the ticket, because the owner reads no streams of clients over TCP.
        """
        # Opening the stream waits for its schema, so a late answer ends the whole connection.
        with alarm(deadline, late, relay.close):
            self._reader = self.client.do_get(flight.Ticket(SESSION + encode(hello)), options)
            return self._reader.read_chunk().app_metadata

    def _watch(self) -> None:
        reason = f"the owner of {self._target.name} (pid {self.welcome.pid}) is gone"
        try:
            while self._reader.read_chunk().app_metadata != GOODBYE:
                pass
            reason = f"the owner of {self._target.name} (pid {self.welcome.pid}) has closed the log"
        except (StopIteration, *FOREIGN_ERRORS):
            pass
        self.mark_lost(reason)
        with contextlib.suppress(*FOREIGN_ERRORS):
            if self._relay is None:
                self._writer.close()
