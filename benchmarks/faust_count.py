"""App of faust_job.py: a count per user in a table, and every count sent on."""

import os
from typing import Any

import faust

app = faust.App(
    os.environ["FAUST_APP"],
    broker=os.environ["FAUST_BROKER"],
    store=os.environ["FAUST_STORE"],
    datadir=os.environ["FAUST_DATA"],
    processing_guarantee="exactly_once",
    topic_partitions=4,
    topic_replication_factor=1,
    consumer_auto_offset_reset="earliest",
)
views = app.topic("views", key_type=str, value_type=int)
counts = app.topic(f"{app.conf.id}-counts", key_type=str, value_type=int)
per_user = app.Table("per-user", key_type=str, value_type=int, default=int)


@app.agent(views)
async def count(stream: Any) -> None:
    """Count each record, and send the count on."""
    async for event in stream.events():
        per_user[event.key] += 1
        await counts.send(key=event.key, value=per_user[event.key])
