"""Sums and means of decimals: exact in every cut of the input, in windows, queries and merges."""

from __future__ import annotations

from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.changelog.errors import TaskFailed
from strandline.framework.testing import CRASH, TestDriver
from strandline.statestore.aggregates.group import Aggregates

BASE = 1_760_000_000_000
WIDE = pa.decimal128(38, 0)
EXACT = Context(prec=60)


def app_of(kind: pa.DataType, window: Any = None) -> tuple[sl.App, sl.Topic[Any, Any]]:
    app = sl.App("app", commit_records=5)
    schema = pa.schema([("place", pa.string()), ("at", pa.int64()), ("price", kind)])
    prices = app.topic("prices", value=schema, key="place", timestamp="at", partitions=2)
    grouped = app.stream(prices, idle=None).group_by("place")
    grouped = grouped if window is None else grouped.window(window)
    figures = grouped.agg(total=sl.sum("price"), mean=sl.mean("price"), name="agg")
    return app, figures.to("out")


def rows(prices: list[Decimal | None], kind: pa.DataType) -> pa.Table:
    places = ["ab"[number % 2] for number in range(len(prices))]
    times = [BASE + 1_000 * number for number in range(len(prices))]
    columns = [pa.array(places), pa.array(times, pa.int64()), pa.array(prices, kind)]
    return pa.table(dict(zip(("place", "at", "price"), columns, strict=True)))


def exact_sum(prices: list[Decimal | None]) -> Decimal | None:
    found = [price for price in prices if price is not None]
    if not found:
        return None
    total = Decimal(0)
    for price in found:
        total = EXACT.add(total, price)
    return total


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.none() | st.decimals(-(10**9), 10**9, places=2), min_size=1, max_size=30),
    st.lists(st.integers(0, 30), max_size=3),
    st.booleans(),
)
def test_sums_are_exact_however_the_input_is_cut(
    prices: list[Decimal | None], cuts: list[int], crash: bool
) -> None:
    kind = pa.decimal128(12, 2)
    app, out = app_of(kind)
    table, driver = rows(prices, kind), TestDriver(app)
    bounds = sorted({0, len(prices), *(cut for cut in cuts if cut < len(prices))})
    for start, end in pairwise(bounds):
        driver.run(table.slice(start, end - start))
        if crash:
            driver.run([CRASH])
    latest = {record.value["place"]: record.value for record in driver.output(out)}
    for place, figures in latest.items():
        total = exact_sum(prices["ab".index(place) :: 2])
        count = sum(price is not None for price in prices["ab".index(place) :: 2])
        assert figures["total"] == total
        assert figures["mean"] == (None if total is None else pytest.approx(float(total) / count))


@pytest.mark.parametrize(
    "window", [sl.hopping("8s", "4s"), sl.session("3s"), sl.sliding("4s"), sl.count_window(3)]
)
def test_windows_merge_decimals_exactly(window: Any) -> None:
    kind = pa.decimal128(38, 10)
    prices: list[Decimal | None] = [
        Decimal(f"{number}234567890123456.0123456789") for number in range(1, 13)
    ]
    app, out = app_of(kind, window)
    driver = TestDriver(app).run(rows(prices[:5], kind)).run([CRASH])
    table = rows(prices, kind)
    found = driver.run(table.slice(5)).end().output(out)
    assert found
    every = [exact_sum(some) for some in runs(prices[::2])] + [
        exact_sum(some) for some in runs(prices[1::2])
    ]
    assert all(record.value["total"] in every for record in found)


def runs(prices: list[Decimal | None]) -> list[list[Decimal | None]]:
    """Return all runs of consecutive prices."""
    count = len(prices)
    return [prices[start:end] for start in range(count) for end in range(start + 1, count + 1)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_sum_of_more_than_37_digits_is_refused(*, at_once: bool) -> None:
    app, _ = app_of(WIDE)
    table = rows([Decimal(6) * 10**36, None, Decimal(6) * 10**36], WIDE)
    driver = TestDriver(app)
    with pytest.raises(TaskFailed, match="a sum of decimals has more than 37 digits"):
        for part in [table] if at_once else [table.slice(0, 2), table.slice(2)]:
            driver.run(part)


def test_large_values_that_cancel_out_are_summed_exactly() -> None:
    most, least = Decimal("9" * 38), Decimal("-" + "9" * 38)
    prices: list[Decimal | None] = [most, None, least, None, Decimal(7), None]
    app, out = app_of(WIDE)
    assert TestDriver(app).run(rows(prices, WIDE)).output(out)[0].value["total"] == 7


def test_states_of_several_partitions_are_merged_exactly() -> None:
    kept = Aggregates(total=sl.sum("v"), mean=sl.mean("v"))
    texts = ("12345678901234567890123456789.25", "0.50")
    merged = kept.merge([kept.empty, *(kept.state(text, text, 1) for text in texts)])
    total = "12345678901234567890123456789.75"
    assert merged == kept.state(total, total, 2)
    assert kept.result(merged).mean == pytest.approx(6172839450617283945061728394.875)


def test_a_query_returns_sums_as_decimals() -> None:
    kind = pa.decimal128(9, 2)
    app, _ = app_of(kind, sl.tumbling("1h"))
    prices: list[Decimal | None] = [Decimal("9.50"), None, Decimal("10.00"), None]
    driver = TestDriver(app).run(rows(prices, kind))
    with sl.connect(driver.owner) as connection:
        [row] = connection.store("app/agg").fetch("a")
        assert (row.total, row.mean) == (Decimal("19.50"), 9.75)
