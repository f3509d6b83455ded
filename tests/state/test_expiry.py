"""The sweeper: expired values are removed soon, and a commit looks only at zones that are due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from strandline.changelog.clock import ManualClock
from strandline.statestore import StoreSpec, open_store
from strandline.statestore.engine import Entry
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.expiry import KEYS_PER_COMMIT, VISITS_PER_TTL, ZONE_KEYS, Sweeper
from strandline.statestore.store import PartitionStore

TTL_MS = 60_000
STEP_MS = TTL_MS // 20


class ScannedEngine(MemoryEngine):
    """Engine in memory that counts its scans."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = 0

    def scan(self, lower: bytes, upper: bytes | None, *, reverse: bool) -> Iterator[Entry]:
        self.scans += 1
        return super().scan(lower, upper, reverse=reverse)


@pytest.fixture
def engine() -> ScannedEngine:
    return ScannedEngine()


Store = PartitionStore[str, int]


@pytest.fixture
def store(engine: ScannedEngine, clock: ManualClock) -> Store:
    return opened(engine, clock)


def opened(engine: MemoryEngine, clock: ManualClock) -> Store:
    return open_store(StoreSpec("s", value=int, ttl_ms=TTL_MS), clock=clock, engine=engine)


def commit(store: Store, end: int = 1) -> int:
    """Commit, and return the number of keys in the changelog batch."""
    batch = store.drain()
    store.committed(end)
    return 0 if batch is None else len(batch)


def settle(store: Store) -> int:
    """Commit without changes until all zones were visited. Return the number of keys removed."""
    return sum(commit(store) for _ in range(30))


def sweeper(store: Store) -> Sweeper:
    assert store._sweeper is not None
    return store._sweeper


def test_a_commit_looks_at_nothing_until_something_is_due(
    store: Store, engine: ScannedEngine, clock: ManualClock
) -> None:
    for number in range(5 * ZONE_KEYS):
        store[f"k{number:06}"] = number
    settle(store)
    engine.scans = 0
    for _ in range(VISITS_PER_TTL * 5 - 1):
        clock.advance(TTL_MS // VISITS_PER_TTL // 5)
        store["k000001"] = 1
        commit(store)
    assert engine.scans == 0
    clock.advance(2 * TTL_MS)
    assert settle(store) == 5 * ZONE_KEYS
    assert list(store.all()) == []


def test_a_commit_checks_a_bounded_number_of_keys(store: Store, clock: ManualClock) -> None:
    for number in range(5 * ZONE_KEYS):
        store[f"k{number:06}"] = number
    settle(store)
    clock.advance(2 * TTL_MS)
    assert commit(store) == KEYS_PER_COMMIT
    store.put("new", 1)
    assert commit(store) == KEYS_PER_COMMIT + 1


def test_values_that_were_there_before_the_start_are_removed(
    store: Store, engine: ScannedEngine, clock: ManualClock
) -> None:
    for number in range(2_500):
        store[f"k{number:06}"] = number
    commit(store)
    store.checkpoint()
    clock.advance(2 * TTL_MS)
    assert settle(opened(engine, clock)) == 2_500


def test_a_removal_that_was_aborted_is_repeated(store: Store, clock: ManualClock) -> None:
    store["a"] = 1
    settle(store)
    clock.advance(2 * TTL_MS)
    assert store.drain() is not None
    store.discard()
    clock.advance(TTL_MS // VISITS_PER_TTL)
    assert settle(store) == 1


def test_values_put_again_stay(store: Store, clock: ManualClock) -> None:
    for _ in range(40):
        clock.advance(STEP_MS * 3)
        store["kept"] = 1
        commit(store)
    assert store["kept"] == 1


@pytest.mark.parametrize(
    "key_of",
    [
        lambda chance, _: f"k{chance.randrange(6_000):06}",
        lambda _, number: f"k{number:09}",
        lambda _, number: f"k{10**9 - number:010}",
    ],
    ids=["at random", "ascending", "descending"],
)
def test_zones_follow_the_keys_and_every_value_goes_in_time(
    store: Store, clock: ManualClock, key_of: Callable[[Random, int], str]
) -> None:
    chance, put_at = Random(1), dict[str, int]()
    for number in range(60):
        clock.advance(STEP_MS)
        for n in range(300):
            key = key_of(chance, number * 300 + n)
            store[key], put_at[key] = n, clock.now_ms()
        for _ in range(3):
            commit(store)
        stored = {
            store._keys.decode(name)
            for name, _ in store._committed.scan(b"\x01", None, reverse=False)
        }
        late = clock.now_ms() - TTL_MS - TTL_MS // VISITS_PER_TTL - 2 * STEP_MS
        assert {key for key in stored if put_at[key] < late} == set()
        live = {key for key, at in put_at.items() if at + TTL_MS > clock.now_ms()}
        assert {key for key, _ in store.all()} == live
        assert len(sweeper(store)._starts) <= 2 + 4 * len(stored) // ZONE_KEYS
        assert len(sweeper(store)._due_ms) == len(sweeper(store)._starts)
        assert len(sweeper(store)._queue) <= 4 * len(sweeper(store)._starts) + 50


@pytest.mark.parametrize("ttl_ms", [1, 2, 3, 4])
def test_the_shortest_times_to_live_work(ttl_ms: int, clock: ManualClock) -> None:
    spec: StoreSpec[str, int] = StoreSpec("s", value=int, ttl_ms=ttl_ms, engine="memory")
    store = open_store(spec, clock=clock)
    for number in range(50):
        store[f"k{number}"] = 1
        commit(store)
        clock.advance(1)
    clock.advance(10)
    settle(store)
    assert list(store._committed.scan(b"\x01", None, reverse=False)) == []
