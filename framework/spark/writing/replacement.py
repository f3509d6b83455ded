"""Tombstones for the keys of a compacted topic that a batch replaces and does not write.

The keys that the topic has are read before the transaction begins. So the time of reading does not
count against the transaction's timeout, and the records of the transaction do not hide others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.arrays import repeated
from strandline.changelog.broker import Broker
from strandline.changelog.records import Batch, TopicInfo, TopicPartition, columns_schema
from strandline.changelog.scan import scan_batches
from strandline.changelog.schema import value_type
from strandline.framework.spark.tables import last_of_each_key
from strandline.statestore.replay import TransactionOpen
from strandline.statestore.restore import TRANSACTION_WAIT_S


class Replacement:
    """Keys of a compacted topic that a batch replaces.

    Args:
        broker: The log.
        topic: The topic.
    """

    def __init__(self, broker: Broker, topic: TopicInfo) -> None:
        self._broker = broker
        self._topic = topic
        self._held: dict[int, pa.Array] = {}
        self._written: dict[int, list[pa.Array]] = {}

    def read(self) -> None:
        """Read the keys that have a value now, in everything that is committed.

        Open transactions before the last committed one are waited for: records after them are
        committed, but cannot be read yet.

        Raises:
            TransactionOpen: An open transaction of the topic does not end.
        """
        self._topic = self._broker.topic(self._topic.name)
        for number in range(self._topic.partitions):
            keys = self._keys(TopicPartition(self._topic.name, number))
            if keys is not None:
                self._held[number] = keys

    def add(self, partition: int, keys: pa.Array) -> None:
        """Add keys that the batch writes."""
        self._written.setdefault(partition, []).append(keys.unique())

    def tombstones(self, now_ms: int) -> Iterator[list[tuple[TopicPartition, pa.RecordBatch, int]]]:
        """Yield a tombstone for each key that was read and not added, by partition."""
        kind = value_type(self._topic.schema)
        for number, held in self._held.items():
            written = pa.chunked_array(self._written.get(number, []), pa.binary())
            is_written = pc.is_in(held, value_set=written.combine_chunks())
            keys = held.filter(pc.invert(is_written))
            if not len(keys):
                continue
            times = repeated(now_ms, len(keys))
            arrays = [times, keys, pa.nulls(len(keys), kind)]
            schema = columns_schema(kind, headers=False)
            columns = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield [(TopicPartition(self._topic.name, number), columns, self._topic.schema_id)]

    def _keys(self, tp: TopicPartition) -> pa.Array | None:
        now = self._broker.offsets([tp])[tp]
        end = max(now.last_stable_offset, now.committed_end)
        self._wait_for(tp, end)
        found = last_of_each_key(
            _keys_of(scan_batches(self._broker, {tp: now.log_start}, {tp: end}))
        )
        if found is None:
            return None
        return found.filter(found["has_value"])["key"].combine_chunks()

    def _wait_for(self, tp: TopicPartition, end: int) -> None:
        """Wait until everything before `end` can be read."""
        for _ in range(TRANSACTION_WAIT_S):
            if (stable := self._stable(tp)) >= end:
                return
            self._broker.fetch({tp: stable}, max_bytes=1, timeout=1.0)
        stable = self._stable(tp)
        raise TransactionOpen(
            f"the keys that a batch replaces cannot be read: {tp} has an open transaction from "
            f"offset {stable} on, and committed records after it; end the program that began it",
            tp,
            stable,
        )

    def _stable(self, tp: TopicPartition) -> int:
        return self._broker.offsets([tp])[tp].last_stable_offset


def _keys_of(batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
    """Yield keys, and whether they have a value, without the values."""
    for batch in batches:
        key, value = batch.columns.column("key"), batch.columns.column("value")
        yield pa.RecordBatch.from_arrays([key, value.is_valid()], ["key", "has_value"])
