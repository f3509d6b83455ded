"""An app of streams that the tests of the command describe."""

from __future__ import annotations

import pyarrow as pa

import strandline as sl

app = sl.App("airport", log="data/airport")
flights = app.topic("flights", value=pa.schema([("origin", pa.string()), ("delay", pa.int64())]))
late = app.stream(flights).filter(sl.col("delay") > 15)
late.group_by("origin").agg(n=sl.count(), name="late-by-origin").to("late")
