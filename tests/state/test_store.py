"""The contract of one partition of a store with its task and its worker."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.changelog.clock import ManualClock
from strandline.changelog.errors import InvalidConfig, InvalidRecord, InvalidTxnState
from strandline.statestore import PartitionStore, StoreLimits, StoreSpec, decode_key, open_store
from strandline.statestore.counters import StoreCounters
from strandline.statestore.keys import key_codec


@dataclasses.dataclass(frozen=True)
class Delay:
    n: int = 0
    total: float = 0.0

    def add(self, delay: float) -> Delay:
        return Delay(self.n + 1, self.total + delay)


class Trip(msgspec.Struct):
    stops: list[str] = []


def make(**settings: Any) -> PartitionStore[Any, Any]:
    return open_store(StoreSpec("s", **{"engine": "memory", **settings}), clock=ManualClock())


def commit(store: PartitionStore[Any, Any], end: int = 1) -> dict[Any, bytes | None]:
    """Commit like the worker. Return the changelog's records, by key."""
    batch = store.drain()
    store.committed(end)
    if batch is None:
        return {}
    return dict(zip(map(decode_key, batch.keys.to_pylist()), batch.values.to_pylist(), strict=True))


def wants_commit(store: PartitionStore[Any, Any]) -> bool:
    return store.needs_commit


def wants_checkpoint(store: PartitionStore[Any, Any]) -> bool:
    return store.needs_checkpoint


def everywhere(store: PartitionStore[Any, Any]) -> list[Any]:
    """Yield the store with one key in each layer: dirty, committed, in the engine, not cached."""
    return [
        lambda: None,
        lambda: commit(store),
        store.checkpoint,
        store._clear_cache,
    ]


# Reading and writing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "entry"),
    [
        (str, int, ("a", 7)), (int, str, (-3, "é")), (float, float, (0.5, 1.5)),
        (bytes, bytes, (b"\xff", b"")), (bool, bool, (True, False)), (str, Delay, ("a", Delay(2))),
        (tuple[str, int], tuple[int, ...], (("a", 1), (1, 2))), (str, None, ("a", {"n": [1]})),
        (str, None, ("a", 0)), (str, list[int], ("a", [1])), (str, Trip, ("a", Trip(["LHR"]))),
        (str, int, ("a", 2**80)), (str, None, ("a", "text")), (str, None, ("a", -(2**99))),
    ],
)  # fmt: skip
def test_a_value_is_read_as_it_was_put_from_every_layer(key: Any, value: Any, entry: Any) -> None:
    store = make(key=key, value=value)
    name, expected = entry
    store[name] = expected
    for step in everywhere(store):
        step()
        assert store[name] == store.get(name) == expected
        assert type(store[name]) is type(expected)
        assert name in store
        assert store.get_many([name]) == {name: expected}
        assert list(store.all()) == [entry]


def test_a_deleted_key_is_invisible_in_every_layer() -> None:
    store = make(value=int)
    store["a"] = store["b"] = 1
    commit(store)
    store.checkpoint()
    del store["a"]
    store.delete("never there")
    for step in everywhere(store):
        step()
        assert "a" not in store
        assert store.get("a") is None
        assert store.get("a", 5) == 5
        assert store.get_many(["a", "b"]) == {"b": 1}
        assert list(store.all()) == [("b", 1)]
        with pytest.raises(KeyError):
            store["a"]
        with pytest.raises(KeyError):
            del store["a"]


def test_a_default_is_seen_but_not_stored() -> None:
    store = make(value=Delay, default=Delay())
    assert store["a"] == store.get("a") == Delay()
    assert store.get("a", None) is None
    assert "a" not in store
    store["a"] = store["a"].add(2.5)
    assert list(store.all()) == [("a", Delay(1, 2.5))]


def test_a_default_factory_makes_one_for_each_reader() -> None:
    store = make(value=list[int], default_factory=list)
    store["a"].append(1)
    assert store["a"] == []


def test_put_if_absent_keeps_an_existing_value() -> None:
    store = make(value=int, default=9)
    assert store.put_if_absent("a", 0) is None
    assert store.put_if_absent("a", 2) == 0
    assert store["a"] == 0


