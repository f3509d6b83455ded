"""Batches of a grouped and of a relayed stream, which take FAUST_SLEEP seconds after their outputs."""

import asyncio
import os

import faust
from sample_settings import BROKER

app = faust.App(
    "batches",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=1,
)
source = app.topic("source", key_type=str, value_type=int)
relayed = app.topic("relayed", key_type=str, value_type=int)
ticks = app.topic("ticks", key_type=str, value_type=int)
outgoing = app.topic("outgoing", key_type=str, value_type=int)


async def handle(name, batch):
    for value in batch:
        await outgoing.send(key=name, value=value)
    print(f"{name} has sent a batch", flush=True)
    await asyncio.sleep(float(os.environ["FAUST_SLEEP"]))


@app.agent(source)
async def group(stream):
    async for batch in stream.group_by(str, name="key").take(3, within=0.5):
        await handle("group", batch)


@app.agent(source)
async def relay(stream):
    async for batch in stream.through(relayed).take(3, within=0.5):
        await handle("relay", batch)


@app.agent(ticks)
async def tick(stream):
    async for value in stream:
        await outgoing.send(key="tick", value=value)
