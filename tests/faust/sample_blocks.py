"""Agents that acknowledge by a block, and leave it by an exception at some records."""

import asyncio
from contextlib import suppress

import faust
from sample_settings import BROKER

app = faust.App(
    "blocks",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=1,
    stream_wait_empty=False,
)
raw = {"value_type": str, "value_serializer": "raw"}
done = app.topic("done", key_type=str, key_serializer="raw", **raw)


async def finish(agent, event):
    async with event:
        await done.send(key=agent, value=event.value)
        if event.value.startswith("bad"):
            raise ValueError(event.value)
        if event.value == "slow":
            print("slow has begun", flush=True)
            await asyncio.sleep(600)


@app.agent(app.topic("raising", **raw))
async def raising(stream):
    async for event in stream.noack().events():
        try:
            await finish("raising", event)
        finally:
            await asyncio.sleep(0.3)  # commits come meanwhile


@app.agent(app.topic("catching", **raw))
async def catching(stream):
    async for event in stream.noack().events():
        with suppress(ValueError):
            await finish("catching", event)


@app.agent(app.topic("timing", **raw))
async def timing(stream):
    async for event in stream.noack().events():
        with suppress(TimeoutError):
            await asyncio.wait_for(finish("timing", event), 0.2)


@app.agent(app.topic("batches", **raw))
async def batches(stream):
    async for batch in stream.take_events(3, within=0.2):
        for event in batch:
            await finish("batches", event)


@app.agent(app.topic("grouped", **raw))
async def grouped(stream):
    async for batch in stream.group_by(str, name="key").take(3, within=0.2):
        for value in batch:
            await done.send(key="grouped", value=value)
        raise ValueError(batch)


shared = app.topic("shared", **raw)


@app.agent(shared)
async def quick(stream):
    async for event in stream.events():
        await finish("quick", event)


twice = app.topic("twice", **raw)


@app.agent(twice)
async def acks_twice(stream):
    async for event in stream.noack().events():
        await done.send(key="quick", value=event.value)
        event.ack()
        event.ack()


later = app.topic("later", **raw)


async def acknowledge(event):
    await asyncio.sleep(0.1)
    event.ack()


@app.agent(later)
async def acks_later(stream):
    async for event in stream.events():
        await done.send(key="quick", value=event.value)
        app.loop.create_task(acknowledge(event))


batched = app.topic("batched", **raw)


@app.agent(batched)
async def acks_batches(stream):
    async for batch in stream.take_events(1, within=0.2):
        for event in batch:
            await done.send(key="quick", value=event.value)
            event.ack()


by_task = app.topic("by_task", **raw)


@app.agent(by_task)
async def acks_by_task(stream):
    async for event in stream.noack().events():
        await done.send(key="quick", value=event.value)
        if event.value != "stop":
            app.loop.create_task(acknowledge(event))


@app.agent(app.topic("shared", "twice", "later", "batched", "by_task", **raw))
async def slow(stream):
    async for value in stream:
        await done.send(key="slow", value=f"{value} 1")
        await asyncio.sleep(0.5)
        await done.send(key="slow", value=f"{value} 2")
        print(f"slow has done {value}", flush=True)
        if value == "stop":
            await asyncio.sleep(600)


@app.agent(app.topic("apart", **raw), isolated_partitions=True)
async def apart(stream):
    async for event in stream.events():
        await finish("apart", event)
