"""A log folder owned by this process and served to others."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from changelog.clock import Clock
from changelog.embedded.environment import Durability
from changelog.embedded.owner import Owner
from changelog.errors import CorruptLog
from changelog.flight import endpoint as endpoints
from changelog.flight.metrics import CLIENTS
from changelog.flight.server import FlightEndpoint
from changelog.metrics import Reading
from changelog.storage import LocalStorage


class ServedOwner:
    """The Owner of `folder` with an endpoint on a Unix socket, announced in owner.json.

    Raises LogLocked when another process owns the folder, and whatever Owner raises.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        durability: Durability = "fsync",
        role: str = "owner",
    ) -> None:
        self._folder = folder
        self.owner = Owner(LocalStorage(folder), clock=clock, durability=durability, role=role)
        try:
            self._announce(clock)
        except BaseException:
            self.owner.close()
            raise

    def _announce(self, clock: Clock | None) -> None:
        # We hold the lock, so what a dead owner left is ours to clear away.
        with contextlib.suppress(CorruptLog):
            left = endpoints.read(self._folder)
            if left is not None:
                endpoints.remove_socket(left)
        self._endpoint = endpoints.new_endpoint(self._folder)
        self.server = FlightEndpoint(
            self.owner,
            self._endpoint.location,
            token=self._endpoint.token,
            clock=clock,
            locate=self.owner.locate,
        )
        with contextlib.suppress(OSError):
            os.chmod(self._endpoint.socket, 0o600)
        endpoints.publish(self._folder, self._endpoint)

    def metrics(self) -> list[Reading]:
        """What the owner tells, and how many are attached."""
        return [*self.owner.metrics(), Reading(CLIENTS, ("socket",), len(self.server.sessions))]

    def close(self) -> None:
        """Withdraw the endpoint, send the attached away, close the log; harmless when repeated."""
        endpoints.withdraw(self._folder, self._endpoint)
        self.server.close()
        self.owner.close()
