"""The memory budget of a process is divided among the store partitions in use."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import InvalidConfig
from strandline.framework.options import Options
from strandline.statestore import PartitionStore, StoreSpec, open_store
from strandline.statestore import memory as memory_module
from strandline.statestore.cache import ENTRY_BYTES
from strandline.statestore.engines import rocksdb_options
from strandline.statestore.memory import IN_USE_S, MIN_MEMORY_BYTES, MemoryBudget, StoreShare
from strandline.statestore.spec import StoreLimits
from tests.forms import by_form

Store = PartitionStore[str, bytes]
VALUE = b"v" * 1_000
UNLIMITED = StoreLimits(cache_bytes=1 << 40, overlay_bytes=1 << 40)


def small_budget(monkeypatch: pytest.MonkeyPatch, *, cache_bytes: int) -> MemoryBudget:
    monkeypatch.setattr(memory_module, "MIN_MEMORY_BYTES", 16)
    return MemoryBudget(cache_bytes * 16 // 5)


def stores_of(
    budget: MemoryBudget, count: int, clock: ManualClock, limits: StoreLimits = UNLIMITED
) -> list[Store]:
    spec: StoreSpec[str, bytes] = StoreSpec("s", key=str, value=bytes, limits=limits)
    return [open_store(spec, clock=clock, memory=budget) for _ in range(count)]


def put(store: Store, keys: range, offset: int) -> None:
    """Put and commit values."""
    for key in keys:
        store.put(f"{key:08}", VALUE)
    store.drain()
    store.committed(offset)


def test_the_parts_are_the_whole() -> None:
    for total in (MIN_MEMORY_BYTES, 1 << 30, (1 << 33) + 16):
        budget = MemoryBudget(total)
        parts = [
            *(budget.cache_bytes, budget.overlay_bytes, 2 * budget.uncommitted_bytes),
            *(budget.input_bytes, budget.block_cache_bytes, budget.memtable_bytes),
        ]
        assert sum(parts) == total


def test_stores_in_use_share_the_budget_and_keep_to_their_own_limits() -> None:
    clock = ManualClock()
    budget = MemoryBudget(1 << 30)
    stores = stores_of(budget, 4, clock)
    own = stores_of(budget, 1, clock, StoreLimits(cache_bytes=1_000, overlay_bytes=10**9))[0]
    for store in [*stores[:3], own]:
        put(store, range(10), 1)
    budget.divide([*stores, own], clock.monotonic())
    # Less what the limit of the fourth leaves to the others.
    assert sum(store._share.cache_bytes for store in stores[:3]) == budget.cache_bytes - 1_000
    assert {store._share.overlay_bytes for store in stores[:3]} == {budget.share(4).overlay_bytes}
    assert stores[3]._share == budget.share(1)  # not in use, and there is room
    assert own._cache.nbytes <= 1_000
    assert stores[0]._cache.nbytes > 10_000


@pytest.mark.parametrize("seed", range(by_form(2, 5)))
def test_caches_and_changes_of_many_stores_stay_within_the_budget(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "MIN_MEMORY_BYTES", 16)
    chance, clock = random.Random(seed), ManualClock()
    budget = MemoryBudget(4 << 20)
    stores = stores_of(budget, 32, clock)
    offset = 0
    for _ in range(60):
        busy = chance.sample(stores, chance.choice([1, 3, 32]))
        for _ in range(5):
            for store in busy:
                start = chance.randrange(1_000)
                offset += 1
                put(store, range(start, start + 5), offset)
                _ = [store.get(f"{chance.randrange(1_000):08}") for _ in range(5)]
            clock.advance(400)
            budget.divide(stores, clock.monotonic())
            for store in stores:
                if store.needs_checkpoint:
                    store.checkpoint()
        clock.advance(chance.choice([0, 3_000]))
        budget.divide(stores, clock.monotonic())
    # The changes of one second may come on top.
    second = 32 * 3 * 10 * (len(VALUE) + ENTRY_BYTES)
    assert sum(store.cached_bytes for store in stores) <= budget.cache_bytes + second
    assert sum(store.pending_bytes for store in stores) <= budget.overlay_bytes + second


def test_stores_that_are_not_used_give_their_memory_up_when_others_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    budget = small_budget(monkeypatch, cache_bytes=500_000)
    one, other = stores_of(budget, 2, clock)
    put(one, range(300), 1)
    budget.divide([one, other], clock.monotonic())
    assert one.cached_bytes > 300_000
    clock.advance(int(IN_USE_S * 1_000) + 1_000)
    budget.divide([one, other], clock.monotonic())
    assert one.cached_bytes > 300_000  # no other store needs it
    put(other, range(400), 1)
    budget.divide([one, other], clock.monotonic())
    clock.advance(1_000)
    budget.divide([one, other], clock.monotonic())
    assert one.cached_bytes == 0
    assert other.cached_bytes > 300_000
    assert one["00000007"] == VALUE


def test_uncommitted_changes_survive_a_store_that_shrinks() -> None:
    [store] = stores_of(MemoryBudget(), 1, ManualClock())
    put(store, range(10), 1)
    store.put("new", b"1")
    store.shrink()
    store.limit(StoreShare(0, 0))
    assert (store["new"], store["00000003"]) == (b"1", VALUE)
    store.discard()
    store.shrink()
    assert store.cached_bytes == 0
    assert (store.get("new"), store["00000003"]) == (None, VALUE)


def test_a_fetch_takes_less_of_each_partition_if_there_are_many() -> None:
    budget = MemoryBudget(1 << 30)
    most = 4 << 20
    assert budget.fetch_bytes(1, most) == budget.fetch_bytes(32, most) == most
    assert budget.fetch_bytes(1_024, most) * 1_024 == budget.input_bytes
    assert budget.fetch_bytes(10**6, most) == 64 << 10


def test_chunks_of_a_restore_fit_a_small_budget() -> None:
    assert MemoryBudget(64 << 20).chunk_bytes == 4 << 20
    assert MemoryBudget(1 << 40).chunk_bytes == 64 << 20


@pytest.mark.parametrize("memory", [0, -1, MIN_MEMORY_BYTES - 1, 2**70, 1.5, "1 GiB", True])
def test_a_memory_that_is_none_is_refused(memory: object) -> None:
    with pytest.raises(InvalidConfig, match=f"memory must be a whole number from {64 << 20}"):
        sl.App("app", memory=memory)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="memory must be"):
        Options(memory=memory)  # type: ignore[arg-type]


def test_an_app_with_little_memory_has_the_same_results(tmp_path: Path) -> None:
    before = (
        rocksdb_options.SharedMemory.block_cache_bytes,
        rocksdb_options.SharedMemory.memtable_bytes,
    )
    app = sl.App("app", log=tmp_path / "log", memory=64 << 20, durability="os")
    words = app.topic("words", key=str, value=int, partitions=8)
    seen = app.store("seen", key=str, value=bytes)

    @app.task(words, stores=[seen])
    def keep(record: sl.Record[str, int]) -> None:
        seen.put(record.key, (seen.get(record.key) or b"") + bytes([record.value]) * 40_000)

    try:
        with app:
            words.append([(f"{key}", n) for n in range(3) for key in range(300)])
            app.run(until="idle", progress=False)
            assert rocksdb_options.SharedMemory.block_cache_bytes == 8 << 20
            assert rocksdb_options.SharedMemory.memtable_bytes == 4 << 20
            query = app.query(seen)
            for key in range(0, 300, 50):
                assert query[f"{key}"] == b"".join(bytes([n]) * 40_000 for n in range(3))
    finally:
        rocksdb_options.configure_memory(block_cache_bytes=before[0], memtable_bytes=before[1])
