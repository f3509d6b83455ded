"""Operations of Faust's streams: filter, group_by, through, echo, items, enumerate, streams in tasks."""

import faust
from sample_settings import BROKER


class Order(faust.Record):
    account: str
    amount: int


app = faust.App(
    "streams",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=2,
)
orders = app.topic("orders", key_type=str, value_type=Order)
relayed = app.topic("relayed", key_type=str, value_type=Order)
found = app.topic("found", key_type=str, value_type=str)
spent = app.Table("spent", default=int)


async def doubled(order):
    return order.derive(amount=order.amount * 2)


@app.agent(orders)
async def large(stream):
    by_account = stream.filter(lambda order: order.amount > 5).group_by(
        lambda order: order.account, name="account"
    )
    async for account, order in by_account.items():
        spent[account] += order.amount
        await found.send(key="large", value=f"{account} {order.amount}")


@app.agent(orders)
async def relay(stream):
    async for order in stream.through(relayed):
        await found.send(key="through", value=f"{order.account} {order.amount}")


@app.agent(orders)
async def copy(stream):
    async for number, order in stream.echo("echoed").enumerate(1):
        await found.send(key="enumerate", value=f"{number} {order.account}")


@app.agent(orders, isolated_partitions=True)
async def alone(stream):
    async for event in stream.events():
        [only] = stream.active_partitions
        await found.send(key="isolated", value=f"{only == event.message.tp}")


@app.agent(orders)
async def by_hand(stream):
    async for event in stream.noack().events():
        async with event:
            await found.send(key="noack", value=event.value.account)


@app.agent(orders)
async def forwarded(stream):
    async for event in stream.events():
        await event.forward("forwarded")


@app.task
async def watch():
    async for order in app.stream(orders, processors=[doubled]):
        await found.send(key="task", value=f"{order.account} {order.amount}")


@app.service
class Beside(faust.Service):
    """A service that lives as long as the worker."""

    async def on_start(self):
        await found.send(key="service", value="started")