def test_a_mutable_value_is_changed_only_by_setting_it() -> None:
    store = make(value=dict[str, int])
    mine = {"n": 1}
    store["a"] = mine
    mine["n"] = 2
    for step in everywhere(store):
        step()
        store["a"]["n"] = 3
        assert store["a"] == {"n": 1}


def test_edit_puts_the_changed_value_back() -> None:
    store = make(value=Trip, default_factory=Trip)
    with store.edit("a") as trip:
        trip.stops.append("LHR")
    assert store["a"] == Trip(["LHR"])
    with contextlib.suppress(ZeroDivisionError), store.edit("a") as trip:
        trip.stops.append("JFK")
        raise ZeroDivisionError
    assert store["a"] == Trip(["LHR"])


def test_edit_refuses_immutable_values() -> None:
    with pytest.raises(TypeError, match=r"set it: store\[key\] = new_value"):
        make(value=int, default=0).edit("a").__enter__()
    with pytest.raises(KeyError):
        make(value=Trip).edit("a").__enter__()


def test_an_immutable_value_is_shared() -> None:
    store = make(value=Delay)
    store["a"] = Delay(1)
    commit(store)
    assert store["a"] is store["a"]


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (int, True), (int, 1.5), (int, "1"), (str, b"a"), (str, "\ud800"), (bool, 1), (float, "x"),
        (bytes, "a"), (list[int], ["a"]), (None, object()), (None, {1: object()}),
        (Delay, {"n": "x"}), (Delay, Delay("many")), (dict[str, int], {"a": 2**70}),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_value_that_could_not_be_decoded_fails_at_the_put(value: Any, wrong: Any) -> None:
    store = make(value=value)
    with pytest.raises(InvalidRecord):
        store["a"] = wrong
    assert "a" not in store
    assert store.drain() is None


def test_an_int_becomes_a_float_in_a_store_of_floats() -> None:
    store = make(value=float, default=0)
    store["a"] = 3
    assert (store["a"], type(store["a"]), type(store["b"])) == (3.0, float, float)


def test_none_is_no_value() -> None:
    for value in (None, int, str, Delay):
        with pytest.raises(TypeError, match=r"use `del store\[key\]`"):
            make(value=value)["a"] = None


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None])
def test_every_call_refuses_a_key_of_another_type(wrong: Any) -> None:
    store = make(key=int, value=int, default=0)
    store[1] = 5
    for call in (
        store.get, store.delete, store.__getitem__, store.__delitem__, store.__contains__,
        lambda key: store.put(key, 1), lambda key: store.get_many([key]),
        lambda key: store.put_if_absent(key, 1),
    ):  # fmt: skip
        with pytest.raises(InvalidRecord, match="store 's': a key of this store must be int"):
            call(wrong)
    if wrong is not None:
        with pytest.raises(InvalidRecord):
            store.range(wrong, 5)


def test_misleading_operators_are_type_errors() -> None:
    store = make()
    with pytest.raises(TypeError, match="approximate_num_entries"):
        len(store)
    with pytest.raises(TypeError, match="key in store"):
        bool(store)
    with pytest.raises(TypeError, match=r"store\.all\(\)"):
        iter(store)


# Scans --------------------------------------------------------------------------------


def spread(**settings: Any) -> PartitionStore[Any, Any]:
    """Return a store whose keys 0 … 19 are in all layers, some in several, some deleted."""
    store = make(key=int, value=int, **settings)
    for round_, keys in enumerate([range(20), range(0, 20, 2), range(0, 20, 3), range(0, 20, 5)]):
        for key in keys:
            store[key] = key * 100 + round_
        if round_ == 0:
            commit(store)
            store.checkpoint()
        elif round_ < 3:
            del store[19 - round_]
            commit(store)
            list(store.all())  # seals the layer
    return store


EXPECTED = {
    key: key * 100 + max(r for r, step in enumerate([1, 2, 3, 5]) if key % step == 0)
    for key in range(20)
    if key != 17
}


