"""Expected results, computed from the raw flights by Polars alone, without Strandline."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

FIGURES = ("n", "delays", "total", "mean", "worst")
"""Columns of the statistics, in the order of `examples.flights.app.Delays`."""


@dataclass(frozen=True)
class Expected:
    """Statistics of every carrier, origin, and origin and carrier."""

    carriers: pl.DataFrame
    origins: pl.DataFrame
    routes: pl.DataFrame
    running: pl.DataFrame
    """Statistics of its carrier after each flight: `carrier`, then the figures."""


def expect(flights: pl.DataFrame) -> Expected:
    """Return the expected statistics of `flights`."""
    return Expected(
        totals(flights, "carrier"),
        totals(flights, "origin"),
        totals(flights, "origin", "carrier"),
        running_totals(flights, "carrier"),
    )


def totals(flights: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return one row for each group, sorted."""
    delay = pl.col("dep_delay")
    groups = flights.group_by(by).agg(
        n=pl.len().cast(pl.Int64),
        delays=delay.count().cast(pl.Int64),
        total=delay.sum(),
        mean=delay.sum() / delay.count(),
        worst=delay.max(),
    )
    return _mean_of_none_is_null(groups).sort(by)


def running_totals(flights: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return for each flight, in order, the statistics of its group up to it."""
    delay = pl.col("dep_delay")
    count = delay.is_not_null().cast(pl.Int64).cum_sum().over(by)
    total = delay.fill_null(0).cum_sum().over(by)
    folded = flights.select(
        by,
        n=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(by),
        delays=count,
        total=total,
        mean=total / count,
        worst=delay.cum_max().forward_fill().over(by),
    )
    return _mean_of_none_is_null(folded).sort(by, maintain_order=True)


def _mean_of_none_is_null(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(mean=pl.when(pl.col("delays") > 0).then(pl.col("mean")))
