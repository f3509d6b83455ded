"""Values with a time to live: invisible once expired, removed soon after, the same after a
restore."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.changelog.clock import ManualClock
from strandline.statestore import PartitionStore, StoreSpec, open_store
from tests.state.kit import Changelog


class Time:
    """Stream time, moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def time() -> Time:
    return Time()


def make(time: Time, ttl_ms: int | None = 100, **settings: Any) -> PartitionStore[Any, Any]:
    spec: StoreSpec[Any, Any] = StoreSpec("s", ttl_ms=ttl_ms, engine="memory", **settings)
    return open_store(spec, clock=ManualClock(), now=time)


def commit(store: PartitionStore[Any, Any]) -> dict[bytes, bytes | None]:
    batch = store.drain()
    store.committed(1)
    return (
        {}
        if batch is None
        else dict(zip(batch.keys.to_pylist(), batch.values.to_pylist(), strict=True))
    )


@pytest.mark.parametrize("value", [int, None, bytes, list[int]])
@pytest.mark.parametrize("layer", ["dirty", "cached", "layered", "engine"])
def test_an_expired_value_is_invisible_in_every_layer(time: Time, value: Any, layer: str) -> None:
    store = make(time, value=value)
    put = {int: 7, None: 7, bytes: b"7"}.get(value, [7])
    store["a"] = put
    if layer != "dirty":
        commit(store)
    if layer == "engine":
        store.checkpoint()
    if layer in ("layered", "engine"):
        store._clear_cache()
    time.ms += 99
    assert store["a"] == store.get_many(["a"])["a"] == put
    assert list(store.all()) == [("a", put)]
    time.ms += 1
    assert "a" not in store
    assert store.get("a") is None
    assert store.get_many(["a"]) == {}
    assert list(store.all()) == list(store.prefix("a", reverse=True)) == []


def test_putting_a_value_again_restarts_its_time_to_live(time: Time) -> None:
    store = make(time, value=int, default=0)
    store["a"] = 1
    time.ms += 60
    store["a"] += 1
    time.ms += 60
    assert store["a"] == 2
    time.ms += 60
    assert store["a"] == 0


def test_expired_values_are_deleted_in_the_next_commit(time: Time) -> None:
    store = make(time, value=int)
    store["a"] = store["b"] = 1
    commit(store)
    time.ms += 50
    store["b"] = 2
    commit(store)
    time.ms += 50
    assert commit(store) == {b"Qa": None}
    assert commit(store) == {}
    store.checkpoint()
    assert store.approximate_num_entries() <= 2


def test_a_key_that_is_put_again_in_time_is_not_deleted(time: Time) -> None:
    store = make(time, value=int)
    store["a"] = 1
    commit(store)
    time.ms += 100
    store["a"] = 2
    commit(store)
    assert store["a"] == 2


def test_all_expired_values_are_removed_a_few_at_a_time(time: Time) -> None:
    store = make(time, key=int, value=int)
    for key in range(3_500):
        store[key] = key
    commit(store)
    time.ms += 100
    sizes = [len(commit(store)) for _ in range(5)]
    assert sizes == [1_000, 1_000, 1_000, 500, 0]


def test_a_restore_keeps_the_same_expiries(time: Time) -> None:
    changelog = Changelog()
    store = make(time, value=int)
    changelog.restore(store)
    store["a"] = 1
    time.ms += 50
    store["b"] = 1
    changelog.commit(store)
    again = make(time, value=int)
    changelog.restore(again)
    time.ms += 50
    assert [key for key, _ in again.all()] == [key for key, _ in store.all()] == ["b"]


def test_a_store_may_gain_a_time_to_live(time: Time) -> None:
    changelog = Changelog()
    before = make(time, ttl_ms=None, value=int)
    changelog.restore(before)
    before["old"] = 1
    changelog.commit(before)
    after = make(time, value=int)
    changelog.restore(after)
    after["new"] = 2
    changelog.commit(after)
    time.ms += 1_000
    assert dict(after.all()) == {"old": 1}  # it has no expiry, so it stays
    after["old"] = 3
    time.ms += 1_000
    assert dict(after.all()) == {}


def test_edit_begins_with_the_default_when_the_value_has_expired(time: Time) -> None:
    store = make(time, value=list[int], default_factory=list)
    with store.edit("a") as numbers:
        numbers.append(1)
    time.ms += 100
    with store.edit("a") as numbers:
        numbers.append(2)
    assert store["a"] == [2]