@pytest.mark.parametrize(("lower", "upper"), [(None, None), (3, 15), (0, 0), (-5, 4), (15, None)])
def test_a_range_is_sorted_and_half_open(lower: int | None, upper: int | None) -> None:
    store = spread()
    expected = [
        item
        for item in EXPECTED.items()
        if (lower is None or lower <= item[0]) and (upper is None or item[0] < upper)
    ]
    assert list(store.range(lower, upper)) == expected
    assert list(store.range(lower, upper, reverse=True)) == expected[::-1]
    assert list(store.reverse(lower, upper)) == expected[::-1]


def test_a_prefix_of_a_tuple_key_finds_its_keys() -> None:
    store = make(key=tuple[str, str], value=int)
    for carrier, origin in [("BA", "JFK"), ("B", "EWR"), ("BA", "EWR"), ("BAX", "EWR")]:
        store[carrier, origin] = 1
    assert [key for key, _ in store.prefix(("BA",))] == [("BA", "EWR"), ("BA", "JFK")]
    assert [key for key, _ in store.range(("BA",), ("BAX",))] == [("BA", "EWR"), ("BA", "JFK")]


def test_a_scan_shows_the_moment_it_began() -> None:
    store = spread()
    before = list(store.all())
    scan, backwards = store.all(), store.all(reverse=True)
    head = [next(scan) for _ in range(5)]
    for key in range(25):
        store[key] = 0
    commit(store)
    for key in range(10):
        del store[key]
    commit(store)
    store.checkpoint()
    assert head + list(scan) == before
    assert list(backwards) == before[::-1]


def test_keys_may_be_changed_while_they_are_scanned() -> None:
    store = spread()
    for key, value in store.all():
        if value % 2:
            del store[key]
        else:
            store[key + 1000] = value
    assert all(value % 2 == 0 for _, value in store.all())


def test_a_scan_sees_changes_of_the_running_record_and_not_those_undone() -> None:
    store = spread()
    before = list(store.all())
    mark = store.mark()
    store[7] = -1
    del store[8]
    store[100] = 1
    assert {key: value for key, value in store.all() if key in (7, 8, 100)} == {7: -1, 100: 1}
    store.rollback(mark)
    assert list(store.all()) == before


# Transactions -------------------------------------------------------------------------


def test_the_changelog_gets_one_record_for_each_changed_key() -> None:
    store = make(value=int)
    for number in range(5):
        store["a"] = number
        store["b"] = -number
    store.delete("c")
    assert commit(store) == {"a": b"\x04", "b": b"\xfc", "c": None}
    assert store.drain() is None


def test_a_batch_becomes_columns_of_the_log() -> None:
    store = make(value=int)
    store["a"] = 1
    store.delete("b")
    batch = store.drain()
    assert batch is not None
    assert batch.columns(9).to_pydict() == {
        "timestamp": [9, 9], "key": [b"Qa", b"Qb"], "value": [b"\x01", None],
    }  # fmt: skip
    assert len(batch) == 2
    assert 5 <= batch.nbytes < 50


def test_an_aborted_transaction_leaves_no_trace() -> None:
    store = make(value=int)
    store["a"] = store["b"] = 1
    commit(store)
    store["a"] = 2
    del store["b"]
    store["c"] = 3
    store.drain()
    store.discard()
    assert list(store.all()) == [("a", 1), ("b", 1)]
    assert (store["a"], store["b"], store.get("c")) == (1, 1, None)
    assert store.drain() is None


def test_a_record_whose_handler_raises_leaves_no_trace() -> None:
    store = make(value=int)
    store["a"] = 1
    mark = store.mark()
    store["a"] = 2
    store["a"] = 3
    store["b"] = 4
    store.delete("a")
    store.rollback(mark)
    assert list(store.all()) == [("a", 1)]
    assert commit(store) == {"a": b"\x01"}


def test_changes_since_a_mark_can_be_undone() -> None:
    store = make(value=int)
    store["a"] = 1
    mark = store.mark()
    store["a"] = 2
    store.rollback(mark)
    assert store["a"] == 1
    store.rollback(0)
    assert store.drain() is None


def test_a_store_can_be_read_but_not_changed_during_its_commit() -> None:
    store = make(value=int)
    store["a"] = 1
    batch = store.drain()
    assert store["a"] == 1
    assert store.drain() is batch
    with pytest.raises(InvalidTxnState, match="commit is under way"):
        store["a"] = 2
    with pytest.raises(InvalidTxnState, match="commit is under way"):
        store.delete("a")
    store.committed(2)
    store["a"] = 2
    assert commit(store) == {"a": b"\x02"}


