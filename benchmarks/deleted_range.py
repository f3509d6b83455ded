"""Scans over a range of keys that was deleted, and the cost of its deletion.

A store in RocksDB has 200,000 keys under one prefix and as many under another. The
first are deleted by `delete_prefix` and committed. Then the prefix is scanned, as a window task does
that looks for what is left. The peer is the same scan over a prefix that never had a key.

The second figure is the deletion itself, with its commit and checkpoint. Its peer deletes the keys
of a scan one by one.

The third figure is a store used as a queue: each step puts a job at the end and takes the first one.
The last of 50,000 steps between two checkpoints are compared with the first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Figure, Stopwatch, folder, of_pairs
from strandline.statestore import PartitionStore, StoreSpec, open_store

MEASURED_SCANS = 100
STEPS_PER_COMMIT = 100


def run(*, quick: bool = False) -> list[Figure]:
    """Measure a scan (target: 3 × that of an empty prefix) and a deletion (target: 1 × each)."""
    keys, rounds = (20_000, 1) if quick else (200_000, 5)
    scans, deletions, queues = [], [], []
    for _ in range(rounds):
        queues.append(_queue_us(keys // 4))
        with _filled(keys) as store:
            by_range = _seconds(lambda: _delete(store, by_range=True))
            scans.append((_scan_us(store, "deleted"), _scan_us(store, "never")))
        with _filled(keys) as store:
            deletions.append((by_range, _seconds(lambda: _delete(store, by_range=False))))
    return [
        of_pairs(
            f"scan of a prefix whose {keys:,} keys were deleted",
            scans,
            peer_name="a prefix without keys",
            unit="µs",
            target=None if quick else 3.0,
            at_most=True,
        ),
        of_pairs(
            f"deletion of {keys:,} keys by prefix, with commit and checkpoint",
            deletions,
            peer_name="one by one",
            unit="s",
            target=None if quick else 1.0,
            at_most=True,
        ),
        of_pairs(
            f"a step of a queue after {keys // 4:,} steps",
            queues,
            peer_name="the first steps",
            unit="µs",
            target=None if quick else 1.5,
            at_most=True,
        ),
    ]


@contextmanager
def _filled(keys: int) -> Iterator[PartitionStore[Any, Any]]:
    """Open a store with `keys` keys that will be deleted, and as many that will not."""
    spec: StoreSpec[Any, Any] = StoreSpec("windows", key=tuple[str, int], value=int)
    with folder() as path:
        store = open_store(spec, path / "store")
        for number in range(keys):
            store["deleted", number] = number
            store["kept", number] = number
        _commit(store)
        yield store
        store.close()


def _queue_us(steps: int) -> tuple[float, float]:
    """Return the µs of a step after `steps` of them, and of the first ones."""
    measured = steps // 10
    with folder() as path:
        spec: StoreSpec[Any, Any] = StoreSpec("queue", key=int, value=int)
        store = open_store(spec, path / "store")
        for number in range(1_000):
            store[number] = number
        first = _seconds(lambda: _take(store, range(1_000, 1_000 + measured)))
        _take(store, range(1_000 + measured, 1_000 + steps))
        last = _seconds(lambda: _take(store, range(1_000 + steps, 1_000 + steps + measured)))
        store.close()
    return 1e6 * last / measured, 1e6 * first / measured


def _take(store: PartitionStore[Any, Any], numbers: range) -> None:
    """Put each number at the end of a queue, and take its first one."""
    for number in numbers:
        store[number] = number
        del store[next(store.all())[0]]
        if number % STEPS_PER_COMMIT == 0:
            _commit(store, checkpoint=False)


def _commit(store: PartitionStore[Any, Any], *, checkpoint: bool = True) -> None:
    """Commit without a log, so that the state alone is measured, and write a checkpoint."""
    assert store.drain() is not None
    store.committed(store.position.offset + 1 if store.position else 1, 0)
    if checkpoint:
        store.checkpoint()


def _delete(store: PartitionStore[Any, Any], *, by_range: bool) -> None:
    if by_range:
        store.delete_prefix(("deleted",))
    else:
        for key, _ in store.prefix(("deleted",)):
            del store[key]
    _commit(store)


def _scan_us(store: PartitionStore[Any, Any], prefix: str) -> float:
    def scan() -> None:
        for _ in range(MEASURED_SCANS):
            assert not list(store.prefix((prefix,)))

    return _seconds(scan) / MEASURED_SCANS * 1e6


def _seconds(work: Callable[[], None]) -> float:
    watch = Stopwatch()
    work()
    return watch.seconds
