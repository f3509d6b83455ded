"""Tables of several serializers, for readers that know nothing of this app."""

import json
import os
from datetime import timedelta

import faust
import faust.utils.json
from sample_settings import BROKER

if os.environ.get("JSON") == "utf-8":  # as with orjson

    def dumps(value, **_):
        default = faust.utils.json.on_default
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=default)

    faust.utils.json.dumps = dumps


class Order(faust.Record):
    """An order."""

    item: str
    count: int


class Sealed(faust.Record, serializer="pickle"):
    """A value that only Faust can read."""

    count: int


app = faust.App(
    "orders",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=2,
)
value_type = {"json": None, "bytes": bytes, "pickle": Sealed}[os.environ.get("TOTALS", "json")]

incoming = app.topic("incoming", key_type=str, value_type=Order)
outgoing = app.topic("outgoing", key_type=str, value_type=int)
totals = app.Table("totals", value_type=value_type)
latest = app.Table("latest", value_type=Order)
named = app.Table("named", key_type=bytes, value_type=bytes)
unnamed = app.Table("unnamed")
pairs = app.Table("pairs", default=int)
hours = app.Table("hours", default=int).tumbling(timedelta(hours=1))
sealed = app.Table("sealed", value_type=Sealed)


@app.agent(incoming)
async def count(orders):
    async for event in orders.events():
        order = event.value
        if value_type is None:
            totals[event.key] = (totals.get(event.key) or 0) + order.count
            await outgoing.send(key=event.key, value=totals[event.key])
        else:
            totals[event.key] = b"1" if value_type is bytes else Sealed(order.count)
        latest[event.key] = order
        named[event.message.key] = str(order.count).encode()
        unnamed[event.message.key] = order.count
        pairs[event.key, order.item] += order.count
        hours[event.key] += order.count
        sealed[event.key] = Sealed(order.count)
