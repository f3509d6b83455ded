"""Scans over a range of keys that was deleted, and the cost of its deletion.

A store in RocksDB has 200,000 keys under one prefix and as many under another. The
first are deleted by `delete_prefix` and committed. Then the prefix is scanned, as a window task does
that looks for what is left. The peer is the same scan over a prefix that never had a key.

The second figure is the deletion itself, with its commit and checkpoint. Its peer deletes the keys
of a scan one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Figure, Stopwatch, folder, of_pairs
from strandline.statestore import PartitionStore, StoreSpec, open_store

MEASURED_SCANS = 100


def run(*, quick: bool = False) -> list[Figure]:
    """Measure a scan (target: 3 × that of an empty prefix) and a deletion (target: 1 × each)."""
    keys, rounds = (20_000, 1) if quick else (200_000, 5)
    scans, deletions = [], []
    for _ in range(rounds):
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


def _commit(store: PartitionStore[Any, Any]) -> None:
    """Commit without a log, so that the state alone is measured, and write a checkpoint."""
    assert store.drain() is not None
    store.committed(store.position.offset + 1 if store.position else 1, 0)
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
