"""Deleting ranges of keys: what is stored, what a scan reads, and what an undo brings back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.errors import InvalidRecord, InvalidTxnState
from strandline.statestore import StoreSpec, open_store
from strandline.statestore.engine import Entry
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.layers import Change, Layer
from strandline.statestore.ranges import RANGE_MIN_KEYS, DeletedRanges
from strandline.statestore.step_store import StepStore
from tests.forms import by_form, first_of
from tests.state.kit import Changelog

BYTE = st.integers(0, 12).map(lambda number: bytes([number]))
INTERVALS = st.lists(st.tuples(BYTE, st.none() | BYTE), max_size=5)
ALL = [bytes([number]) for number in range(14)]
MANY = 2 * RANGE_MIN_KEYS

Key = tuple[str, int]
SPEC: StoreSpec[Key, int] = StoreSpec("s", key=tuple[str, int], value=int)


def within(key: bytes, lower: bytes, upper: bytes | None) -> bool:
    return lower <= key and (upper is None or key < upper)


@given(INTERVALS, INTERVALS)
def test_ranges_are_a_set_of_keys(one: list[Any], other: list[Any]) -> None:
    both = DeletedRanges(one) | DeletedRanges(other)
    for key in ALL:
        assert (key in both) == any(within(key, *interval) for interval in one + other)
    listed = list(both)
    assert listed == sorted(listed, key=lambda interval: interval[0])
    assert all(end is not None for _, end in listed[:-1])


@given(INTERVALS, BYTE, st.none() | BYTE, st.booleans())
def test_a_scan_outside_leaves_out_what_the_ranges_cover(
    intervals: list[Any], lower: bytes, upper: bytes | None, reverse: bool
) -> None:
    def scan(first: bytes, end: bytes | None, /, *, reverse: bool) -> Iterator[bytes]:
        found = [key for key in ALL if within(key, first, end)]
        return reversed(found) if reverse else iter(found)

    ranges = DeletedRanges(intervals)
    expected = [key for key in ALL if within(key, lower, upper) and key not in ranges]
    found = list(ranges.scan_outside(scan, lower, upper, reverse=reverse))
    assert found == (expected[::-1] if reverse else expected)


class CountingEngine(MemoryEngine):
    """Engine that counts the entries that its scans return."""

    def __init__(self) -> None:
        super().__init__()
        self.scanned = 0

    def scan(self, lower: bytes, upper: bytes | None, /, *, reverse: bool) -> Iterator[Entry]:
        for entry in super().scan(lower, upper, reverse=reverse):
            self.scanned += 1
            yield entry


class Passed:
    """Counts the changes in memory that scans look at, and the entries of the engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = CountingEngine()
        self.in_memory = 0
        scan = Layer.scan

        def counted(layer: Layer, *bounds: Any, reverse: bool) -> Iterator[Change]:
            for change in scan(layer, *bounds, reverse=reverse):
                self.in_memory += 1
                yield change

        monkeypatch.setattr(Layer, "scan", counted)

    def take(self) -> int:
        """Return the count since the last call."""
        count = self.in_memory + self.engine.scanned
        self.in_memory = self.engine.scanned = 0
        return count


def filled(changelog: Changelog, folder: Path | None = None) -> Any:
    store = changelog.open(SPEC, folder)
    for number in range(MANY):
        store["a", number] = number
        store["b", number] = number
    changelog.commit(store)
    store.checkpoint()
    return store


def test_a_scan_does_not_pass_deleted_keys() -> None:
    engine = CountingEngine()
    store = open_store(SPEC, engine=engine)
    changelog = Changelog()
    for number in range(MANY):
        store["a", number] = number
    store["b", 0] = 0
    changelog.commit(store)
    store.checkpoint()
    store.delete_prefix(("a",))
    store["a", 7] = -7
    expected = [(("a", 7), -7), (("b", 0), 0)]
    for step in (lambda: None, lambda: changelog.commit(store), store.checkpoint):
        step()
        engine.scanned = 0
        assert list(store.all()) == expected
        assert list(store.all(reverse=True)) == expected[::-1]
        assert engine.scanned <= 2 * len(expected)


def test_few_keys_are_deleted_one_by_one() -> None:
    changelog = Changelog()
    store = filled(changelog)
    store.delete_range(("a", 0), ("a", RANGE_MIN_KEYS - 1))
    assert not store.drain().ranges
    changelog.abort(store)
    store.delete_range(("a", 0), ("a", RANGE_MIN_KEYS))
    assert store.drain().ranges


