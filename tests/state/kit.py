"""A store with its changelog in a log in memory, and the worker's part around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import (
    Append,
    Appended,
    ProducerIdentity,
    TopicPartition,
    columns_schema,
)
from strandline.statestore import PartitionStore, Restored, StoreSpec, open_store
from strandline.statestore.column_store import ColumnStore, open_column_store
from strandline.statestore.engine import Engine
from strandline.statestore.store import AnyStore

Change = tuple[bytes, bytes | None]


class Changelog:
    """Partition 0 of a compacted topic, and a transactional producer that writes to it."""

    def __init__(
        self, topic: str = "app-store-changelog", partitions: int = 1, owner: Owner | None = None
    ) -> None:
        self.clock = ManualClock(1_000_000)
        self.owner = owner or Owner(MemoryStorage(), clock=self.clock, background=False)
        self.owner.create_topic(topic, partitions, config={"cleanup.policy": "compact"})
        self.partition = TopicPartition(topic, 0)
        self.producer: ProducerIdentity = self.owner.init_producer("app-0")
        self.sequences: dict[TopicPartition, int] = {}

    def reopened(self) -> None:
        """Open the log again: another incarnation appends to it from now on."""
        self.owner.close()
        self.owner = Owner(self.owner._log.context.storage, clock=self.clock, background=False)
        self.producer = self.owner.init_producer("app-0")
        self.sequences = {}

    def append(
        self, changes: list[Change], *, commit: bool = True, partition: TopicPartition | None = None
    ) -> int:
        """Append the changes in one transaction. Return the end offset (exclusive)."""
        partition = partition or self.partition
        keys, values = [key for key, _ in changes], [value for _, value in changes]
        return self.append_columns(columns(keys, values), commit=commit, partition=partition)

    def append_columns(
        self, batch: pa.RecordBatch, *, commit: bool = True, partition: TopicPartition | None = None
    ) -> int:
        return self._appended(batch, commit=commit, partition=partition).last_offset + 1

    def _appended(
        self, batch: pa.RecordBatch, *, commit: bool = True, partition: TopicPartition | None = None
    ) -> Appended:
        partition = partition or self.partition
        sequence = self.sequences.get(partition, 0)
        append = Append(
            *partition, batch, self.producer, base_sequence=sequence, transactional=True
        )
        (appended,) = self.owner.append([append])
        before = self.producer
        self.producer = self.owner.end_transaction(self.producer, commit=commit)
        # After an abort the producer has a new epoch, whose sequences begin at 0.
        same = before == self.producer
        self.sequences = {partition: sequence + batch.num_rows} if same else {}
        return appended

    def commit(self, store: AnyStore) -> None:
        """Commit as a worker does: drain the store, append, end the transaction, report the end."""
        batch = store.drain()
        if batch is not None:
            done = self._appended(batch.columns(self.clock.now_ms()))
            store.committed(done.last_offset + 1, done.leader_epoch, done.incarnation)

    def abort(self, store: AnyStore) -> None:
        """Append the changes in a transaction that is aborted, and discard them."""
        batch = store.drain()
        if batch is not None:
            self.append_columns(batch.columns(self.clock.now_ms()), commit=False)
        store.discard()

    def open(
        self,
        spec: StoreSpec[Any, Any],
        folder: Path | None = None,
        *,
        engine: Engine | None = None,
    ) -> PartitionStore[Any, Any]:
        """Open a store and restore it."""
        store = open_store(spec, folder, clock=self.clock, lock_timeout=0, engine=engine)
        self.restore(store)
        return store

    def open_columns(
        self,
        spec: StoreSpec[Any, Any],
        folder: Path | None = None,
        *,
        engine: Engine | None = None,
    ) -> ColumnStore[Any, Any]:
        """Open a store with columns and restore it."""
        store = open_column_store(spec, folder, clock=self.clock, lock_timeout=0, engine=engine)
        self.restore(store)
        return store

    def restore(self, store: AnyStore) -> Restored:
        return store.restore(self.owner, self.partition)


class Meanwhile:
    """A broker that runs `action` before the n-th call of a method."""

    def __init__(self, broker: Any, call: str, nth: int, action: Callable[[], object]) -> None:
        self._broker, self._call, self._left, self._action = broker, call, nth, action

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            self._left -= 1
            if self._left == 0:
                self._action()
        return getattr(self._broker, name)


def columns(keys: list[bytes], values: list[bytes | None]) -> pa.RecordBatch:
    arrays = [
        pa.array([0] * len(keys), pa.int64()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns_schema(pa.binary(), headers=False))
