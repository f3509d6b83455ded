"""The map from keys to last offsets, against a dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.embedded.cleaning import offset_map
from strandline.changelog.embedded.cleaning.offset_map import (
    ABSENT,
    KeyHashes,
    LatestOffsets,
    OffsetMap,
)

BASE = 1_000
SEED = 0x0123_4567_89AB_CDEF_FEDC_BA98_7654_3210
Hashing = Callable[[int], tuple[int, int]]


def key_of(number: int) -> bytes:
    return b"key-%d" % number


def expected(numbers: list[int], offsets: list[int]) -> dict[int, int]:
    return dict(zip(numbers, offsets, strict=True))


def judge(latest: LatestOffsets, wanted: dict[int, int], asked: range) -> None:
    """Compare the map with the expected content."""
    assert latest.keys == len(wanted)
    answers = latest.of(pa.array([key_of(n) for n in asked], pa.binary()))
    assert answers.tolist() == [wanted.get(number, ABSENT) for number in asked]
    assert latest.within(0, 1 << 40).tolist() == sorted(wanted.values())


def ascending(generator: np.random.Generator, count: int) -> list[int]:
    """Return ascending offsets with gaps."""
    return (BASE - 1 + np.cumsum(generator.integers(1, 4, count))).tolist()


@pytest.mark.parametrize(
    ("memory", "records", "keys"),
    [
        (4 << 20, 1, 1),
        (4 << 20, 50_000, 40),
        (4 << 20, 200_000, 30_000),
        (96 << 20, 300_000, 250_000),
    ],
)
def test_the_map_has_the_last_offset_of_every_key(memory: int, records: int, keys: int) -> None:
    generator = np.random.default_rng(records)
    numbers, offsets = (
        generator.integers(0, keys, records).tolist(),
        ascending(generator, records),
    )
    known = OffsetMap(memory, base=BASE, seed=SEED)
    column, done = pa.array([key_of(number) for number in numbers]), 0
    while done < records:  # in several steps
        count = min(records - done, 70_001)
        piece = np.array(offsets[done : done + count])
        assert known.put(column.slice(done, count), piece) == count
        done += count
    latest = known.latest()
    judge(latest, expected(numbers, offsets), range(keys + 100))
    first, behind = offsets[records // 3], offsets[-1]
    within = [o for o in sorted(expected(numbers, offsets).values()) if first <= o < behind]
    assert latest.within(first, behind).tolist() == within


@pytest.mark.parametrize("memory", [1, 200, 5_000, 100_000, 4 << 20])
@pytest.mark.parametrize("repetitions", [1, 3])
def test_a_full_map_has_all_accepted_keys_and_no_others(memory: int, repetitions: int) -> None:
    generator = np.random.default_rng(memory)
    known = OffsetMap(memory, base=BASE, seed=SEED)
    records = 2 * known.capacity * repetitions + 10
    numbers = generator.permutation(records // repetitions).repeat(repetitions)[:records].tolist()
    offsets = ascending(generator, len(numbers))
    taken = known.put(pa.array([key_of(n) for n in numbers]), np.array(offsets))
    latest = known.latest()
    assert 1 <= taken < len(numbers)
    judge(latest, expected(numbers[:taken], offsets[:taken]), range(records))
    assert known.capacity * 0.9 <= latest.keys
    assert latest.keys * offset_map.ENTRY_BYTES <= max(memory // 2, offset_map.ENTRY_BYTES)
    assert 0.9 < latest.use <= 1.0


def test_a_full_map_accepts_no_more_keys() -> None:
    known = OffsetMap(5_000, base=BASE, seed=SEED)
    records = 3 * known.capacity
    column = pa.array([key_of(number) for number in range(records)])
    taken = known.put(column, np.arange(BASE, BASE + records))
    again = known.put(column.slice(taken), np.arange(BASE + taken, BASE + records))
    assert again == 0
    judge(known.latest(), {n: BASE + n for n in range(taken)}, range(records))


def test_offsets_that_are_too_far_apart_wait_for_the_next_pass() -> None:
    known = OffsetMap(4 << 20, base=BASE, seed=SEED)
    far = np.array([BASE, BASE + offset_map.MAX_OFFSETS - 1, BASE + offset_map.MAX_OFFSETS])
    assert known.put(pa.array([b"a", b"b", b"c"]), far) == 2
    latest = known.latest()
    assert latest.of(pa.array([b"a", b"b", b"c"])).tolist() == [far[0], far[1], ABSENT]
    assert latest.within(BASE + 1, 1 << 60).tolist() == [far[1]]


def test_an_empty_map_has_no_keys() -> None:
    latest = OffsetMap(4 << 20, base=BASE, seed=SEED).latest()
    assert (latest.keys, latest.use) == (0, 0.0)
    assert latest.of(pa.array([b"a"])).tolist() == [ABSENT]
    assert latest.of(pa.array([], pa.binary())).tolist() == []
    assert latest.within(0, 1 << 60).tolist() == []


def near(number: int) -> tuple[int, int]:
    """Hashes whose first half differs in the last bits only, in descending order."""
    return (7 << 60) + 1_000 - number, number


def alike(number: int) -> tuple[int, int]:
    """Hashes whose first half is the same for several keys."""
    return number // 7 * (1 << 40), number


def at_the_ends(number: int) -> tuple[int, int]:
    """Hashes whose first halves are the smallest and the largest."""
    return (0 if number % 2 else (1 << 64) - 1), number


def by_the_second(number: int) -> tuple[int, int]:
    """Hashes whose second half is the same for all keys."""
    return number << 50, 5


@pytest.mark.parametrize("hashing", [near, alike, at_the_ends, by_the_second])
@given(
    numbers=st.lists(st.integers(0, 40), min_size=1, max_size=300),
    memory=st.sampled_from([300, 2_000, 64 << 10]),
)
def test_keys_with_similar_hashes_are_kept_apart(
    hashing: Hashing, numbers: list[int], memory: int
) -> None:
    def of(_: KeyHashes, keys: pa.BinaryArray) -> tuple[Any, Any]:
        pairs = [hashing(int(key.as_py()[4:])) for key in keys]
        columns = np.array(pairs, np.uint64).reshape(-1, 2)
        return columns[:, 0].copy(), columns[:, 1].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyHashes, "of", of)
        known = OffsetMap(memory, base=BASE, seed=SEED)
        offsets = list(range(BASE, BASE + len(numbers)))
        taken = known.put(pa.array([key_of(n) for n in numbers]), np.array(offsets))
        assert taken >= 1
        judge(known.latest(), expected(numbers[:taken], offsets[:taken]), range(45))
