"""Look-ahead: which keys are read in bulk before handlers ask, and when that begins and ends."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

import strandline as sl
from strandline.framework.container import lookahead
from strandline.framework.container.lookahead import (
    FIRST_PORTION_RECORDS,
    PORTION_BYTES,
    PORTION_RECORDS,
    LookAhead,
    StoreLookAhead,
)
from strandline.framework.decoding import Chunk
from strandline.statestore import StoreLimits, StoreSpec, open_store
from strandline.statestore.counters import StoreCounters
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.keys import key_codec
from strandline.statestore.store import PartitionStore

if TYPE_CHECKING:
    from strandline.changelog.records import Batch

SMALL = StoreLimits(cache_bytes=1 << 20)
"""Limits of a store whose cache has room for some thousand keys."""


class CountingEngine(MemoryEngine):
    """Engine in memory that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.single: list[bytes] = []
        self.bulk: list[int] = []

    def get(self, key: bytes) -> bytes | None:
        self.single.append(key)
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.bulk.append(len(keys))
        return [super(CountingEngine, self).get(key) for key in keys]


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
def store(engine: CountingEngine) -> Iterator[PartitionStore[str, bytes]]:
    """Store with 20,000 keys in its engine, many more than in its cache."""
    spec: StoreSpec[str, bytes] = StoreSpec("s", value=bytes, limits=SMALL)
    opened = open_store(spec, engine=engine)
    for number in range(20_000):
        opened[f"k{number:05}"] = b"v"
    assert opened.drain() is not None
    opened.committed(20_000)
    opened.checkpoint()
    opened._clear_cache()
    engine.single.clear()
    engine.bulk.clear()
    yield opened
    opened.close()


def chunk_of(keys: Sequence[Any]) -> Chunk:
    records = [sl.Record(key, None, 0) for key in keys]
    return Chunk(records, cast("Batch", None), len(records))


def handle(ahead: LookAhead, keys: Sequence[Any], look_up: Callable[[Any], object]) -> None:
    """Handle records with these keys as an instance does, up to where each call allows."""
    chunk = chunk_of(keys)
    while chunk.at < len(chunk.records):
        stop = ahead.limit(chunk, len(chunk.records))
        assert chunk.at < stop
        for record in chunk.records[chunk.at : stop]:
            look_up(record.key)
        chunk.at = stop


def keys(start: int, stop: int) -> list[str]:
    """Return existing keys that were not looked up before, far apart from each other."""
    return [f"k{number * 7 % 20_000:05}" for number in range(start, stop)]


def test_keys_are_read_in_bulk_once_look_ups_miss_the_cache(
    store: PartitionStore[str, bytes], engine: CountingEngine
) -> None:
    ahead = LookAhead([store])
    handle(ahead, keys(0, 8_000), store.get)
    assert len(engine.single) == PORTION_RECORDS  # the first portion shows that it helps
    assert sum(engine.bulk) == 8_000 - PORTION_RECORDS
    assert engine.bulk[0] == FIRST_PORTION_RECORDS
    assert max(engine.bulk) == PORTION_RECORDS


def test_keys_in_the_cache_are_not_read_and_end_the_look_ahead(
    store: PartitionStore[str, bytes], engine: CountingEngine
) -> None:
    ahead = LookAhead([store])
    handle(ahead, keys(0, 4_000), store.get)
    engine.bulk.clear()
    few = keys(4_000, 4_050)
    handle(ahead, few * 400, store.get)
    assert sum(engine.bulk) <= len(few)
    assert len(engine.bulk) < 5
    assert not ahead._stores[0].is_on


@pytest.mark.long
def test_look_ahead_that_does_not_help_ends_and_is_tried_ever_more_rarely(
    store: PartitionStore[str, bytes], engine: CountingEngine
) -> None:
    """The handler looks up other keys than the record's."""
    ahead, count = LookAhead([store]), itertools.count()
    for _ in range(40):
        handle(ahead, keys(0, 8_000), lambda _: store.get(f"k{next(count) * 11 % 20_000:05}"))
    assert 0 < sum(engine.bulk) < 8 * 40 * FIRST_PORTION_RECORDS
    assert len(engine.bulk) <= 10  # with pauses of 1, 2, 4 … portions


def test_a_store_without_look_ups_reads_nothing(
    store: PartitionStore[str, bytes], engine: CountingEngine
) -> None:
    handle(LookAhead([store]), keys(0, 8_000), lambda key: store.put(key, b"w"))
    assert engine.single == engine.bulk == []


def test_portions_of_large_values_are_small(engine: CountingEngine) -> None:
    large = PORTION_BYTES // 64
    names = [f"k{number:05}" for number in range(4_000)]
    encoded = [key_codec(str).encode(name) for name in names]
    engine.write(encoded, [bytes(large)] * len(names), StorePosition("t", 0, 1))
    store = open_store(StoreSpec("s", value=bytes), engine=engine)
    handle(LookAhead([store]), names, store.get)
    assert max(engine.bulk[2:]) <= 128  # at most twice the bytes of a portion


def test_keys_of_another_type_are_left_out(
    store: PartitionStore[str, bytes], engine: CountingEngine
) -> None:
    mixed = [None, b"raw", 7, "k00001", "k00001", "k00002"]
    assert store.prefetch(mixed)[0] == 2
    assert engine.bulk == [2]


def test_keys_read_ahead_count_as_misses_in_a_sample(engine: CountingEngine) -> None:
    counters = StoreCounters()
    store = open_store(StoreSpec("s", value=bytes), engine=engine, counters=counters)
    store.prefetch(["a", "b"])
    with store.sampled():
        store.get("a"), store.get("a"), store.get("c")
    assert (counters.sampled_hits, counters.sampled_misses) == (1, 2)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_app_gets_the_same_results_with_look_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool
) -> None:
    """Handlers that fail in between are undone, and see the values of before."""
    monkeypatch.setattr(lookahead, "PORTION_RECORDS", 16)
    monkeypatch.setattr(lookahead, "FIRST_PORTION_RECORDS", 4)
    portions = list[int]()
    read = StoreLookAhead.read
    monkeypatch.setattr(
        StoreLookAhead, "read", lambda one, keys: (portions.append(len(keys)), read(one, keys))
    )
    app = sl.App("ahead", log=tmp_path / "log", state_dir=tmp_path / "state")
    words = app.topic("words", key=str, value=int, partitions=2)
    counts = app.store(
        "counts", key=str, value=int, default=0, limits=StoreLimits(cache_bytes=20_000)
    )
    expected: Counter[str] = Counter()

    def count(record: sl.Record[str, int]) -> None:
        counts[record.key] += record.value
        if record.value == 13:
            raise ValueError(record.value)

    async def count_later(record: sl.Record[str, int]) -> None:
        count(record)

    app.task(words, stores=[counts], on_error="skip")(count_later if asynchronous else count)
    chance = Random(1)
    with app:
        for _ in range(3):
            given = [(f"w{chance.randrange(300)}", chance.randrange(20)) for _ in range(1_500)]
            words.append(given)
            app.run(until="idle", progress=False)
            for key, value in given:
                expected[key] += 0 if value == 13 else value
        assert len(portions) > 10
        assert app.query(counts).to_dict() == {k: v for k, v in expected.items() if k in expected}
