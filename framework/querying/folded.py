"""A store read from its changelogs while no worker runs its app.

The first query replays the whole changelogs, and the state is in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.records import TopicPartition
from strandline.statestore.changelogged import Changelogged
from strandline.statestore.declaration import Declaration
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.reader import CommittedReader, KeyRange
from strandline.statestore.recorded import DeclarationLog
from strandline.statestore.restore import READERS_WAIT_S, restore, restore_all
from strandline.statestore.spec import StoreSpec
from strandline.statestore.store import AnyStore, open_store
from strandline.statestore.values import Expiry


class ReplayedSource:
    """Implementation of `Source` by replay. Thread-safe.

    Each query first replays everything that was committed before it.
    """

    def __init__(
        self,
        broker: Broker,
        changelog: str,
        partitions: int,
        *,
        app: str | None = None,
        wait: float = READERS_WAIT_S,
        expiry: Expiry = "marked",
        now: Callable[[], int] | None = None,
    ) -> None:
        """Create an empty state of each partition.

        Args:
            broker: The log.
            changelog: Name of the store's changelog topic.
            partitions: Number of its partitions.
            app: App whose recorded declarations tell how values are stored; None for none.
            wait: Seconds that a query waits for an open transaction that precedes committed
                records, before it raises RequestTimedOut.
            expiry: Which values carry an expiry, as long as no declaration is recorded.
            now: Function that returns the time in ms by which values expire; by default that of
                the system, and `long_ago` for values after the end of their time to live as well.
        """
        self._broker = broker
        self._wait = wait
        self._partitions = [TopicPartition(changelog, number) for number in range(partitions)]
        self._changelog = changelog
        self._log = None if app is None else DeclarationLog(broker, app, SystemClock())
        self._now = now or SystemClock().now_ms
        self._undeclared = expiry
        self._parts: list[AnyStore] = []
        self._readers: list[CommittedReader] = []
        self._reset(expiry)
        self._lock = threading.Lock()
        """Serializes queries, because a replay may replace the stores and their readers."""

    def read(
        self, partitions: Collection[int], keys: Sequence[bytes]
    ) -> dict[int, list[bytes | None]]:
        with self._lock:
            self._catch_up(partitions)
            found = {number: self._readers[number].get_many(keys) for number in partitions}
            return {number: one.values for number, one in found.items() if one is not None}

    def page(
        self, partition: int, bounds: KeyRange, limit: int
    ) -> tuple[Sequence[tuple[bytes, bytes]], KeyRange | None]:
        with self._lock:
            self._catch_up([partition])
            page = self._readers[partition].page(bounds, limit)
            assert page is not None  # it is never closed
            return page.entries, page.rest

    def position(self, partition: int) -> StorePosition | None:
        with self._lock:
            self._catch_up([partition])
            return self._readers[partition].position

    def continued(
        self, partition: int, found: Mapping[bytes, bytes], at: StorePosition | None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return a partition's entries as of one moment, from entries that were read after `at`.

        A change after `at` may be in some of the entries and not in others. So all changes after it
        are replayed, which gives each key its value at the end of the replay.

        Args:
            partition: Number of the partition, of a store whose values do not expire.
            found: Some entries, which were read when the store reflected `at` or more.
            at: Position; None if the store was empty.

        Returns:
            Keys and values in order: those of `found` as they are now, and all that changed.
        """
        engine = MemoryEngine()
        if at is not None:
            names = sorted(found)
            engine.write(names, [found[name] for name in names], at)
        state = Changelogged(engine)
        restore(state, self._broker, self._partitions[partition], wait=self._wait)
        return state.scan(FIRST_KEY, None, reverse=False)

    def count(self, partitions: Collection[int]) -> int:
        with self._lock:
            self._catch_up(partitions)
            return sum(self._readers[n].approximate_num_entries() or 0 for n in partitions)

    def recorded(self) -> Declaration | None:
        """Return the recorded declaration of the store; None if there is none."""
        return None if self._log is None else self._log.read().stores.get(self._changelog)

    def declaration(self) -> Declaration | None:
        """Return the recorded declaration of the store; None if there is none.

        Raises InvalidConfig if some values have not been rewritten for it yet.
        """
        if self._log is None:
            return None
        recorded = self._log.read()
        if unfinished := recorded.unfinished(self._changelog, len(self._partitions)):
            raise InvalidConfig(
                f"values of {self._changelog}, partitions {unfinished}, are still of an older "
                "declaration of the store, and are rewritten when the app runs; run it first"
            )
        return recorded.stores.get(self._changelog)

    def _catch_up(self, partitions: Collection[int]) -> None:
        while True:
            parts = [(self._parts[n], self._partitions[n]) for n in partitions]
            restore_all(parts, self._broker, wait=self._wait)
            # The declaration is read after the replay. Values are rewritten only after their
            # declaration was recorded, so this read returns that of all replayed values.
            declaration = self.declaration()
            expiry = self._undeclared if declaration is None else declaration.expiry
            if expiry == self._expiry:
                return
            self._reset(expiry)

    def _reset(self, expiry: Expiry) -> None:
        spec: StoreSpec[bytes, bytes] = StoreSpec(
            "folded", key=bytes, value=bytes, ttl_ms=1, engine="memory"
        )
        self._expiry = expiry
        self._parts = [open_store(spec, now=self._now, expiry=expiry) for _ in self._partitions]
        self._readers = [part.reader for part in self._parts]


def long_ago() -> int:
    """Return a time before the expiry of any value."""
    return 0
