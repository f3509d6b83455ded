"""An agent that changes a table, sends, and then raises at each record that says so."""

import faust
from sample_settings import BROKER, SESSION_S, STORE, named

app = faust.App(
    named("failing"),
    broker=BROKER,
    broker_session_timeout=SESSION_S,
    store=STORE,
    processing_guarantee="exactly_once",
    topic_partitions=1,
)
orders = app.topic(named("orders"), value_type=str)
totals = app.Table("totals", default=int)
accepted = app.topic(named("accepted"), value_type=str)


@app.agent(orders)
async def handle(stream):
    async for order in stream:
        totals["orders"] += 1
        await accepted.send(key=order, value=f"{order} {totals['orders']}")
        if order == "bad":
            raise ValueError(order)
