"""App: departure delays per carrier, per origin, and per origin and carrier.

    flights ──▶ per_carrier ──▶ carrier-delays          by carrier, the key of the flights
       └──▶ flights-by-origin ──▶ per_origin            by origin: through a repartition topic

Run it with `strandline run examples.flights.app:app`, or the whole demo with `make demo`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

import strandline as sl


class Flight(msgspec.Struct, frozen=True):
    """A scheduled flight, and its departure delay."""

    time_hour: datetime
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    distance: int
    dep_delay: int | None
    """Minutes; negative if it left early, None if it never left."""


class Delays(msgspec.Struct, frozen=True):
    """Statistics of the departure delays of some flights."""

    n: int = 0
    """Number of flights."""
    delays: int = 0
    """Number of flights that left, and therefore have a delay."""
    total: int = 0
    """Sum of the delays, in minutes."""
    mean: float | None = None
    """Mean delay, in minutes."""
    worst: int | None = None
    """Longest delay, in minutes."""

    def add(self, flight: Flight) -> Delays:
        """Return the statistics with one more flight."""
        delay = flight.dep_delay
        if delay is None:
            return msgspec.structs.replace(self, n=self.n + 1)
        count, total = self.delays + 1, self.total + delay
        worst = delay if self.worst is None else max(self.worst, delay)
        return Delays(self.n + 1, count, total, total / count, worst)


app = sl.App("flights", log="data/flights")

flights = app.topic("flights", value=Flight, key="carrier", timestamp="time_hour", partitions=4)
flights_by_origin = app.repartition(flights, "origin", name="by-origin")
carrier_delays = app.topic("carrier-delays", key=str, value=Delays, partitions=4)

by_carrier = app.store("carriers", key=str, value=Delays, default=Delays())
by_origin = app.store("origins", key=str, value=Delays, default=Delays())
by_route = app.store("origin-carriers", key=tuple[str, str], value=Delays, default=Delays())


@app.task(flights, stores=[by_carrier])
def per_carrier(record: sl.Record[str, Flight]) -> None:
    """Count the flight for its carrier, and send the carrier's new statistics."""
    by_carrier[record.key] = known = by_carrier[record.key].add(record.value)
    carrier_delays.send(record.key, known)


@app.task(flights_by_origin, stores=[by_origin, by_route])
def per_origin(record: sl.Record[str, Flight]) -> None:
    """Count the flight for its origin, and for its origin and carrier."""
    flight = record.value
    by_origin[flight.origin] = by_origin[flight.origin].add(flight)
    route = (flight.origin, flight.carrier)
    by_route[route] = by_route[route].add(flight)


if __name__ == "__main__":
    app.main()
