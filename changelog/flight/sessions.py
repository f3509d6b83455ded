"""Which clients are there, and which transactions they have open.

A session lasts as long as its client's stream. When it ends, the calls still under way are
waited for, later ones are refused, and what the client left open is aborted at once, so that a
dead producer does not hold back readers until its transaction times out. Its members leave their
groups at once too, but for static ones, which may come back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import StrandlineError
from strandline.changelog.flight.messages import (
    SessionEnded,
    SessionHello,
)
from strandline.changelog.groups import GroupMember
from strandline.changelog.records import ProducerIdentity


class Session:
    """One client, from its Hello until its stream ends."""

    def __init__(self, session_id: str, hello: SessionHello) -> None:
        self.id = session_id
        self.hello = hello
        self._changed = threading.Condition()
        self._under_way = 0
        self._ended = False
        self._open: dict[int, ProducerIdentity] = {}
        self._members: set[GroupMember] = set()

    @contextlib.contextmanager
    def changing(self, *producers: ProducerIdentity) -> Iterator[None]:
        """Around a call that opens, or adds to, transactions of `producers`, or ends one."""
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
        """The producer has no transaction open (any more)."""
        with self._changed:
            self._open.pop(producer.producer_id, None)

    def joined(self, member: GroupMember) -> None:
        """The client has a member in a group."""
        with self._changed:
            self._members.add(member)

    def left(self, member: GroupMember) -> None:
        """The member has left by itself."""
        with self._changed:
            self._members.discard(member)

    def end(self, broker: Broker) -> list[ProducerIdentity]:
        """Refuse further calls, wait for those under way, abort what is open; return whose."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: self._under_way == 0)
            left, members = list(self._open.values()), list(self._members)
            self._open.clear()
            self._members.clear()
        for producer in left:
            # It may have timed out or been fenced meanwhile: then there is nothing to abort.
            with contextlib.suppress(StrandlineError):
                broker.end_transaction(producer, commit=False)
        for member in members:
            with contextlib.suppress(StrandlineError):
                broker.leave_group(member)
        return left


class Sessions:
    """All sessions of one endpoint."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._changed = threading.Condition()
        self._open: dict[str, Session] = {}
        self._idle_since = clock.monotonic()

    def __len__(self) -> int:
        return len(self._open)

    def start(self, hello: SessionHello) -> Session:
        """A session for a client that has just come."""
        session = Session(self._clock.new_id(), hello)
        with self._changed:
            self._open[session.id] = session
            self._changed.notify_all()
        return session

    def find(self, session_id: str) -> Session:
        """The session of a call. Raises SessionEnded when it is over, or never was."""
        session = self._open.get(session_id)
        if session is None:
            raise SessionEnded("the log's owner does not know this session; open the log again")
        return session

    def end(self, session: Session) -> None:
        """The client has gone: abort what it left open, then forget it."""
        try:
            session.end(self._broker)
        finally:
            with self._changed:
                self._open.pop(session.id, None)
                self._idle_since = self._clock.monotonic()
                self._changed.notify_all()

    def wait_idle(self, seconds: float, stopped: Callable[[], bool]) -> None:
        """Return when no session has been open for `seconds`, or `stopped` (asked each second)."""
        with self._changed:
            while not stopped():
                left = self._idle_since + seconds - self._clock.monotonic()
                if not self._open and left <= 0:
                    return
                self._changed.wait(min(1.0, max(0.01, left)))