# Limits -------------------------------------------------------------------------------


def test_many_bytes_of_changes_request_a_commit() -> None:
    store = make(value=bytes, limits=StoreLimits(dirty_bytes=10_000))
    store["a"] = bytes(5_000)
    assert not wants_commit(store)
    store["b"] = bytes(5_000)
    assert wants_commit(store)
    commit(store)
    assert not wants_commit(store)


def test_many_small_changes_request_a_commit() -> None:
    store = make(key=int, value=int, limits=StoreLimits(dirty_bytes=10_000))
    for key in range(100):
        store[key] = key
    assert wants_commit(store)


def test_a_checkpoint_is_due_by_size() -> None:
    store = make(value=bytes, limits=StoreLimits(overlay_bytes=10_000))
    for _ in range(100):
        store["same"] = bytes(1_000)
        commit(store)
    assert not wants_checkpoint(store)
    for key in range(11):
        store[str(key)] = bytes(1_000)
        commit(store)
    assert wants_checkpoint(store)
    assert store.checkpoint() == 12
    assert not wants_checkpoint(store)
    assert store.checkpoint() == 0


def test_a_checkpoint_is_due_by_time() -> None:
    clock = ManualClock()
    spec: StoreSpec[str, int] = StoreSpec("s", value=int, engine="memory")
    store = open_store(spec, clock=clock)
    clock.advance(40_000)
    assert not wants_checkpoint(store)  # nothing to move
    store["a"] = 1
    commit(store)
    assert wants_checkpoint(store)
    store.checkpoint()
    store["a"] = 2
    commit(store)
    clock.advance(29_999)
    assert not wants_checkpoint(store)
    clock.advance(1)
    assert wants_checkpoint(store)


def test_the_cache_stays_within_its_limit_and_keeps_used_entries(tmp_path: Path) -> None:
    limits = StoreLimits(cache_bytes=100_000)
    spec: StoreSpec[str, bytes] = StoreSpec("s", value=bytes, limits=limits)
    store = open_store(spec, tmp_path)
    store["used"] = b"x"
    for number in range(3_000):
        store[f"{number}"] = bytes(100)
        assert store["used"] == b"x"
        if number % 100 == 0:
            commit(store)
    cache = store._cache
    held = len(cache.young) + len(cache._old)
    assert 200 < held < 1_000
    assert "used" in cache.young or "used" in cache._old
    store.close()


def test_uncommitted_values_stay_in_memory_during_many_reads(tmp_path: Path) -> None:
    spec = StoreSpec("s", value=int, limits=StoreLimits(cache_bytes=2_000))
    store = open_store(spec, tmp_path)
    for number in range(100):
        store[f"{number}"] = number
    commit(store)
    store["0"], store["new"] = -1, 1
    mark = store.mark()
    store["0"], store["1"], store["2"] = -2, -2, -2
    assert [store[f"{number}"] for number in range(10, 100)] == list(range(10, 100))
    assert (store["0"], store["1"], store["new"]) == (-2, -2, 1)
    store.rollback(mark)
    assert (store["0"], store["1"], store["2"], store["new"]) == (-1, 1, 2, 1)
    assert [store[f"{number}"] for number in range(10, 100)] == list(range(10, 100))
    store.drain()
    store.discard()
    assert (store["0"], store.get("new")) == (0, None)
    store.close()


def test_columns_have_every_kind_of_key_and_value() -> None:
    store = make(value=None)
    put = {
        "a": 1,
        "\u00e9": 2**70,
        "b": 1.5,
        "c": True,
        "d": "x",
        "\ud800": -(2**63),
        "": 2**64 - 1,
    }
    for key, value in put.items():
        store[key] = value
    commit(store)
    store._clear_cache()
    assert dict(store.all()) == put
    assert store.get_many(put) == put


def test_a_failed_checkpoint_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(value=int)
    engine = store._committed.engine
    store["a"] = 1
    commit(store, end=1)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.checkpoint()
    store["b"] = 2
    commit(store, end=2)
    assert list(store.all()) == [("a", 1), ("b", 2)]
    store.checkpoint()
    position = engine.position()
    assert position is not None
    assert position.offset == 1  # the changes sealed at the first try, and no more
    assert engine.get(b"Qb") is None
    store.checkpoint()
    assert engine.position() == store.position
    assert engine.get(b"Qb") == b"\x02"


