"""Append Arrow batches in transactions, against writing the same bytes with fdatasync."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import Figure, Stopwatch, compare, folder
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import Append

PARTITIONS = 4
RECORD_BYTES = 100
"""Bytes per record: 8 of key, 84 of value, 8 of timestamp."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure transactions of 8 MiB (target: 0.6 of the disk), and of 64 KiB."""
    rounds = 3 if quick else 7
    return [
        _figure("append, 8 MiB a transaction", 8 << 20, 24, 0.6, rounds),
        _figure("append, 64 KiB a transaction", 64 << 10, 200, None, rounds),
    ]


def _figure(name: str, size: int, count: int, target: float | None, rounds: int) -> Figure:
    batch = _batch(size // PARTITIONS)
    return compare(
        name,
        lambda: _append(batch, count),
        lambda: _write(size, count),
        peer_name="write + fdatasync",
        unit="MB/s",
        target=target,
        rounds=rounds,
    )


def _batch(size: int) -> pa.RecordBatch:
    count = size // RECORD_BYTES
    return pa.record_batch(
        {
            "timestamp": pa.array(np.full(count, 1_700_000_000_000)),
            "key": _noise(8, count),
            "value": _noise(84, count),
        }
    )


def _noise(width: int, count: int) -> pa.Array:
    buffer = pa.py_buffer(os.urandom(width * count))
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, buffer])
    return fixed.cast(pa.binary())


def _append(batch: pa.RecordBatch, count: int) -> float:
    with folder() as path:
        owner = Owner(LocalStorage(path))
        owner.create_topic("t", PARTITIONS)
        producer = owner.init_producer("bench", timeout_ms=600_000)
        watch = Stopwatch()
        for _ in range(count):
            owner.append(
                [Append("t", p, batch, producer, 0, transactional=True) for p in range(PARTITIONS)]
            )
            producer = owner.end_transaction(producer, commit=True)
        rate: float = batch.nbytes * PARTITIONS * count / watch.seconds / 1e6
        owner.close()
        return rate


def _write(size: int, count: int) -> float:
    content = os.urandom(size)
    with folder() as path:
        descriptor = os.open(Path(path) / "raw", os.O_WRONLY | os.O_CREAT)
        watch = Stopwatch()
        for _ in range(count):
            os.write(descriptor, content)
            os.fdatasync(descriptor)
        rate = size * count / watch.seconds / 1e6
        os.close(descriptor)
        return rate
