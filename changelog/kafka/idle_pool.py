"""Consumers that nobody uses just now, and that are kept for the next call: making one takes threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from strandline.changelog.kafka.connection import KafkaConnection

KEPT = 8


class Closable(Protocol):
    """What is closed in the end."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class IdlePool(Generic[T]):
    """At most KEPT of one kind; none once the connection is closed. Thread-safe."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._kept: list[T] = []
        """The one used last at the end."""

    def take(self, fits: Callable[[T], bool]) -> T | None:
        """The one used last of those that fit, if there is one; it is the caller's then."""
        with self._lock:
            found = next(filter(fits, reversed(self._kept)), None)
            if found is not None:
                self._kept.remove(found)
            return found

    def put(self, one: T) -> None:
        """Keep one; the oldest goes if there are too many."""
        with self._lock:
            self._kept.append(one)
            kept = 0 if self._connection.closed else KEPT
            too_many = [self._kept.pop(0) for _ in range(len(self._kept) - kept)]
        for oldest in too_many:
            oldest.close()

    def drop(self, fits: Callable[[T], bool]) -> None:
        """Close those that fit."""
        with self._lock:
            dropped = [one for one in self._kept if fits(one)]
            self._kept = [one for one in self._kept if one not in dropped]
        for one in dropped:
            one.close()

    def close(self) -> None:
        """Close those that are kept."""
        self.drop(lambda _: True)