def test_a_checkpoint_may_run_at_the_same_time_as_the_task(tmp_path: Path) -> None:
    spec: StoreSpec[int, int] = StoreSpec("s", key=int, value=int)
    store = open_store(spec, tmp_path)
    done = threading.Event()
    failures: list[BaseException] = []

    def checkpoints() -> None:
        try:
            while not done.is_set():
                store.checkpoint()
        except BaseException as error:
            failures.append(error)

    beside = threading.Thread(target=checkpoints)
    beside.start()
    try:
        for round_ in range(60):
            for key in range(round_, round_ + 50):
                store[key] = round_
            store.delete(round_ - 1)
            commit(store, end=round_ + 1)
            store._clear_cache()
            assert list(store.all()) == [(key, round_) for key in range(round_, round_ + 50)]
            assert store[round_] == store[round_ + 49] == round_
    finally:
        done.set()
        beside.join()
    assert not failures
    store.close()


# Declarations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "a/b"}, "cannot be a store's name"),
        ({"name": ".."}, "cannot be a store's name"),
        ({"key": list}, "cannot be a key type"),
        ({"default": []}, "use default_factory"),
        ({"default": ([],)}, "use default_factory"),
        ({"value": int, "default": "x"}, "is no value of it"),
        ({"default": 1, "default_factory": int}, "not both"),
        ({"ttl_ms": 0}, "ttl_ms must be a whole number from 1 to"),
        ({"engine": "lmdb"}, "unknown engine"),
        ({"value": dict[str, int] | dict[str, str]}, "cannot be a type of value"),
    ],
)
def test_an_invalid_declaration_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        StoreSpec(**{"name": "s", **settings})


# Counting --------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [["a", "b", "c"], [("a", 1), ("b", 2), ("c", 3)]])
def test_look_ups_are_counted_in_a_sample_and_only_there(keys: list[Any]) -> None:
    counters = StoreCounters()
    kind: Any = tuple[str, int] if isinstance(keys[0], tuple) else str
    spec: StoreSpec[Any, Any] = StoreSpec(
        "s", key=kind, value=list, default_factory=list, engine="memory"
    )
    store = open_store(spec, clock=ManualClock(), counters=counters)
    first, second, third = keys
    store[first] = store[second] = [1]
    commit(store)
    store._clear_cache()

    assert store[first] == [1]  # outside of a sample
    with store.sampled():
        assert store[first] == store.get(first) == [1]
        store[first] = [2]
        store.delete(first)
        # only at the end of the sample
        assert (counters.sampled_hits, counters.sampled_misses) == (0, 0)
    assert (counters.sampled_hits, counters.sampled_misses, counters.misses) == (2, 0, 1)

    with store.sampled():
        assert second in store  # not cached
        with store.edit(second) as value:
            value.append(2)
        assert store.get_many(keys) == {second: [1, 2]}  # the third is not cached
        assert store.put_if_absent(third, [3]) is None
    assert store[third] == [3]
    assert (counters.sampled_hits, counters.sampled_misses, counters.misses) == (6, 2, 3)


def test_a_sample_ends_when_its_records_fail() -> None:
    counters = StoreCounters()
    store: PartitionStore[Any, Any] = open_store(StoreSpec("s", engine="memory"), counters=counters)
    with pytest.raises(KeyError), store.sampled():
        store["a"]
    store.get("a")
    assert (counters.sampled_hits, counters.sampled_misses) == (0, 1)


def test_concurrent_readers_see_all_cached_values_of_the_task() -> None:
    counters = StoreCounters()
    spec: StoreSpec[str, int] = StoreSpec("s", value=int, engine="memory")
    store = open_store(spec, counters=counters)
    store["a"] = 1
    commit(store)
    reader = store.reader
    names = [key_codec(str).encode(key) for key in ("a", "b")]
    found = [reader.get_many(some) for some in (names, names[:1])]
    assert [None if one is None else len(one.values) for one in found] == [2, 1]
    assert counters.misses == 0
