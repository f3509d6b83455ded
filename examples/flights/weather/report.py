"""Report: delays by visibility and wind, from the table of hours, by Spark SQL and by Polars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

import strandline as sl
from examples.flights.results import QUIET
from examples.flights.weather.app import app, hours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SQL = """
    SELECT CASE WHEN value.visibility < 1 THEN 'below 1 mile'
                WHEN value.visibility < 5 THEN '1 to 5 miles'
                WHEN value.visibility < 10 THEN '5 to 10 miles'
                WHEN value.visibility >= 10 THEN '10 miles'
                ELSE 'not known' END AS visibility,
           CASE WHEN value.wind < 10 THEN 'calm' WHEN value.wind < 20 THEN 'windy'
                WHEN value.wind >= 20 THEN 'stormy' ELSE 'not known' END AS wind,
           COUNT(*) AS hours, SUM(value.flights) AS flights, SUM(value.delay) AS delay
    FROM hours GROUP BY ALL ORDER BY ALL
"""
VISIBILITY = ("below 1 mile", "1 to 5 miles", "5 to 10 miles", "10 miles")
WIND = ("calm", "windy", "stormy")


def by_spark(log: str) -> pl.DataFrame:
    """Return the report that Spark SQL makes from the store."""
    spark = sl.spark.session("report", config=QUIET)
    try:
        store = spark.read.format("strandline").option("store", f"{app.name}/{hours.name}")
        store.load(log).createOrReplaceTempView("hours")
        found = pl.from_arrow(spark.sql(SQL).toArrow())
    finally:
        spark.stop()
    assert isinstance(found, pl.DataFrame)
    return found.sort("visibility", "wind")


def expected(flights: pl.DataFrame, weather: pl.DataFrame) -> pl.DataFrame:
    """Return the report that Polars makes from the raw data."""
    left = flights.drop_nulls("dep_delay").rename({"time_hour": "hour"})
    sums = left.group_by("origin", "hour").agg(
        flights=pl.len().cast(pl.Int64), delay=pl.col("dep_delay").sum()
    )
    known = sums.join(weather, on=["origin", "hour"], how="left")
    seen, wind = pl.col("visibility"), pl.col("wind")
    by = known.with_columns(
        visibility=pl.when(seen < 1)
        .then(pl.lit("below 1 mile"))
        .when(seen < 5)
        .then(pl.lit("1 to 5 miles"))
        .when(seen < 10)
        .then(pl.lit("5 to 10 miles"))
        .when(seen >= 10)
        .then(pl.lit("10 miles"))
        .otherwise(pl.lit("not known")),
        wind=pl.when(wind < 10)
        .then(pl.lit("calm"))
        .when(wind < 20)
        .then(pl.lit("windy"))
        .when(wind >= 20)
        .then(pl.lit("stormy"))
        .otherwise(pl.lit("not known")),
    ).group_by("visibility", "wind")
    sums = by.agg(hours=pl.len().cast(pl.Int64), flights=pl.sum("flights"), delay=pl.sum("delay"))
    return sums.sort("visibility", "wind")


def plot(report: pl.DataFrame, file: Path) -> None:
    """Draw the mean delay by visibility and wind into a file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    _bars(axes, report)
    axes.set_xticks(range(len(VISIBILITY)), VISIBILITY)
    axes.set(xlabel="visibility", ylabel="minutes", title="Mean departure delay, New York 2013")
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    plt.close(figure)


def _bars(axes: Axes, report: pl.DataFrame) -> None:
    width = 0.8 / len(WIND)
    for number, wind in enumerate(WIND):
        rows = {r["visibility"]: r for r in report.filter(wind=wind).iter_rows(named=True)}
        means = [rows[v]["delay"] / rows[v]["flights"] if v in rows else 0 for v in VISIBILITY]
        places = [at + (number - 1) * width for at in range(len(VISIBILITY))]
        axes.bar(places, means, width, label=wind)
