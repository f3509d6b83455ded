"""Delays by hour and weather, through Strandline and Spark and back, while processes are killed.

    flights ──▶ task ──▶ departures ──▶ Spark stream ──▶ hourly-delays ──▶ task ──▶ store `hours`
                                          ▲ joins weather                             │
                                       weather                   Spark SQL report ◀───┘

`app` has the tasks, `query` the Spark stream, `report` the report with its plot, `pipeline` runs and
kills them (`processes`), and compares the report with one that Polars computes from the raw data.
"""
