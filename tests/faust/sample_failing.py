"""An agent that changes a table, sends, and then raises at each record that says so."""

import os

import faust

app = faust.App(
    "failing",
    broker="strandline://" + os.environ["FAUST_LOG"] + os.environ.get("FAUST_OPTIONS", ""),
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=1,
)
orders = app.topic("orders", value_type=str)
totals = app.Table("totals", default=int)
accepted = app.topic("accepted", value_type=str)


@app.agent(orders)
async def handle(stream):
    async for order in stream:
        totals["orders"] += 1
        await accepted.send(key=order, value=f"{order} {totals['orders']}")
        if order == "bad":
            raise ValueError(order)
