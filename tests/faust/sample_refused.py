"""An agent that sends, or keeps in a table, what the log refuses, as each record says."""

import faust
from sample_settings import BROKER, SESSION_S, STORE, named

LIMIT = "1000000"
LARGE = "x" * 2_000_000
"""A value over the limit of a topic."""

app = faust.App(
    named("refused"),
    broker=BROKER,
    broker_session_timeout=SESSION_S,
    store=STORE,
    processing_guarantee="exactly_once",
    topic_partitions=1,
)
orders = app.topic(named("orders"), value_type=str)
accepted = app.topic(named("accepted"), value_type=str, config={"max.message.bytes": LIMIT})
compacted = app.topic(named("compacted"), value_type=str, compacting=True)
notes = app.Table(
    "notes", key_type=str, value_type=str, extra_topic_configs={"max.message.bytes": LIMIT}
)
totals = app.Table("totals", default=int)


@app.agent(orders)
async def handle(stream):
    async for order in stream:
        totals["orders"] += 1
        await accepted.send(key=order, value=f"{order} {totals['orders']}")
        if order == "too large":
            await accepted.send(key=order, value=LARGE)
        elif order == "no key":
            await compacted.send(value=order)
        elif order == "before 1970":
            await accepted.send(key=order, value=order, timestamp=-5.0)
        elif order == "table":
            notes[order] = LARGE
