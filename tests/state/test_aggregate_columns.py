"""Aggregates by columns have the states that folding one row at a time has, and SQL's results."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import strandline as sl
from strandline.changelog.errors import CorruptLog, InvalidConfig, InvalidRecord, MissingDependency
from strandline.statestore.aggregates import Aggregates, distinct, recorded, sketches
from strandline.statestore.column_store import open_column_store
from strandline.statestore.serdes import value_serde
from tests.forms import examples

INT64_MAX = (1 << 63) - 1
SCHEMA = pl.Schema(
    {
        "key": pl.String,
        "i": pl.Int64,
        "x": pl.Float64,
        "s": pl.String,
        "b": pl.Boolean,
        "timestamp": pl.Int64,
    }
)
Row = dict[str, Any]

FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]) | st.floats(-1e6, 1e6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["a", "b", "ü", None]),
            "i": st.none() | st.integers(-5, 5) | st.integers(-(2**40), 2**40),
            "x": st.none() | FLOATS,
            "s": st.none() | st.text("aäz€", max_size=3),
            "b": st.none() | st.booleans(),
            "timestamp": st.integers(-3, 3) | st.integers(-(10**13), 10**13),
        }
    ),
    max_size=25,
)
CUTS = st.lists(st.integers(0, 25), max_size=4)


def present(rows: Iterable[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def by_time(rows: Iterable[Row], column: str) -> list[Any]:
    return present(sorted(rows, key=lambda row: row["timestamp"]), column)


def rank(value: Any) -> Any:
    """Return what orders a value; NaN is greater than all other numbers."""
    return (1, 0) if value != value else (0, value)


def variance(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return statistics.variance(values) if all(map(math.isfinite, values)) else math.nan


def deviation(values: Sequence[float]) -> float | None:
    found = variance(values)
    return None if found is None else math.sqrt(found)


def mean(values: Sequence[float]) -> float | None:
    return added(values) / len(values) if values else None


def added(values: Sequence[float]) -> Any:
    return sum(values) if values else None


def distinct_of(values: Sequence[Any]) -> int:
    return len({rank(value) for value in values})


def greatest(rows: Sequence[Row], column: str, n: int, by: str) -> list[Any]:
    whole = [row for row in rows if row[column] is not None and row[by] is not None]
    ordered = sorted(whole, key=lambda row: rank(row[by]), reverse=True)
    return [row[column] for row in ordered[:n]]


def joined(state: str, row: Row) -> str:
    return f"{state}{row['s'] or '-'}"


KINDS: dict[str, tuple[Any, Callable[[list[Row]], Any]]] = {
    "count": (sl.count(), len),
    "count_i": (sl.count("i"), lambda rows: len(present(rows, "i"))),
    "count_b": (sl.count("b"), lambda rows: len(present(rows, "b"))),
    "sum_i": (sl.sum("i"), lambda rows: added(present(rows, "i"))),
    "sum_x": (sl.sum("x"), lambda rows: added(present(rows, "x"))),
    "sum_b": (sl.sum("b"), lambda rows: added(present(rows, "b"))),
    "mean_i": (sl.mean("i"), lambda rows: mean(present(rows, "i"))),
    "mean_x": (sl.mean("x"), lambda rows: mean(present(rows, "x"))),
    "min_i": (sl.min("i"), lambda rows: min(present(rows, "i"), default=None)),
    "min_x": (sl.min("x"), lambda rows: min(present(rows, "x"), key=rank, default=None)),
    "min_s": (sl.min("s"), lambda rows: min(present(rows, "s"), default=None)),
    "min_b": (sl.min("b"), lambda rows: min(present(rows, "b"), default=None)),
    "max_i": (sl.max("i"), lambda rows: max(present(rows, "i"), default=None)),
    "max_x": (sl.max("x"), lambda rows: max(present(rows, "x"), key=rank, default=None)),
    "max_s": (sl.max("s"), lambda rows: max(present(rows, "s"), default=None)),
    "var_i": (sl.var("i"), lambda rows: variance(present(rows, "i"))),
    "var_x": (sl.var("x"), lambda rows: variance(present(rows, "x"))),
    "std_x": (sl.std("x"), lambda rows: deviation(present(rows, "x"))),
    "first_x": (sl.first("x"), lambda rows: next(iter(by_time(rows, "x")), None)),
    "first_s": (sl.first("s"), lambda rows: next(iter(by_time(rows, "s")), None)),
    "last_b": (sl.last("b"), lambda rows: next(reversed(by_time(rows, "b")), None)),
    "last_i": (sl.last("i"), lambda rows: next(reversed(by_time(rows, "i")), None)),
    "any_s": (sl.any("s"), lambda rows: next(iter(present(rows, "s")), None)),
    "n_i": (sl.n_unique("i"), lambda rows: distinct_of(present(rows, "i"))),
    "n_x": (sl.n_unique("x"), lambda rows: distinct_of(present(rows, "x"))),
    "n_s": (sl.n_unique("s"), lambda rows: distinct_of(present(rows, "s"))),
    "about_s": (sl.n_unique("s", approx=True), lambda rows: distinct_of(present(rows, "s"))),
    "about_x": (sl.n_unique("x", approx=True), lambda rows: distinct_of(present(rows, "x"))),
    "about_b": (sl.n_unique("b", approx=True), lambda rows: distinct_of(present(rows, "b"))),
    "collect_s": (sl.collect("s", limit=3), lambda rows: by_time(rows, "s")[:3]),
    "collect_x": (sl.collect("x"), lambda rows: by_time(rows, "x")),
    "top_i": (sl.top("i", 2), lambda rows: greatest(rows, "i", 2, "i")),
    "top_s": (sl.top("s", 3, by="x"), lambda rows: greatest(rows, "s", 3, "x")),
    "median": (sl.quantile("x", 0.5), lambda rows: lower_quantile(present(rows, "x"), 0.5)),
    "high": (sl.quantile("i", 0.9), lambda rows: lower_quantile(present(rows, "i"), 0.9)),
    "texts": (
        sl.reducer("", joined, lambda old, new: old + new),
        lambda rows: "".join(row["s"] or "-" for row in rows),
    ),
}
"""Every kind of aggregate on columns of several types, each with its oracle in plain Python."""

EXACT = Aggregates(**{name: kind for name, (kind, _) in KINDS.items()})


def lower_quantile(values: Sequence[float], q: float) -> float | None:
    """Return the least value whose rank is at least `q`, as SQL's `percentile_disc`."""
    ordered = sorted(value for value in values if not math.isnan(value))
    if not ordered:
        return None
    return float(ordered[max(0, math.ceil(q * len(ordered)) - 1)])


