"""Runs of keys in a file, and the bits computed from them, against a dict and a set."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.embedded.cleaning.marks import Marks
from strandline.changelog.embedded.cleaning.offset_map import HashedKeys, last_entries
from strandline.changelog.embedded.cleaning.runs import SortedRuns
from strandline.changelog.errors import StorageFailed
from strandline.changelog.memory_storage import MemoryStorage
from tests.cleaner.test_offset_map import Hashing, alike, at_the_ends, by_the_second, near

PATH = "keys.tmp"
MOST = 1 << 12


def spread(number: int) -> tuple[int, int]:
    """Hashes as they usually are."""
    return (number * 0x9E37_79B9_7F4A_7C15) % (1 << 64), number


def entries_of(keys: list[int], first_number: int, hashing: Hashing) -> HashedKeys:
    """Return the entries of a map that was given these keys."""
    pairs = np.array([hashing(key) for key in keys], np.uint64).reshape(-1, 2)
    numbers = np.arange(first_number, first_number + len(keys), dtype=np.uint32)
    return last_entries(HashedKeys(pairs[:, 0].copy(), pairs[:, 1].copy(), numbers))


def runs_of(
    some: list[list[int]], hashing: Hashing = spread, in_memory: int = 1 << 20
) -> tuple[SortedRuns, MemoryStorage, list[int]]:
    """Write runs of these keys, numbered from 100 on. Return them, and the bytes reported to
    `pace`."""
    storage, paced = MemoryStorage(), list[int]()
    runs = SortedRuns(storage, PATH, max_entries=MOST, in_memory=in_memory, pace=paced.append)
    for number, keys in reversed(list(enumerate(some))):  # later ones may come first
        before = sum(len(earlier) for earlier in some[:number])
        runs.add(entries_of(keys, before, hashing), 100)
    return runs, storage, paced


KEYS = st.lists(st.integers(0, 60), max_size=80)


@pytest.mark.parametrize("hashing", [spread, near, alike, at_the_ends, by_the_second])
@given(some=st.lists(KEYS, min_size=1, max_size=6), in_memory=st.sampled_from([1, 20, 1 << 20]))
def test_the_last_number_of_every_key_is_found(
    hashing: Hashing, some: list[list[int]], in_memory: int
) -> None:
    runs, _, paced = runs_of(some, hashing, in_memory)
    found = [last_entries(entries) for entries in runs.ranges()]
    numbers = [number for entries in found for number in entries.numbers.tolist()]
    sent = [key for keys in some for key in keys]
    assert sorted(numbers) == sorted({key: 100 + n for n, key in enumerate(sent)}.values())
    ends = [(int(e.first.min()), int(e.first.max())) for e in found if len(e.first)]
    assert all(before[1] < behind[0] for before, behind in pairwise(ends))
    assert sum(paced) == 2 * runs.bytes


def test_ranges_are_small_if_memory_is_small() -> None:
    keys = list(range(1000))
    runs, _, _ = runs_of([keys[:400], keys[400:]], in_memory=50)
    sizes = [len(entries.first) for entries in runs.ranges()]
    assert sum(sizes) == 1000
    assert max(sizes) < 100


@given(at=st.integers(0, 60 * 20 - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_file_is_detected(at: int, bit: int) -> None:
    runs, storage, _ = runs_of([list(range(30)), list(range(20, 50))])
    storage._files[PATH][at] ^= 1 << bit
    with pytest.raises(StorageFailed, match=r"keys\.tmp was read back differently"):
        for entries in runs.ranges():
            # otherwise a bit would be looked up that does not exist
            assert entries.numbers.max() < 160


def test_a_truncated_file_is_detected() -> None:
    runs, storage, _ = runs_of([list(range(30))])
    del storage._files[PATH][-1:]
    with pytest.raises(StorageFailed, match="Check the disk"):
        list(runs.ranges())


def test_the_file_is_recreated_and_removed() -> None:
    storage = MemoryStorage()
    storage.create(PATH).append(b"of a pass that could not remove it")
    runs = SortedRuns(storage, PATH, max_entries=MOST, in_memory=100, pace=lambda _: None)
    assert runs.bytes == 0
    for _ in range(2):
        runs.close()
        assert not storage.exists(PATH)


@given(
    count=st.integers(1, 200),
    marked=st.sets(st.integers(0, 199), max_size=100),
    first=st.integers(0, 199),
    behind=st.integers(0, 200),
)
def test_marks_count_and_find_their_bits(
    count: int, marked: set[int], first: int, behind: int
) -> None:
    expected = sorted(number for number in marked if number < count)
    marks = Marks(count)
    for part in (expected[::2], expected[1::2]):
        marks.set(np.array(part[::-1], np.uint32))
    first, behind = min(first, count), min(behind, count)
    within = [number for number in expected if first <= number < behind]
    assert marks.within(first, behind).tolist() == within
    assert np.flatnonzero(marks.of(np.arange(count))).tolist() == expected
