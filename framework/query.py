"""A store from outside of its task: what has been committed, read from its changelog."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from changelog.broker import Broker
from changelog.errors import InvalidConfig
from changelog.records import TopicPartition
from framework.container.folders import StoreFolders
from framework.store import Store
from framework.store_declarations import StoreDeclarations
from statestore.keys import key_codec
from statestore.restore import READERS_WAIT_S, restore_all
from statestore.spec import UNSET
from statestore.store import PartitionStore

if TYPE_CHECKING:
    from framework.app import App

K = TypeVar("K")
V = TypeVar("V")


class StoreView(Generic[K, V]):
    """All partitions of a store, in memory, as of the last `refresh`; read-only."""

    def __init__(
        self, store: Store[K, V], parts: list[PartitionStore[K, V]], broker: Broker
    ) -> None:
        self._store = store
        self._parts = parts
        self._broker = broker
        self.refresh()

    def refresh(self) -> StoreView[K, V]:
        """Read on to what is committed by now; only what is new is read.

        Raises RequestTimedOut if a transaction that is open before some of it does not end.
        """
        topic = self._store.changelog_topic
        parts = [(part, TopicPartition(topic, n)) for n, part in enumerate(self._parts)]
        restore_all(parts, self._broker, wait=READERS_WAIT_S)
        return self

    def get(self, key: K, default: Any = UNSET) -> V | Any:
        """The value of a key on whichever partition has it; else `default`, as a handler gets it.

        That is, without one the store's own default, else None.
        """
        for part in self._parts:
            if key in part:
                return self._store.shown(part[key])
        if default is not UNSET:
            return default
        value = self._parts[0].get(key)
        return None if value is None else self._store.shown(value)

    def __getitem__(self, key: K) -> V:
        for part in self._parts:
            if key in part:
                return self._store.shown(part[key])  # type: ignore[no-any-return]
        return self._store.shown(self._parts[0][key])  # type: ignore[no-any-return]

    def __contains__(self, key: K) -> bool:
        return any(key in part for part in self._parts)

    def all(self) -> Iterator[tuple[K, V]]:
        """All entries, in the order of the keys."""
        return self.range()

    def range(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """Entries from `lower` up to but without `upper`, in the order of the keys."""
        codec = key_codec(self._store.spec.key)
        streams = [
            ((codec.encode(key), key, value) for key, value in part.range(lower, upper))
            for part in self._parts
        ]
        shown = self._store.shown
        merged = heapq.merge(*streams, key=itemgetter(0))
        return ((key, shown(value)) for _, key, value in merged)

    def to_dict(self) -> dict[K, V]:
        """All entries."""
        return dict(self.all())

    def to_arrow(self) -> pa.Table:
        """Columns `key` and `value`, in the order of the keys."""
        import msgspec

        entries = list(self.all())
        plain = [msgspec.to_builtins(value, builtin_types=_NATIVE) for _, value in entries]
        return pa.table({"key": [key for key, _ in entries], "value": plain})

    def __len__(self) -> int:
        return sum(1 for _ in self.all())


def view_of(app: App, store: Store[K, V]) -> StoreView[K, V]:
    """Return a view of a store of `app`. Raises InvalidConfig if it is stored otherwise."""
    if store.task is None:
        raise InvalidConfig(f"store {store.name!r} belongs to no task, so it holds nothing")
    broker, topic = app.broker, store.changelog_topic
    info = broker.topic(topic)
    declared = StoreDeclarations(app.name, [store.spec], {topic: info}, broker, app.clock)
    expiry = declared.check()[topic]
    folders = StoreFolders(None, app.clock)
    parts = [folders.open(store.spec, n, expiry=expiry) for n in range(info.partitions)]
    return StoreView(store, parts, broker)


_NATIVE = (bytes, bytearray)