def framed(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA)


def batches(rows: Sequence[Row], cuts: Iterable[int]) -> list[pl.DataFrame]:
    ends = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [framed(rows[a:b]) for a, b in itertools.pairwise(ends)]


def merged_by_key(kept: Aggregates, frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Aggregate batches one after the other, with the states of the keys in a frame."""
    states = pl.DataFrame(schema={"key": pl.String, **kept.state_schema(SCHEMA)})
    for frame in frames:
        new = kept.partial(frame, ["key"])
        old = new.select("key").join(
            states, on="key", how="left", nulls_equal=True, maintain_order="left"
        )
        merged = kept.merge_columns(old, new)
        rest = states.join(merged, on="key", how="anti", nulls_equal=True)
        states = pl.concat([rest, merged])
    return states


def folded_by_key(kept: Aggregates, rows: Iterable[Row]) -> dict[Any, Any]:
    states: dict[Any, Any] = {}
    for row in rows:
        old = states.get(row["key"], kept.empty)
        states[row["key"]] = kept.fold(old, row, time=row["timestamp"])
    return states


def alike(one: Any, other: Any) -> bool:
    """Return True if two figures are equal; floats to rounding, and NaN to itself."""
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        if one is None or other is None:
            return one is other
        return one == pytest.approx(other, rel=1e-9, abs=1e-3, nan_ok=True)
    return bool(one == other)


def plain(figure: Any) -> Any:
    """Return a figure of columns as one of rows: pairs as tuples."""
    if isinstance(figure, list):
        return tuple(tuple(item.values()) if isinstance(item, dict) else item for item in figure)
    return figure


def check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    wrong = {n: (found[n], expected[n]) for n in expected if not alike(found[n], expected[n])}
    assert wrong == {}


@settings(max_examples=examples(150))
@given(ROWS, CUTS)
def test_batches_cut_anywhere_give_the_results_of_all_rows(
    rows: list[Row], cuts: list[int]
) -> None:
    states = merged_by_key(EXACT, batches(rows, cuts))
    results = states.select("key").hstack(EXACT.results(states))
    assert set(results["key"]) == {row["key"] for row in rows}
    for result in results.iter_rows(named=True):
        group = [row for row in rows if row["key"] == result["key"]]
        check_equal(result, {name: oracle(group) for name, (_, oracle) in KINDS.items()})


SKETCHED = {name for name in KINDS if name.startswith(("about", "median", "high"))}


@settings(max_examples=examples(150))
@given(ROWS, CUTS)
def test_a_state_by_columns_is_the_state_by_rows(rows: list[Row], cuts: list[int]) -> None:
    states = merged_by_key(EXACT, batches(rows, cuts))
    folded = folded_by_key(EXACT, rows)
    results = EXACT.results(states).rows(named=True)
    for state, result in zip(states.iter_rows(named=True), results, strict=True):
        key = state.pop("key")
        row_state = folded[key]
        # The bytes of two sketches of the same values may differ; their estimates may not.
        found = {name: plain(figure) for name, figure in state.items() if name not in SKETCHED}
        check_equal(found, {name: getattr(row_state, name) for name in found})
        row_result = EXACT.result(row_state)
        check_equal(result, {name: getattr(row_result, name) for name in result})


@settings(max_examples=examples(100))
@given(ROWS, CUTS)
def test_combined_states_are_the_state_of_all_rows(rows: list[Row], cuts: list[int]) -> None:
    parts = pl.concat([EXACT.partial(frame, ["key"]) for frame in batches(rows, cuts)])
    combined = EXACT.combine(parts, ["key"])
    expected = [row["key"] for row in rows]
    assert combined["key"].to_list() == list(dict.fromkeys(expected))
    for result, key in zip(
        EXACT.results(combined).iter_rows(named=True), combined["key"], strict=True
    ):
        group = [row for row in rows if row["key"] == key]
        check_equal(result, {name: oracle(group) for name, (_, oracle) in KINDS.items()})


@settings(max_examples=examples(50))
@given(ROWS)
def test_merged_objects_are_the_state_of_all_rows(rows: list[Row]) -> None:
    parts = [EXACT.fold(EXACT.empty, row, time=row["timestamp"]) for row in rows]
    result = EXACT.result(EXACT.merge([EXACT.empty, *parts]))
    found = {name: getattr(result, name) for name in KINDS}
    check_equal(found, {name: oracle(rows) for name, (_, oracle) in KINDS.items()})


@settings(max_examples=examples(50))
@given(ROWS, CUTS)
def test_advancing_a_reducer_without_merge_folds_the_rows_in_order(
    rows: list[Row], cuts: list[int]
) -> None:
    kept = Aggregates(texts=sl.reducer(list, listed), n=sl.count(), last=sl.last("i"))
    assert not kept.can_merge
    states = pl.DataFrame(schema={"key": pl.String, **kept.state_schema(SCHEMA)})
    for frame in batches(rows, cuts):
        keys = frame.select("key").unique(maintain_order=True)
        old = keys.join(states, on="key", how="left", nulls_equal=True, maintain_order="left")
        new = kept.add(old, kept.gather(frame, ["key"]))
        assert new["key"].to_list() == keys["key"].to_list()
        states = pl.concat([states.join(new, on="key", how="anti", nulls_equal=True), new])
    folded = folded_by_key(kept, rows)
    for state in states.iter_rows(named=True):
        assert folded[state.pop("key")] == kept.state(**state)


def listed(state: list[Any], row: Row) -> list[Any]:
    state.append(row["s"])  # changed in place, as a function may
    return state


@settings(max_examples=examples(50))
@given(ROWS)
def test_the_types_of_states_and_results_are_those_that_are_declared(rows: list[Row]) -> None:
    partial = EXACT.partial(framed(rows), ["key"])
    assert partial.drop("key").schema == EXACT.state_schema(SCHEMA)
    assert EXACT.merge_columns(partial, partial).schema == partial.schema
    assert EXACT.combine(partial, []).schema == EXACT.state_schema(SCHEMA)
    assert EXACT.results(partial).schema == EXACT.result_schema(SCHEMA)


@settings(max_examples=examples(50))
@given(ROWS)
def test_states_pass_through_an_arrow_array(rows: list[Row]) -> None:
    partial = EXACT.partial(framed(rows), ["key"])
    array = EXACT.to_struct(partial)
    assert isinstance(array, pa.StructArray)
    assert [field.name for field in array.type] == list(EXACT.state.__struct_fields__)
    assert_frame_equal(EXACT.from_struct(array), partial.drop("key"))


@settings(max_examples=examples(50))
@given(ROWS)
def test_states_pass_through_the_values_of_a_store(rows: list[Row]) -> None:
    partial = EXACT.partial(framed(rows), ["key"])
    types = EXACT.state_schema(SCHEMA)
    found = EXACT.from_values(EXACT.to_values(partial), types)
    assert_frame_equal(found, partial.drop("key"))


def test_lists_of_times_are_stored_as_numbers() -> None:
    kept = Aggregates(days=sl.collect("day"), distinct=sl.n_unique("day"))
    day = dt.date(1970, 1, 3)
    frame = pl.DataFrame({"key": ["a", "a"], "day": [day, None], "timestamp": [5, 6]})
    partial, types = kept.partial(frame, ["key"]), kept.state_schema(frame.schema)
    [state] = values = kept.to_values(partial)
    assert (state.days, state.distinct) == (((5, 2),), (2,))
    read = kept.from_values([*values, None], types)
    assert kept.results(read).rows() == [([day], 1), ([], 0)]


def test_stored_lists_of_another_type_than_the_column_are_refused() -> None:
    kept = Aggregates(names=sl.collect("name"))
    state = kept.fold(kept.empty, {"name": "ann"}, time=1)
    types = kept.state_schema({"name": pl.Int64(), "timestamp": pl.Int64()})
    with pytest.raises(InvalidRecord, match="stored figures of 'names' are not List"):
        kept.from_values([state], types)


def test_a_null_in_an_arrow_array_is_no_state() -> None:
    kept = Aggregates(n=sl.count(), total=sl.sum("i"))
    array = pa.array(
        [None, {"n": 2, "total": 5}], pa.struct({"n": pa.int64(), "total": pa.int64()})
    )
    states = kept.from_struct(array)
    assert states.rows() == [(None, None), (2, 5)]
    assert kept.results(states).rows() == [(0, None), (2, 5)]
    with pytest.raises(InvalidRecord, match="lack the fields"):
        Aggregates(n=sl.count(), m=sl.mean("i")).from_struct(array)


def test_one_group_of_all_rows_needs_no_key() -> None:
    kept = Aggregates(n=sl.count(), last=sl.last("i"), texts=sl.collect("s"))
    rows = [row_of("a", i=1, timestamp=5), row_of("b", i=2, timestamp=4)]
    states = kept.partial(framed(rows), [])
    assert kept.results(states).rows() == [(2, 1, [])]
    assert kept.partial(framed([]), []).is_empty()


def test_a_column_of_the_key_can_be_aggregated_under_another_name() -> None:
    kept = Aggregates(
        n=sl.count("key"), most=sl.max("key"), list=sl.collect("key"), u=sl.n_unique("key")
    )
    states = kept.partial(framed([row_of("a"), row_of(None), row_of("a")]), ["key"])
    assert kept.results(states).rows() == [(2, "a", ["a", "a"], 1), (0, None, [], 0)]
    with pytest.raises(InvalidConfig, match="'key' is both a column of the key and a field"):
        Aggregates(key=sl.count()).partial(framed([row_of("a")]), ["key"])


def row_of(key: str | None, **values: Any) -> Row:
    return {**dict.fromkeys(SCHEMA), "key": key, "timestamp": 0, **values}


# Overflow ------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(
    st.lists(st.integers(-(2**63), INT64_MAX) | st.sampled_from([-(2**63), INT64_MAX]), max_size=5),
    st.lists(st.integers(-(2**63), INT64_MAX) | st.sampled_from([-(2**63), INT64_MAX]), max_size=5),
)
@example([INT64_MAX], [1])
@example([-(2**63)], [-1])
@example([-(2**63)], [-(2**63)])
def test_a_sum_beyond_64_bits_is_refused_with_the_key(one: list[int], other: list[int]) -> None:
    kept = Aggregates(total=sl.sum("i"), mean=sl.mean("i"))
    frames = [framed([row_of("k", i=value) for value in values]) for values in (one, other)]
    totals = [sum(one), sum(other), sum(one) + sum(other)]
    fits = all(-(2**63) <= total <= INT64_MAX for total in totals)
    if fits:
        states = merged_by_key(kept, frames)
        assert states["total"].to_list() == [totals[2]] * bool(one + other)
    else:
        with pytest.raises(InvalidRecord, match=r"exceeds 64 bits.*\{'key': 'k'\}"):
            merged_by_key(kept, frames)


def test_only_the_key_of_the_sum_that_is_too_large_is_named() -> None:
    kept = Aggregates(total=sl.sum("i"))
    rows = [row_of("a", i=INT64_MAX), row_of("b", i=INT64_MAX), row_of("b", i=1)]
    with pytest.raises(InvalidRecord, match=r"'total'.*\{'key': 'b'\}"):
        kept.partial(framed(rows), ["key"])
    assert kept.partial(framed(rows[:2]), ["key"])["total"].to_list() == [INT64_MAX] * 2


def test_a_row_whose_sum_is_too_large_changes_nothing() -> None:
    kept = Aggregates(total=sl.sum("i"))
    state = kept.fold(kept.empty, {"i": INT64_MAX})
    with pytest.raises(InvalidRecord, match="for the key 'york'.*exceeds 64 bits"):
        kept.fold(state, {"i": 1}, key="york")
    with pytest.raises(InvalidRecord, match="exceeds 64 bits"):
        kept.merge([state, state])
    assert kept.fold(state, {"i": -1}).total == INT64_MAX - 1


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt8, pl.Int32, pl.UInt32, pl.UInt64])
def test_sums_of_narrow_integers_do_not_wrap(dtype: Any) -> None:
    most = dtype.max()
    kept = Aggregates(total=sl.sum("v"), most=sl.max("v"))
    frame = pl.DataFrame(
        {"k": [1] * 3, "v": [pl.select(most).item()] * 3}, schema={"k": pl.Int64, "v": dtype}
    )
    if dtype == pl.UInt64:
        with pytest.raises(InvalidRecord, match="exceeds 64 bits"):
            kept.partial(frame, ["k"])
    else:
        assert kept.partial(frame, ["k"])["total"].item() == 3 * pl.select(most).item()


# Types ---------------------------------------------------------------------------------------


def test_times_are_compared_and_kept_in_columns() -> None:
    day = [dt.date(2024, 3, n) for n in (2, 1, 3)]
    frame = pl.DataFrame({"d": day, "timestamp": [3, 1, 2]})
    kept = Aggregates(
        a=sl.min("d"),
        b=sl.max("d"),
        c=sl.first("d"),
        n=sl.n_unique("d"),
        about=sl.n_unique("d", approx=True),
        t=sl.top("d", 2),
    )
    states = kept.partial(frame, [])
    states = kept.merge_columns(states, states)
    assert kept.results(states).rows() == [(day[1], day[2], day[1], 3, 3, [day[2], day[2]])]


NO_NUMBERS = [pl.String, pl.Date, pl.List(pl.Int64), pl.Binary]


@pytest.mark.parametrize(
    ("kind", "dtype", "takes"),
    [
        *(
            (kind, dtype, "numbers or decimals")
            for kind in (sl.sum, sl.mean)
            for dtype in NO_NUMBERS
        ),
        *(
            (kind, dtype, "numbers")
            for kind in (sl.var, sl.std)
            for dtype in [*NO_NUMBERS, pl.Decimal(9, 2)]
        ),
    ],
)
def test_a_column_that_is_no_number_is_refused_when_the_types_are_asked_for(
    kind: Any, dtype: Any, takes: str
) -> None:
    kept = Aggregates(figure=kind("v"))
    for ask in (kept.state_schema, kept.result_schema):
        with pytest.raises(InvalidConfig, match=f"takes {takes}; cast the column first"):
            ask(pl.Schema({"v": dtype}))


def test_a_missing_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'dep_delay'"):
        Aggregates(m=sl.mean("dep_dely")).state_schema(pl.Schema({"dep_delay": pl.Int64}))
    with pytest.raises(InvalidConfig, match="no column 'y'"):
        Aggregates(m=sl.count("y")).result_schema(pl.Schema({"dep_delay": pl.Int64}))


def test_times_may_be_datetimes_of_any_unit() -> None:
    kept = Aggregates(v=sl.last("v"))
    for unit in ("ms", "us", "ns"):
        times = pl.Series([-1, -2], dtype=pl.Int64) * {"ms": 1, "us": 1000, "ns": 1_000_000}[unit]
        frame = pl.DataFrame({"v": [1, 2], "timestamp": times.cast(pl.Datetime(unit, "UTC"))})  # type: ignore[arg-type]
        assert kept.partial(frame, []).rows() == [(1, -1)]
    with pytest.raises(InvalidRecord, match="they must be a Datetime"):
        kept.partial(pl.DataFrame({"v": [1], "timestamp": ["x"]}), [])


def test_a_time_before_1970_is_rounded_down() -> None:
    kept = Aggregates(v=sl.last("v"))
    times = pl.Series([-1_500]).cast(pl.Datetime("us"))
    assert kept.partial(pl.DataFrame({"v": [1], "timestamp": times}), []).rows() == [(1, -2)]


# Limits and sketches -------------------------------------------------------------------------


def test_too_many_distinct_values_are_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distinct, "MAX_DISTINCT", 3)
    kept = Aggregates(n=sl.n_unique("i"))
    rows = [row_of("a", i=i) for i in (1, 2, 3)]
    whole = kept.partial(framed(rows), ["key"])
    more = kept.partial(framed([row_of("a", i=9)]), ["key"])
    with pytest.raises(InvalidRecord, match=r"approx=True.*\{'key': 'a'\}"):
        kept.merge_columns(whole, more)
    with pytest.raises(InvalidRecord, match=r"approx=True.*\{'key': 'a'\}"):
        kept.partial(framed([*rows, row_of("a", i=9)]), ["key"])
    state = folded_by_key(kept, rows)["a"]
    assert kept.fold(state, rows[0]) == state
    with pytest.raises(InvalidRecord, match="approx=True"):
        kept.fold(state, {"i": 9})


def test_sketches_of_many_values_are_within_their_bounds() -> None:
    kept = Aggregates(
        n=sl.n_unique("v", approx=True), **{f"q{q}": sl.quantile("v", q / 10) for q in range(11)}
    )
    n = 100_000
    frame = pl.DataFrame({"v": range(n)}).sample(fraction=1, shuffle=True, seed=7)
    parts = [kept.partial(frame.slice(at, 9_999), []) for at in range(0, n, 9_999)]
    result = kept.results(kept.combine(pl.concat(parts), [])).row(0, named=True)
    assert result["n"] == pytest.approx(n, rel=4 * 0.0163)
    for q in range(11):
        # Three times the bound of 99 %, so that the test does not fail by chance.
        assert result[f"q{q}"] == pytest.approx(n * q / 10, abs=3 * 0.0133 * n)
    assert (result["q0"], result["q10"]) == (0, n - 1)


def test_a_quantile_of_up_to_200_values_is_exact() -> None:
    kept = Aggregates(median=sl.quantile("v", 0.5))
    frame = pl.DataFrame({"v": range(200)}).sample(fraction=1, shuffle=True, seed=3)
    state = kept.empty
    for row in frame.iter_rows(named=True):
        state = kept.fold(state, row)
    parts = pl.concat([kept.partial(frame[at], []) for at in range(200)])
    assert kept.result(state).median == 99
    assert kept.results(kept.combine(parts, [])).item() == 99


def test_bytes_and_integers_of_any_size_are_distinct_values() -> None:
    kept = Aggregates(n=sl.n_unique("v", approx=True))
    state = kept.empty
    for value in (b"", b"a", "", "a", 2**63, -(2**64), 1, True, 97):
        state = kept.fold(state, {"v": value})
    assert kept.result(state).n == 8


def test_a_damaged_sketch_is_reported() -> None:
    kept = Aggregates(n=sl.n_unique("v", approx=True), q=sl.quantile("v", 0.5))
    for state in (kept.state(n=b"damaged!"), kept.state(q=b"damaged")):
        with pytest.raises(CorruptLog, match="stored sketch"):
            kept.result(state)
    schema = kept.state_schema(pl.Schema({"v": pl.Int64}))
    with pytest.raises(CorruptLog, match="stored sketch"):
        kept.results(pl.DataFrame({"n": [b"damaged"], "q": [None]}, schema=schema))


def test_sketches_without_their_package_are_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sketches._datasketches.cache_clear()
    monkeypatch.setitem(sys.modules, "datasketches", None)
    for declare in (lambda: sl.quantile("v", 0.5), lambda: sl.n_unique("v", approx=True)):
        with pytest.raises(MissingDependency, match=r"pip install 'strandline\[sketches\]'"):
            declare()
    sl.n_unique("v")


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan, "x", True])
def test_a_quantile_of_an_impossible_rank_is_refused(q: Any) -> None:
    with pytest.raises(InvalidConfig, match="rank from 0 to 1"):
        sl.quantile("v", q)


def test_a_size_that_is_no_positive_int_is_refused() -> None:
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(InvalidConfig, match="number of values from 1"):
            sl.collect("v", limit=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidConfig, match="number of values from 1"):
            sl.top("v", wrong)  # type: ignore[arg-type]


def test_a_declaration_that_is_no_aggregate_of_a_named_column_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="is an aggregate, as sl.count"):
        Aggregates(n=len)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="expressions are for streams"):
        Aggregates(n=sl.sum(pl.col("v")))  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="stored field 'a__sum'"):
        Aggregates(a=sl.mean("v"), a__sum=sl.sum("v"))


def test_a_recorded_kind_declares_the_same_aggregate() -> None:
    for kind, _ in KINDS.values():
        again = recorded(kind.described, kind.column)
        assert again.described == kind.described
        assert kind.described == "reducer" or again == kind
    for unknown in ("mode", "quantile {", 'top {"m":1}', "quantile 7", ""):
        with pytest.raises(InvalidConfig, match="unknown aggregate"):
            recorded(unknown, "x")


def test_a_value_that_cannot_be_kept_is_refused_and_the_store_takes_all_others() -> None:
    kept = Aggregates(a=sl.any("v"), f=sl.first("v"), c=sl.collect("v"), t=sl.top("v", 1, by="n"))
    serde = value_serde(kept.state)
    for value in (True, 1, 2.5, "text"):
        state = kept.fold(kept.empty, {"v": value, "n": 1}, time=5)
        assert serde.loads(serde.dumps(state)) == state
    for wrong in (b"bytes", [1], {}, dt.date(2024, 1, 1)):
        with pytest.raises(
            InvalidRecord, match=r"needs numbers, text or bools \(or None\) in \['v'\]"
        ):
            kept.fold(kept.empty, {"v": wrong, "n": 1})


@settings(max_examples=examples(50))
@given(ROWS)
def test_states_by_rows_pass_through_a_store_s_bytes(rows: list[Row]) -> None:
    serde = value_serde(EXACT.state)
    for state in folded_by_key(EXACT, rows).values():
        again = serde.loads(serde.dumps(state))
        assert serde.dumps(again) == serde.dumps(state)
        assert type(again) is EXACT.state


# Reducers ------------------------------------------------------------------------------------


def test_a_reducer_without_merge_is_refused_where_states_are_merged() -> None:
    kept = Aggregates(n=sl.count(), texts=sl.reducer("", joined))
    states = kept.partial(framed([row_of("a"), row_of("a")]), ["key"])
    assert (kept.can_merge, Aggregates(n=sl.count()).can_merge) == (False, True)
    for merging in (
        lambda: kept.merge_columns(states, states),
        lambda: kept.combine(pl.concat([states, states]), ["key"]),
        lambda: kept.merge([kept.fold(kept.empty, row_of("a"))] * 2),
    ):
        with pytest.raises(InvalidConfig, match="give merge="):
            merging()


def test_an_error_of_a_reducer_s_function_is_not_translated() -> None:
    kept = Aggregates(total=sl.reducer(0, lambda state, row: state + row["s"]))
    with pytest.raises(TypeError):
        kept.fold(kept.empty, {"s": "x"})
    with pytest.raises(TypeError):
        kept.partial(framed([row_of("a", s="x")]), ["key"])


def test_the_type_of_a_reducer_s_results_is_declared_or_that_of_its_beginning() -> None:
    schema = {"s": pl.String()}

    def type_of(**given: Any) -> Any:
        return Aggregates(a=sl.reducer(add=joined, **given)).result_schema(schema)["a"]

    assert type_of(init=0) == pl.Int64
    assert type_of(init=dict, returns=str) == pl.String
    assert type_of(init=list, returns=pl.List(pl.String)) == pl.List(pl.String)
    with pytest.raises(InvalidConfig, match="give returns="):
        type_of(init=list)


def test_a_reducer_s_beginning_is_not_shared_by_keys() -> None:
    kept = Aggregates(texts=sl.reducer([], listed))
    folded = folded_by_key(kept, [row_of("a", s="x"), row_of("b", s="y")])
    assert {key: kept.result(state).texts for key, state in folded.items()} == {
        "a": ["x"],
        "b": ["y"],
    }
    assert kept.result(kept.empty).texts == []


def test_a_reducer_s_functions_must_be_callable() -> None:
    for wrong in ({"add": None}, {"add": joined, "merge": 1}):
        with pytest.raises(InvalidConfig, match="is a function"):
            sl.reducer(0, **wrong)


@settings(max_examples=examples(50))
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), st.sampled_from([0.0, 1e7, -1e9]))
def test_the_variance_of_large_values_keeps_its_precision(xs: list[float], far: float) -> None:
    values = [x + far for x in xs]
    expected = statistics.variance(values)
    assume(expected > 1e-2)
    kept = Aggregates(v=sl.var("x"))
    frames = [framed([row_of("a", x=x)]) for x in values]
    merged = kept.results(merged_by_key(kept, frames)).item()
    whole = kept.results(merged_by_key(kept, [pl.concat(frames)])).item()
    assert merged == pytest.approx(expected, rel=1e-4)
    assert whole == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("dtype", "has_objects"),
    [(pl.Int64(), False), (pl.Float32(), False), (pl.Date(), False), (pl.String(), True)],
)
def test_a_store_for_rows_of_numbers_holds_no_objects(
    dtype: pl.DataType, has_objects: bool
) -> None:
    kept = Aggregates(n=sl.count(), most=sl.max("x"), first=sl.first("x"))
    spec = kept.spec("s", rows={"x": dtype, "timestamp": pl.Int64()}, engine="memory")
    dtypes = open_column_store(spec)._stored_columns.dtypes
    assert (np.object_ in dtypes) is has_objects
