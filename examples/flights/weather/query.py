"""Spark stream in a process of its own: python -m examples.flights.weather.query LOG CHECKPOINT.

It sums departures up by airport and hour, joins the weather, and replaces the table of hours in
topic `hourly-delays` with each micro-batch. It ends at the end of the departures.
"""

from __future__ import annotations

import sys

import strandline as sl
from examples.flights.results import QUIET
from examples.flights.weather.app import departures, hourly, weather

BATCH_ROWS = 60_000
"""Departures of a micro-batch."""


def main(log: str, checkpoint: str) -> None:
    """Run the stream to the end of the departures."""
    # A task whose Python worker is killed runs again, at most four times.
    config = QUIET | {"spark.sql.shuffle.partitions": "2"}
    spark = sl.spark.session("weather", master="local[2,4]", config=config)
    source = spark.read.format("strandline").option("subscribe", weather.name)
    stream = (
        spark.readStream.format("strandline")
        .options(
            subscribe=departures.name, startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_ROWS
        )
        .load(log)
    )
    sums = stream.groupBy("origin", "hour").agg({"*": "count", "delay": "sum"})
    joined = sums.join(source.load(log), ["origin", "hour"], "left")
    rows = joined.selectExpr(
        "concat(origin, ' ', date_format(hour, 'yyyy-MM-dd HH')) AS key",
        *("origin", "hour", "`count(1)` AS flights", "`sum(delay)` AS delay"),
        *("wind", "visibility"),
    )
    query = (
        rows.writeStream.format("strandline")
        .options(topic=hourly.name, checkpointLocation=checkpoint)
        .outputMode("complete")
        .trigger(availableNow=True)
        .start(log)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
