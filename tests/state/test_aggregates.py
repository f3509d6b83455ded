"""Counters and aggregates per key have the figures after every row that SQL would give."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import statistics
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.changelog.errors import InvalidConfig, InvalidRecord
from strandline.statestore import (
    Aggregates,
    AggregateStore,
    CounterStore,
    aggregates,
    counter_spec,
    open_store,
)
from strandline.statestore.frames import repeated
from tests.compared import Name
from tests.state.kit import Changelog

KEPT = Aggregates(
    n=aggregates.count(),
    known=aggregates.count("x"),
    total=aggregates.sum("x"),
    least=aggregates.min("x"),
    worst=aggregates.max("x"),
    mean=aggregates.mean("x"),
)


def make(kept: Aggregates = KEPT) -> AggregateStore[str]:
    return AggregateStore(open_store(kept.spec("s", engine="memory")), kept)


@given(st.lists(st.none() | st.integers(-1000, 1000), min_size=1))
def test_figures_are_right_after_every_row(xs: list[int | None]) -> None:
    store = make()
    for end, x in enumerate(xs, start=1):
        result = store.add("a", {"x": x})
        seen = [value for value in xs[:end] if value is not None]
        assert (result.n, result.known) == (end, len(seen))
        assert result.total == (sum(seen) if seen else None)
        assert result.least == min(seen, default=None)
        assert result.worst == max(seen, default=None)
        assert result.mean == (pytest.approx(statistics.fmean(seen)) if seen else None)
        assert store["a"] == result


def test_a_row_may_be_a_mapping_an_object_or_keywords() -> None:
    @dataclasses.dataclass
    class Row:
        x: float

    store = make()
    store.add("a", {"x": 1.5})
    store.add("a", Row(2.5))
    assert store.add("a", x=np.float64(2.0)).total == 6.0


def test_figures_are_per_key_and_a_result_cannot_be_changed() -> None:
    store = make()
    first = store.add("a", x=1)
    store.add("b", x=2)
    assert store.add("a", x=3).total == 4
    assert [(key, result.total) for key, result in store.all()] == [("a", 4), ("b", 2)]
    with pytest.raises(AttributeError):
        first.total = 9
    assert first.total == 1


@pytest.mark.parametrize("row", [{}, {"y": 1}, {"x": "text"}, {"x": [1]}, object()])
def test_a_row_that_cannot_be_folded_is_refused_and_changes_nothing(row: Any) -> None:
    store = make()
    with pytest.raises(InvalidRecord, match="cannot aggregate"):
        store.add("a", row)
    assert "a" not in store


@pytest.mark.parametrize("value", [Decimal("1.10"), dt.date(2025, 1, 1), dt.timedelta(1)])
@pytest.mark.parametrize(
    ("figure", "taken"),
    [
        (aggregates.sum("x"), "sum(x) needs numbers (or None)"),
        (aggregates.mean("x"), "mean(x) needs numbers (or None)"),
        (aggregates.max("x"), "max(x) needs numbers or text (or None)"),
        (aggregates.n_unique("x"), "n_unique(x) needs numbers or text (or None)"),
        (aggregates.last("x"), "last(x) needs numbers, text or bools (or None)"),
        (aggregates.quantile("x", 0.5), "needs numbers (or None)"),
    ],
)
def test_the_error_says_what_a_store_aggregates(figure: Any, taken: str, value: Any) -> None:
    store = make(Aggregates(f=figure))
    with pytest.raises(InvalidRecord, match=re.escape(taken)) as caught:
        store.add("a", x=value)
    assert "only a stream aggregates such values" in str(caught.value)


def test_the_smallest_string_is_found_too() -> None:
    store = make(Aggregates(first=aggregates.min("x")))
    store.add("a", x="m")
    assert store.add("a", x="b").first == "b"


def test_an_aggregate_that_is_added_later_begins_empty(tmp_path: Path) -> None:
    changelog = Changelog()
    old = Aggregates(n=aggregates.count())
    store = AggregateStore[str](changelog.open(old.spec("s"), tmp_path), old)
    store.add("a", {})
    changelog.commit(store.store)
    store.store.close()
    new = Aggregates(n=aggregates.count(), worst=aggregates.max("x"))
    again = AggregateStore[str](changelog.open(new.spec("s"), tmp_path), new)
    assert (again["a"].n, again["a"].worst) == (1, None)
    assert (again.add("a", x=3).n, again["a"].worst) == (2, 3)
    again.store.close()


def test_counters_and_figures_are_restored(tmp_path: Path) -> None:
    changelog = Changelog()
    counter = CounterStore[str](changelog.open(counter_spec("n"), tmp_path))
    assert [counter.add("a") for _ in range(3)] == [1, 2, 3]
    assert counter.add("b", -2) == -2
    changelog.commit(counter.store)
    counter.add("a")
    counter.store.close()
    again = CounterStore[str](changelog.open(counter_spec("n"), tmp_path))
    assert list(again.all()) == [("a", 3), ("b", -2)]
    assert ("a" in again, "z" in again, again["z"]) == (True, False, 0)
    again.store.close()


def test_the_figures_of_a_failing_record_are_undone() -> None:
    store = make()
    store.add("a", x=1)
    mark = store.store.mark()
    store.add("a", x=5)
    store.store.rollback(mark)
    assert (store["a"].n, store["a"].total) == (1, 1)


def test_an_aggregate_without_figures_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="at least one"):
        Aggregates()


def test_comparing_the_names_of_aggregates_takes_linear_time() -> None:
    """A member of a group names the aggregates of its store, and a client compares the names."""
    Name.compared = 0
    assert repeated([Name(f"n{number}") for number in range(1_000)]) == []
    assert Name.compared < 10_000


def test_two_aggregates_with_one_stored_field_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="two aggregates need a stored field 'n__sum'"):
        Aggregates(n=aggregates.mean("x"), n__sum=aggregates.count())


@pytest.mark.parametrize("version", ["", 2])
def test_the_version_of_a_reducer_is_a_text(version: Any) -> None:
    with pytest.raises(InvalidConfig, match="version= is a text"):
        aggregates.reducer(0, lambda old, row: old, version=version)


def test_a_reader_takes_a_reducer_with_a_version() -> None:
    described = aggregates.reducer(0, lambda old, row: old, version="2").described
    assert aggregates.declare.recorded(described, None).described == described
