"""FlightBroker: the Broker of another process, over one connection.

After the connection is lost, `lost` is True and every call raises OwnerUnavailable; failover.py
then connects again. A call also raises OwnerUnavailable if the owner does not answer in time
(stopped, swapping, blocked). In that case the connection stays, and the owner may still execute the
call, so only calls that may be repeated should be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import CloseOnce
from strandline.changelog.errors import StorageFailed
from strandline.changelog.flight.connection import FlightConnection
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.files import FileReader
from strandline.changelog.flight.grants import Grants
from strandline.changelog.flight.messages import FetchRequest, Located
from strandline.changelog.flight.pins import FlightPins
from strandline.changelog.flight.requests import Request, RequestBroker
from strandline.changelog.flight.snapshots import RequestedSnapshots
from strandline.changelog.forks import keep_in_child
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import (
    Append,
    Appended,
    Fetched,
    Isolation,
    TopicPartition,
)

T = TypeVar("T")

DEADLINE_S = 30.0
"""Default seconds that a call may take, in addition to the timeout of a fetch."""


class FlightBroker(RequestBroker):
    """Broker of the log that the owner at `target` serves.

    Args:
        target: The log.
        deadline: Seconds that a call may take.
        connect_within: Seconds that connecting may take; by default `deadline`.
        clock: Measures the timeouts of fetches.
        grants: Grants that earlier connections to the same log over TCP have received.

    Raises:
        OwnerUnavailable: There is no owner, or it does not answer in time.
        Unauthenticated: The token is missing or wrong.
        InvalidRequest: The owner speaks another version of the protocol.
    """

    def __init__(
        self,
        target: ConnectionTarget,
        *,
        deadline: float = DEADLINE_S,
        connect_within: float | None = None,
        clock: Clock | None = None,
        grants: Grants | None = None,
    ) -> None:
        within = deadline if connect_within is None else connect_within
        self._connection = FlightConnection(
            target, deadline=deadline, connect_within=within, grants=grants
        )
        self._reader: FileReader | FlightConnection = self._connection
        storage = None
        if target.folder is not None and self._connection.session.welcome.locates:
            storage = _same_folder(target)
        if storage is not None:
            self._reader = FileReader(storage, self._connection)
        self.pins = FlightPins(self._connection, storage)
        self.snapshots = RequestedSnapshots(self._connection.ask)
        self._clock = clock or SystemClock()
        keep_in_child(self, self._connection)
        self._closing = CloseOnce(self, self._connection.close)

    @property
    def lost(self) -> bool:
        """True once the connection is permanently lost."""
        return self._connection.session.lost

    # The log --------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        return self._connection.append(appends) if appends else []

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 8 << 20,
        isolation: Isolation = "read_committed",
        timeout: float = 0.0,
    ) -> dict[TopicPartition, Fetched]:
        until = self._clock.monotonic() + timeout
        at = dict(positions)
        fetched = self._reader.fetch(FetchRequest(at, max_bytes, isolation, timeout))
        # A fetch may return only markers and aborted records, which the caller does not see. Then
        # it continues after them for the rest of the timeout.
        while not any(one.batches for one in fetched.values()):
            following = {tp: one.next_offset for tp, one in fetched.items()}
            if following == at:
                break
            left = max(0.0, until - self._clock.monotonic())
            later = self._reader.fetch(FetchRequest(following, max_bytes, isolation, left))
            if not all(fetched[tp].is_continued_by(one) for tp, one in later.items()):
                break  # the log was replaced in between, which the caller's next fetch shows
            at, fetched = following, {tp: fetched[tp].joined(one) for tp, one in later.items()}
        return fetched

    def locate(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int,
        isolation: Isolation,
        timeout: float,
    ) -> Located:
        """Implement `Locate`."""
        return self._connection.locate(FetchRequest(dict(positions), max_bytes, isolation, timeout))

    def close(self) -> None:
        self._closing()

    def _ask(self, request: Request[T], *, extra_s: float = 0.0) -> T:
        answer: T = self._connection.ask(request, extra_s=extra_s)
        return answer


def _same_folder(target: ConnectionTarget) -> LocalStorage | None:
    """Open the folder at the target's path; return None if it is not the owner's any more."""
    assert target.folder is not None
    storage = LocalStorage(target.folder)
    known = target.endpoint.folder if target.endpoint is not None else None
    with contextlib.suppress(StorageFailed):
        return storage if known in (None, storage.identity()) else None
    return None
