"""Let eight producers write to one partition, against one: correctness, fairness, and throughput.

Producers are processes attached to the log, which this process owns. Each appends as many batches
of 1,000 records as it can in the time, one acknowledged before the next. A record holds its
producer's number and its own. Afterwards the partition is read: each number of every producer is
there once, and in order.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import Figure, compare, folder, of_pairs
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from strandline.changelog.records import columns_schema

MANY_PRODUCERS = 8
BATCH_RECORDS = 1_000
PADDING_BYTES = 84
BOUND_SECONDS = 120.0


def run(*, quick: bool = False) -> list[Figure]:
    """Measure records per second of all producers, and compare the slowest with the fastest.

    The target is 0.7 of the rate of a single producer.
    """
    seconds, rounds = (1.0, 2) if quick else (4.0, 5)
    shares: list[list[int]] = []
    total = compare(
        f"{MANY_PRODUCERS} producers to one partition",
        partial(_rate, MANY_PRODUCERS, seconds, shares),
        partial(_rate, 1, seconds, []),
        peer_name="1 producer",
        unit="records/s",
        target=0.7,
        rounds=rounds,
        warm_up=False,
    )
    fair = of_pairs(
        f"{MANY_PRODUCERS} producers to one partition: the slowest",
        [(float(min(share)), float(max(share))) for share in shares],
        peer_name="the fastest",
        unit="records",
    )
    return [total, fair]


def _rate(producers: int, seconds: float, shares: list[list[int]]) -> float:
    context = multiprocessing.get_context("spawn")
    with folder() as path, changelog.open(path / "log", role="own") as log:
        log.create_topic("t", 1)
        start = context.Barrier(producers)
        processes = [
            context.Process(target=_produce, args=(path / "log", number, seconds, start))
            for number in range(producers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(BOUND_SECONDS)
            assert process.exitcode == 0, f"a producer ended with {process.exitcode}"
        share = _checked(log, producers)
    shares.append(share)
    return sum(share) / seconds


def _produce(path: Path, number: int, seconds: float, start: Barrier) -> None:
    with changelog.open(path) as log, log.producer() as producer:
        producer.append_batch("t", 0, _batch(number, 0))  # imports everything
        made = BATCH_RECORDS
        start.wait(BOUND_SECONDS)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            producer.append_batch("t", 0, _batch(number, made))
            made += BATCH_RECORDS


def _batch(number: int, first: int) -> pa.RecordBatch:
    """Return records whose values are the producer, the record's number, and padding."""
    rows = np.zeros((BATCH_RECORDS, 2 + PADDING_BYTES // 8), dtype=np.int64)
    rows[:, 0], rows[:, 1] = number, np.arange(first, first + BATCH_RECORDS)
    width = rows.shape[1] * 8
    buffers = [None, pa.py_buffer(rows.tobytes())]
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), BATCH_RECORDS, buffers)
    now = pa.array(np.full(BATCH_RECORDS, SystemClock().now_ms()))
    keys = pa.nulls(BATCH_RECORDS, pa.binary())
    schema = columns_schema(pa.binary(), headers=False)
    return pa.RecordBatch.from_arrays([now, keys, values.cast(pa.binary())], schema=schema)


def _checked(log: Log, producers: int) -> list[int]:
    """Return the number of records of each producer, after checking that all are there, in
    order."""
    values = log.read("t")["value"].combine_chunks()
    rows = np.frombuffer(b"".join(values.to_pylist()), dtype=np.int64).reshape(len(values), -1)
    counts: Sequence[int] = []
    for number in range(producers):
        mine = rows[rows[:, 0] == number, 1]
        assert (mine == np.arange(len(mine))).all(), f"producer {number}: lost, doubled or moved"
        counts = [*counts, len(mine) - BATCH_RECORDS]
    return list(counts)
