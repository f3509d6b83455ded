"""Windowed tables: tumbling and hopping, by a field, by the record's time, by the clock, closed."""

from datetime import datetime, timedelta

import faust
from sample_settings import BROKER


class Reading(faust.Record, isodates=True):
    sensor: str
    amount: int
    at: datetime


app = faust.App(
    "windows",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=1,
    table_cleanup_interval=0.5,
)
readings = app.topic("readings", value_type=Reading)
seen = app.topic("seen", key_type=str, value_type=dict)
closed = app.topic("closed", value_type=list)


def on_close(key, value):
    closed.send_soon(value=[key[0], *key[1], value])


per_ten = app.Table("per_ten", default=int).tumbling(10).relative_to_field(Reading.at)
per_five = app.Table("per_five", default=int).hopping(10, 5).relative_to_stream()
an_hour = app.Table("an_hour", default=int, key_type=str).tumbling(
    timedelta(hours=1), key_index=True
)
ending = (
    app.Table("ending", default=int, on_window_close=on_close)
    .tumbling(2, expires=timedelta(seconds=2))
    .relative_to_field(Reading.at)
)


@app.agent(readings)
async def count(stream):
    async for reading in stream:
        per_ten[reading.sensor] += reading.amount
        per_five[reading.sensor] += reading.amount
        an_hour[reading.sensor] += reading.amount
        ending[reading.sensor] += reading.amount
        if reading.sensor == "bad":
            raise ValueError(reading)
        here = per_five[reading.sensor]
        await seen.send(
            key=reading.sensor,
            value={
                "value": here.value(),
                "current": here.current(),
                "delta": here.delta(10),
                "field": per_ten[reading.sensor].value(),
                "now": an_hour[reading.sensor].now(),
                "hour": sorted(an_hour.relative_to_now().items()),
            },
        )
