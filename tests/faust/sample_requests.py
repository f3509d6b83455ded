"""Requests between agents: ask, map, join and kvjoin, also within an agent, and from a view."""

import faust
from sample_settings import BROKER

app = faust.App(
    "requests",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=2,
)
answers = app.topic("answers", key_type=str, value_type=list)
asked = app.Table("asked", default=int)


@app.agent(app.topic("powers", value_type=float))
async def power(stream):
    async for value in stream:
        yield await times.ask(value**2)


@app.agent(app.topic("products", value_type=float))
async def times(stream):
    async for value in stream:
        asked["times"] += 1
        yield value * 100.0


@app.task
async def client():
    await answers.send(key="ask", value=[await power.ask(3.0)])
    await answers.send(key="join", value=await times.join([3.0, 1.0, 2.0]))
    pairs = [("a", 1.0), ("b", 2.0)]
    await answers.send(key="kvjoin", value=await times.kvjoin(pairs))
    mapped = [value async for value in power.map([1.0, 2.0])]
    await answers.send(key="map", value=sorted(mapped))


@app.page("/times/{value}/")
async def view(web, request, value):
    return web.json({"answer": await times.ask(float(value))})
