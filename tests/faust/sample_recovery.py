"""A slow agent, and a recovery that takes long between its last seek and its end."""

import asyncio

import faust
from sample_settings import BROKER, STORE, named

from strandline.framework.faust.positioned_consumer import PositionedConsumer

GAP_S = 0.5
"""Seconds between the seek and the end of the recovery."""
HANDLING_S = 0.05
"""Seconds for which the agent handles a record, so that others wait in its queue."""

seek_missing = PositionedConsumer._seek_missing


async def seek_missing_slowly(consumer):
    """End the seek late, when all source partitions have their positions already."""
    await seek_missing(consumer)
    if consumer.flow_active:  # always, in a recovery
        await asyncio.sleep(GAP_S)


PositionedConsumer._seek_missing = seek_missing_slowly

app = faust.App(
    named("recovery"),
    broker=BROKER,
    store=STORE,
    processing_guarantee="exactly_once",
    topic_partitions=2,
)
source = app.topic(named("source"), key_type=str, value_type=int)
copies = app.topic(named("copies"), key_type=str, value_type=int)
totals = app.Table("totals", default=int)


@app.agent(source)
async def copy(stream):
    async for key, value in stream.items():
        await asyncio.sleep(HANDLING_S)
        totals[key] += value
        await copies.send(key=key, value=totals[key])
