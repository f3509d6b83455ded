"""Restore a lost store into RocksDB from its changelog, against a bare ingest of a sorted file.

Ours: a partition's folder is lost, and `PartitionStore.restore` reads the changelog (committed
transactions, keys in random order), reduces it to the last record of each key, sorts, writes and
ingests. The limit: the same encoded keys and values, sorted beforehand, are written with
rocksdict's SstFileWriter into one file that is moved into an empty database. Its options are
RocksDB's defaults, as a bare program has them (no Bloom filter); ours are the store's. Opening the
databases and filling the log are not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import rocksdict

from benchmarks.harness import Figure, Stopwatch, compare, folder
from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from strandline.statestore import ChangelogBatch, StoreSpec, key_codec, open_store, value_serde

TRANSACTION_RECORDS = 50_000
REPEATS = 10
"""Number of records per key in the second changelog."""

SPEC: StoreSpec[str, int] = StoreSpec("counts", key=str, value=int)


def run(*, quick: bool = False) -> list[Figure]:
    """Measure records per second: one record per key (target: 0.5 of the bare ingest), and ten."""
    count = 200_000 if quick else 2_000_000
    rounds = 3 if quick else 5
    with folder() as path, changelog.open(path, durability="os") as log:
        once = _fill(log, "once", keys=count, repeats=1)
        often = _fill(log, "often", keys=count // REPEATS, repeats=REPEATS)
        keys, values = (column.to_pylist() for column in _content(range(count)))

        def restore(partition: TopicPartition) -> float:
            return _restore(log.broker, partition, count)

        return [
            compare(
                f"restore, {count:,} keys",
                lambda: restore(once),
                lambda: _ingest(keys, values),
                peer_name="a bare SST ingest",
                unit="records/s",
                target=0.5,
                rounds=rounds,
            ),
            compare(
                f"restore, {count // REPEATS:,} keys, {REPEATS} records each",
                lambda: restore(often),
                lambda: restore(once),
                peer_name="restore, 1 record per key",
                unit="records/s",
                rounds=rounds,
            ),
        ]


def _fill(log: Log, store: str, *, keys: int, repeats: int) -> TopicPartition:
    """Write a changelog in which each key comes `repeats` times, with its number as the last
    value."""
    partition = TopicPartition(SPEC.changelog_topic(store), 0)
    log.create_topic(partition.topic, 1, config={"cleanup.policy": "compact"})
    chance = np.random.default_rng(0)
    order = np.concatenate([chance.permutation(keys) for _ in range(repeats)]).tolist()
    now = SystemClock().now_ms()
    with log.producer(transactional_id=store) as producer:
        for start in range(0, len(order), TRANSACTION_RECORDS):
            content = _content(order[start : start + TRANSACTION_RECORDS])
            with producer.transaction():
                producer.append_batch(*partition, ChangelogBatch(*content).columns(now))
    return partition


def _content(numbers: Any) -> tuple[pa.Array, pa.Array]:
    """Return encoded keys and values, as the store writes them."""
    dumps = value_serde(SPEC.value).dumps
    keys = key_codec(SPEC.key).encode_all([f"user-{n:07d}" for n in numbers])
    return keys, pa.array([dumps(n) for n in numbers], pa.binary())


def _restore(broker: Broker, partition: TopicPartition, count: int) -> float:
    with folder() as path:
        store = open_store(SPEC, path / "0")
        watch = Stopwatch()
        restored = store.restore(broker, partition)
        rate = count / watch.seconds
        assert restored.records == count, (restored.records, count)
        assert restored.plan.action == "fresh"
        assert store["user-0000007"] == 7
        store.close()
        return rate


def _ingest(keys: list[bytes], values: list[bytes]) -> float:
    with folder() as path:
        database = rocksdict.Rdict(str(path / "db"), _options())
        watch = Stopwatch()
        _write(path / "sorted.sst", keys, values)
        moving = rocksdict.IngestExternalFileOptions()
        moving.set_move_files(True)
        database.ingest_external_file([str(path / "sorted.sst")], moving)
        rate = len(keys) / watch.seconds
        assert database[keys[7]] == values[7]
        database.close()
        return rate


def _write(path: Path, keys: list[bytes], values: list[bytes]) -> None:
    file = rocksdict.SstFileWriter(_options())
    file.open(str(path))
    for key, value in zip(keys, values, strict=True):  # faster than a loop in C over __setitem__
        file[key] = value
    file.finish()


def _options() -> rocksdict.Options:
    return rocksdict.Options(raw_mode=True)
