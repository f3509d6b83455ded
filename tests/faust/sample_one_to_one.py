"""A 1:1 app with a running total per key: the app of faust-streaming #517, with a table."""

import os

import faust
from sample_settings import BROKER, SESSION_S, STORE, named

app = faust.App(
    named("copier"),
    broker=BROKER,
    broker_session_timeout=SESSION_S,
    store=STORE,
    processing_guarantee="exactly_once",
    topic_partitions=4,
    datadir=os.environ.get("FAUST_DATA", "copier-data"),
    table_standby_replicas=int(os.environ.get("FAUST_STANDBYS", "0")),
)
source = app.topic(named("source"), key_type=str, value_type=int)
copies = app.topic(named("copies"), key_type=str, value_type=dict)
totals = app.Table("totals", default=int)


@app.agent(source)
async def copy(stream):
    async for event in stream.events():
        totals[event.key] += event.value
        place = f"{event.message.partition}/{event.message.offset}"
        await copies.send(key=event.key, value={"from": place, "total": totals[event.key]})


if os.environ.get("FAUST_LATER"):  # a worker of a later version, with one more agent

    @app.agent(app.topic(named("later"), key_type=str, value_type=int))
    async def copy_later(stream):
        async for event in stream.events():
            await copies.send(key=event.key, value={"from": f"later/{event.message.offset}"})
