"""Produce and consume in an attached process, against the same in the owner's process.

This process owns the log; a second one attaches to it over the Unix socket. Both make the same
calls: a plain producer appends Arrow batches to 4 partitions, 8 MiB a call, each call acknowledged
before the next; a consumer polls all of it. The default durability is measured, where an
acknowledged append has been through fsync. Durability "os" is reported too, because without the
disk the cost of the socket shows fully. Consuming as from another machine is reported as well:
records are sent over the same socket, without a network.
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

from benchmarks.harness import Figure, Stopwatch, compare, folder
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.flight import endpoint as endpoints
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition, columns_schema
from strandline.changelog.storage import Durability

PARTITIONS = 4
CALL_BYTES = 8 << 20
RECORD_BYTES = 100
"""Bytes per record: 8 of key, 84 of value, 8 of timestamp."""

Work = Callable[[Log, int], float]
"""Function that processes a number of calls' worth of records and returns MB/s."""
Case = tuple[str, Work, bool, float | None]
"""Name, work, True if the log's files are out of reach, target."""


def run(*, quick: bool = False) -> list[Figure]:
    """Measure MB/s produced and consumed (target: 0.5 of the owner's, each)."""
    calls, rounds = (8, 3) if quick else (32, 7)
    durable: list[Case] = [
        ("produce", _produce, False, 0.5),
        ("consume", _consume, False, 0.5),
        ("consume, records sent", _consume, True, None),
    ]
    quick_ack: list[Case] = [("produce, durability os", _produce, False, None)]
    return [
        *_figures("fsync", durable, calls, rounds),
        *_figures("os", quick_ack, calls, rounds),
    ]


def _figures(durability: Durability, cases: list[Case], calls: int, rounds: int) -> list[Figure]:
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
                partial(attached, work, calls, afar),
                partial(work, log, calls),
                peer_name="the owner itself",
                unit="MB/s",
                target=target,
                rounds=rounds,
            )
            for name, work, afar, target in cases
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
    """Return one partition's part of a call."""
    count = CALL_BYTES // PARTITIONS // RECORD_BYTES
    now = pa.array(np.full(count, SystemClock().now_ms()))
    schema = columns_schema(pa.binary(), headers=False)
    return pa.RecordBatch.from_arrays([now, _noise(8, count), _noise(84, count)], schema=schema)


def _noise(width: int, count: int) -> pa.Array:
    buffer = pa.py_buffer(os.urandom(width * count))
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, buffer])
    return fixed.cast(pa.binary())


def _records(calls: int) -> int:
    return CALL_BYTES // PARTITIONS // RECORD_BYTES * PARTITIONS * calls


def _megabytes(calls: int) -> float:
    return _records(calls) * RECORD_BYTES / 1e6


# The other process -------------------------------------------------------------------


class _Attached:
    """Logs of the attached process: one that reads the files, one that is sent the records."""

    log: Log
    afar: Log


@contextmanager
def _attached(path: Path) -> Iterator[Callable[[Work, int, bool], float]]:
    """Start a second process attached to the log. Yield a function that runs work in it."""
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_attach, initargs=(path,)
    ) as process:
        yield lambda work, calls, afar: process.submit(_do, work, calls, afar).result()
        process.submit(_detach).result()


def _attach(path: Path) -> None:
    _Attached.log = changelog.open(path)
    endpoint = endpoints.read(path)
    assert endpoint is not None
    _Attached.afar = Log(
        FlightBroker(ConnectionTarget(endpoint.location, endpoint.token, str(path)))
    )


def _do(work: Work, calls: int, afar: bool) -> float:
    return work(_Attached.afar if afar else _Attached.log, calls)


def _detach() -> None:
    _Attached.afar.close()
    _Attached.log.close()
