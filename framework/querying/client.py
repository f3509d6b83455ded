"""`sl.connect`: reads the stores of apps from any process.

    with sl.connect("data/shop") as log:
        totals = log.store("shop/totals")
        totals["york"], totals.get("hull"), list(totals.range("l", "m"))

The guarantees are in docs/semantics.md, "Queries".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, overload

from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import ClosedByWith
from strandline.changelog.credentials import token_of
from strandline.changelog.errors import InvalidConfig, UnknownTopic
from strandline.changelog.location import is_encrypted, is_served
from strandline.changelog.log import Log
from strandline.changelog.records import TopicInfo
from strandline.framework.moved_topics import check_moved
from strandline.framework.querying.committed import CommittedSource
from strandline.framework.querying.connections import Connections
from strandline.framework.querying.declared import check_given
from strandline.framework.querying.folded import ReplayedSource
from strandline.framework.querying.placement import Placement
from strandline.framework.querying.read_only_store import ReadOnlyStore
from strandline.framework.querying.store_names import no_such_store
from strandline.framework.querying.workers import Fleet
from strandline.framework.session import Session
from strandline.framework.store import Store
from strandline.framework.store_declarations import StoreDeclarations
from strandline.statestore.lost_topics import check_recorded
from strandline.statestore.ownership import check_named
from strandline.statestore.spec import UNSET, changelog_topic
from strandline.statestore.values import Expiry

K = TypeVar("K")
V = TypeVar("V")

DEADLINE_S = 10.0
"""Default seconds that a query waits for a partition that no worker owns at the moment."""


def connect(
    log: str | os.PathLike[str] | Log | Broker,
    *,
    token: str | None = None,
    deadline: float = DEADLINE_S,
    clock: Clock | None = None,
) -> Connection:
    """Connect to a log in order to read the stores of its apps.

    Create one connection per process and keep it: it is thread-safe, and reuses its sockets.

    Args:
        log: Folder or URL of the log (`strandline://host:port`, `kafka://host:port`), or an open
            log, which stays open when the connection is closed.
        token: Token for the log and for workers on other machines. By default that of the URL or
            of the environment (STRANDLINE_TOKEN).
        deadline: Seconds that a query waits for a partition that no worker serves at the moment,
            because it moves or is being restored.
        clock: Measures time; for tests.

    Returns:
        The connection, which is also a context manager that closes it.

    Raises:
        InvalidConfig: The folder contains no log (none is created), or the URL is wrong.
        OwnerUnavailable: The log's owner does not answer.
        Unauthenticated: The token is missing or wrong.
        StrandlineError: Any other error of `changelog.open`.

    Example:
        with sl.connect("data/shop") as log:
            totals = log.store("shop/totals")
            print(totals["york"], totals.get("hull"))
    """
    workers = connections_at(log, token)
    clock = clock or SystemClock()
    if isinstance(log, str | os.PathLike):
        opened = changelog.open(log, role="attach_or_spawn", token=token, clock=clock, create=False)
        return Connection(opened.broker, workers, deadline, clock, opened.close)
    broker = log.broker if isinstance(log, Log) else log
    return Connection(broker, workers, deadline, clock)


def connection_of(session: Session) -> Connection:
    """Return a connection to the workers of an app, over the log that its session has open."""
    return Connection(session.broker(), connections_at(session.log), clock=session.clock)


def connections_at(
    log: str | os.PathLike[str] | Log | Broker, token: str | None = None
) -> Connections:
    """Return connections to the workers of the apps of a log, with its token and encryption."""
    if not isinstance(log, str | os.PathLike):
        return Connections(token or token_of())
    encrypted = is_encrypted(log)
    if not is_served(os.fspath(log)):
        return Connections(token or token_of(), encrypted=encrypted)
    from strandline.changelog.flight import address  # not at the top, because it imports Flight

    served = address.parse_url(os.fspath(log))
    return Connections(token or served.token, served.ca, encrypted=encrypted)


class Connection(ClosedByWith):
    """Connection to the apps of one log, for queries; made by `connect`. Thread-safe."""

    def __init__(
        self,
        broker: Broker,
        connections: Connections,
        deadline: float = DEADLINE_S,
        clock: Clock | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.broker = broker
        """Broker of the log."""
        self._deadline = deadline
        self._clock = clock or SystemClock()
        self._close = close
        self._connections = connections

    @overload
    def store(self, name: Store[K, V], *, partition: int | None = ...) -> ReadOnlyStore[K, V]: ...
    @overload
    def store(
        self, name: str, *, key: type[K], value: type[V], partition: int | None = ...
    ) -> ReadOnlyStore[K, V]: ...
    @overload
    def store(
        self, name: str, *, key: Any = ..., value: Any = ..., partition: int | None = ...
    ) -> ReadOnlyStore[Any, Any]: ...
    def store(
        self,
        name: str | Store[Any, Any],
        *,
        key: Any = UNSET,
        value: Any = UNSET,
        partition: int | None = None,
    ) -> ReadOnlyStore[Any, Any]:
        """Return a store of an app, for reading.

        Keep the result for several queries: it remembers which state it has read, and later
        queries never return an older state.

        Args:
            name: Name of the app, a slash, name of the store ("shop/totals"). Or the store itself,
                if this program has the app's code: then its types, default and kind are known.
            key: Type of the keys; by default the type that the app has declared.
            value: Type or serde of the values. By default values of a class are returned as plain
                data, because the class is known to the app only.
            partition: Number of the only partition to read, for a store that is not keyed like
                the input of its task. By default all partitions are read and merged.

        Returns:
            The store.

        Raises:
            InvalidRequest: The store or the partition does not exist.
            InvalidConfig: The stored data cannot be read as `key` and `value`.
        """
        if not isinstance(name, Store):
            committed = self.committed(name)
            check_given(name, committed.recorded(), key, value)
            return ReadOnlyStore(name, committed, (key, value), partition, self.committed)
        if name.task is None:
            raise InvalidConfig(f"store {name.name!r} belongs to no task, so it holds nothing")
        full = f"{name.session.app}/{name.name}"
        info = self._changelog(full)
        committed = self._source(full, info, self._checked(name, info))
        return ReadOnlyStore(full, committed, (key, name), partition, self.committed)

    def committed(self, name: str) -> CommittedSource:
        """Return the committed state of the store "app/store", as bytes.

        Args:
            name: Name of the app, a slash, name of the store.

        Returns:
            The source that `ReadOnlyStore` decodes.

        Raises:
            InvalidRequest: The store does not exist.
            InternalTopicLost: Its changelog was deleted and created again.
            MoveUnfinished: Its changelog is being copied here.
        """
        changelog = self._changelog(name)
        check_recorded(name.partition("/")[0], self.broker, self._clock, [changelog.name])
        return self._source(name, changelog, "marked")

    def close(self) -> None:
        """Close the connections to all workers, and the log if `connect` opened it. Idempotent."""
        self._connections.close()
        self._close()

    def _source(self, name: str, changelog: TopicInfo, expiry: Expiry) -> CommittedSource:
        """Return the committed state of the store "app/store" with this changelog.

        `expiry` says which values carry an expiry, if the log has no declaration of the store.
        """
        app, _, short = name.partition("/")
        partitions = changelog.partitions
        fleet = Fleet(app, self.broker, self._connections, self._clock, self._deadline)
        replayed = ReplayedSource(
            *(self.broker, changelog.name, partitions),
            app=app,
            wait=self._deadline,
            expiry=expiry,
            now=self._clock.now_ms,
        )
        placement = Placement(self.broker, app, short, partitions, self._clock)
        return CommittedSource(short, fleet, replayed, placement, partitions)

    def _changelog(self, name: str) -> TopicInfo:
        """Return the changelog of the store "app/store". Raises InvalidRequest."""
        app, slash, short = name.partition("/")
        try:
            if slash:
                found = self.broker.topic(changelog_topic(app, short))
                check_moved([found.name], self.broker, self._clock)
                check_named(app, found.name, self.broker, self._clock)
                return found
        except UnknownTopic:
            pass
        raise no_such_store(name, self.broker)

    def _checked(self, store: Store[Any, Any], changelog: TopicInfo) -> Expiry:
        """Compare a store of this program with the log; return which values carry an expiry.

        Raises InvalidConfig.
        """
        declared = StoreDeclarations(
            store.session.app, [store.spec], {changelog.name: changelog}, self.broker, self._clock
        )
        return declared.check()[changelog.name]
