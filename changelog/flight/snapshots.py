"""Snapshots of a log that another process owns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from strandline.changelog.broker import Broker
from strandline.changelog.flight.connection import FlightConnection
from strandline.changelog.flight.requests import ReleaseSnapshot, TakeSnapshot
from strandline.changelog.snapshots import in_folder

T = TypeVar("T")


class FlightSnapshots:
    """Implementation of Snapshots over `connection`."""

    def __init__(self, connection: FlightConnection) -> None:
        self._connection = connection

    def take(self) -> str:
        name: str = self._connection.ask(TakeSnapshot())
        return name

    def release(self, name: str) -> None:
        self._connection.ask(ReleaseSnapshot(name))


class RepeatedSnapshots(Protocol):
    """Makes a call with the broker of the log's current owner; repeats it if the owner is lost."""

    def __call__(self, call: Callable[[Broker], T]) -> T: ...


class FailoverSnapshots:
    """Implementation of Snapshots by those of the log's current owner."""

    def __init__(self, repeated: RepeatedSnapshots) -> None:
        self._repeated = repeated

    def take(self) -> str:
        return self._repeated(lambda broker: in_folder(broker.snapshots).take())

    def release(self, name: str) -> None:
        self._repeated(lambda broker: in_folder(broker.snapshots).release(name))
