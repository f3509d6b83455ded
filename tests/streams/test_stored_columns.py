"""Columns that streams keep in internal topics, in programs that use more or fewer of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline as sl

SALES = 100
BATCH = 10


@dataclass
class Sale:
    """A sale."""

    shop: str
    number: int
    price: float


def program(log: Path, *, uses_price: bool, name: str = "shop") -> tuple[sl.App, Any, Any]:
    """Return an app that counts sales by number, and its topics; it may look at prices first."""
    app = sl.App(name, log=log)
    sales = app.topic("sales", value=Sale, key="shop", partitions=2)
    once = app.stream(sales).drop_duplicates(on="number", within="1h", name="once")
    paid = once.filter(sl.col("price") > 0) if uses_price else once
    counted = paid.group_by("number").agg(n=sl.count(), name="per-number").to("counted")
    return app, sales, counted


def rows() -> list[Sale]:
    return [Sale(f"shop-{number % 7}", number, 1.5) for number in range(SALES)]


@pytest.fixture
def half_way(tmp_path: Path) -> Path:
    """A log with unhandled rows without prices in an internal topic."""
    app, sales, counted = program(tmp_path / "log", uses_price=False)
    with app:
        sales.append(rows())
        app.run(count=SALES + BATCH, progress=False)
        assert 0 < len(counted.to_polars()) < SALES
    return tmp_path / "log"


def test_rows_without_a_column_that_is_used_now_are_not_left_out(half_way: Path) -> None:
    app, _, _ = program(half_way, uses_price=True)
    with app, pytest.raises(sl.InvalidConfig, match=r"unhandled rows \(\d+\) .* without price"):
        app.run(until="idle", progress=False)
    app, _, counted = program(half_way, uses_price=False)
    with app:
        app.run(until="idle", progress=False)
    app, sales, counted = program(half_way, uses_price=True)
    with app:
        sales.append([Sale("shop-1", SALES, 1.5), Sale("shop-1", SALES + 1, 0.0)])
        app.run(until="idle", progress=False)
        assert sorted(counted.to_polars()["number"]) == [*range(SALES + 1)]


def test_a_program_that_keeps_fewer_columns_is_followed_by_its_own_rows(tmp_path: Path) -> None:
    """The topic has the column by then, and its rows have nulls there."""
    app, _, _ = program(tmp_path / "log", uses_price=True)
    with app:
        app.run(until="idle", progress=False)
    app, sales, counted = program(tmp_path / "log", uses_price=False)
    with app:
        sales.append(rows())
        app.run(count=SALES + BATCH, progress=False)
    app, _, _ = program(tmp_path / "log", uses_price=True)
    with app, pytest.raises(sl.InvalidConfig, match="without price"):
        app.run(until="idle", progress=False)
    app, _, counted = program(tmp_path / "log", uses_price=False)
    with app:
        app.run(until="idle", progress=False)
        assert len(counted.to_polars()) == SALES


def test_a_program_with_fewer_columns_may_handle_what_is_left(tmp_path: Path) -> None:
    app, sales, _ = program(tmp_path / "log", uses_price=True)
    with app:
        sales.append(rows())
        app.run(count=SALES + BATCH, progress=False)
    app, _, counted = program(tmp_path / "log", uses_price=False)
    with app:
        app.run(until="idle", progress=False)
        assert len(counted.to_polars()) == SALES


@pytest.mark.parametrize("uses_price", [True, False])
def test_two_versions_with_different_columns_do_not_run_together(
    tmp_path: Path, uses_price: bool
) -> None:
    running, _, _ = program(tmp_path / "log", uses_price=uses_price)
    other, _, _ = program(tmp_path / "log", uses_price=not uses_price)
    with running, other:
        thread = threading.Thread(target=lambda: running.run(progress=False))
        thread.start()
        try:
            _until_joined(running)
            with pytest.raises(sl.InvalidConfig, match="workers of another version run"):
                other.run(until="idle", progress=False)
        finally:
            running.stop()
            thread.join()


def _until_joined(app: sl.App) -> None:
    pause = threading.Event()
    while not app.broker().describe_group(app.name).members:
        pause.wait(0.01)
