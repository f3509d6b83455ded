"""A log folder that this process owns and serves to other processes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from strandline.changelog.clock import Clock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.flight import endpoint as endpoints
from strandline.changelog.flight.metrics import CLIENTS
from strandline.changelog.flight.server import FlightEndpoint
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.metrics import MetricReading
from strandline.changelog.storage import Durability


class ServedOwner:
    """Owner of `folder` with an endpoint on a Unix socket, which owner.json announces.

    Raises LogLocked if another process owns the folder, and the errors of Owner.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        role: str = "owner",
    ) -> None:
        self._storage = LocalStorage(folder)
        self.owner = Owner(self._storage, clock=clock, durability=durability, role=role)
        try:
            self._announce(clock)
        except BaseException:
            self.owner.close()
            raise

    def _announce(self, clock: Clock | None) -> None:
        endpoints.clear(self._storage)
        self._endpoint = endpoints.new_endpoint(self._storage)
        self.server = FlightEndpoint(
            self.owner,
            self._endpoint.location,
            token=self._endpoint.token,
            clock=clock,
            locate=self.owner.locate,
        )
        with contextlib.suppress(OSError):
            os.chmod(self._endpoint.socket, 0o600)
        # Published last, because clients connect as soon as they can read the file.
        endpoints.publish(self._storage, self._endpoint)

    def metrics(self) -> list[MetricReading]:
        """Return the owner's metrics and the number of attached processes."""
        return [
            *self.owner.metrics(),
            MetricReading(CLIENTS, ("socket",), len(self.server.sessions)),
        ]

    def close(self) -> None:
        """Withdraw the endpoint, end all sessions and close the log. Idempotent."""
        # The owner closes last, because calls in progress still use it.
        endpoints.withdraw(self._storage, self._endpoint)
        self.server.close()
        self.owner.close()
