"""An app as users write it. Type checkers must accept it, and report the marked mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

import strandline as sl


@dataclass(frozen=True)
class Flight:
    carrier: str
    origin: str
    time_hour: datetime
    dep_delay: float | None = None


@dataclass(frozen=True)
class Delay:
    n: int = 0
    worst: float | None = None

    def add(self, minutes: float | None) -> Delay:
        worst = [m for m in (self.worst, minutes) if m is not None]
        return Delay(self.n + 1, max(worst, default=None))


app = sl.App("flights", log="./data", commit_interval_ms=50)
flights = app.topic("flights", value=Flight, key="carrier", timestamp="time_hour", partitions=4)
delays = app.topic("carrier-delays", key=str, value=Delay)
shared = app.topic("shared", key="carrier", value=Flight, serde="json")
given = app.topic("given", key=str, value=Flight, serde=sl.AvroSerde(registry="mock://sample"))
own = app.topic("own", key=str, value=Flight, serde=sl.JsonSerde(), key_serde="msgpack")
wrong = app.topic("wrong", key=str, value=Flight, serde="xml")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
totals = app.store("totals", key=str, value=Delay, default=Delay())
by_origin = app.repartition(flights, key="origin")
origins = app.store("origins", key=tuple[str, str], value=int, default=0)


@app.task(flights, stores=[totals])
def tally(record: sl.Record[str, Flight]) -> None:
    total = totals[record.key]
    assert_type(total, Delay)
    assert_type(record.key, str)
    assert_type(record.value.dep_delay, float | None)
    assert_type(totals.get("AA"), Delay | None)
    totals[record.key] = total = total.add(record.value.dep_delay)
    delays.send(record.key, total)
    totals[record.key] = 1  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    delays.send(record.key, "late")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    delays.send(1, total)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(record.value.gate)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@app.task(by_origin, stores=[origins])
class Origins:
    """Counts per origin and carrier."""

    def init(self, context: sl.TaskContext) -> None:
        self.partition = context.partition

    def process(self, record: sl.Record[str, Flight]) -> None:
        origins[record.value.origin, record.value.carrier] += 1
        sl.set_timer(record.key, record.timestamp + 60_000)

    def on_timer(self, name: str) -> None:
        assert_type(list(origins.prefix((name,))), list[tuple[tuple[str, str], int]])


@app.task(delays)
async def watch(record: sl.Record[str, Delay]) -> None:
    assert_type(record.value, Delay)


assert_type(app.run(until="idle"), int) if __name__ == "__main__" else None
assert_type(tally(sl.Record("AA", Flight("AA", "JFK", datetime.max))), None)
