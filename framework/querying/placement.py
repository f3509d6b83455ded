"""Partitions that can have a key: one if all keys of the store are placed, else all of them."""

from __future__ import annotations

import threading

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import Retriable
from strandline.changelog.records import TopicPartition
from strandline.framework.placing import home
from strandline.framework.positions import placed_of
from strandline.statestore.spec import changelog_topic

PLACED_SECONDS = 1.0
"""Seconds for which the answer of `is_placed` is cached.

So a key in another partition than expected may be missed for this time after it was first put.
"""


class Placement:
    """Finds the partitions that can have the keys of one store. Thread-safe."""

    def __init__(self, broker: Broker, app: str, store: str, partitions: int, clock: Clock) -> None:
        self._broker = broker
        self._app = app
        self._store = store
        self._partitions = partitions
        self._clock = clock
        self._placed = False
        self._until = clock.monotonic()
        """Monotonic time at which the cached answer expires."""
        self._lock = threading.Lock()

    def home(self, key: object) -> int | None:
        """Return the only partition that can have a key; None if each of them can."""
        now = self._clock.monotonic()
        if now >= self._until:
            self._look_up(now)
        return home(key, self._partitions) if self._placed else None

    def _look_up(self, now: float) -> None:
        with self._lock:  # one thread reads the log, others wait for its answer
            if now >= self._until:
                self._placed = self._read()
                self._until = now + PLACED_SECONDS

    def _read(self) -> bool:
        try:
            return is_placed(self._broker, self._app, self._store, self._partitions)
        except Retriable:
            return False  # the log does not answer, but workers may


def is_placed(broker: Broker, app: str, store: str, partitions: int) -> bool:
    """Return True if each partition of a store is placed (`placing`) or was never written to."""
    placed = {
        tp.partition
        for tp, offset in broker.committed(app, require_stable=False).items()
        if placed_of(offset.metadata).get(store) == partitions
    }
    topic = changelog_topic(app, store)
    others = [TopicPartition(topic, n) for n in range(partitions) if n not in placed]
    ends = broker.offsets(others) if others else {}
    return all(end.high_watermark == 0 for end in ends.values())
