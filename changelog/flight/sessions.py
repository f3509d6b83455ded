"""Sessions of clients: which clients are connected, and their open transactions.

A session lasts as long as its client's stream. When the stream ends, the server waits for calls in
progress and refuses later ones. Then it aborts the client's open transactions, because otherwise a
dead producer would delay readers until its transaction times out. The client's group members leave
at once too, except for static members, which may return.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import StrandlineError
from strandline.changelog.flight.messages import (
    SessionEnded,
)
from strandline.changelog.groups import GroupMember
from strandline.changelog.records import ProducerIdentity


class ClientSession:
    """One client, from its hello until its stream ends."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self._changed = threading.Condition()
        self._under_way = 0
        self._ended = False
        self._open: dict[int, ProducerIdentity] = {}
        self._members: set[GroupMember] = set()

    @contextlib.contextmanager
    def changing(self, *producers: ProducerIdentity) -> Iterator[None]:
        """Register a call in progress, which may open, extend or end transactions of `producers`.

        Raises SessionEnded after the end of the session. `end` waits for registered calls, so none
        of them can open a transaction after `end` has aborted the open ones.
        """
        with self._changed:
            if self._ended:
                raise SessionEnded("this session has ended; open the log again")
            self._under_way += 1
            for producer in producers:
                self._open[producer.producer_id] = producer
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def closed(self, producer: ProducerIdentity) -> None:
        """Record that the producer has no open transaction."""
        with self._changed:
            self._open.pop(producer.producer_id, None)

    def joined(self, member: GroupMember) -> None:
        """Record that the client has joined a group."""
        with self._changed:
            self._members.add(member)

    def left(self, members: Iterable[GroupMember]) -> None:
        """Record that the members have left their groups."""
        with self._changed:
            self._members.difference_update(members)

    def end(self, broker: Broker) -> list[ProducerIdentity]:
        """End the session and return the producers whose transactions were aborted.

        Further calls are refused, and calls in progress are waited for.
        """
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: self._under_way == 0)
            left, members = list(self._open.values()), list(self._members)
            self._open.clear()
            self._members.clear()
        for producer in left:
            # The transaction may have timed out or its producer been fenced in the meantime.
            with contextlib.suppress(StrandlineError):
                broker.end_transaction(producer, commit=False)
        if members:  # else a server that forwards its calls would make one for each session
            # Together, because an assignment takes long if a group has many members and names.
            with contextlib.suppress(StrandlineError):
                broker.leave_group(*members)
        return left


class Sessions:
    """All sessions of one endpoint."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._changed = threading.Condition()
        self._open: dict[str, ClientSession] = {}
        self._idle_since = clock.monotonic()

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> ClientSession:
        """Begin a session for a client that has connected."""
        session = ClientSession(self._clock.new_id())
        with self._changed:
            self._open[session.id] = session
            self._changed.notify_all()
        return session

    def find(self, session_id: str) -> ClientSession:
        """Return the session of a call. Raises SessionEnded if there is none."""
        session = self._open.get(session_id)
        if session is None:
            raise SessionEnded("the log's owner does not know this session; open the log again")
        return session

    def end(self, session: ClientSession) -> None:
        """End the session of a client that is gone, and remove it."""
        try:
            session.end(self._broker)
        finally:
            # Removed after the aborts, so that `wait_idle` does not return before them.
            with self._changed:
                self._open.pop(session.id, None)
                self._idle_since = self._clock.monotonic()
                self._changed.notify_all()

    def wait_idle(self, seconds: float, stopped: Callable[[], bool]) -> None:
        """Wait until there was no session for `seconds`, or `stopped` returns True.

        `stopped` is called at least once a second.
        """
        with self._changed:
            while not stopped():
                left = self._idle_since + seconds - self._clock.monotonic()
                if not self._open and left <= 0:
                    return
                self._changed.wait(min(1.0, max(0.01, left)))
