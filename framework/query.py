"""View of a store from outside of its task: committed state, read from its changelog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.records import TopicPartition
from strandline.framework.container.folders import StoreFolders
from strandline.framework.parts import Entry, PartitionMerger, partitions_asked
from strandline.framework.store import Store
from strandline.framework.store_declarations import StoreDeclarations
from strandline.statestore.keys import key_codec
from strandline.statestore.restore import READERS_WAIT_S, restore_all
from strandline.statestore.spec import UNSET
from strandline.statestore.store import PartitionStore

K = TypeVar("K")
V = TypeVar("V")


class StoreView(Generic[K, V]):
    """Committed state of a store in memory, as of the last `refresh`; read-only.

    `App.query` makes it. It holds all partitions, or the one that was requested. If several
    partitions hold a key, counters and aggregates merge their values; in other stores, reading the
    key raises KeyInSeveralPartitions.
    """

    def __init__(
        self, store: Store[K, V], parts: Mapping[int, PartitionStore[K, V]], broker: Broker
    ) -> None:
        self._store = store
        self._parts = parts
        self._broker = broker
        self._codec = key_codec(store.spec.key)
        self._whole: PartitionMerger[Any] = PartitionMerger(
            store.name, self._codec.decode, store.merge
        )
        self.refresh()

    def refresh(self) -> StoreView[K, V]:
        """Read the records that were committed since the last call.

        Returns:
            The view itself.

        Raises:
            RequestTimedOut: A transaction stays open before a record that is already committed.
        """
        topic = self._store.changelog_topic
        parts = [(part, TopicPartition(topic, n)) for n, part in self._parts.items()]
        restore_all(parts, self._broker, wait=READERS_WAIT_S)
        return self

    def get(self, key: K, default: Any = UNSET) -> V | Any:
        """Return the value of a key.

        Args:
            key: Key of the declared type.
            default: Result for a key without a value. By default it is the store's default, or None
                if the store has none.

        Raises:
            KeyInSeveralPartitions: Several partitions hold the key, and their values cannot be
                merged.
            InvalidRecord: The key is not of the declared type.
        """
        found = self._found(key)
        if found is not UNSET:
            return found
        if default is not UNSET:
            return default
        value = self._any_part.get(key)
        return None if value is None else self._store.shown(value)

    def __getitem__(self, key: K) -> V:
        """Return the value of a key, or the store's default. Raise KeyError if there is neither."""
        found = self._found(key)
        return self._store.shown(self._any_part[key]) if found is UNSET else found

    def __contains__(self, key: K) -> bool:
        """Return True if a partition holds the key; a default does not count."""
        return any(key in part for part in self._parts.values())

    def all(self) -> Iterator[tuple[K, V]]:
        """Yield all entries, in the order of the keys.

        Raises:
            KeyInSeveralPartitions: Several partitions hold a key, and their values cannot be
                merged.
        """
        return self.range()

    def range(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """Yield the entries from `lower` to `upper` (exclusive), in the order of the keys.

        Args:
            lower: First key. None, the default, is no limit.
            upper: End (exclusive). None, the default, is no limit.

        Returns:
            Pairs of key and value.

        Raises:
            KeyInSeveralPartitions: Several partitions hold a key, and their values cannot be
                merged.
        """
        streams = [self._entries(number, lower, upper) for number in self._parts]
        decode, shown = self._codec.decode, self._store.shown
        return ((decode(key), shown(value)) for key, value in self._whole.scan(streams))

    def to_dict(self) -> dict[K, V]:
        """Return all entries as a dict.

        Raises:
            KeyInSeveralPartitions: Several partitions hold a key, and their values cannot be
                merged.
        """
        return dict(self.all())

    def to_arrow(self) -> pa.Table:
        """Return all entries, in the order of the keys, as the Arrow columns `key` and `value`.

        Raises:
            KeyInSeveralPartitions: Several partitions hold a key, and their values cannot be
                merged.
        """
        import msgspec

        entries = list(self.all())
        plain = [msgspec.to_builtins(value, builtin_types=_NATIVE) for _, value in entries]
        return pa.table({"key": [key for key, _ in entries], "value": plain})

    def __len__(self) -> int:
        """Return the exact number of keys. Raise KeyInSeveralPartitions as `all` does."""
        return sum(1 for _ in self.all())

    @property
    def _any_part(self) -> PartitionStore[K, V]:
        """Some partition, for the store's default, which is the same in all of them."""
        return next(iter(self._parts.values()))

    def _found(self, key: K) -> V | Any:
        """Return the value of a key as users see it; UNSET if no partition has it."""
        found = {number: part[key] for number, part in self._parts.items() if key in part}
        if not found:
            return UNSET
        return self._store.shown(
            self._whole.whole(self._codec.encode(self._codec.admit(key)), found)
        )

    def _entries(self, number: int, lower: K | None, upper: K | None) -> Iterator[Entry[V]]:
        encode = self._codec.encode
        return (
            (encode(key), number, value) for key, value in self._parts[number].range(lower, upper)
        )


def view_of(store: Store[K, V], partition: int | None = None) -> StoreView[K, V]:
    """Return a view of a store: of all partitions, or of one.

    Raises:
        InvalidConfig: The store belongs to no task, or its stored values have another type.
        InvalidRequest: There is no such partition.
    """
    if store.task is None:
        raise InvalidConfig(f"store {store.name!r} belongs to no task, so it holds nothing")
    session, topic = store.session, store.changelog_topic
    broker = session.broker()
    info = broker.topic(topic)
    declared = StoreDeclarations(session.app, [store.spec], {topic: info}, broker, session.clock)
    expiry = declared.check()[topic]
    folders = StoreFolders(None, session.clock)
    numbers = partitions_asked(store.name, info.partitions, partition)
    parts = {n: folders.open(store.spec, n, expiry=expiry) for n in numbers}
    return StoreView(store, parts, broker)


_NATIVE = (bytes, bytearray)
