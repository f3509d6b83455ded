"""Streams: late flights by hour and route, days of aircraft, busy routes, and quantiles of delays.

    python -m examples.flights.streams

    flights ──▶ late_by_hour       per origin, destination and hour: flights over 15 minutes late
       ├──▶ rotations              per aircraft: flights with less than 12 hours between them
       ├──▶ busiest                per origin and day in New York: the routes with most flights
       └──▶ delays_by_month        per carrier and month: median and 90th percentile of delays

Each result is sent once, when its window is over, whatever is killed meanwhile.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import strandline as sl
from examples.flights.app import Flight
from examples.flights.data import read_flights

LATE_MINUTES = 15
"""Minutes of delay above which a flight is late."""
ROTATION_GAP = "12h"
"""Time without a flight after which an aircraft begins another rotation."""
NEW_YORK = "America/New_York"
TOP_ROUTES = 3


@dataclass(frozen=True)
class FlightStreams:
    """An app of streams, its input, and its outputs."""

    app: sl.App
    flights: sl.Topic[Any, Any]
    late_by_hour: sl.Topic[Any, Any]
    rotations: sl.Topic[Any, Any]
    busiest: sl.Topic[Any, Any]
    delays_by_month: sl.Topic[Any, Any]


def flight_streams(log: str | Path) -> FlightStreams:
    """Return the app, with a log at a path."""
    app = sl.App("flight-streams", log=log)
    flights = app.topic("flights", value=Flight, key="carrier", timestamp="time_hour", partitions=4)
    # Without a limit to silence, results are the same in every run; see `App.stream`.
    stream = app.stream(flights, idle=None)
    return FlightStreams(
        app,
        flights,
        late_by_hour(stream).to("late-by-hour"),
        rotations(stream).to("rotations"),
        busiest(stream).to("busiest"),
        delays_by_month(stream).to("delays-by-month"),
    )


def late_by_hour(flights: sl.Stream) -> sl.Stream:
    """Return the late flights of each route and hour."""
    return (
        flights.filter(sl.col("dep_delay") > LATE_MINUTES)
        .group_by("origin", "dest")
        .window(sl.tumbling("1h"))
        .agg(
            n=sl.count(), mean=sl.mean("dep_delay"), worst=sl.max("dep_delay"), name="late-by-hour"
        )
    )


def rotations(flights: sl.Stream) -> sl.Stream:
    """Return the rotations of each aircraft: its flights without a long pause between them."""
    return (
        flights.filter(~sl.col("tailnum").is_null())
        .group_by("tailnum")
        .window(sl.session(ROTATION_GAP))
        .agg(
            flights=sl.count(),
            miles=sl.sum("distance"),
            carriers=sl.n_unique("carrier"),
            last_dest=sl.last("dest"),
            name="rotations",
        )
    )


def busiest(flights: sl.Stream) -> sl.Stream:
    """Return the destinations with most flights of each origin and day in New York.

    The number of flights of a day is final, so it can be aggregated again.
    """
    per_day = (
        flights.group_by("origin", "dest")
        .window(sl.tumbling("1d", tz=NEW_YORK))
        .agg(n=sl.count(), name="flights-by-day")
    )
    return (
        per_day.with_columns(rank=rank)
        .group_by("origin")
        .window(sl.tumbling("1d", tz=NEW_YORK))
        .agg(flights=sl.sum("n"), dests=sl.top("dest", TOP_ROUTES, by="rank"), name="busiest")
    )


def rank(row: Any) -> str:
    """Return a text that orders routes by their flights, and those with equally many by name."""
    return f"{row.n:06} {row.dest}"


def delays_by_month(flights: sl.Stream) -> sl.Stream:
    """Return quantiles of the delays of each carrier and month; cancelled flights have none."""
    return (
        flights.group_by("carrier")
        .window(sl.tumbling("1mo", tz=NEW_YORK))
        .agg(
            flights=sl.count(),
            left=sl.count("dep_delay"),
            median=sl.quantile("dep_delay", 0.5),
            p90=sl.quantile("dep_delay", 0.9),
            name="delays-by-month",
        )
    )


def main() -> None:
    """Produce the flights, run the streams, and print some of the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", default="data/flight-streams", help="folder of the log")
    parser.add_argument("--limit", type=int, help="number of flights; all by default")
    arguments = parser.parse_args()
    streams = flight_streams(arguments.log)
    with streams.app:
        streams.flights.append(read_flights(arguments.limit))
        handled = streams.app.run(until="end", progress=False)
        late = streams.late_by_hour.to_polars()
        rotated = streams.rotations.to_polars()
        busy = streams.busiest.to_polars()
        delays = streams.delays_by_month.to_polars()
    hidden = ("partition", "offset", "timestamp", "key", "window_end")
    print(f"{handled:,} records handled")
    for title, found in (
        ("hours and routes with most late flights", late.sort("n", "worst", descending=True)),
        ("longest rotations", rotated.sort("miles", descending=True)),
        ("busiest days", busy.sort("flights", descending=True)),
        ("carriers and months with the worst delays", delays.sort("p90", descending=True)),
    ):
        print(f"\n{title}, of {len(found):,}:")
        with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
            print(found.drop(hidden).head(5))


if __name__ == "__main__":
    main()
