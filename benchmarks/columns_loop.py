"""The standard job as a bare loop over columns, on Strandline's own log: the limit of streams.

The loop fetches batches, counts their keys with Arrow and NumPy, and every 100 ms commits one
transaction with the keys that changed, written to an output and to a changelog, and the positions
of the input, with fsync. It counts only: values are not decoded, keys stay bytes, and there is no
store, no app, no group and no restore.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness import Stopwatch
from strandline import changelog
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from strandline.changelog.records import Batch, CommittedOffset, TopicPartition, columns_schema

INPUT, OUTPUTS = "views", ("counts", "counts-changelog")
COMMIT_INTERVAL_S = 0.1
FETCH_BYTES = 16 << 20
_LAYOUT = columns_schema(pa.binary(), headers=False)
_INT_BYTES = 5
"""Bytes of a MessagePack integer of 32 bits."""


class _Counts:
    """Counts of one partition."""

    def __init__(self) -> None:
        self.slots: dict[bytes, int] = {}
        self.keys: list[bytes] = []
        self.counts: npt.NDArray[np.int64] = np.zeros(1 << 17, np.int64)
        self.changed: list[npt.NDArray[np.int64]] = []

    def add(self, batch: Batch) -> None:
        """Count the keys of a batch."""
        coded = batch.columns.column("key").dictionary_encode()
        keys = coded.dictionary.to_pylist()
        slots = np.fromiter(map(self._slot, keys), np.int64, len(keys))
        while len(self.keys) > len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
        self.counts[slots] += np.bincount(coded.indices.to_numpy(), minlength=len(keys))
        self.changed.append(slots)

    def take_changed(self, now_ms: int) -> pa.RecordBatch | None:
        """Return the keys that changed since the last call, with their counts, as records."""
        if not self.changed:
            return None
        slots = np.unique(np.concatenate(self.changed))
        self.changed.clear()
        keys = self.keys
        if len(slots) < len(keys):
            keys = [keys[slot] for slot in slots.tolist()]
        times = np.full(len(slots), now_ms, np.int64)
        columns = [pa.array(times), pa.array(keys, pa.binary()), _packed(self.counts[slots])]
        return pa.RecordBatch.from_arrays(columns, schema=_LAYOUT)

    def _slot(self, key: bytes) -> int:
        slot = self.slots.get(key)
        if slot is None:
            slot = self.slots[key] = len(self.keys)
            self.keys.append(key)
        return slot


def columns_loop(path: Path, count: int, partitions: int) -> float:
    """Count the keys of the input in the log at `path`; return records a second.

    The time begins with the open log, and ends with the last commit.
    """
    with changelog.open(path) as log:
        for name in OUTPUTS:
            log.create_topic(name, partitions)
        inputs = [TopicPartition(INPUT, number) for number in range(partitions)]
        with Producer(log.broker, transactional_id="loop") as producer:
            watch = Stopwatch()
            states = _count_all(log, producer, inputs)
            rate = count / watch.seconds
    total = sum(int(state.counts.sum()) for state in states.values())
    assert total == count, (total, count)
    return rate


def _count_all(
    log: Log, producer: Producer, inputs: list[TopicPartition]
) -> dict[TopicPartition, _Counts]:
    ends = {tp: offsets.last_stable_offset for tp, offsets in log.broker.offsets(inputs).items()}
    positions = dict.fromkeys(inputs, 0)
    states = {tp: _Counts() for tp in inputs}
    watch = Stopwatch()
    while left := {tp: at for tp, at in positions.items() if at < ends[tp]}:
        for tp, fetched in log.broker.fetch(left, max_bytes=FETCH_BYTES).items():
            for batch in fetched.batches:
                states[tp].add(batch)
            positions[tp] = fetched.next_offset
        if watch.seconds > COMMIT_INTERVAL_S:
            _commit(producer, states, positions)
            watch = Stopwatch()
    _commit(producer, states, positions)
    return states


def _commit(
    producer: Producer,
    states: dict[TopicPartition, _Counts],
    positions: dict[TopicPartition, int],
) -> None:
    now_ms = SystemClock().now_ms()
    changed = {tp: state.take_changed(now_ms) for tp, state in states.items()}
    producer.begin_transaction()
    producer.append_batches(
        (TopicPartition(name, tp.partition), records, 0)
        for tp, records in changed.items()
        if records is not None
        for name in OUTPUTS
    )
    offsets = {tp: CommittedOffset(at) for tp, at in positions.items()}
    producer.send_offsets_to_transaction(offsets, "loop")
    producer.commit_transaction()


def _packed(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return numbers of at most 32 bits as MessagePack."""
    count = len(numbers)
    data: Any = np.empty((count, _INT_BYTES), np.uint8)
    data[:, 0] = 0xCE
    data[:, 1:] = numbers.astype(">u4").view(np.uint8).reshape(count, 4)
    offsets = np.arange(count + 1, dtype=np.int32) * _INT_BYTES
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
