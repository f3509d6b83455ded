"""A 1:1 app with a running total per key: the app of faust-streaming #517, with a table."""

import os

import faust

app = faust.App(
    "copier",
    broker="strandline://" + os.environ["FAUST_LOG"],
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=4,
    datadir=os.environ.get("FAUST_DATA", "copier-data"),
    table_standby_replicas=int(os.environ.get("FAUST_STANDBYS", "0")),
)
source = app.topic("source", key_type=str, value_type=int)
copies = app.topic("copies", key_type=str, value_type=dict)
totals = app.Table("totals", default=int)


@app.agent(source)
async def copy(stream):
    async for event in stream.events():
        totals[event.key] += event.value
        place = f"{event.message.partition}/{event.message.offset}"
        await copies.send(key=event.key, value={"from": place, "total": totals[event.key]})
