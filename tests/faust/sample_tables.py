"""Tables that are changed, deleted from, listed, windowed, and written by two agents at a time."""

import asyncio
from datetime import timedelta

import faust
from sample_settings import BROKER, SESSION_S, named

app = faust.App(
    named("tables"),
    broker=BROKER,
    broker_session_timeout=SESSION_S,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=2,
    table_cleanup_interval=0.5,
)
commands = app.topic(named("commands"), key_serializer="json", value_type=str)
additions = app.topic(named("additions"), key_serializer="json", value_type=int)
listed = app.topic(named("listed"), value_type=list)
stock = app.Table("stock", default=int)
recent = app.Table("recent", default=int).tumbling(
    timedelta(seconds=1), expires=timedelta(seconds=2)
)


@app.agent(additions, concurrency=3)
async def add(stream):
    async for event in stream.events():
        before = stock[event.key]
        stock[event.key] = before + event.value
        recent[event.key] += 1
        await asyncio.sleep(0.01)  # other records are handled meanwhile


@app.agent(commands)
async def obey(stream):
    async for event in stream.events():
        if event.value == "delete":
            del stock[event.key]
        elif event.value == "add":
            stock[event.key] += 1000
        found = sorted([key, count] for key, count in stock.items())
        await listed.send(key=event.key, value=[event.key in stock, len(found), found])


@app.page("/stock/{name}/")
@app.table_route(table=stock, match_info="name")
async def get_stock(web, request, name):
    return web.json({name: stock[name]})
