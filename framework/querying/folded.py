"""A store read from its changelogs, while no worker runs its app: slow to begin, and all in memory."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from changelog.broker import Broker
from changelog.records import TopicPartition
from statestore.reader import Bounds
from statestore.restore import READERS_WAIT_S, restore_all
from statestore.spec import StoreSpec
from statestore.store import AnyStore, open_store


class Folded:
    """Implements `Source`: each query first reads on to what is committed by now. Thread-safe."""

    def __init__(
        self,
        broker: Broker,
        changelog: str,
        partitions: int,
        *,
        wait: float = READERS_WAIT_S,
        expired: bool = False,
    ) -> None:
        """With `expired` values whose time to live is over are found as well.

        `wait` is how many seconds a query waits for transactions that are open before something committed;
        then it raises RequestTimedOut.
        """
        self._broker = broker
        self._wait = wait
        self._places = [TopicPartition(changelog, number) for number in range(partitions)]
        # Values with a time to live say so themselves; this takes them with and without.
        spec: StoreSpec[bytes, bytes] = StoreSpec(
            "folded", key=bytes, value=bytes, ttl_ms=1, engine="memory"
        )
        now = _long_ago if expired else None
        self._parts: list[AnyStore] = [open_store(spec, now=now) for _ in self._places]
        self._readers = [part.reader() for part in self._parts]
        self._lock = threading.Lock()
        """One query at a time: what reads on may begin anew."""

    def read(
        self, partitions: Collection[int], keys: Sequence[bytes]
    ) -> dict[int, list[bytes | None]]:
        with self._lock:
            self._read_on(partitions)
            found = {number: self._readers[number].get_many(keys) for number in partitions}
            return {number: one.values for number, one in found.items() if one is not None}

    def page(
        self, partition: int, bounds: Bounds, limit: int
    ) -> tuple[Sequence[tuple[bytes, bytes]], Bounds | None]:
        with self._lock:
            self._read_on([partition])
            page = self._readers[partition].page(bounds, limit)
            assert page is not None  # it is never closed
            return page.entries, page.rest

    def count(self, partitions: Collection[int]) -> int:
        with self._lock:
            self._read_on(partitions)
            return sum(self._readers[n].approximate_num_entries() or 0 for n in partitions)

    def _read_on(self, partitions: Collection[int]) -> None:
        parts = [(self._parts[n], self._places[n]) for n in partitions]
        restore_all(parts, self._broker, wait=self._wait)


def _long_ago() -> int:
    """A time before that of any value."""
    return 0
