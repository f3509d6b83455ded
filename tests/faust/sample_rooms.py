"""Two agents with small buffers. One waits, with its buffer full, for a record of the other's topic."""

import asyncio

import faust
from sample_settings import BROKER

app = faust.App(
    "rooms",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=2,
    stream_buffer_maxsize=10,
)
many = app.topic("many", value_type=int)
signals = app.topic("signals", value_type=int)
handled = app.topic("handled", value_type=int)
signal = asyncio.Event()


@app.agent(many)
async def wait(stream):
    async for value in stream:
        print("waits for the signal", flush=True)
        await signal.wait()
        await handled.send(value=value)


@app.agent(signals)
async def release(stream):
    async for value in stream:
        signal.set()
        await handled.send(value=value)
