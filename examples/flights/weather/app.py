"""App before and after Spark: departures from flights, and the table of hours from Spark's results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import strandline as sl
from examples.flights.app import Flight

LOCAL = {"retention.ms": "-1"}
"""Settings of topics whose times are in 2013, which retention by time would delete."""


@dataclass(frozen=True)
class Departure:
    """A flight that has left."""

    origin: str
    hour: datetime
    delay: int
    """Minutes; negative if it left early."""


@dataclass(frozen=True)
class Weather:
    """Weather at an airport in one hour."""

    origin: str
    hour: datetime
    wind: float | None
    """Miles per hour."""
    visibility: float | None
    """Miles, at most 10."""


@dataclass(frozen=True)
class Hour:
    """Departures from an airport in one hour, and the weather."""

    origin: str
    hour: datetime
    flights: int
    delay: int
    """Sum of the delays, in minutes."""
    wind: float | None
    visibility: float | None


app = sl.App("weather", log="data/flights")

flights = app.topic("flights", value=Flight, key="carrier", timestamp="time_hour", partitions=4)
departures = app.topic(
    "departures", value=Departure, key="origin", timestamp="hour", partitions=4, config=LOCAL
)
weather = app.topic(
    "weather", value=Weather, key="origin", timestamp="hour", partitions=1, config=LOCAL
)
hourly = app.topic(
    "hourly-delays", key=str, value=Hour, partitions=2, config={"cleanup.policy": "compact"}
)

hours = app.store("hours", key=str, value=Hour)


@app.task(flights)
def depart(record: sl.Record[str, Flight]) -> None:
    """Send the flight on if it has left."""
    flight = record.value
    if flight.dep_delay is not None:
        departures.send(None, Departure(flight.origin, flight.time_hour, flight.dep_delay))


@app.task(hourly, stores=[hours])
def keep(record: sl.Record[str, Hour]) -> None:
    """Keep the latest figures of an hour."""
    hours[record.key] = record.value
