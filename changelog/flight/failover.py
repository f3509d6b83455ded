"""FailoverBroker: a Broker that reconnects when the owner of the log changes.

It has one connection, to another process or to the Owner in this process. When the connection is
lost, it connects again. That is an election: connecting to a folder means owning it, or attaching
to the process that owns it. Then the call is repeated, because every call may be repeated:

    append               identified by (producer id, epoch, sequence); the log writes it once
    end_transaction      the answer is the same; guard.py covers a change of the owner in between
    create, delete topic a repeated call treats "exists already" and "unknown" as success
    join_group           a first member without heartbeats is removed by its session timeout
    all others           idempotent writes, or reads

A transaction that was open when the connection was lost is aborted: its next call raises
TransactionAborted (guard.py). An owner that runs but does not answer in time is not lost: the call
raises OwnerUnavailable and is not repeated.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import CloseOnce
from strandline.changelog.errors import (
    InvalidTxnState,
    OwnerUnavailable,
    ProducerFenced,
    TopicExists,
    TransactionAborted,
    UnknownTopic,
)
from strandline.changelog.flight.fork import ForkGuard
from strandline.changelog.flight.guard import TransactionGuard
from strandline.changelog.flight.locating import LocatingBroker
from strandline.changelog.flight.messages import Located
from strandline.changelog.flight.metrics import OWNED, TAKEOVERS
from strandline.changelog.flight.pins import FailoverPins
from strandline.changelog.flight.requests import Request, RequestBroker
from strandline.changelog.flight.snapshots import RequestedSnapshots
from strandline.changelog.forks import keep_in_child
from strandline.changelog.metrics import MetricReading
from strandline.changelog.pins import Pins, there
from strandline.changelog.records import (
    Append,
    Appended,
    CommittedOffset,
    Fetched,
    Isolation,
    ProducerIdentity,
    TopicInfo,
    TopicPartition,
)
from strandline.changelog.snapshots import Snapshots

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogLink:
    """A connection to the log."""

    broker: LocatingBroker
    lost: Callable[[], bool]
    """Returns True once the connection is permanently lost."""
    close: Callable[[], None]
    owning: bool = False
    """True if this process owns the log."""
    metrics: Callable[[], list[MetricReading]] = list
    """Returns the owner's metrics; none if another process owns the log."""


Connect = Callable[[float], LogLink]
"""Connects within the given seconds, or raises OwnerUnavailable."""


class _Attempt(NamedTuple):
    broker: LocatingBroker
    connection: int
    """Number of the connection, from 1."""
    repeated: bool
    """True if an earlier attempt lost its connection, and may have been executed nevertheless."""


