"""Session of an app: its name, its log, and the settings that its handles share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from strandline.changelog import location
from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.closing import CloseOnce
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.forks import ForkSafeLock
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.metrics import MetricReading, measured
from strandline.changelog.storage import Durability
from strandline.framework.formats.registry import SchemaRegistry
from strandline.framework.options import Options

if TYPE_CHECKING:
    from strandline.changelog.client.producer import Producer
    from strandline.changelog.log import Log

LogPlace: TypeAlias = "str | os.PathLike[str] | Log | Broker"
"""Folder or URL of a log, or an open log."""


@dataclass(frozen=True)
class AppSettings:
    """Settings of an app besides its name, its log and the options of its workers."""

    options: Options
    clock: Clock
    registry: SchemaRegistry | None = None
    state_dir: str | os.PathLike[str] | None = None
    durability: Durability = "fsync"


class DeclaredTopics(Protocol):
    """Declared topics of an app, as its session needs them."""

    def prepare(self, broker: Broker) -> object:
        """Create the topics that do not exist, and check those that do."""
        ...

    def prepare_topic(self, broker: Broker, name: str) -> None:
        """Check a topic that exists, or create all topics."""
        ...


class Session:
    """An app's use of its log, which is opened when it is first needed.

    `App` makes the session, and topics, stores and runs of the app hold it. It knows none of them.

    Args:
        app: Name of the app.
        log: A folder, a URL, or an open log.
        settings: Settings of the app.
        declared: Declared topics of the app.
    """

    def __init__(
        self,
        app: str,
        log: LogPlace,
        settings: AppSettings,
        declared: DeclaredTopics,
    ) -> None:
        self.app = app
        self.log: LogPlace
        self.options = settings.options
        self.clock = settings.clock
        self.registry = settings.registry
        self.state_dir = settings.state_dir
        self.durability = settings.durability
        self._declared = declared
        self._opening = ForkSafeLock(threading.RLock)
        self._opened: _OpenLog | None = None
        self._working_folder = Path()
        """Current folder of the process when the log was opened; relative paths begin there."""
        self.use(log)

    def use(self, log: LogPlace) -> None:
        """Set the log. Raises InvalidRequest if a log is open, and InvalidConfig for a wrong URL."""
        if isinstance(log, str | os.PathLike):
            location.check(log)
        if self._opened is not None:
            raise InvalidRequest(
                f"app {self.app!r} has its log open at {location.shown(str(self.log))}; close the app first"
            )
        self.log = log

    def broker(self) -> Broker:
        """Return the broker of the log, which is opened if it is not open."""
        with self._opening:
            if self._opened is None:
                # All files of the app stay together if the process changes its current folder.
                with suppress(FileNotFoundError):  # it was removed: only absolute paths are of use
                    self._working_folder = Path.cwd()
                self._opened = _open(self.log, self.durability, self.clock)
                self._close = CloseOnce(self, self._opened.close)
            return self._opened.broker

    def prepare(self) -> None:
        """Create the declared topics that do not exist. Raises InvalidConfig."""
        self._declared.prepare(self.broker())

    def prepare_topic(self, name: str) -> None:
        """Compare a topic with its declaration; if it does not exist, create all declared topics.

        Other topics are not compared, because a reader of this one does not need them.
        Raises InvalidConfig, SchemaMismatch.
        """
        self._declared.prepare_topic(self.broker(), name)

    def producer(self, transactional_id: str | None = None) -> Producer:
        """Return a producer of bytes and columns; the declared topics exist then."""
        self.prepare()
        return self._producer(transactional_id)

    @contextmanager
    def appending(self, topic: str) -> Iterator[Producer]:
        """Yield a producer for appends to a declared topic, which exists then.

        It is used again by later appends, because the log remembers each producer for a day.
        Appends of several threads have a producer each.
        """
        self.prepare_topic(topic)
        with self._opening:
            self.broker()
            opened = self._opened
            assert opened is not None
            producer = opened.idle_producers.pop() if opened.idle_producers else self._producer()
        try:
            yield producer
        except BaseException:
            producer.close()
            raise
        producer.end_batches()  # as if each append had a producer of its own
        opened.idle_producers.append(producer)

    def _producer(self, transactional_id: str | None = None) -> Producer:
        from strandline.changelog.client.producer import Producer

        return Producer(self.broker(), transactional_id=transactional_id, clock=self.clock)

    def metrics(self) -> list[MetricReading]:
        """Return the metrics of the log if it is open and this process owns it."""
        opened = self._opened
        return [] if opened is None else measured(opened.broker)

    def holds_columns(self) -> bool:
        """Return True if typed topics of the log store columns. Nothing is opened."""
        if isinstance(self.log, str | os.PathLike):
            return not location.is_kafka(self.log)
        return _broker_of(self.log).holds_columns

    def folder(self) -> Path | None:
        """Return the log's folder; None if it is not known or on another machine."""
        if not isinstance(self.log, str | os.PathLike) or location.is_url(self.log):
            return None
        return self._working_folder / self.log

    def is_encrypted(self) -> bool:
        """Return True if the log's URL asks for an encrypted connection."""
        return isinstance(self.log, str | os.PathLike) and location.is_encrypted(self.log)

    def state_folder(self) -> Path | None:
        """Return the folder of the files of the app's stores; None if they are in memory."""
        if self.state_dir is not None:
            return self._working_folder / self.state_dir / self.app
        if not isinstance(self.log, str | os.PathLike):
            return None
        folder = self.folder() or self._working_folder
        # Raises if a part of the path is a symbolic link, which RocksDB would follow.
        LocalStorage(folder).exists(f"state/{self.app}/")
        return folder / "state" / self.app

    def close(self) -> None:
        """Close the log if the session has opened it. Repeated calls have no effect."""
        with self._opening:
            if self._opened is not None:
                self._close()
                self._opened = None


@dataclass
class _OpenLog:
    """A log in use."""

    broker: Broker
    owned: bool
    """True if the session has opened the log, and closes it."""
    idle_producers: list[Producer] = field(default_factory=list)
    """Producers of earlier appends, which the next ones use."""

    def close(self) -> None:
        while self.idle_producers:
            self.idle_producers.pop().close()
        if self.owned:
            self.broker.close()


def _open(log: LogPlace, durability: Durability, clock: Clock) -> _OpenLog:
    """Open the log of this name; use a log that is open already as it is."""
    if not isinstance(log, str | os.PathLike):
        return _OpenLog(_broker_of(log), owned=False)
    from strandline import changelog

    return _OpenLog(changelog.open(log, durability=durability, clock=clock).broker, owned=True)


def _broker_of(log: Log | Broker) -> Broker:
    from strandline.changelog.log import Log

    return log.broker if isinstance(log, Log) else log