def test_the_changelog_has_a_deletion_for_each_key(tmp_path: Path) -> None:
    changelog = Changelog()
    store = filled(changelog, tmp_path / "0")
    store.delete_prefix(("a",))
    batch = store.drain()
    assert batch.values.null_count == len(batch) == MANY
    changelog.commit(store)
    store.close()
    restored = changelog.open(SPEC, tmp_path / "1")
    assert [key for key, _ in restored.all()] == [("b", number) for number in range(MANY)]


def test_a_checkpoint_leaves_no_deleted_key(tmp_path: Path) -> None:
    changelog = Changelog()
    store = filled(changelog, tmp_path / "0")
    store.delete_range(upper=("b",))
    store["a", 3] = 30
    changelog.commit(store)
    store.delete_range(("b", 1))
    changelog.commit(store)
    assert store.checkpoint() > 0
    assert list(store.all()) == [(("a", 3), 30), (("b", 0), 0)]
    store.close()
    reopened = changelog.open(SPEC, tmp_path / "0")
    assert list(reopened.all()) == [(("a", 3), 30), (("b", 0), 0)]
    assert reopened["a", 3] == 30
    assert reopened.get(("a", 4)) is None


def test_an_undo_brings_the_keys_back() -> None:
    changelog = Changelog()
    store = filled(changelog)
    store["a", 0] = -1
    mark = store.mark()
    store.delete_prefix(("a",))
    store["a", 1] = -2
    assert [key for key, _ in store.prefix(("a",))] == [("a", 1)]
    store.rollback(mark)
    expected = [-1, *range(1, MANY)]
    assert [value for _, value in store.prefix(("a",))] == expected
    changelog.commit(store)
    assert [value for _, value in store.prefix(("a",))] == expected


def test_a_scan_that_has_begun_shows_the_deleted_keys() -> None:
    store = filled(Changelog())
    scan = store.prefix(("a",))
    store.delete_prefix(("a",))
    assert len(list(scan)) == MANY
    assert list(store.prefix(("a",))) == []


