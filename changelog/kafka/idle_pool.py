"""A pool of idle consumers, kept for the next call because creating one starts threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from strandline.changelog.kafka.connection import KafkaConnection

MAX_IDLE = 8
"""Maximum number of idle consumers in a pool."""


class Closable(Protocol):
    """An object with a method `close`."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class IdlePool(Generic[T]):
    """At most MAX_IDLE objects of one kind; none once the connection is closed. Thread-safe."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._kept: list[T] = []
        """Idle objects, the one used last at the end."""

    def take(self, fits: Callable[[T], bool]) -> T | None:
        """Remove and return the fitting object that was used last; None if there is none."""
        with self._lock:
            found = next(filter(fits, reversed(self._kept)), None)
            if found is not None:
                self._kept.remove(found)
            return found

    def put(self, one: T) -> None:
        """Add an idle object, and close the oldest ones if there are too many."""
        with self._lock:
            self._kept.append(one)
            kept = 0 if self._connection.closed else MAX_IDLE
            too_many = [self._kept.pop(0) for _ in range(len(self._kept) - kept)]
        for oldest in too_many:
            oldest.close()

    def drop(self, fits: Callable[[T], bool]) -> None:
        """Close the idle objects that fit."""
        with self._lock:
            dropped = [one for one in self._kept if fits(one)]
            self._kept = [one for one in self._kept if one not in dropped]
        for one in dropped:
            one.close()

    def close(self) -> None:
        """Close all idle objects."""
        self.drop(lambda _: True)
