"""A store with its changelog against a plain dict, through any operations and crashes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.statestore import StoreLimits, StoreSpec
from strandline.statestore.store import AnyStore
from tests.forms import examples
from tests.state.kit import Changelog

KEYS = st.text("ab\x00é", max_size=3)
ANYTHING = st.integers(-(2**65), 2**65) | st.text(max_size=2) | st.lists(st.booleans(), max_size=2)
VALUES = st.runner().flatmap(lambda machine: machine.values)
SPEC: StoreSpec[str, Any] = StoreSpec("s", limits=StoreLimits(cache_bytes=2_000))


class StoreMachine(RuleBasedStateMachine):
    """Store operations: `committed` models the log, `model` the running transaction's view."""

    spec = SPEC
    values: st.SearchStrategy[Any] = ANYTHING
    """Values of the store."""

    def __init__(self) -> None:
        super().__init__()
        # Otherwise no range would have enough keys.
        self.patch = mock.patch("strandline.statestore.ranges.RANGE_MIN_KEYS", 2)
        self.patch.start()
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "0"
        self.changelog = Changelog()
        self.store: Any = self.open()
        self.committed: dict[str, Any] = {}
        self.model: dict[str, Any] = {}
        self.before_record: dict[str, Any] = {}
        self.scans: list[tuple[Any, list[tuple[str, Any]]]] = []
        self.mark = 0

    def open(self) -> AnyStore:
        """Open and restore the store."""
        return self.changelog.open(self.spec, self.folder)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.root, ignore_errors=True)
        self.patch.stop()

    @rule(values=st.dictionaries(KEYS, VALUES, min_size=3))
    def put_many(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            self.put(key, value)

    @rule(lower=st.none() | KEYS, upper=st.none() | KEYS)
    def delete_range(self, lower: str | None, upper: str | None) -> None:
        self.store.delete_range(lower, upper)
        for key in [*self.model]:
            if (lower is None or lower <= key) and (upper is None or key < upper):
                del self.model[key]

    @rule(prefix=KEYS)
    def delete_prefix(self, prefix: str) -> None:
        self.store.delete_prefix(prefix)
        self.model = {key: self.model[key] for key in self.model if not key.startswith(prefix)}

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: Any) -> None:
        self.store[key] = value
        self.model[key] = value

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.model.pop(key, None)

    @rule(key=KEYS, value=VALUES)
    def put_if_absent(self, key: str, value: Any) -> None:
        assert self.store.put_if_absent(key, value) == self.model.get(key)
        self.model.setdefault(key, value)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        assert self.store.get(key) == self.model.get(key)
        assert (key in self.store) == (key in self.model)

    @rule(keys=st.lists(KEYS, max_size=4))
    def get_many(self, keys: list[str]) -> None:
        expected = {key: self.model[key] for key in keys if key in self.model}
        assert self.store.get_many(keys) == expected

    @rule(lower=st.none() | KEYS, upper=st.none() | KEYS, reverse=st.booleans())
    def range(self, lower: str | None, upper: str | None, reverse: bool) -> None:
        expected = [
            item
            for item in sorted(self.model.items())
            if (lower is None or lower <= item[0]) and (upper is None or item[0] < upper)
        ]
        found = list(self.store.range(lower, upper, reverse=reverse))
        assert found == (expected[::-1] if reverse else expected)

    @rule(prefix=KEYS)
    def prefix(self, prefix: str) -> None:
        expected = [item for item in sorted(self.model.items()) if item[0].startswith(prefix)]
        assert list(self.store.prefix(prefix)) == expected

    @rule(reverse=st.booleans())
    def begin_scan(self, reverse: bool) -> None:
        expected = sorted(self.model.items(), reverse=reverse)
        self.scans.append((self.store.all(reverse=reverse), expected))

    @precondition(lambda self: self.scans)
    @rule()
    def end_scan(self) -> None:
        scan, expected = self.scans.pop(0)
        assert list(scan) == expected

    @rule()
    def record_done(self) -> None:
        self.mark = self.store.mark()
        self.before_record = dict(self.model)

    @rule()
    def record_failed(self) -> None:
        self.store.rollback(self.mark)
        self.model = dict(self.before_record)

    @rule()
    def commit(self) -> None:
        self.changelog.commit(self.store)
        self._begin(self.model)

    @rule()
    def abort(self) -> None:
        self.changelog.abort(self.store)
        self._begin(self.committed)

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule(wiped=st.booleans())
    def reopen(self, wiped: bool) -> None:
        self.store.close()
        if wiped:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.scans = []
        self.store = self.open()
        self._begin(self.committed)

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        for key in self.model:
            assert self.store.get(key) == self.model[key]

    def _begin(self, state: dict[str, Any]) -> None:
        self.committed = dict(state)
        self.model = dict(state)
        self.before_record = dict(state)
        self.mark = 0


class MemoryStoreMachine(StoreMachine):
    """The same on the engine in memory, and with a time to live that never ends."""

    spec = StoreSpec("s", engine="memory", ttl_ms=10**12, limits=StoreLimits(cache_bytes=2_000))


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=examples(25), stateful_step_count=30)
TestMemoryStore = MemoryStoreMachine.TestCase
TestMemoryStore.settings = settings(max_examples=examples(40), stateful_step_count=40)
