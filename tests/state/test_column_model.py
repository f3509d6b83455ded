"""A store with columns against a plain dict: the model of `test_model`, with batches mixed in."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from strandline.changelog.errors import InvalidRecord
from strandline.statestore import StoreLimits, StoreSpec, changelogged
from strandline.statestore.column_store import ColumnStore
from tests.forms import examples
from tests.state.test_model import KEYS, VALUES, StoreMachine

TINY = StoreLimits(cache_bytes=2_000)
NO_CACHE = StoreLimits(cache_bytes=0)


@pytest.fixture(autouse=True)
def committed_batches_are_thinned_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelogged, "THIN_BYTES", 100)
    monkeypatch.setattr(changelogged, "LOOSE_BYTES", 400)


class Figures(msgspec.Struct, frozen=True):
    n: int = 0
    total: int | float | str | None = None


class ColumnMachine(StoreMachine):
    """Operations on single keys, as for every store, and on columns."""

    spec = StoreSpec("s", limits=TINY)

    def open(self) -> ColumnStore[Any, Any]:
        return self.changelog.open_columns(self.spec, self.folder)

    def column(self, values: list[Any]) -> Any:
        """Return values in the form in which a batch has them."""
        return values

    def plain(self, column: Any) -> list[Any]:
        """Return the values of a column that the store has returned."""
        return list(column)

    @rule(entries=st.lists(st.tuples(KEYS, VALUES), max_size=5))
    def put_batch(self, entries: list[tuple[str, Any]]) -> None:
        keys, values = [key for key, _ in entries], [value for _, value in entries]
        self.store.put_batch(pa.array(keys, pa.string()), self.column(values))
        self.model |= dict(entries)

    @rule(values=st.dictionaries(KEYS, VALUES, max_size=5))
    def update_batch(self, values: dict[str, Any]) -> None:
        def update(old: Any) -> Any:
            assert self.plain(old) == [self.model.get(key) for key in values]
            return self.column(list(values.values()))

        self.store.update_batch(pa.array(list(values), pa.string()), update)
        self.model |= values

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5))
    def update_batch_refuses_a_repeated_key(self, keys: list[str]) -> None:
        with pytest.raises(InvalidRecord, match="each key once"):
            self.store.update_batch(pa.array([*keys, keys[0]], pa.string()), lambda old: old)

    @rule(keys=st.lists(KEYS, max_size=5))
    def delete_batch(self, keys: list[str]) -> None:
        self.store.delete_batch(pa.array(keys, pa.string()))
        for key in keys:
            self.model.pop(key, None)

    @rule(keys=st.lists(KEYS, max_size=5))
    def get_batch(self, keys: list[str]) -> None:
        found = self.store.get_batch(pa.array(keys, pa.string()))
        assert self.plain(found) == [self.model.get(key) for key in keys]

    @rule(keys=st.lists(KEYS, max_size=5))
    def contains_batch(self, keys: list[str]) -> None:
        found = self.store.contains_batch(pa.array(keys, pa.string()))
        assert found.tolist() == [key in self.model for key in keys]

    @rule(lower=st.none() | KEYS, upper=st.none() | KEYS)
    def scan_batch(self, lower: str | None, upper: str | None) -> None:
        keys, values = self.store.scan_batch(lower, upper)
        expected = self.keys_of(lower, upper)
        assert keys.to_pylist() == expected
        assert self.plain(values) == [self.model[key] for key in expected]

    @rule(lower=st.none() | KEYS, upper=st.none() | KEYS, rows=st.integers(1, 4))
    def scan_batches(self, lower: str | None, upper: str | None, rows: int) -> None:
        batches = list(self.store.scan_batches(lower, upper, rows=rows))
        assert all(0 < len(keys) <= rows for keys, _ in batches)
        found = [key for keys, _ in batches for key in keys.to_pylist()]
        assert found == self.keys_of(lower, upper)
        values = [value for _, column in batches for value in self.plain(column)]
        assert values == [self.model[key] for key in found]

    @rule(lower=st.none() | KEYS, upper=st.none() | KEYS)
    def take_batch(self, lower: str | None, upper: str | None) -> None:
        keys, values = self.store.take_batch(lower, upper)
        expected = self.keys_of(lower, upper)
        assert keys.to_pylist() == expected
        assert self.plain(values) == [self.model.pop(key) for key in expected]

    def keys_of(self, lower: str | None, upper: str | None) -> list[str]:
        """Return the keys of a range, in their order."""
        return [
            key
            for key in sorted(self.model)
            if (lower is None or lower <= key) and (upper is None or key < upper)
        ]

    @rule()
    def changed_rows(self) -> None:
        keys, values = self.store.changed_rows()
        changes = dict(zip(keys.to_pylist(), self.plain(values), strict=True))
        assert len(changes) == len(keys)
        assert {key: self.model.get(key) for key in changes} == changes
        different = {
            key
            for key in self.model.keys() | self.committed.keys()
            if self.model.get(key) != self.committed.get(key)
        }
        assert different <= changes.keys()

    @invariant()
    def clean_slots_stay_within_the_limit(self) -> None:
        table = self.store._table
        clean = (len(table) - table.num_dirty) / max(1, len(table))
        assert clean * table.nbytes <= self.spec.limits.cache_bytes


class IntMachine(ColumnMachine):
    """Ints, and adding them up, on the engine in memory and without a cache."""

    spec = StoreSpec("s", value=int, engine="memory", limits=NO_CACHE)
    values = st.integers(-(2**62), 2**62)

    def column(self, values: list[Any]) -> Any:
        return pa.array(values, pa.int64())

    def plain(self, column: Any) -> list[Any]:
        found: list[Any] = column.to_pylist()
        return found

    @rule(entries=st.lists(st.tuples(KEYS, st.integers(-9, 9)), max_size=5))
    def add_batch(self, entries: list[tuple[str, int]]) -> None:
        keys, numbers = [key for key, _ in entries], [number for _, number in entries]
        for key, number in entries:
            self.model[key] = self.model.get(key, 0) + number
        by = pa.array(numbers, pa.int64())
        found = self.store.add_batch(pa.array(keys, pa.string()), by)
        assert found.to_pylist() == [self.model[key] for key in keys]


class FigureMachine(ColumnMachine):
    """Structs, with a time to live that never ends."""

    spec = StoreSpec("s", value=Figures, ttl_ms=10**12, limits=TINY)
    values = st.builds(
        Figures,
        st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(-300, 300) | st.floats(allow_nan=False) | st.text(max_size=3),
    )

    def plain(self, column: Any) -> list[Any]:
        return [None if row is None else Figures(**row) for row in column.to_pylist()]


class RoomyMachine(ColumnMachine):
    """A store that never has to free a slot, so that it knows which keys are new."""

    spec = StoreSpec("s")


TestColumns = ColumnMachine.TestCase
TestColumns.settings = settings(max_examples=examples(25), stateful_step_count=30)
TestRoomy = RoomyMachine.TestCase
TestRoomy.settings = settings(max_examples=examples(25), stateful_step_count=40)
TestInts = IntMachine.TestCase
TestInts.settings = settings(max_examples=40, stateful_step_count=40)
TestFigures = FigureMachine.TestCase
TestFigures.settings = settings(max_examples=examples(25), stateful_step_count=40)