class FailoverBroker(RequestBroker):
    """Broker over the connection that `connect` returns, and over a new one when that is lost.

    Args:
        connect: Connects to the log's current owner, or makes this process the owner.
        deadline: Seconds for a call, elections included. The timeout of a fetch is added to it.
        name: Name of the log in errors.
        clock: Measures the deadline.
    """

    def __init__(
        self, connect: Connect, *, deadline: float, name: str, clock: Clock | None = None
    ) -> None:
        self._fork = ForkGuard()
        self._connections = _Connections(connect, name)
        self._deadline = deadline
        self._clock = clock or SystemClock()
        self._guard = TransactionGuard()
        keep_in_child(self, self._connections)
        with self._total_wait_reported():
            self._connections.current(deadline)
        close = partial(_close_unless_forked, self._connections, self._fork)
        self._closing = CloseOnce(self, close)

    @property
    def owning(self) -> bool:
        """True if this process owns the log now."""
        return self._connections.owning

    def metrics(self) -> list[MetricReading]:
        """Return this process's metrics of the log, without a call to another process."""
        return self._connections.metrics()

    # Topics ---------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        schema: pa.Schema | None = None,
        internal: bool = False,
    ) -> TopicInfo:
        def create(attempt: _Attempt) -> TopicInfo:
            try:
                return attempt.broker.create_topic(
                    name, partitions, config=config, schema=schema, internal=internal
                )
            except TopicExists:
                info = attempt.broker.topic(name)
                requested = (partitions, dict(config or {}), schema)
                if attempt.repeated and requested == (info.partitions, info.config, info.schema):
                    return info
                raise

        return self._repeated(create)

    def delete_topic(self, name: str) -> None:
        def delete(attempt: _Attempt) -> None:
            try:
                attempt.broker.delete_topic(name)
            except UnknownTopic:
                if not attempt.repeated:
                    raise

        self._repeated(delete)

    # The log --------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        joining = {a.producer for a in appends if a.transactional and a.producer is not None}

        def append(attempt: _Attempt) -> list[Appended]:
            for producer in joining:
                self._guard.sending(producer, attempt.connection)
            answers = attempt.broker.append(appends)
            # A former owner may have written the batches without an answer: they are none of others.
            return [a._replace(duplicate=False) for a in answers] if attempt.repeated else answers

        return self._repeated(append)

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 8 << 20,
        isolation: Isolation = "read_committed",
        timeout: float = 0.0,
    ) -> dict[TopicPartition, Fetched]:
        until = self._clock.monotonic() + timeout

        def fetch(attempt: _Attempt) -> dict[TopicPartition, Fetched]:
            return attempt.broker.fetch(
                positions,
                max_bytes=max_bytes,
                isolation=isolation,
                timeout=max(0.0, until - self._clock.monotonic()) if timeout else 0.0,
            )

        return self._repeated(fetch, extra_s=timeout)

    def locate(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int,
        isolation: Isolation,
        timeout: float,
    ) -> Located:
        """Implement `Locate`."""

        def locate(attempt: _Attempt) -> Located:
            return attempt.broker.locate(
                positions, max_bytes=max_bytes, isolation=isolation, timeout=timeout
            )

        return self._repeated(locate, extra_s=timeout)

    @property
    def pins(self) -> Pins:
        def repeated(fetch: Callable[[Pins], Fetched]) -> Fetched:
            return self._repeated(lambda attempt: fetch(there(attempt.broker.pins)))

        return FailoverPins(self._ask, repeated)

    @property
    def snapshots(self) -> Snapshots:
        return RequestedSnapshots(self._ask)

    # Producers and transactions -------------------------------------------------------

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
    ) -> None:
        def add(attempt: _Attempt) -> None:
            self._guard.sending(producer, attempt.connection)
            attempt.broker.add_offsets(producer, group, offsets, member_id=member_id)

        self._repeated(add)

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        def end(attempt: _Attempt) -> ProducerIdentity:
            way = self._guard.ending(producer, attempt.connection, commit=commit)
            if way == "resolve":
                return _resolve_commit(attempt.broker, producer)
            return attempt.broker.end_transaction(producer, commit=commit)

        successor = self._repeated(end)
        self._guard.ended(producer)
        return successor

    def close(self) -> None:
        self._closing()

    # Connecting and repeating ---------------------------------------------------------

    def _ask(self, request: Request[T], *, extra_s: float = 0.0) -> T:
        return self._repeated(lambda attempt: request.run(attempt.broker), extra_s)

    def _repeated(self, call: Callable[[_Attempt], T], extra_s: float = 0.0) -> T:
        self._fork.check()
        with self._total_wait_reported():
            return self._attempted(call, self._clock.monotonic() + self._deadline + extra_s)

    @contextlib.contextmanager
    def _total_wait_reported(self) -> Iterator[None]:
        """Make OwnerUnavailable report the wait of all attempts, not only of the last one."""
        begun = self._clock.monotonic()
        try:
            yield
        except OwnerUnavailable as error:
            if error.waited is not None:
                error.waited = self._clock.monotonic() - begun
            raise

    def _attempted(self, call: Callable[[_Attempt], T], until: float) -> T:
        repeated = False
        while True:
            number, link = self._connections.current(until - self._clock.monotonic())
            try:
                return call(_Attempt(link.broker, number, repeated))
            except OwnerUnavailable:
                if not link.lost():
                    raise
                # By number, because another thread may have replaced the connection already.
                self._connections.drop(number)
                if self._clock.monotonic() >= until:
                    raise
                repeated = True


class _Connections:
    """The current connection.

    One thread makes a new connection under the lock, and the other threads wait for it. So a
    process takes part in an election once, and not once a thread.
    """

    def __init__(self, connect: Connect, name: str) -> None:
        self._connect = connect
        self._name = name
        self._lock = threading.Lock()
        self._link: LogLink | None = None
        self._number = 0
        self._takeovers = 0
        self._closed = False

    @property
    def owning(self) -> bool:
        link = self._link
        return link is not None and link.owning

    def metrics(self) -> list[MetricReading]:
        readings = [
            MetricReading(OWNED, (), self.owning),
            MetricReading(TAKEOVERS, (), self._takeovers),
        ]
        link = self._link
        return readings if link is None else [*readings, *link.metrics()]

    def current(self, seconds: float) -> tuple[int, LogLink]:
        """Return the connection's number and the connection, made within `seconds` if need be."""
        with self._lock:
            if self._closed:
                raise OwnerUnavailable(f"the log {self._name} is closed; open it again")
            if self._link is None:
                self._link = self._connect(max(0.0, seconds))
                self._takeovers += self._link.owning and self._number > 0
                self._number += 1
            return self._number, self._link

    def drop(self, number: int) -> None:
        """Close connection `number`, which is lost; does nothing if there is a newer one."""
        with self._lock:
            if number != self._number or self._link is None:
                return
            lost, self._link = self._link, None
        lost.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            link.close()


def _close_unless_forked(connections: _Connections, guard: ForkGuard) -> None:
    if not guard.foreign:
        connections.close()


def _resolve_commit(broker: Broker, producer: ProducerIdentity) -> ProducerIdentity:
    """Return the outcome of a commit that a former owner did not answer.

    Raises TransactionAborted if the transaction was not committed.
    """
    try:
        broker.end_transaction(producer, commit=False)
    except (InvalidTxnState, ProducerFenced):
        # The abort is refused if the transaction was committed or a newer producer has replaced
        # this one. The repeated commit succeeds in the first case and raises in the second.
        return broker.end_transaction(producer, commit=True)
    raise TransactionAborted(
        f"the connection to the log's owner was lost before the transaction of producer "
        f"{producer.producer_id} (epoch {producer.epoch}) was committed, and it is aborted; call "
        "init_producer and continue from the last commit"
    )
