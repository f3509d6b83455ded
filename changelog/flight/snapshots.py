"""The snapshots of another process's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from strandline.changelog.broker import Broker
from strandline.changelog.flight.connection import FlightConnection
from strandline.changelog.flight.requests import ReleaseSnapshot, TakeSnapshot
from strandline.changelog.snapshots import in_folder

T = TypeVar("T")


class FlightSnapshots:
    """Implements Snapshots over `connection`."""

    def __init__(self, connection: FlightConnection) -> None:
        self._connection = connection

    def take(self) -> str:
        name: str = self._connection.ask(TakeSnapshot())
        return name

    def release(self, name: str) -> None:
        self._connection.ask(ReleaseSnapshot(name))


class RepeatedSnapshots(Protocol):
    """Makes a call with the broker of whoever owns the log, again if that one is lost."""

    def __call__(self, call: Callable[[Broker], T]) -> T: ...


class FailoverSnapshots:
    """Implements Snapshots by those of whoever owns the log."""

    def __init__(self, repeated: RepeatedSnapshots) -> None:
        self._repeated = repeated

    def take(self) -> str:
        return self._repeated(lambda broker: in_folder(broker.snapshots).take())

    def release(self, name: str) -> None:
        self._repeated(lambda broker: in_folder(broker.snapshots).release(name))
