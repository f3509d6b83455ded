"""Expressions: their text, the columns that they read, and what they may depend on."""

from __future__ import annotations

from typing import Any

import narwhals as nw
import polars as pl
import pytest

import strandline as sl
from strandline.framework.streams import expressions
from strandline.framework.streams.expressions import columns_read, resolved, shown
from tests.streams.support import SCHEMA

a, b, c = sl.col("a"), sl.col("b"), sl.col("c")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (a > 15, "col(a) > 15"),
        ((a > 15) & (b != "x"), "(col(a) > 15) & (col(b) != x)"),
        (((a > 1) | (b < 2)) & (c == 1), "((col(a) > 1) | (col(b) < 2)) & (col(c) == 1)"),
        (a + "-" + b, "col(a) + - + col(b)"),
        ((a + 1) * 2, "(col(a) + 1) * 2"),
        (a * 2 + 1, "(col(a) * 2) + 1"),
        (1 - a, "1 - col(a)"),
        (2 ** (a // b), "2 ** (col(a) // col(b))"),
        (~a.is_null(), "~col(a).is_null()"),
        # Narwhals before 2.22 has no unary minus.
        *([(-(a - b), "-(col(a) - col(b))")] if hasattr(nw.Expr, "__neg__") else []),
        ((a + b).abs(), "(col(a) + col(b)).abs()"),
        (nw.sum_horizontal(a + 1, b % c), "sum_horizontal(col(a) + 1, col(b) % col(c))"),
    ],
)
def test_an_expression_is_shown_as_it_was_written(expression: nw.Expr, text: str) -> None:
    assert shown(expression) == text


@pytest.mark.parametrize(
    ("step", "needed", "read"),
    [
        (lambda f: f.with_columns(x=sl.col("speed") * 2), {"x"}, {"speed"}),
        (lambda f: f.with_columns(x=sl.col("speed") * 2), {"delay"}, {"delay"}),
        (lambda f: f.filter(sl.col("origin") == "JFK"), {"delay"}, {"delay", "origin"}),
        (lambda f: f.filter(sl.col("origin") == "JFK"), {"timestamp"}, {"timestamp", "origin"}),
        (lambda f: f.rename({"delay": "d"}), {"d"}, {"delay"}),
        (
            lambda f: f.with_columns(x=nw.sum_horizontal("delay", "speed")),
            {"x"},
            {"delay", "speed"},
        ),
        (lambda f: f.with_columns(nw.all()), {"key"}, {"key"}),
        (lambda f: f.with_columns(x=nw.lit(1)), {"x", "timestamp"}, {"timestamp"}),
    ],
)
def test_the_columns_that_an_expression_reads_are_found(
    step: Any, needed: set[str], read: set[str]
) -> None:
    def query(frame: pl.LazyFrame) -> pl.LazyFrame:
        made: pl.LazyFrame = step(nw.from_native(frame)).to_native()
        return made

    assert columns_read(query, SCHEMA, needed) == read


OF_OTHER_ROWS = [
    sl.col("delay").sum(),
    sl.col("delay").mean().over("carrier"),
    sl.col("delay").rank(),
    sl.col("carrier").is_unique(),
    sl.col("speed") - sl.col("speed").min(),
    sl.when(sl.col("delay").max() > 1).then(sl.col("delay")).otherwise(0),
    nw.len(),
]


@pytest.mark.parametrize("expression", OF_OTHER_ROWS, ids=shown)
@pytest.mark.parametrize("narwhals_says_it", [True, False])
def test_an_expression_over_other_rows_is_found(
    expression: nw.Expr, narwhals_says_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not narwhals_says_it:  # as in a version whose expressions have other parts
        monkeypatch.setattr(expressions, "_is_for_one_row", lambda _: True)
    with pytest.raises(sl.InvalidConfig, match="depends on other rows"):
        resolved([expression.alias("x")], SCHEMA, "with_columns")


@pytest.mark.parametrize(
    "expression",
    [
        sl.col("delay") * 2,
        sl.col("carrier").str.to_uppercase(),
        sl.col("tags").list.len(),
        sl.when(sl.col("delay") > 1).then(sl.lit("late")).otherwise(sl.lit("on time")),
        nw.max_horizontal("delay", "speed"),
        sl.col("carrier").str.to_datetime(format="%Y"),
        nw.all(),
        sl.lit(5),
    ],
    ids=shown,
)
def test_an_expression_over_one_row_is_accepted(expression: nw.Expr) -> None:
    assert resolved([expression], SCHEMA, "with_columns")


def test_an_expression_is_accepted_on_a_topic_without_columns() -> None:
    assert resolved([sl.lit(5).alias("x")], pl.Schema(), "with_columns") == {"x": pl.Int32()}
