"""A log of Strandline with records to clean: filled, and checked after it was cleaned.

It is the changelog of a store, one partition, so that the store can be restored from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import Stopwatch, folder
from benchmarks.keyed_records import SEGMENT_BYTES, SEGMENT_MS, KeyedRecords
from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.layout import partition_folder
from strandline.changelog.records import Batch, TopicPartition
from strandline.statestore import StoreSpec, open_store
from strandline.statestore.serdes import Bytes
from strandline.statestore.spec import changelog_topic

STORE = "latest"
CHANGELOG = TopicPartition(changelog_topic("cleaning", STORE), 0)

ROCKSDB: StoreSpec[str, bytes] = StoreSpec(STORE, key=str, value=Bytes())
MEMORY: StoreSpec[str, bytes] = StoreSpec(STORE, key=str, value=Bytes(), engine="memory")

_CONFIG = {
    "cleanup.policy": "compact",
    # never by itself: cleaning is requested when it is measured
    "min.cleanable.dirty.ratio": "1.0",
    "segment.bytes": str(SEGMENT_BYTES),
    "segment.ms": str(SEGMENT_MS),
    "file.delete.delay.ms": "0",
}


def fill(path: Path, records: KeyedRecords) -> int:
    """Create a log at `path` with `records`, not cleaned. Return the bytes that can be cleaned."""
    with changelog.open(path, role="own", durability="os") as log:
        log.create_topic(CHANGELOG.topic, 1, config=_CONFIG)
        with log.producer() as producer:
            for batch in records.batches():
                producer.append_batch(*CHANGELOG, batch)
            producer.append_batch(*CHANGELOG, records.closing)
        segments = path / partition_folder(log.topic(CHANGELOG.topic).topic_id, 0)
        *closed, _active = sorted(segments.glob("*.log"))
        return sum(file.stat().st_size for file in closed)


def check_cleaned(path: Path, records: KeyedRecords) -> None:
    """Assert that only the last record of each key is left, at its offset."""
    with changelog.open(path, role="own") as log:
        offsets = [_offsets(batch) for batch in _batches(log.broker)]
        found = np.concatenate(offsets)
    expected = np.append(records.survivors, records.count)
    assert np.array_equal(found, expected), f"{len(found)} records left, not {len(expected)}"


def restore_seconds(path: Path, spec: StoreSpec[str, bytes], expected: int) -> float:
    """Restore a lost store from the log at `path`, with `expected` records. Return the seconds."""
    with changelog.open(path, role="own") as log, folder() as place:
        store = open_store(spec, place / "0")
        watch = Stopwatch()
        restored = store.restore(log.broker, CHANGELOG)
        seconds = watch.seconds
        assert restored.records == expected, (restored.records, expected)
        assert store["last"] is not None
        store.close()
        return seconds


def _batches(broker: Broker) -> Iterator[Batch]:
    position, end = 0, broker.offsets([CHANGELOG])[CHANGELOG].last_stable_offset
    while position < end:
        fetched = broker.fetch({CHANGELOG: position})[CHANGELOG]
        yield from fetched.batches
        position = fetched.next_offset


def _offsets(batch: Batch) -> pa.Int64Array:
    """Return the offsets of a batch, after checking its first and last value."""
    for row in (0, len(batch) - 1):
        offset, value = batch.offsets[row].as_py(), batch.columns["value"][row].as_py()
        assert value[:12] in (b"%012d" % offset, b"x" * 12), (offset, value)
    return batch.offsets
