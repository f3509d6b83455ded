"""Agents that raise at "bad" and go on, each with another chain of stream operations."""

import asyncio

import faust
from mode.supervisors import OneForOneSupervisor
from sample_settings import BROKER

app = faust.App(
    "chains",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=1,
    stream_wait_empty=False,
)
raw = {"key_type": str, "key_serializer": "raw", "value_type": str, "value_serializer": "raw"}
done = app.topic("done", **raw)
echoed = app.topic("echoed", **raw)
seen = app.Table("seen", default=int)


async def finish(agent, value):
    seen[agent] += 1
    await done.send(key=agent, value=value)
    if value == "bad":
        raise ValueError(value)


def key_of(value):
    return value


@app.agent(app.topic("to-group", **raw))
async def group(stream):
    async for value in stream.group_by(key_of, name="key"):
        await finish("group", value)


@app.agent(app.topic("to-relay", **raw))
async def relay(stream):
    async for value in stream.through("relayed"):
        await finish("relay", value)


@app.agent(app.topic("to-both", **raw))
async def both(stream):
    async for value in stream.through("first").group_by(key_of, name="second"):
        await finish("both", value)


@app.agent(app.topic("to-echo", **raw))
async def echo(stream):
    async for value in stream.filter(lambda value: value != "none").echo(echoed):
        await finish("echo", value)


@app.agent(app.topic("to-filtered", **raw))
async def filtered(stream):
    async for value in stream.filter(lambda value: value != "none").group_by(key_of, name="key"):
        await finish("filtered", value)


@app.agent(app.topic("to-noack", **raw))
async def noack(stream):
    async for event in stream.noack().events():
        async with event:
            await finish("noack", event.value)


@app.agent(app.topic("to-acked", **raw))
async def acked(stream):
    async for event in stream.events():
        async with event:
            await finish("acked", event.value)


@app.agent(app.topic("to-isolated", **raw), isolated_partitions=True)
async def isolated(stream):
    async for value in stream:
        await finish("isolated", value)


@app.agent(app.topic("to-sink", **raw), sink=[done])
async def sink(stream):
    async for value in stream.group_by(key_of, name="key"):
        await finish("sink", value)
        yield value


async def slow_key_of(value):
    if value == "bad":
        raise KeyError(value)
    if value == "slow":
        print("slow has begun", flush=True)
        await asyncio.sleep(600)
    return value


@app.agent(app.topic("to-key", **raw))
async def key(stream):
    async for value in stream.group_by(slow_key_of, name="key"):
        await finish("key", value)


@app.agent(app.topic("to-update", **raw))
async def update(stream):
    async for value in stream:
        seen.update({"update": seen["update"] + 1}, updated=1)
        await done.send(key="update", value=value)
        if value == "bad":
            raise ValueError(value)


async def waiting_key_of(value):
    await asyncio.sleep(0.02)
    return value


@app.agent(app.topic("to-waiting", **raw))
async def waiting(stream):
    async for value in stream.group_by(waiting_key_of, name="key"):
        await finish("waiting", value)


@app.agent(app.topic("to-own", **raw), supervisor_strategy=OneForOneSupervisor)
async def own(stream):
    async for value in stream.group_by(key_of, name="key"):
        await finish("own", value)


@app.agent(app.topic("to-cancelled", **raw))
async def cancelled(stream):
    async for value in stream.group_by(key_of, name="key"):
        await finish("cancelled", value)
        if value == "b" and not has_cancelled:
            has_cancelled.append(value)
            raise asyncio.CancelledError


has_cancelled = []


@app.agent(app.topic("to-later", **raw))
async def later(stream):
    async for event in stream.noack().events():
        async with event:
            await done.send(key="later", value=event.value)
            seen["later"] += 1
        if event.value == "c":
            raise ValueError("after the record")
