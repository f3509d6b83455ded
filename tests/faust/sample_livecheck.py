"""LiveCheck: an order goes through two agents, and a second process checks what happens to it."""

import os

import faust
from faust import web
from faust.livecheck import Case, Signal
from sample_settings import BROKER


class Order(faust.Record):
    id: str
    side: str


app = faust.App(
    "shop",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=1,
    origin="sample_livecheck",
    datadir=os.environ.get("FAUST_DATA", "shop-data"),
)
livecheck = app.LiveCheck()
orders = app.topic("orders", value_type=Order)
executions = app.topic("executions", value_type=Order)
executed = app.topic("executed", value_type=str)


@app.page("/order/{order}/{side}/")
class OrderView(web.View):
    """Takes an order, and begins a check of it."""

    async def get(self, request, order, side):
        async with check_order.maybe_trigger(order, side=side) as test:
            await orders.send(key=order, value=Order(id=order, side=side))
            return self.json({"checked": bool(test)})


@app.agent(orders)
async def create_order(stream):
    async for order in stream:
        test = livecheck.current_test
        assert test is not None
        assert test.id == order.id
        await check_order.stored.send(order)
        bad = order.side == "changed"
        changed = order.derive(side="sell") if bad else order
        await executions.send(key=order.id, value=changed)


@app.agent(executions)
async def execute_order(stream):
    async for order in stream:
        await check_order.executed.send(order.side)
        await executed.send(key=order.id, value=order.side)


@livecheck.case(warn_stalled_after=300.0, probability=1.0)
class check_order(Case):  # noqa: N801 - becomes an instance
    """An order is stored, and executed on the side on which it was given."""

    stored: Signal[Order]
    executed: Signal[str]

    async def run(self, side):
        order = await self.stored.wait(timeout=30.0)
        assert order.id == self.current_execution.test.id
        assert await self.executed.wait(timeout=30.0) == side