@pytest.mark.parametrize(
    ("opened", "per_commit"),
    [
        ("open", 1),
        ("open_columns", 1),
        pytest.param("open", 1_000, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("reverse", first_of([False, True], 1), ids=["first", "last"])
@pytest.mark.parametrize("checkpoints", by_form([True], [False, True]))
def test_the_end_of_a_queue_costs_the_same_however_many_were_taken(
    monkeypatch: pytest.MonkeyPatch, opened: str, reverse: bool, per_commit: int, checkpoints: bool
) -> None:
    passed = Passed(monkeypatch)
    changelog, spec = Changelog(), StoreSpec("q", key=int, value=str)
    store: Any = getattr(changelog, opened)(spec, engine=passed.engine)
    step = -1 if reverse else 1
    waiting = [number * step for number in range(10)]
    for number in waiting:
        store[number] = "job"
    for count in range(10, by_form(400, 1_000)):
        store[count * step] = "job"
        waiting.append(count * step)
        passed.take()
        number, _ = next(store.all(reverse=reverse))
        assert number == waiting.pop(0)
        # The layers and the engine may each have the same key.
        assert passed.take() <= 4 * RANGE_MIN_KEYS
        del store[number]
        if count % per_commit == 0:
            changelog.commit(store)
        if checkpoints and count % 150 == 0:
            changelog.commit(store)
            store.checkpoint()
    assert [number for number, _ in store.all(reverse=reverse)] == waiting
    changelog.commit(store)
    store.checkpoint()
    assert [number for number, _ in store.all(reverse=reverse)] == waiting


@pytest.mark.parametrize(
    ("opened", "method"),
    [("open", "delete_range"), ("open_columns", "delete_range"), ("open_columns", "take_batch")],
)
@pytest.mark.parametrize("checkpoints", by_form([False], [False, True]))
def test_a_beginning_costs_the_same_to_remove_however_much_was_removed(
    monkeypatch: pytest.MonkeyPatch, opened: str, method: str, checkpoints: bool
) -> None:
    passed = Passed(monkeypatch)
    changelog, spec = Changelog(), StoreSpec("windows", key=tuple[int, int], value=str)
    store: Any = getattr(changelog, opened)(spec, engine=passed.engine)
    keys = range(5)
    for time in range(300):
        for key in keys:
            store[time, key] = "open"
            store[time + 1, key] = "open"
        changelog.commit(store)
        passed.take()
        getattr(store, method)(None, (time + 1,))
        assert passed.take() <= 4 * RANGE_MIN_KEYS
        changelog.commit(store)
        if checkpoints and time % 100 == 0:
            store.checkpoint()
    assert [key for key, _ in store.all()] == [(300, key) for key in keys]
    store.checkpoint()
    assert [key for key, _ in store.all()] == [(300, key) for key in keys]
    store.close()
    assert [key for key, _ in changelog.open(spec).all()] == [(300, key) for key in keys]


@pytest.mark.parametrize("opened", ["open", "open_columns"])
def test_an_empty_interval_takes_new_keys_and_loses_them_with_an_undo(opened: str) -> None:
    changelog = Changelog()
    store: Any = getattr(changelog, opened)(StoreSpec("q", key=int, value=str))
    for number in range(MANY):
        store[number] = "job"
    changelog.commit(store)
    for number in range(MANY):
        del store[number]
    assert list(store.all()) == []
    mark = store.mark()
    store[7] = "again"
    assert list(store.all()) == [(7, "again")]
    store.rollback(mark)
    assert list(store.all()) == []
    changelog.abort(store)
    assert len(list(store.all())) == MANY
    for number in range(MANY):
        del store[number]
    assert list(store.all()) == []
    store[7] = "again"
    changelog.commit(store)
    assert list(store.all()) == [(7, "again")]
    store.checkpoint()
    assert list(store.all()) == [(7, "again")]
    store.close()
    assert list(changelog.open(StoreSpec("q", key=int, value=str)).all()) == [(7, "again")]


def test_a_scan_that_others_overtake_notes_nothing() -> None:
    changelog = Changelog()
    store = filled(changelog)
    for number in range(MANY):
        del store["a", number]
    scan = store.all()
    store["a", 7] = 70
    changelog.commit(store)
    assert next(scan) == (("b", 0), 0)
    assert next(store.all()) == (("a", 7), 70)
    scan, mark = store.all(), store.mark()
    store["a", 8] = 80
    store.rollback(mark)
    del store["a", 7]
    store.rollback(mark)
    assert next(scan) == (("a", 7), 70)
    assert next(store.all()) == (("a", 7), 70)


def test_a_memory_engine_frees_deleted_keys() -> None:
    engine = MemoryEngine()
    store = open_store(SPEC, engine=engine)
    changelog = Changelog()
    for number in range(5_000):
        store["a", number] = number
    changelog.commit(store)
    store.checkpoint()
    store.delete_range()
    changelog.commit(store)
    store.checkpoint()
    assert engine.approximate_num_entries() == 0
    assert list(store.all()) == []


def test_a_changelog_with_a_range_alone_reaches_its_checkpoint(tmp_path: Path) -> None:
    changelog = Changelog()
    store = filled(changelog, tmp_path / "0")
    store.delete_range()
    changelog.commit(store)
    assert store.pending_bytes > 0
    store.checkpoint()
    assert store.pending_bytes == 0


def test_a_step_that_deletes_a_range_sees_only_its_own_puts_there() -> None:
    base = filled(Changelog())
    base["a", -1] = 5
    step: StepStore[Key, int] = StepStore(base)
    step.delete_prefix(("a",))
    step["a", 9] = 90
    assert list(step.prefix(("a",))) == [(("a", 9), 90)]
    assert step.get(("a", -1)) is None
    assert len(list(base.prefix(("a",)))) == MANY + 1
    assert step.is_current()
    step.apply()
    assert list(base.prefix(("a",))) == [(("a", 9), 90)]
    assert base.drain().ranges


def test_a_step_that_deleted_a_range_is_repeated_after_a_change_of_the_store() -> None:
    base = filled(Changelog())
    first: StepStore[Key, int] = StepStore(base)
    second: StepStore[Key, int] = StepStore(base)
    second.delete_prefix(("a",))
    first["a", 1_000] = 1
    first.apply()
    assert not second.is_current()


def test_what_cannot_be_deleted_is_refused() -> None:
    changelog = Changelog()
    store = filled(changelog)
    numbers: Any = open_store(StoreSpec("n", key=int, engine="memory"))
    with pytest.raises(InvalidRecord, match=r"prefix\(\) is for str, bytes and tuple keys"):
        numbers.delete_prefix(1)
    with pytest.raises(InvalidRecord, match="a key of this store must be"):
        store.delete_range("a")
    store["a", 1] = 1
    store.drain()
    with pytest.raises(InvalidTxnState, match="its commit is under way"):
        store.delete_range()
