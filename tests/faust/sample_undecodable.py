"""Agents that read numbers, each with another chain of stream operations."""

import faust
from sample_settings import BROKER

app = faust.App(
    "undecodable",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=1,
    stream_wait_empty=False,
)
numbers = {"key_type": str, "key_serializer": "raw", "value_type": int}
done = app.topic("done", **numbers)


@app.agent(app.topic("to-plain", **numbers))
async def plain(stream):
    async for number in stream:
        await done.send(key="plain", value=number)


@app.agent(app.topic("to-parallel", **numbers), concurrency=3)
async def parallel(stream):
    async for number in stream:
        await done.send(key="parallel", value=number)


@app.agent(app.topic("to-group", **numbers))
async def group(stream):
    async for number in stream.group_by(str, name="key"):
        await done.send(key="group", value=number)


@app.agent(app.topic("to-relay", **numbers))
async def relay(stream):
    async for number in stream.through("relayed"):
        await done.send(key="relay", value=number)


@app.agent(app.topic("to-batch", **numbers))
async def batch(stream):
    async for numbers in stream.take(2, within=0.2):
        for number in numbers:
            await done.send(key="batch", value=number)


@app.agent(app.topic("to-batch-of-group", **numbers))
async def batch_of_group(stream):
    async for numbers in stream.group_by(str, name="key").take(2, within=0.2):
        for number in numbers:
            await done.send(key="batch-of-group", value=number)


words = app.topic(
    "to-both", key_type=str, key_serializer="raw", value_type=str, value_serializer="raw"
)


@app.agent(words)
async def as_word(stream):
    async for word in stream:
        await done.send(key="word", value=len(word))


@app.agent(app.topic("to-both", **numbers))
async def as_number(stream):
    async for number in stream:
        await done.send(key="number", value=number)
