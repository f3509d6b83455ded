"""The features of Faust's documentation in one app: group_by, windows, ask, sinks, timers, views."""

import os
from datetime import timedelta

import faust
from sample_settings import BROKER, SESSION_S, named


class PageView(faust.Record):
    id: str
    user: str


app = faust.App(
    named("features"),
    broker=BROKER,
    broker_session_timeout=SESSION_S,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=2,
    consumer_auto_offset_reset=os.environ.get("FAUST_RESET", "earliest"),
)
page_views_topic = app.topic(named("page_views"), value_type=PageView)
by_user = app.topic(named("by_user_seen"), value_type=int)
said = app.topic(named("said"), key_type=str, value_type=str)
hits = app.Table("hits", default=int).tumbling(timedelta(hours=1), expires=timedelta(days=1))
users = app.Table("users", default=int)


@app.agent(page_views_topic)
async def windowed(views):
    async for view in views.group_by(PageView.id):
        hits[view.id] += 1
        await said.send(key="window", value=f"{view.id} {hits[view.id].now()}")


@app.agent(page_views_topic)
async def per_user(views):
    async for view in views.group_by(PageView.user):
        users[view.user] += 1
        await by_user.send(key=view.user, value=users[view.user])


@app.agent(app.topic(named("numbers"), value_type=int), sink=[said])
async def double(numbers):
    async for number in numbers:
        yield str(number * 2)


@app.agent(app.topic(named("questions"), value_type=int))
async def square(numbers):
    async for number in numbers:
        yield number * number


@app.agent(app.topic(named("batches"), value_type=int))
async def in_batches(numbers):
    async for batch in numbers.take(10, within=1.0):
        await said.send(key="batch", value=str(sum(batch)))


local = app.channel()


@app.agent(local)
async def from_channel(stream):
    async for text in stream:
        await said.send(key="channel", value=text)


@app.task
async def once():
    await said.send(key="task", value="started")
    await local.send(value="over a channel")
    answer = await square.ask(12)
    await said.send(key="ask", value=str(answer))


@app.timer(0.5)
async def ticking():
    await said.send(key="timer", value="tick")


@app.timer(0.5, on_leader=True)
async def leading():
    await said.send(key="leader", value="yes" if app.is_leader() else "no")


@app.crontab("* * * * *")
async def every_minute():
    await said.send(key="crontab", value="minute")


@app.page("/count/{user}/")
@app.table_route(table=users, match_info="user")
async def get_count(web, request, user):
    return web.json({user: users[user]})
