"""Checkpoints of many stores take turns, so that no commit takes all of them."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.changelog.clock import ManualClock
from strandline.framework.container import commit
from strandline.framework.container.commit import checkpoint_if_due
from strandline.statestore import PartitionStore, StoreSpec, open_store
from strandline.statestore.spec import StoreLimits

INTERVAL_MS = 30_000
LIMITS = StoreLimits(checkpoint_interval_ms=INTERVAL_MS, overlay_bytes=100_000)
SPEC: StoreSpec[str, bytes] = StoreSpec("s", key=str, value=bytes, limits=LIMITS)


def changed(store: PartitionStore[str, bytes], nbytes: int, offset: int) -> None:
    store.put(f"{offset:04}", bytes(nbytes))
    store.drain()
    store.committed(offset)


@pytest.mark.parametrize(("takes_ms", "at_once"), [(60, 1), (30, 2), (15, 4), (0, 8)])
def test_stores_whose_interval_is_over_take_turns(
    takes_ms: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "CHECKPOINT_S", 0.05)
    clock = ManualClock()
    checkpoint, order = PartitionStore.checkpoint, []

    def slow(store: PartitionStore[Any, Any]) -> int:
        clock.advance(takes_ms)
        order.append(store)
        return checkpoint(store)

    monkeypatch.setattr(PartitionStore, "checkpoint", slow)
    stores = [open_store(SPEC, clock=clock) for _ in range(8)]
    for store in stores:
        changed(store, 10, 1)
    checkpoint_if_due(stores, clock)
    assert order == []
    clock.advance(INTERVAL_MS)
    for number in range(1, 8 // at_once + 1):
        for store in stores:
            changed(store, 10, 1 + number)
        checkpoint_if_due(stores, clock)
        assert len(order) == number * at_once
    assert sorted(map(id, order)) == sorted(map(id, stores))


def test_stores_that_need_memory_do_not_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    checkpoint, order = PartitionStore.checkpoint, []

    def slow(store: PartitionStore[Any, Any]) -> int:
        clock.advance(1_000)
        order.append(store)
        return checkpoint(store)

    monkeypatch.setattr(PartitionStore, "checkpoint", slow)
    stores = [open_store(SPEC, clock=clock) for _ in range(6)]
    clock.advance(INTERVAL_MS)
    for number, store in enumerate(stores):
        changed(store, 200_000 if number >= 4 else 10, 1)
    checkpoint_if_due(stores, clock)
    assert order == [stores[0], *stores[4:]]
