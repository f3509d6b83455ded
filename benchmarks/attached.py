"""Producing and consuming from an attached process, against the same in the owner's process.

This process owns the log; a second one attaches to it over the Unix socket. Both do the same
with the same calls: append Arrow batches to 4 partitions, 8 MiB a call, each call acknowledged
before the next, by a plain producer; and poll all of it. Measured with the default durability,
where an acknowledged append has been through fsync. With durability "os" there is no disk in
which the socket's part could hide, so that is reported too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

import changelog
from benchmarks.harness import Figure, Stopwatch, compare, folder
from changelog.clock import SystemClock
from changelog.embedded.environment import Durability
from changelog.log import Log
from changelog.records import TopicPartition, columns_schema

PARTITIONS = 4
CALL_BYTES = 8 << 20
RECORD = 100
"""Bytes: 8 of key, 84 of value, 8 of timestamp."""

Work = Callable[[Log, int], float]
"""Does something with so many calls' worth of records and returns MB/s."""


def run(*, quick: bool = False) -> list[Figure]:
    """MB/s produced and consumed (target: 0.5 of the owner's, each)."""
    calls, rounds = (8, 3) if quick else (32, 7)
    return [
        *_figures("fsync", [("produce", _produce, 0.5), ("consume", _consume, 0.5)], calls, rounds),
        *_figures("os", [("produce, durability os", _produce, None)], calls, rounds),
    ]


def _figures(
    durability: Durability, works: list[tuple[str, Work, float | None]], calls: int, rounds: int
) -> list[Figure]:
    with (
        folder() as path,
        changelog.open(path, role="own", durability=durability) as log,
        _attached(path) as attached,
    ):
        log.create_topic("consumed", PARTITIONS)
        _append(log, "consumed", calls)
        return [
            compare(
                f"attached: {name}",
                partial(attached, work, calls),
                partial(work, log, calls),
                peer_name="the owner itself",
                unit="MB/s",
                target=target,
                rounds=rounds,
            )
            for name, work, target in works
        ]


def _produce(log: Log, calls: int) -> float:
    log.create_topic("produced", PARTITIONS)
    rate = _append(log, "produced", calls)
    ends = log.offsets("produced").values()
    assert sum(end.last_stable_offset for end in ends) == _records(calls)
    log.delete_topic("produced")
    return rate


def _append(log: Log, topic: str, calls: int) -> float:
    batch = _batch()
    with log.producer() as producer:
        watch = Stopwatch()
        for _ in range(calls):
            producer.append_batches(
                [(TopicPartition(topic, p), batch, 0) for p in range(PARTITIONS)]
            )
        return _megabytes(calls) / watch.seconds


def _consume(log: Log, calls: int) -> float:
    with log.consumer() as consumer:
        consumer.subscribe("consumed")
        left = _records(calls)
        watch = Stopwatch()
        while left > 0:
            batches = consumer.poll(timeout=10)
            assert batches, f"{left} records did not come"
            left -= sum(map(len, batches))
        rate = _megabytes(calls) / watch.seconds
        assert left == 0
        return rate


def _batch() -> pa.RecordBatch:
    """One partition's part of a call."""
    count = CALL_BYTES // PARTITIONS // RECORD
    now = pa.array(np.full(count, SystemClock().now_ms()))
    schema = columns_schema(pa.binary(), headers=False)
    return pa.RecordBatch.from_arrays([now, _noise(8, count), _noise(84, count)], schema=schema)


def _noise(width: int, count: int) -> pa.Array:
    buffer = pa.py_buffer(os.urandom(width * count))
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, buffer])
    return fixed.cast(pa.binary())


def _records(calls: int) -> int:
    return CALL_BYTES // PARTITIONS // RECORD * PARTITIONS * calls


def _megabytes(calls: int) -> float:
    return _records(calls) * RECORD / 1e6


# The other process -------------------------------------------------------------------


class _Attached:
    """The log of the other process, opened once."""

    log: Log


@contextmanager
def _attached(path: Path) -> Iterator[Callable[[Work, int], float]]:
    """A second process, attached to the log; what to call to have it do some work."""
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_attach, initargs=(path,)
    ) as process:
        yield lambda work, calls: process.submit(_do, work, calls).result()
        process.submit(_detach).result()


def _attach(path: Path) -> None:
    _Attached.log = changelog.open(path)


def _do(work: Work, calls: int) -> float:
    return work(_Attached.log, calls)


def _detach() -> None:
    _Attached.log.close()
