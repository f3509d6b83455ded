"""Committed changes that wait for a checkpoint take little memory, and keep the last value of a
key."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.changelog.errors import DiskFull
from strandline.changelog.settings import LONG_MAX
from strandline.statestore import changelogged
from strandline.statestore.changelogged import ChangelogBatch, Changelogged
from strandline.statestore.engine import StorePosition
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.ranges import DeletedRanges

THIN, LOOSE = 2_000, 8_000


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelogged, "THIN_BYTES", THIN)
    monkeypatch.setattr(changelogged, "LOOSE_BYTES", LOOSE)


def batch_of(changes: dict[bytes, bytes | None], *, numbered: bool = False) -> ChangelogBatch:
    keys, values = pa.array(changes, pa.binary()), pa.array(changes.values(), pa.binary())
    slots = np.array([int(key) for key in changes], np.int64) if numbered else None
    return ChangelogBatch(keys, values, slots=slots)


def at(offset: int) -> StorePosition:
    return StorePosition("topic", 0, offset)


def test_keys_that_change_in_every_commit_take_the_memory_of_few_commits() -> None:
    state = Changelogged(MemoryEngine())
    for offset in range(500):
        state.apply(batch_of({b"%d" % key: b"%d" % offset for key in range(10)}), at(offset))
        assert state.pending_bytes <= THIN
    state.fold()
    assert [state.get(b"%d" % key) for key in range(10)] == [b"499"] * 10


def test_many_different_keys_are_folded_and_still_found() -> None:
    state = Changelogged(MemoryEngine())
    offset = 0
    while state.pending_bytes <= 2 * LOOSE:
        state.apply(batch_of({b"%d" % offset: b"value"}), at(offset))
        offset += 1
    assert state.get(b"0") == b"value"


@pytest.mark.parametrize("numbered", [False, True, None])
@pytest.mark.parametrize("loose_bytes", [None, LONG_MAX])
@pytest.mark.parametrize("keys", [5, 60, 400, 5_000])
def test_the_last_value_wins_after_any_thinning_and_folding(
    keys: int, loose_bytes: int | None, numbered: bool | None
) -> None:
    """With None some batches number their keys, and some do not."""
    state = Changelogged(MemoryEngine(), loose_bytes=loose_bytes)
    expected = dict[bytes, bytes | None]()
    chance = random.Random(keys)
    for offset in range(300):
        changed = {b"%d" % chance.randrange(keys) for _ in range(20)}
        changes = {key: chance.choice([b"%d" % offset, None]) for key in changed}
        expected.update(changes)
        is_numbered = chance.random() < 0.5 if numbered is None else numbered
        state.apply(batch_of(changes, numbered=is_numbered), at(offset))
        if chance.random() < 0.02:
            state.checkpoint()
        if chance.random() < 0.02:
            key = b"%d" % chance.randrange(keys)
            assert state.read([key, b"none"]) == [expected.get(key), None]
    there = sorted((key, value) for key, value in expected.items() if value is not None)
    assert list(state.scan(b"", None, reverse=False)) == there
    state.checkpoint()
    assert state.pending_bytes == 0
    assert list(state.scan(b"", None, reverse=False)) == there
    assert state.position == at(299)


class FullEngine(MemoryEngine):
    """Engine on a disk that has room again after two writes."""

    writes = 0

    def write(self, *args: Any, **kwargs: Any) -> None:
        self.writes += 1
        if self.writes <= 2:
            raise DiskFull("the disk is full")
        super().write(*args, **kwargs)


def test_changes_of_a_failed_checkpoint_stay_below_those_that_follow() -> None:
    state = Changelogged(FullEngine(), loose_bytes=LONG_MAX)
    state.apply(batch_of({b"a": b"1", b"b": b"1"}), at(1))
    for offset in (2, 3):
        with pytest.raises(DiskFull):
            state.checkpoint()
        state.apply(batch_of({b"a": b"%d" % offset, b"c": None}), at(offset))
        assert state.read([b"a", b"b", b"c"]) == [b"%d" % offset, b"1", None]
    assert state.checkpoint() == 2
    assert state.engine.position() == at(1)
    assert state.checkpoint() == 2
    assert list(state.scan(b"", None, reverse=False)) == [(b"a", b"3"), (b"b", b"1")]
    assert state.engine.position() == at(3)


def test_a_deleted_range_hides_what_a_checkpoint_moves_beside_it() -> None:
    state = Changelogged(MemoryEngine(), loose_bytes=LONG_MAX)
    state.apply(batch_of({b"a": b"1", b"b": b"1", b"d": b"1"}), at(1))
    state.checkpoint()
    gone = batch_of({b"a": None, b"b": None, b"c": b"2"})
    state.apply(replace(gone, ranges=DeletedRanges([(b"a", b"c")])), at(2))
    state.checkpoint()
    assert list(state.scan(b"", None, reverse=False)) == [(b"c", b"2"), (b"d", b"1")]
