"""Owning a log folder or attaching to its owner, by role.

    own_or_attach     apps: lock the folder and serve other processes; attach if it is locked
    attach_or_spawn   tools, Spark: attach; start a background owner if the folder has none
    own               supervisors: lock the folder, or raise LogLocked

Only the lock decides who owns the folder. The endpoint file may be stale, missing, or written by an
owner that has just died. So connecting tries each way in turn until one works or the time is up.
The same loop is the election after an owner has died.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from strandline.changelog import location
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.embedded import filesystem
from strandline.changelog.errors import LogLocked, OwnerUnavailable, Unauthenticated
from strandline.changelog.flight import background
from strandline.changelog.flight import endpoint as endpoints
from strandline.changelog.flight.client import DEADLINE_S, FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.failover import FailoverBroker, LogLink
from strandline.changelog.flight.owning import ServedOwner
from strandline.changelog.layout import LOCK
from strandline.changelog.lock import holder
from strandline.changelog.settings import check_choice
from strandline.changelog.storage import Durability

Role = Literal["own_or_attach", "attach_or_spawn", "own"]

FIRST_PAUSE_S = 0.005
MAX_PAUSE_S = 0.1


def attach_or_own(
    path: str | os.PathLike[str],
    *,
    role: Role = "own_or_attach",
    durability: Durability = "fsync",
    clock: Clock | None = None,
    deadline: float = DEADLINE_S,
    idle: float = background.IDLE_S,
) -> FailoverBroker:
    """Open the log in the folder `path`, which is created if need be.

    Args:
        path: Folder of the log.
        role: One of the roles above.
        durability: Durability of appends if this process becomes the owner; ignored if it attaches.
        clock: Measures time.
        deadline: Seconds for opening, and for each call.
        idle: Seconds without clients after which a background owner started by this call exits.

    Returns:
        A broker that reconnects when the owner changes.

    Raises:
        LogLocked: Another process owns the folder, and `role` is "own".
        OwnerUnavailable: The folder's owner does not answer in time.
        InvalidConfig: `role` is unknown, or `path` is a URL.
        StorageFailed: The folder is on a network file system, or cannot be used.
        StrandlineError: Any other error of opening the log.
    """
    check_choice("role", role, get_args(Role))
    location.check_folder(path)
    folder = Path(os.path.abspath(path))
    filesystem.check_local(folder)
    access = _FolderAccess(folder, durability, clock or SystemClock(), idle, deadline)
    connect = {
        "own_or_attach": access.own_or_attach,
        "attach_or_spawn": access.attach_or_spawn,
        "own": lambda _seconds: access.own(),
    }[role]
    return FailoverBroker(connect, deadline=deadline, name=str(folder), clock=clock)


class _FolderAccess:
    """Ways to open a folder's log."""

    def __init__(
        self, folder: Path, durability: Durability, clock: Clock, idle: float, deadline: float
    ) -> None:
        self._folder = folder
        self._durability = durability
        self._clock = clock
        self._idle = idle
        self._deadline = deadline
        self._was_open = False
        """True once there was a connection. From then on no log is created at the path."""

    def own(self) -> LogLink:
        """Become the owner. Raises LogLocked, FolderLost."""
        self._check_present()
        served = ServedOwner(self._folder, clock=self._clock, durability=self._durability)
        self._was_open = True
        return LogLink(
            served.owner, lambda: False, served.close, owning=True, metrics=served.metrics
        )

    def _check_present(self) -> None:
        """Raise FolderLost if the log that was open is not at the path any more."""
        if self._was_open:
            location.check_present(self._folder)

    def own_or_attach(self, seconds: float) -> LogLink:
        """Become the owner, or attach to the current one."""
        return self._first_of([lambda _left: self.own(), self._attach], seconds)

    def attach_or_spawn(self, seconds: float) -> LogLink:
        """Attach to the owner; start a background owner if there is none."""
        spawned = background.Spawner(self._folder, self._idle, self._durability)
        return self._first_of([self._attach, spawned.ensure], seconds)

    def _attach(self, left: float) -> LogLink | None:
        """Connect to the owner named by the endpoint file; return None if there is no owner."""
        endpoint = endpoints.read(self._folder)
        if endpoint is None or endpoint.life() == "dead":
            return None
        name = str(self._folder)
        if not Path(endpoint.socket).exists():
            raise OwnerUnavailable(
                f"the owner of {name}, pid {endpoint.pid}, runs, but its socket {endpoint.socket} does "
                "not exist; if it was removed, restart that process"
            )
        try:
            target = ConnectionTarget(
                endpoint.location, endpoint.token, name, endpoint, self._folder
            )
            broker = FlightBroker(
                target, deadline=self._deadline, connect_within=left, clock=self._clock
            )
        except Unauthenticated:
            return None  # a new owner has the socket, and has not written its endpoint file yet
        self._was_open = True
        return LogLink(broker, lambda: broker.lost, broker.close)

    def _first_of(self, ways: list[Callable[[float], LogLink | None]], seconds: float) -> LogLink:
        until = self._clock.monotonic() + seconds
        pause = FIRST_PAUSE_S
        last_error: OwnerUnavailable | None = None
        while True:
            self._check_present()
            for way in ways:
                try:
                    link = way(max(FIRST_PAUSE_S, until - self._clock.monotonic()))
                except LogLocked:
                    link = None  # another process was faster
                except OwnerUnavailable as error:
                    last_error, link = error, None
                if link is not None:
                    return link
            if self._clock.monotonic() >= until:
                raise last_error or self._not_served(seconds)
            threading.Event().wait(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    def _not_served(self, seconds: float) -> OwnerUnavailable:
        error = OwnerUnavailable(
            f"{self._folder} is locked by a process that does not serve it: "
            f"{holder(self._folder / LOCK)}; it may be recovering a large log, or be stopped"
        )
        error.waited = seconds
        return error
