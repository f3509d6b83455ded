"""A small kit for tests of the log: batches, and producers that count their sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import (
    Append,
    Appended,
    Isolation,
    ProducerIdentity,
    TopicPartition,
)
from strandline.changelog.storage import Storage

START_MS = 1_700_000_000_000


def columns(
    values: Sequence[bytes | None],
    *,
    key: bytes | None = b"k",
    times: Sequence[int] | int = START_MS,
) -> pa.RecordBatch:
    """Return a batch with one row per value, all with the same key."""
    stamps = [times] * len(values) if isinstance(times, int) else list(times)
    return pa.record_batch(
        {
            "timestamp": pa.array(stamps, pa.int64()),
            "key": pa.array([key] * len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )


@dataclass
class World:
    """A log in memory that can crash and be opened again."""

    storage: Storage = field(default_factory=MemoryStorage)
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    durability: str = "fsync"

    def __post_init__(self) -> None:
        self.owner = self.open()

    def open(self) -> Owner:
        self.owner = Owner(
            self.storage,
            clock=self.clock,
            durability=self.durability,  # type: ignore[arg-type]
            background=False,
        )
        return self.owner

    def crash(self) -> Owner:
        """Kill the process, and open the folder with another one."""
        assert isinstance(self.storage, MemoryStorage)
        self.storage.crash()
        return self.open()

    def reopen(self) -> Owner:
        """Close the log in order and open it again."""
        self.owner.close()
        return self.open()

    def values(
        self, topic: str = "t", partition: int = 0, isolation: Isolation = "read_committed"
    ) -> list[bytes | None]:
        """Return all values that a reader sees from the beginning."""
        tp = TopicPartition(topic, partition)
        position = self.owner.offsets([tp])[tp].log_start
        seen: list[bytes | None] = []
        while True:
            fetched = self.owner.fetch({tp: position}, isolation=isolation)[tp]
            for batch in fetched.batches:
                seen += batch.columns.column("value").to_pylist()
            if fetched.next_offset == position:
                return seen
            position = fetched.next_offset


class Client:
    """A producer that keeps its identity and sequences, as `changelog.client.producer` does."""

    def __init__(self, world: World, transactional_id: str | None = None, timeout_ms: int = 10_000):
        self.world = world
        self.transactional_id = transactional_id
        self.identity = world.owner.init_producer(transactional_id, timeout_ms=timeout_ms)
        self.sequences: dict[TopicPartition, int] = {}

    def append(
        self,
        *values: bytes | None,
        topic: str = "t",
        partition: int = 0,
        key: bytes | None = b"k",
        times: Sequence[int] | int = START_MS,
        sequence: int | None = None,
        identity: ProducerIdentity | None = None,
    ) -> Appended:
        """Append one batch, in the transaction if the client has a transactional id."""
        tp = TopicPartition(topic, partition)
        base = self.sequences.get(tp, 0) if sequence is None else sequence
        request = Append(
            topic,
            partition,
            columns(values, key=key, times=times),
            identity or self.identity,
            base,
            self.transactional_id is not None,
        )
        appended = self.world.owner.append([request])[0]
        self.sequences[tp] = base + len(values)
        return appended

    def commit(self) -> None:
        self._end(commit=True)

    def abort(self) -> None:
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        successor = self.world.owner.end_transaction(self.identity, commit=commit)
        if successor != self.identity:
            self.sequences.clear()
        self.identity = successor
