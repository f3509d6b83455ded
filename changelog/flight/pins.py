"""Pins of a log that another process owns: managed by the owner, read from the files."""

from __future__ import annotations

from collections.abc import Callable

from strandline.changelog.embedded.pin import PinReader
from strandline.changelog.errors import CorruptLog, StorageFailed
from strandline.changelog.flight.connection import FlightConnection
from strandline.changelog.flight.messages import FetchRequest
from strandline.changelog.flight.requests import Ask, HoldPin, ReleasePins, UsePin
from strandline.changelog.pins import PinName, PinnedRange, PinnedRanges, Pins
from strandline.changelog.records import Fetched, TopicPartition
from strandline.changelog.selection import EVERYTHING, ReadSelection
from strandline.changelog.storage import Storage

Repeated = Callable[[Callable[[Pins], Fetched]], Fetched]
"""Fetches with the pins of the log's current owner; repeats the call if the owner is lost."""


class RequestedPins:
    """The calls of Pins that are requests to the owner, sent by `ask`: all but `fetch`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def hold(
        self, name: PinName, ranges: PinnedRanges, *, timeout_ms: int
    ) -> dict[TopicPartition, PinnedRange]:
        held: dict[TopicPartition, PinnedRange] = self._ask(HoldPin(name, dict(ranges), timeout_ms))
        return held

    def use(self, name: PinName) -> dict[TopicPartition, PinnedRange]:
        held: dict[TopicPartition, PinnedRange] = self._ask(UsePin(name))
        return held

    def release(self, holder: str, until: str) -> None:
        self._ask(ReleasePins(holder, until))


class FlightPins(RequestedPins):
    """Implementation of Pins over `connection`.

    If `storage`, the log's folder, is given, pinned records are read from its files without a call
    to the owner. If that fails, the owner is asked for the records, and its answer or error counts.
    An owner sends all columns, whatever is selected.
    """

    def __init__(self, connection: FlightConnection, storage: Storage | None) -> None:
        super().__init__(connection.ask)
        self._connection = connection
        self._reader = None if storage is None else PinReader(storage)

    def fetch(
        self,
        name: PinName,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        selection: ReadSelection = EVERYTHING,
    ) -> Fetched:
        if self._reader is not None:
            try:
                return self._reader.fetch(
                    name, partition, offset, max_bytes=max_bytes, selection=selection
                )
            except (FileNotFoundError, StorageFailed, CorruptLog):
                self._reader.forget()
        request = FetchRequest({partition: offset}, max_bytes, "read_committed", 0.0, name)
        return self._connection.fetch(request)[partition]


class FailoverPins(RequestedPins):
    """Implementation of Pins by those of the log's current owner."""

    def __init__(self, ask: Ask, repeated: Repeated) -> None:
        super().__init__(ask)
        self._repeated = repeated

    def fetch(
        self,
        name: PinName,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        selection: ReadSelection = EVERYTHING,
    ) -> Fetched:
        return self._repeated(
            lambda pins: pins.fetch(
                name, partition, offset, max_bytes=max_bytes, selection=selection
            )
        )
